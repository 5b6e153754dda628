//! Payments (I13): the provider is a process of its own, and it misbehaves, while all that takes
//! part in a payment is killed and cut off at each of its steps.

pub mod books;
mod buyers;

use crate::cluster::Cluster;
use crate::faults::{Fault, Stage, Strikes, network, points, postgres, processes};
use crate::instance::{Instance, SERVER};
use crate::planted::How;
use crate::report::TrialReport;
use crate::support::checkers::{Evidence, money::Money};
use crate::support::driver::{Habits, ORDINARY, World, admin};
use crate::support::prelude::*;
use crate::support::stores::{Error, Result, Stores, settle};
use crate::trial::{Plan, create_world};
use buyers::Till;

const KEY: &str = "a key of the provider";
const SERVERS: usize = 2;
const PROVIDER: usize = SERVERS;
/// Buyers at a time for each client of the plan.
const BUYERS: u16 = 6;
/// Time enough to pay, also on a busy machine; and hardly enough.
const SALES: [Habits; 2] = [Habits { seconds_to_pay: 10, ..ORDINARY }, ORDINARY];
/// Reconciliation asks for an attempt every 30 s at least.
const MONEY_AT_REST_WITHIN: Duration = Duration::from_secs(75);

/// Orders that are read like their buyers do, in the end.
const LOOKED_AT: usize = 300;

/// Two instances, and the provider, which are connected by proxies.
pub async fn deploy() -> Result<Cluster> {
    // Where they lead to is known only when there are processes.
    let nowhere = || Address::Tcp((Ipv4Addr::LOCALHOST, 9).into());
    let (api, hooks) = (Proxy::start(nowhere()).await, Proxy::start(nowhere()).await);
    let keys = [("PAYMENT_KEY", KEY), ("PAYMENT_WEBHOOK_SECRET", "a secret of both")];
    let keys = keys.map(|(name, value)| (name, value.to_owned()));
    let url = [("PAYMENT_URL", format!("http://{}", api.address))];
    let settings = keys.iter().cloned().chain(url).collect();
    let mut cluster = Cluster::start(&[SERVER; SERVERS], settings).await?;
    let folder = cluster.folder.0.clone();
    let mut provider = Instance::new(PROVIDER as u8, &["sandbox-pay"], folder, keys.to_vec());
    provider.arguments.extend([
        format!("--listen-addr={}", provider.address),
        format!("--webhook-url=http://{}/api/v1/webhooks/payments", hooks.address),
        format!("--data-file={}", books::FILE),
    ]);
    api.set_target(Address::Tcp(provider.address));
    hooks.set_target(Address::Tcp(cluster.instances[0].address));
    provider.start(&[])?;
    cluster.instances.push(provider);
    cluster.payment_proxies = vec![api, hooks];
    misbehave(&cluster, json!({})).await?;
    Ok(cluster)
}

/// One of everything, in turn. At each, hundreds of payments are at every step.
pub async fn strike(stage: &mut Stage<'_>) -> Result {
    let server = stage.random.index(SERVERS);
    let target = Address::Tcp(stage.world.addresses[stage.random.index(SERVERS)]);
    stage.cluster.payment_proxies[1].set_target(target);
    let turn = stage.strikes.count % 9;
    misbehave(stage.cluster, faults(&mut stage.random, turn == 8)).await?;
    match turn {
        0 => {
            stage.kill(PROVIDER);
            stage.wait(0..800).await;
            stage.start(PROVIDER)?;
        }
        1 => points::exit(stage, server, "pay.charged").await?,
        2 => postgres::kill(stage).await?,
        3 => {
            for _ in 0..20 {
                network::cut(stage).await?;
            }
        }
        4 => points::exit(stage, server, "pay.marked").await?,
        5 => postgres::refuse(stage).await?,
        6 => {
            for _ in 0..10 {
                network::lose_replies(stage).await?;
            }
        }
        7 => processes::kill_everything(stage).await?,
        // The provider is away.
        _ => stage.wait(500..1_500).await,
    }
    // Most of the time is for payments: a strike stops them for a second or two.
    stage.wait(3_000..6_000).await;
    Ok(())
}

fn faults(random: &mut Random, away: bool) -> Value {
    let mut share = |most: f64| (1 + random.below(100)) as f64 / 100.0 * most;
    json!({
        "away": away,
        "decline": 0.1,
        "charge_and_no_answer": share(0.2),
        "answer_late_ms": share(400.0) as u64,
        "webhook_lose": share(0.5),
        "webhook_double": share(0.5),
        "webhook_reorder": share(0.5),
        "webhook_delay_ms": share(3_000.0) as u64,
    })
}

async fn misbehave(cluster: &Cluster, faults: Value) -> Result {
    let (client, url) =
        (client(), format!("http://{}/v1/faults", cluster.instances[PROVIDER].address));
    let is_told = poll::<_, Error>(Duration::from_secs(30), 20, async || {
        let told = ask(&client, "PUT", url.clone()).bearer(KEY).json(faults.clone()).send().await;
        Ok(told.is_ok_and(|reply| reply.status == 200).then_some(()))
    });
    is_told.await?.ok_or("the provider does not answer".into())
}

pub async fn conduct(fault: Fault, plan: Plan, cluster: &mut Cluster) -> Result<TrialReport> {
    let world = Arc::new(create_world(cluster, plan.seed, &SALES, plan.length).await?);
    let till = Arc::new(Till::new(world.clone()));
    misbehave(cluster, faults(&mut Random::of(plan.seed, "provider", 0), false)).await?;
    let mut load: JoinSet<()> = JoinSet::new();
    for number in 0..plan.clients * BUYERS {
        load.spawn(buyers::run(till.clone(), number));
    }
    let mut strikes = Stage::new(cluster, world.clone(), plan).run(fault).await?;
    world.stop.store(true, Relaxed);
    load.join_all().await;
    if plan.planted == How::RefundsAgain {
        books::refund_again(cluster).await?;
    }
    misbehave(cluster, json!({})).await?;
    let evidence = settle_and_read(plan, cluster, &till, &strikes).await?;
    let ledger = &evidence.money.ledger;
    let checked = ledger.iter().filter(|row| row.charge.is_some()).count();
    let count = |state: &str| ledger.iter().filter(|row| row.state == state).count();
    let states = ["captured", "refunded", "failed", "intent"];
    let states = states.map(|state| format!("{} {state}", count(state))).join(", ");
    strikes.notes.push(format!("{checked} payments checked: {states}"));
    // The last that were declined may not be noted yet.
    let is_too_few = (checked as u64) < plan.least_accepted / 21 * 20;
    let void = is_too_few.then(|| format!("only {checked} payments")).or(strikes.missing.take());
    Ok(TrialReport {
        operations: checked,
        accepted: till.paid.load(Relaxed),
        unknown: till.unheard.load(Relaxed),
        shed: till.refused.load(Relaxed),
        void,
        ..TrialReport::of(fault, evidence, strikes).await?
    })
}

async fn settle_and_read(
    plan: Plan,
    cluster: &Cluster,
    till: &Till,
    strikes: &Strikes,
) -> Result<Evidence> {
    let began = Instant::now();
    let mut settled = settle(cluster, plan.terminal_within * plan.slack * 2).await;
    let limit = MONEY_AT_REST_WITHIN * plan.slack;
    let mut money = Money::default();
    let at_rest = poll::<_, Error>(limit, 500, async || {
        money = books::read(cluster).await?;
        settled.still = books::under_way(&money);
        Ok(settled.still.is_empty().then(|| began.elapsed()))
    });
    settled.after = settled.after.and(at_rest.await?);
    let mut late = [strikes.crashes.clone(), locked(&till.strange).clone()].concat();
    late.truncate(10);
    money.told = std::mem::take(&mut *locked(&till.told));
    for (order, told) in money.told.iter_mut().rev().take(LOOKED_AT) {
        told.shows_captured = Some(books::shows_captured(&till.world, *order, told.user).await?);
    }
    for server in cluster.serving() {
        money.books.push(admin(server, "books", None).await?.1);
    }
    let mut audits = Vec::new();
    for sale in &till.world.sales {
        let path = format!("sales/{}/audit", sale.id);
        audits.push(admin(cluster.serving()[0], &path, None).await?.1);
    }
    Ok(Evidence { settled, late, money, audits, ..Evidence::default() })
}
