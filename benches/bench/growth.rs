//! What a purchase costs as buyers, sales and instances grow, and what a buyer leaves in Redis. The
//! cost is CPU time until the order is a row, which is steadier than a rate on a machine that
//! others use too.

use crate::{
    Error, Options,
    cpu::Usage,
    load::Requests,
    process::{self, Process, Workspace},
    section::{Bound, Section, median, spread_text, thousands},
    stage::{Run, Sell, Stage, Target, quiescent_audit},
};
use flash_sale::app::Stores;
use serde_json::{Value, json};
use std::sync::Arc;

/// The runs at one size.
struct Level {
    title: String,
    runs: Vec<Run>,
}

impl Level {
    fn new(title: String) -> Self {
        Self {
            title,
            runs: Vec::new(),
        }
    }

    fn cpu(&self) -> Vec<Usage> {
        self.runs.iter().filter_map(|run| run.cpu).collect()
    }
}

const HEADINGS: [&str; 9] = [
    "",
    "CPU µs a purchase",
    "× the first",
    "app",
    "redis",
    "postgres",
    "purchases/s",
    "batch",
    "p99 ms",
];

/// The table of some levels; the goal is that none costs more than `at_most` times the first.
fn section(name: &'static str, title: &str, levels: &[Level], at_most: f64) -> Section {
    let mut section = Section::new(name, title, &HEADINGS);
    let cost = |level: &Level| median(level.cpu().iter().map(Usage::served));
    let first = levels.first().and_then(cost);
    for level in levels {
        let cpu = level.cpu();
        let ratio = cost(level).zip(first).map(|(cost, first)| cost / first);
        let part = |part: fn(&Usage) -> f64| {
            median(cpu.iter().map(part)).map_or(String::new(), |value| format!("{value:.1}"))
        };
        let of = |value: &dyn Fn(&Run) -> Option<f64>| median(level.runs.iter().filter_map(value));
        section.row([
            level.title.clone(),
            spread_text(cpu.iter().map(Usage::served), 1),
            ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
            part(|cpu| cpu.app),
            part(|cpu| cpu.redis),
            part(|cpu| cpu.postgres),
            of(&|run| Some(run.per_second())).map_or(String::new(), thousands),
            of(&|run| run.batch_size).map_or(String::new(), |size| format!("{size:.0}")),
            of(&|run| Some(run.milliseconds(0.99))).map_or(String::new(), |ms| format!("{ms:.1}")),
        ]);
        if let Some(ratio) = ratio
            && section.rows.len() > 1
        {
            let what = format!("CPU a purchase, {}, × the first", level.title);
            section.goal(what, Bound::AtMost(at_most), ratio);
        }
    }
    section.figures = levels
        .iter()
        .map(|level| {
            json!({
                "level": level.title,
                "cpu_us": level.cpu().iter().map(|cpu| crate::report::cpu_json(Some(*cpu))).collect::<Vec<_>>(),
                "per_second": level.runs.iter().map(Run::per_second).collect::<Vec<_>>(),
                "batch_size": level.runs.iter().map(|run| run.batch_size).collect::<Vec<_>>(),
            })
        })
        .collect::<Value>();
    section
}

// ---- existing buyers --------------------------------------------------------------------------

const BUYERS: [usize; 3] = [1_000, 100_000, 1_000_000];
/// Purchases that are measured at each size.
const MEASURED: usize = 20_000;
/// Sold before anything counts, so that the first size does not pay for cold caches and heaps.
const WARM_UP: usize = 20_000;

pub async fn buyers(options: &Options, workspace: &Workspace) -> Result<Section, Error> {
    let mut stage = Stage::new(options, workspace)?;
    let sizes = BUYERS.map(|size| options.scaled(size).min(size).max(1_000));
    let mut levels: Vec<Level> = sizes
        .iter()
        .map(|size| Level::new(format!("{} buyers", thousands(*size as f64))))
        .collect();
    for round in 0..options.rounds().min(3) {
        // Fresh stores each time: a sale only ever grows.
        let name = format!("buyers-{round}");
        let target = stage.serve(&name, &[("REDIS_FSYNC", "always"), ("LAB", "off")])?;
        stage.sell_some("warming up", &target, WARM_UP).await?;
        let most = sizes.iter().max().copied().unwrap_or(0) + MEASURED * sizes.len();
        let sale = target.client.create_sale("grows", most + 1).await?;
        let mut sold = 0;
        for (level, size) in levels.iter_mut().zip(sizes) {
            while sold < size {
                let some = (size - sold).min(200_000);
                let users = stage.users(some);
                stage.sell_closed("growing", &target, &sale, &users).await?;
                sold += some;
            }
            let users = stage.users(MEASURED);
            let run = stage.sell_closed("buyers", &target, &sale, &users).await?;
            sold += MEASURED;
            eprintln!(
                "round {}, {}: {:.1} µs",
                round + 1,
                level.title,
                served(&run)
            );
            level.runs.push(run);
        }
        stage.check_alive([target].iter_mut());
    }
    let title = "CPU of a purchase, by buyers that the sale already has";
    let mut section = section("buyers", title, &levels, 1.1);
    section.note(format!(
        "One sale that grows; at each size {} purchases are measured. {} others were made before, in another sale.",
        thousands(MEASURED as f64),
        thousands(WARM_UP as f64)
    ));
    section.failures = stage.failures;
    Ok(section)
}

fn served(run: &Run) -> f64 {
    run.cpu.map_or(f64::NAN, |cpu| cpu.served())
}

// ---- sales that sell at once ------------------------------------------------------------------

const SALES: [usize; 3] = [1, 100, 1_000];
const PURCHASES: usize = 50_000;

pub async fn sales(options: &Options, workspace: &Workspace) -> Result<Section, Error> {
    let mut stage = Stage::new(options, workspace)?;
    let target = stage.serve("sales", &[("REDIS_FSYNC", "always"), ("LAB", "off")])?;
    let count = options.scaled(PURCHASES);
    stage.sell_some("warming up", &target, WARM_UP).await?;
    let mut all = Vec::new();
    let mut levels = Vec::new();
    for size in SALES {
        let mut sales = Vec::with_capacity(size);
        for number in 0..size {
            let title = format!("one of {size}: {number}");
            // Enough for every round.
            let stock = count * (options.rounds() + 1) / size + 100;
            sales.push(target.client.create_sale(&title, stock).await?);
        }
        let title = if size == 1 {
            "1 sale".to_owned()
        } else {
            format!("{} sales at once", thousands(size as f64))
        };
        all.push(sales);
        levels.push(Level::new(title));
    }
    for round in 0..=options.rounds() {
        for (level, sales) in levels.iter_mut().zip(&all) {
            let users = stage.users(count);
            let requests = Requests::purchases_of_many(target.address(), sales, &users);
            let run = stage
                .sell(Sell {
                    name: "sales",
                    targets: &[&target],
                    sales,
                    requests: Arc::new(requests),
                    count,
                    connections: usize::from(options.connections),
                    schedule: None,
                    follower: None,
                })
                .await?;
            eprintln!("round {round}, {}: {:.1} µs", level.title, served(&run));
            if round > 0 {
                level.runs.push(run);
            }
        }
    }
    stage.check_alive([target].iter_mut());
    let title = "CPU of a purchase, by sales that sell at once";
    let mut section = section("sales", title, &levels, 1.2);
    section.note(format!(
        "{} purchases a run, from one sale after the other, by {} connections: with many sales few people wait for the \
         same one, and a batch is small.",
        thousands(count as f64),
        options.connections
    ));
    section.failures = stage.failures;
    Ok(section)
}

// ---- instances --------------------------------------------------------------------------------

const INSTANCES: [usize; 2] = [1, 4];

/// More servers on the stores that the server of `name` runs.
fn join(
    stage: &Stage<'_>,
    workspace: &Workspace,
    name: &str,
    count: usize,
) -> Result<Vec<Target>, Error> {
    let file = Process::data_dir(workspace, name).join("servers.json");
    let servers: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let text = |field: &str| servers[field].as_str().unwrap_or_default();
    let database = format!(
        "postgres://{}@localhost:{}/{}?host={}",
        text("user"),
        servers["port"],
        text("database"),
        text("socket_dir")
    );
    let stores = [
        ("DATABASE_URL", database.as_str()),
        ("REDIS_URL", text("redis_url")),
        ("LAB", "off"),
    ];
    (0..count)
        .map(|number| stage.serve(&format!("{name}-{}", number + 2), &stores))
        .collect()
}

pub async fn instances(options: &Options, workspace: &Workspace) -> Result<Section, Error> {
    let mut stage = Stage::new(options, workspace)?;
    let first = stage.serve("instance", &[("REDIS_FSYNC", "always"), ("LAB", "off")])?;
    // Declared after the first, so they end before it, which runs the stores.
    let others = join(&stage, workspace, "instance", INSTANCES[1] - 1)?;
    let all: Vec<&Target> = std::iter::once(&first).chain(&others).collect();
    let count = options.scaled(PURCHASES);
    let mut levels: Vec<Level> = INSTANCES
        .iter()
        .map(|size| {
            Level::new(format!(
                "{size} instance{}",
                if *size == 1 { "" } else { "s" }
            ))
        })
        .collect();
    for round in 0..=options.rounds() {
        for (level, size) in levels.iter_mut().zip(INSTANCES) {
            let sale = first.client.create_sale("shared", count * 2).await?;
            for target in &all {
                target.client.sale_state(&sale).await?; // all know it
            }
            let users = stage.users(count);
            let run = stage
                .sell(Sell {
                    name: "instances",
                    targets: &all[..size],
                    sales: std::slice::from_ref(&sale),
                    requests: stage.purchases(first.address(), &sale, &users),
                    count,
                    connections: usize::from(options.connections),
                    schedule: None,
                    follower: None,
                })
                .await?;
            eprintln!("round {round}, {}: {:.1} µs", level.title, served(&run));
            if round > 0 {
                level.runs.push(run);
            }
        }
    }
    let title = "CPU of a purchase, by instances that share the stores";
    let mut section = section("instances", title, &levels, 1.15);
    section.note(format!(
        "{} purchases a run by {} connections, spread over the instances. All of them run all the time; only those that \
         are asked are counted.",
        thousands(count as f64),
        options.connections
    ));
    section.failures = stage.failures;
    Ok(section)
}

// ---- bytes ------------------------------------------------------------------------------------

const BUYERS_WEIGHED: usize = 100_000;
const MOST_BYTES: f64 = 60.0;

pub async fn bytes(options: &Options, workspace: &Workspace) -> Result<Section, Error> {
    let mut stage = Stage::new(options, workspace)?;
    let target = stage.serve("bytes", &[("REDIS_FSYNC", "everysec"), ("LAB", "off")])?;
    let stores = process::stores(&Process::data_dir(workspace, "bytes"), "").await?;
    let count = options.scaled(BUYERS_WEIGHED).min(BUYERS_WEIGHED);
    let headings = [
        "",
        "buyers",
        "bytes a buyer",
        "keys",
        "entries left in the log",
    ];
    let mut section = Section::new("bytes", "What a buyer leaves in Redis", &headings);
    let mut figures = Vec::new();
    for (title, keys) in [("without an Idempotency-Key", false), ("with one", true)] {
        let sale = target.client.create_sale("weighed", count).await?;
        let users = stage.users(count);
        let requests = Requests::purchases(target.address(), &sale, &users, keys);
        stage
            .sell(Sell {
                name: "bytes",
                targets: &[&target],
                sales: std::slice::from_ref(&sale),
                requests: Arc::new(requests),
                count,
                connections: usize::from(options.connections),
                schedule: None,
                follower: None,
            })
            .await?;
        quiescent_audit(&target, &sale).await?;
        let weight = weigh(&stores, &sale).await?;
        let each = weight.bytes as f64 / count as f64;
        section.row([
            title.to_owned(),
            thousands(count as f64),
            format!("{each:.1}"),
            thousands(weight.keys as f64),
            weight.log_entries.to_string(),
        ]);
        if weight.log_entries > 0 {
            let what = format!(
                "{} log entries are left although all is written",
                weight.log_entries
            );
            stage.fail("bytes", &what);
        }
        if !keys {
            section.goal(
                "Redis bytes a buyer, without a key",
                Bound::AtMost(MOST_BYTES),
                each,
            );
            let left = weight.log_entries as f64;
            section.goal("log entries left", Bound::AtMost(0.0), left);
        }
        figures.push(json!({
            "idempotency_key": keys,
            "buyers": count,
            "bytes": weight.bytes,
            "bytes_a_buyer": each,
            "keys": weight.keys,
            "log_entries": weight.log_entries,
        }));
    }
    stores.close().await;
    section.note("The sum of MEMORY USAGE (SAMPLES 0) over all keys of the sale, its state and the empty log included.");
    stage.check_alive([target].iter_mut());
    section.failures = stage.failures;
    section.figures = json!(figures);
    Ok(section)
}

struct Weight {
    bytes: u64,
    keys: usize,
    log_entries: u64,
}

async fn weigh(stores: &Stores, sale: &str) -> Result<Weight, Error> {
    let mut connection = stores.redis.pooled().await?;
    let mut keys: Vec<String> = Vec::new();
    let mut cursor = 0_u64;
    loop {
        let (next, some): (u64, Vec<String>) = redis::cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg(format!("{{sale:{sale}}}*"))
            .arg("COUNT")
            .arg(1_000)
            .query_async(&mut connection)
            .await?;
        keys.extend(some);
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    // A scan may name a key twice.
    keys.sort_unstable();
    keys.dedup();
    let mut bytes = 0;
    for some in keys.chunks(1_000) {
        let mut pipeline = redis::Pipeline::new();
        for key in some {
            pipeline
                .cmd("MEMORY")
                .arg("USAGE")
                .arg(key)
                .arg("SAMPLES")
                .arg(0);
        }
        let weights: Vec<u64> = pipeline.query_async(&mut connection).await?;
        bytes += weights.iter().sum::<u64>();
    }
    let log_entries = redis::cmd("XLEN")
        .arg(format!("{{sale:{sale}}}:log"))
        .query_async(&mut connection)
        .await?;
    Ok(Weight {
        bytes,
        keys: keys.len(),
        log_entries,
    })
}
