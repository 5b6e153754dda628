//! One trial: load, a fault again and again, healing, rest, the last units, and the verdict.

use crate::faults::{Fault, Stage, Strikes};
use crate::report::TrialReport;
use crate::support::checkers::Evidence;
use crate::support::driver::shopper::{Shopper, operate};
use crate::support::driver::{Habits, ORDINARY, Sale, World, admin};
use crate::support::history::{Answer, History, Kind, Micros, Operation};
use crate::support::prelude::*;
use crate::support::stores::{Error, Result, settle_and_read, take_snapshots};
use crate::{cluster::Cluster, instance::Instance, payments, planted::How};

#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub length: Duration,
    pub clients: u16,
    pub terminal_within: Duration,
    /// How many times as long everything may take: the short form runs on anybody's machine.
    pub slack: u32,
    /// Strikes go on until so many purchases were accepted: a slow machine takes longer.
    pub least_accepted: u64,
    pub planted: How,
}

/// After healing an instance sells again, after its start a process answers.
pub const SERVES_WITHIN: Duration = Duration::from_secs(15);
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

/// The logs of one that failed are kept in `keep_in`.
pub async fn run(fault: Fault, plan: Plan, keep_in: Option<&Path>) -> Result<TrialReport> {
    let mut cluster = match fault {
        Fault::Payments => payments::deploy().await?,
        _ => Cluster::start(fault.roles(), fault.settings()).await?,
    };
    let judged = conduct(fault, plan, &mut cluster).await;
    let report = judged.map_err(|error| {
        let end = |one: &Instance| format!("\ninstance {}:\n{}", one.number, tail(&one.log(), 20));
        format!("{error}{}", cluster.instances.iter().map(end).collect::<String>())
    })?;
    if let Some(folder) = keep_in.filter(|_| !report.passed()) {
        keep_logs(&cluster, &folder.join(fault.name()))?;
    }
    Ok(report)
}

pub async fn conduct(fault: Fault, plan: Plan, cluster: &mut Cluster) -> Result<TrialReport> {
    let is_of_payments = !cluster.payment_proxies.is_empty();
    if is_of_payments {
        return payments::conduct(fault, plan, cluster).await;
    }
    let mut world = create_world(cluster, plan.seed, &sales_of(plan), plan.length).await?;
    world.swaps_tokens = plan.planted == How::SwappedTokens;
    let world = Arc::new(world);
    let snapshots = tokio::spawn(take_snapshots(world.clone(), cluster.primary.clone()));
    let mut load: JoinSet<()> = JoinSet::new();
    for number in 0..plan.clients {
        load.spawn(Shopper::new(&world, number, None).run(None));
    }
    load.spawn(operate(world.clone()));
    tokio::time::sleep(plan.length.mul_f64(0.1).min(Duration::from_secs(1))).await;
    let strikes = Stage::new(cluster, world.clone(), plan).run(fault).await?;
    let healed_at = Instant::now();
    let silent = silent_ones(cluster, &world, SERVES_WITHIN * plan.slack).await?;
    world.stop.store(true, Relaxed);
    load.join_all().await;
    let stopped_after = healed_at.elapsed();
    let limit = plan.terminal_within * plan.slack;
    let mut evidence = settle_and_read(cluster, &world, snapshots, limit).await?;
    evidence.late.extend(strikes.crashes.iter().cloned().chain(silent));
    evidence.late_effects = fault.late_effects();
    evidence.redis_lost_data = fault.loses_redis_data();
    evidence.may_lose_accepted = fault.may_lose_accepted();
    let void = void(plan, &evidence, &strikes);
    let recoveries_ms = recoveries(&evidence.history, &strikes.healed);
    let report = TrialReport::of(fault, evidence, strikes).await?;
    let to_rest = report.to_rest.map(|after| stopped_after + after);
    Ok(TrialReport { recoveries_ms, to_rest, void, ..report })
}

/// In a short run fewer units, so that the scarce run out and an audit is quick.
fn sales_of(plan: Plan) -> [Habits; 5] {
    if plan.length >= Duration::from_secs(10) {
        return SALES;
    }
    SALES.map(|habits| {
        let part = if habits.is_sold_off { 10 } else { 40 };
        Habits { stock: habits.stock / part, ..habits }
    })
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
            let at = |part| (OffsetDateTime::now_utc() + length.mul_f64(part)).format(&Rfc3339);
            (body["opens_at"], body["closes_at"]) = (at(opens)?.into(), at(closes)?.into());
        }
        let sale = create_sale(first, body).await?;
        let id = sale["id"].as_str().unwrap_or_default().parse()?;
        sales.push(Sale { id, habits: *habits });
    }
    Ok(World::new(seed, addresses, sales))
}

/// As an operator would: again while the shop says 503, for at most a minute.
async fn create_sale(at: SocketAddr, body: Value) -> Result<Value> {
    let mut answer = (0, Value::Null);
    poll::<_, Error>(Duration::from_secs(60), 1_000, async || {
        answer = admin(at, "sales", Some(body.clone())).await?;
        Ok((answer.0 != 503).then_some(()))
    })
    .await?;
    match answer {
        (201, sale) => Ok(sale),
        (status, sale) => Err(format!("cannot create a sale: {status} {sale}").into()),
    }
}

/// The instances that have sold nothing since, when the time is over.
async fn silent_ones(
    cluster: &mut Cluster,
    world: &World,
    limit: Duration,
) -> Result<Option<String>> {
    let counts = || world.accepted.iter().map(|count| count.load(Relaxed));
    let before: Vec<u64> = counts().collect();
    let mut silent: Vec<usize> = Vec::new();
    let all_sell = poll::<_, Error>(limit, 10, async || {
        cluster.instances.iter_mut().try_for_each(|instance| instance.start(&[]))?;
        let sold = counts().zip(&before).map(|(now, before)| now > *before);
        silent = sold.enumerate().filter(|(_, sold)| !sold).map(|(number, _)| number).collect();
        Ok(silent.is_empty().then_some(()))
    });
    let is_silent = all_sell.await?.is_none();
    let what = || format!("{limit:?} after healing instances {silent:?} sold nothing");
    Ok(is_silent.then(what))
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
    fs::create_dir_all(folder)?;
    for log in cluster.instances.iter().map(|instance| instance.log()) {
        fs::copy(&log, folder.join(log.file_name().unwrap_or_default()))
            .map_err(|error| format!("cannot keep {}: {error}", log.display()))?;
    }
    Ok(())
}
