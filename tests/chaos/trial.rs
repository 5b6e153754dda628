//! One trial: a deployment under load, a fault again and again, healing, all at rest, sold off, at
//! rest again, and the verdict.

use crate::{
    Error,
    cluster::Cluster,
    faults::{Fault, Stage},
    look,
    operator::Operator,
    report::{TrialReport, Verdict},
    shoppers::{Client, Shopper},
    support::{
        checkers::{self, Checker, Evidence, Settled, Violation},
        history::{Answer, History, Kind, Micros, NO_KEY, NO_ORDER, Operation},
        random::Random,
    },
    world::{Habits, SALES, World},
};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// How a trial is run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub length: Duration,
    pub clients: u16,
    /// Within this time after the last purchase everything is terminal.
    pub terminal_within: Duration,
    /// Strikes also go on until so many purchases were accepted: on a slow machine a short time may
    /// be too little.
    pub least_accepted: u64,
    /// A planted bug; see `planted.rs`.
    pub swaps_tokens: bool,
}

/// Within this time after healing every instance sells again.
const SERVES_WITHIN: Duration = Duration::from_secs(15);
/// The last units are sold in this time; it takes a fraction of a second.
const SOLD_OFF_WITHIN: Duration = Duration::from_secs(30);
/// Traffic below this proves nothing: operations and accepted purchases for each second.
const LEAST_OPERATIONS: usize = 50;
const LEAST_ACCEPTED: usize = 5;

/// A moment at which something was made to work again; `instance` if it concerns only that one.
#[derive(Debug, Clone, Copy)]
pub struct Healed {
    pub at: Micros,
    pub instance: Option<u8>,
}

/// What came of a trial.
pub struct Judged {
    pub report: TrialReport,
    pub violations: Vec<Violation>,
}

/// Runs one fault. An error means that the trial itself could not be done.
pub async fn run(fault: Fault, plan: Plan) -> Result<TrialReport, Error> {
    let began = Instant::now();
    let seed = Random::of(plan.seed, fault.name(), 0).next();
    let mut cluster = Cluster::start(fault.shape(), fault.settings()).await?;
    crate::progress(fault.name(), "deployed");
    let outcome = conduct(fault, plan, seed, &mut cluster).await;
    let mut report = match outcome {
        Ok(judged) => judged.report,
        Err(error) => {
            let logs: Vec<String> = (cluster.instances.iter())
                .map(|one| {
                    format!(
                        "instance {}:\n{}",
                        one.number,
                        crate::cluster::tail(&one.log())
                    )
                })
                .collect();
            return Err(format!("{error}\n{}", logs.join("\n")).into());
        }
    };
    if let Some(folder) = crate::keep_logs_in()
        && report.verdict != Verdict::Passed
    {
        keep_logs(&cluster, &folder.join(fault.name()))?;
    }
    drop(cluster);
    report.took = began.elapsed();
    Ok(report)
}

/// The trial itself, on a deployment that is there.
pub async fn conduct(
    fault: Fault,
    plan: Plan,
    seed: u64,
    cluster: &mut Cluster,
) -> Result<Judged, Error> {
    let phase = |what: &str| crate::progress(fault.name(), what);
    phase("starting the load");
    let mut world = World::create(cluster, seed, &sales_of(plan), plan.length).await?;
    world.swaps_tokens = plan.swaps_tokens;
    let world = Arc::new(world);
    let mut load: JoinSet<Vec<Operation>> = JoinSet::new();
    for number in 0..plan.clients {
        load.spawn(Client::new(&world, number).run());
    }
    load.spawn(Operator::new(&world).run());
    let snapshots = tokio::spawn(look::take_snapshots(world.clone(), cluster.primary.clone()));

    phase("striking");
    // A fault in a running sale, not in one that begins.
    tokio::time::sleep(plan.length.mul_f64(0.1).min(Duration::from_secs(1))).await;
    let mut stage = Stage::new(cluster, world.clone(), plan);
    stage.run(fault).await?;
    let (strikes, mut operations) = stage.finish().await?;
    let healed_at = Instant::now();
    phase("healed");
    let serves = until_all_sell(cluster, &world).await?;
    phase("every instance sells; stopping the load");
    world.stop.store(true, Relaxed);
    while let Some(client) = load.join_next().await {
        operations.append(&mut client?);
    }
    phase("the load has stopped");
    let snapshots = snapshots.await?;

    let mut settled = look::settle(cluster, plan.terminal_within).await;
    let at_rest_after = healed_at.elapsed();
    let mut sold_off = None;
    if settled.after.is_some() {
        phase("at rest; selling the rest");
        let (mut more, heard) = sell_off(&world).await?;
        operations.append(&mut more);
        sold_off = Some(heard);
        settled = look::settle(cluster, plan.terminal_within).await;
    }

    phase("looking at what there is");
    let (sales, rows, outbox) =
        look::dump_postgres(cluster, &world, sold_off == Some(true)).await?;
    let evidence = Evidence {
        history: History {
            seed,
            began_at: world.began_at,
            operations,
        },
        sales,
        rows,
        redis: look::dump_redis(cluster, &world).await?,
        snapshots,
        audits: look::audits(cluster).await?,
        settled: settled.clone(),
        outbox,
        late_effects: fault.late_effects(),
        redis_lost_data: fault.loses_redis_data(),
        may_lose_accepted: fault.may_lose_accepted(),
        may_panic: fault == Fault::FailPoints,
    };
    phase("judging");
    // Judging millions of operations takes seconds of a processor.
    let (evidence, mut violations) = tokio::task::spawn_blocking(move || {
        let violations = checkers::check(&evidence);
        (evidence, violations)
    })
    .await?;
    let mut say = |evidence: String| {
        violations.push(Violation {
            checker: Checker::TerminalInTime,
            evidence,
        });
    };
    if !serves.is_empty() {
        say(format!(
            "{SERVES_WITHIN:?} after healing instances {serves:?} sold nothing"
        ));
    }
    if sold_off == Some(false) {
        say("after healing, buyers found neither a unit nor \"sold out\"".to_owned());
    }
    for crash in &strikes.crashes {
        say(crash.clone());
    }
    let recoveries = recoveries(&evidence.history, &strikes.healed);
    let mut report = TrialReport::of(fault, &evidence, &violations, &strikes);
    report.recoveries_ms = recoveries;
    report.at_rest_after = Some(at_rest_after);
    report.void = void(plan, &evidence, &strikes);
    report.conclude();
    Ok(Judged { report, violations })
}

/// The ordinary sales. In a short run fewer units are scarce, so that they run out, and fewer are
/// plenty, which an audit has to go through.
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

/// Waits until every serving instance has accepted a purchase since now; those that did not.
async fn until_all_sell(cluster: &mut Cluster, world: &World) -> Result<Vec<usize>, Error> {
    let before: Vec<u64> = world
        .accepted
        .iter()
        .map(|count| count.load(Relaxed))
        .collect();
    let deadline = Instant::now() + SERVES_WITHIN;
    loop {
        let silent: Vec<usize> = (world.accepted.iter().zip(&before).enumerate())
            .filter(|(_, (now, before))| now.load(Relaxed) <= **before)
            .map(|(instance, _)| instance)
            .collect();
        if silent.is_empty() || Instant::now() > deadline {
            return Ok(silent);
        }
        // What ended because a store was away when it started is started again.
        for instance in &mut cluster.instances {
            instance.start(&[])?;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Buys and pays what is left of the sales that are to be sold to the last unit. Whether all of them
/// ended with "sold out".
async fn sell_off(world: &Arc<World>) -> Result<(Vec<Operation>, bool), Error> {
    let mut buyers: JoinSet<(Vec<Operation>, bool)> = JoinSet::new();
    for (sale, index) in world.sales.iter().zip(0u8..) {
        if !sale.habits.is_sold_off {
            continue;
        }
        for number in 0..8 {
            let client = Client::new(world, 10_000 + u16::from(index) * 100 + number);
            buyers.spawn(buy_until_sold_out(world.clone(), client, index));
        }
    }
    let (mut operations, mut all_heard) = (Vec::new(), true);
    while let Some(buyer) = buyers.join_next().await {
        let (mut noted, heard) = buyer?;
        operations.append(&mut noted);
        all_heard &= heard;
    }
    Ok((operations, all_heard))
}

async fn buy_until_sold_out(
    world: Arc<World>,
    mut client: Client,
    sale: u8,
) -> (Vec<Operation>, bool) {
    let deadline = Instant::now() + SOLD_OFF_WITHIN;
    let mut sold_out = false;
    let mut turn = 0;
    while !sold_out && Instant::now() < deadline {
        let user = world.new_user();
        let shopper = Shopper {
            user,
            sale,
            key: NO_KEY,
            token: world.token(user),
        };
        turn += 1;
        let instance = turn % world.addresses.len();
        let (answer, order) = client.ask(&shopper, Kind::Buy, NO_ORDER, instance).await;
        match answer {
            Answer::SoldOut => sold_out = true,
            Answer::Accepted => {
                while Instant::now() < deadline {
                    let (paid, _) = client.ask(&shopper, Kind::Pay, order, instance).await;
                    if matches!(paid, Answer::Order(_)) {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    (client.operations, sold_out)
}

/// From each healing to the first purchase that began after it and was accepted, in milliseconds.
fn recoveries(history: &History, healed: &[Healed]) -> Vec<f64> {
    let mut accepted: Vec<&Operation> = history
        .of_kind(Kind::Buy)
        .filter(|one| one.answer == Answer::Accepted)
        .collect();
    accepted.sort_by_key(|one| one.completed);
    let first_after = |healed: &Healed| {
        let start = accepted.partition_point(|one| one.completed < healed.at);
        let first = accepted[start..].iter().find(|one| {
            one.invoked >= healed.at
                && healed
                    .instance
                    .is_none_or(|instance| instance == one.instance)
        });
        first.map(|one| (one.completed - healed.at) as f64 / 1e3)
    };
    healed.iter().filter_map(first_after).collect()
}

/// Why this trial proves nothing, if so.
fn void(plan: Plan, evidence: &Evidence, strikes: &crate::faults::Strikes) -> Option<String> {
    let seconds = plan.length.as_secs().max(1) as usize;
    let operations = evidence
        .history
        .count(|one| one.answer != Answer::NeverSent);
    let accepted = evidence.history.count(|one| one.answer == Answer::Accepted);
    if operations < LEAST_OPERATIONS * seconds {
        return Some(format!("only {operations} operations"));
    }
    if accepted < LEAST_ACCEPTED * seconds {
        return Some(format!("only {accepted} purchases were accepted"));
    }
    if evidence.snapshots.is_empty() {
        return Some("no snapshot was taken".to_owned());
    }
    if strikes.count == 0 {
        return Some("the fault never happened".to_owned());
    }
    strikes.missing.clone()
}

fn keep_logs(cluster: &Cluster, folder: &std::path::Path) -> Result<(), Error> {
    std::fs::create_dir_all(folder)?;
    for instance in &cluster.instances {
        let log = instance.log();
        if let Some(name) = log.file_name() {
            std::fs::copy(&log, folder.join(name))
                .map_err(|error| format!("cannot keep {}: {error}", log.display()))?;
        }
    }
    Ok(())
}

/// For the report: what was settled, in words.
pub fn tell(settled: &Settled) -> String {
    match settled.after {
        Some(after) => format!("{:.1} s", after.as_secs_f64()),
        None => format!("not within {:?}: {}", settled.limit, settled.still),
    }
}
