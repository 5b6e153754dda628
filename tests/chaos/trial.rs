//! One trial: load, a fault again and again, healing, rest, the last units, and the verdict.

use crate::faults::{Fault, Stage, Strikes};
use crate::report::{TrialReport, Verdict};
use crate::support::checkers::{self, Evidence, Violation};
use crate::support::driver::shopper::{Operator, Shopper};
use crate::support::driver::{Habits, ORDINARY, Sale, World, admin};
use crate::support::history::{Answer, History, Kind, Micros, Operation};
use crate::support::prelude::*;
use crate::support::stores::{Result, conclude, take_snapshots};
use crate::{cluster::Cluster, instance::Instance, payments};

#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub length: Duration,
    pub clients: u16,
    pub terminal_within: Duration,
    /// How many times as long everything may take: the short form runs on anybody's machine.
    pub patience: u32,
    /// Strikes go on until so many purchases were accepted: a slow machine takes longer.
    pub least_accepted: u64,
    /// A planted bug; see `planted.rs`.
    pub swaps_tokens: bool,
    /// Another.
    pub refunds_again: bool,
}

const SERVES_WITHIN: Duration = Duration::from_secs(15);
/// Traffic below this proves nothing: operations and accepted purchases for each second.
const LEAST_OPERATIONS: usize = 50;
const LEAST_ACCEPTED: usize = 5;

const SCARCE: Habits =
    Habits { name: "scarce", stock: 300, pay: 0.04, cancel: 0.5, is_sold_off: true, ..ORDINARY };

const SALES: [Habits; 5] = [
    ORDINARY,
    Habits { popularity: 30, stock_changes: true, ..SCARCE },
    Habits { name: "paused", popularity: 10, is_paused_often: true, ..ORDINARY },
    Habits { name: "two each", per_user_limit: 2, popularity: 10, ..SCARCE },
    Habits { name: "window", popularity: 10, window: Some((0.3, 0.7)), ..ORDINARY },
];

/// A moment at which something was made to work again; `instance` if it concerns only that one.
#[derive(Debug, Clone, Copy)]
pub struct Healed {
    pub at: Micros,
    pub instance: Option<u8>,
}

pub async fn run(fault: Fault, plan: Plan) -> Result<TrialReport> {
    let began = Instant::now();
    let seed = Random::of(plan.seed, fault.name(), 0).next();
    let (mut cluster, judged);
    if fault == Fault::Payments {
        cluster = payments::deploy().await?;
        judged = payments::conduct(fault, plan, seed, &mut cluster).await;
    } else {
        cluster = Cluster::start(fault.roles(), fault.settings()).await?;
        judged = conduct(fault, plan, seed, &mut cluster).await;
    }
    let mut report = match judged {
        Ok((report, _)) => report,
        Err(error) => {
            let end = |one: &Instance| tail(&one.log(), 20);
            let logs = cluster.instances.iter();
            let logs = logs.map(|one| format!("\ninstance {}:\n{}", one.number, end(one)));
            return Err(format!("{error}{}", logs.collect::<String>()).into());
        }
    };
    if let Some(folder) = crate::KEEP_LOGS_IN.get()
        && report.verdict != Verdict::Passed
    {
        keep_logs(&cluster, &folder.join(fault.name()))?;
    }
    drop(cluster);
    report.took = began.elapsed();
    Ok(report)
}

pub async fn conduct(
    fault: Fault,
    plan: Plan,
    seed: u64,
    cluster: &mut Cluster,
) -> Result<(TrialReport, Vec<Violation>)> {
    let mut world = create_world(cluster, seed, &sales_of(plan), plan.length).await?;
    world.swaps_tokens = plan.swaps_tokens;
    let world = Arc::new(world);
    let snapshots = tokio::spawn(take_snapshots(world.clone(), cluster.primary.clone()));
    let mut load: JoinSet<()> = JoinSet::new();
    for number in 0..plan.clients {
        load.spawn(Shopper::new(&world, number, None).run(None));
    }
    load.spawn(Operator::new(&world).run());
    tokio::time::sleep(plan.length.mul_f64(0.1).min(Duration::from_secs(1))).await;
    let mut stage = Stage::new(cluster, world.clone(), plan);
    stage.run(fault).await?;
    let strikes = stage.finish().await?;
    let healed_at = Instant::now();
    let serves_within = SERVES_WITHIN * plan.patience;
    let silent = silent_ones(cluster, &world, serves_within).await?;
    world.stop.store(true, Relaxed);
    load.join_all().await;
    let stopped_after = healed_at.elapsed();
    let limit = plan.terminal_within * plan.patience;
    let mut evidence = conclude(cluster, &world, snapshots, limit).await?;
    evidence.late.extend(strikes.crashes.iter().cloned());
    if !silent.is_empty() {
        let what = format!("{serves_within:?} after healing instances {silent:?} sold nothing");
        evidence.late.push(what);
    }
    evidence.late_effects = fault.late_effects();
    evidence.redis_lost_data = fault.loses_redis_data();
    evidence.may_lose_accepted = fault.may_lose_accepted();
    let judging = tokio::task::spawn_blocking(move || (checkers::check(&evidence), evidence));
    let (violations, evidence) = judging.await?;
    let mut report = TrialReport::of(fault, &evidence, &violations, &strikes);
    report.recoveries_ms = recoveries(&evidence.history, &strikes.healed);
    let at_rest = evidence.settled.after.map(|after| stopped_after + after);
    report.seconds_to_rest = at_rest.map(|after| after.as_secs_f64());
    report.void = void(plan, &evidence, &strikes);
    report.judge(&violations);
    Ok((report, violations))
}

/// In a short run fewer units, so that the scarce run out and an audit is quick.
fn sales_of(plan: Plan) -> Vec<Habits> {
    let is_short = plan.length < Duration::from_secs(10);
    let scale = |habits: Habits| Habits {
        stock: match (is_short, habits.is_sold_off) {
            (true, true) => habits.stock / 10,
            (true, false) => habits.stock / 40,
            (false, _) => habits.stock,
        },
        ..habits
    };
    SALES.into_iter().map(scale).collect()
}

pub async fn create_world(
    cluster: &Cluster,
    seed: u64,
    all: &[Habits],
    length: Duration,
) -> Result<World> {
    let addresses = cluster.serving();
    let first = *addresses.first().ok_or("no instance serves")?;
    let mut sales = Vec::new();
    for habits in all {
        let mut body = json!({
            "title": habits.name,
            "price_cents": 100,
            "stock": habits.stock,
            "per_user_limit": habits.per_user_limit,
            "payment_timeout_secs": habits.seconds_to_pay,
        });
        if let Some((opens, closes)) = habits.window {
            for (member, part) in [("opens_at", opens), ("closes_at", closes)] {
                let at = OffsetDateTime::now_utc() + length.mul_f64(part);
                body[member] = at.format(&Rfc3339)?.into();
            }
        }
        let sale = create_sale(first, body).await?;
        let (id, habits) = (sale["id"].as_str().unwrap_or_default().parse()?, *habits);
        sales.push(Sale { id, habits });
    }
    Ok(World::new(seed, addresses, sales))
}

/// As an operator would: again while the shop says 503, for at most a minute.
async fn create_sale(at: SocketAddr, body: Value) -> Result<Value> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match admin(at, "", Some(body.clone())).await? {
            (201, sale) => return Ok(sale),
            (503, _) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            (status, sale) => return Err(format!("cannot create a sale: {status} {sale}").into()),
        }
    }
}

async fn silent_ones(cluster: &mut Cluster, world: &World, limit: Duration) -> Result<Vec<usize>> {
    let counts = || world.accepted.iter().map(|count| count.load(Relaxed));
    let before: Vec<u64> = counts().collect();
    let deadline = Instant::now() + limit;
    loop {
        let silent = counts().zip(&before).enumerate().filter(|(_, (now, before))| now <= before);
        let silent: Vec<usize> = silent.map(|(instance, _)| instance).collect();
        if silent.is_empty() || Instant::now() > deadline {
            return Ok(silent);
        }
        for instance in &mut cluster.instances {
            instance.start(&[])?;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn recoveries(history: &History, healed: &[Healed]) -> Vec<f64> {
    let accepted = history.of_kind(Kind::Buy).filter(|one| one.answer == Answer::Accepted);
    let mut accepted: Vec<&Operation> = accepted.collect();
    accepted.sort_by_key(|one| one.completed);
    let first_after = |healed: &Healed| {
        let start = accepted.partition_point(|one| one.completed < healed.at);
        let concerns = |one: &Operation| healed.instance.is_none_or(|here| here == one.instance);
        let is_after = |one: &&&Operation| one.invoked >= healed.at && concerns(one);
        let first = accepted[start..].iter().find(is_after)?;
        Some((first.completed - healed.at) as f64 / 1e3)
    };
    healed.iter().filter_map(first_after).collect()
}

fn void(plan: Plan, evidence: &Evidence, strikes: &Strikes) -> Option<String> {
    let seconds = plan.length.as_secs().max(1) as usize;
    let history = &evidence.history;
    let operations = history.count(|one| one.answer != Answer::NeverSent);
    let accepted = history.count(|one| one.answer == Answer::Accepted);
    let reasons = [
        (operations < LEAST_OPERATIONS * seconds, format!("only {operations} operations")),
        (accepted < LEAST_ACCEPTED * seconds, format!("only {accepted} purchases were accepted")),
        (evidence.snapshots.is_empty(), "no snapshot was taken".to_owned()),
        (strikes.count == 0, "the fault never happened".to_owned()),
    ];
    let reason = reasons.into_iter().find_map(|(is_void, why)| is_void.then_some(why));
    reason.or(strikes.missing.clone())
}

fn keep_logs(cluster: &Cluster, folder: &Path) -> Result {
    std::fs::create_dir_all(folder)?;
    for log in cluster.instances.iter().map(|instance| instance.log()) {
        std::fs::copy(&log, folder.join(log.file_name().unwrap_or_default()))
            .map_err(|error| format!("cannot keep {}: {error}", log.display()))?;
    }
    Ok(())
}
