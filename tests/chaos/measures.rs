//! Times that the project promises, each measured several times without faults; the median counts.

use crate::report::{median, say};
use crate::support::driver::client::{Buyer, Client};
use crate::support::driver::{Habits, ORDINARY, World};
use crate::support::history::{Answer, Kind, NO_ORDER};
use crate::support::prelude::*;
use crate::support::stores::{Error, Result, Stores, settle};
use crate::{cluster::Cluster, instance::SERVER, trial::create_world};
use futures_util::FutureExt;

const REPEATS: usize = 5;
const TWO_MINUTES: Duration = Duration::from_secs(120);

pub async fn run(seed: u64) -> bool {
    let all = [
        ("redis restart", restart_of_redis(seed).boxed_local()),
        ("postgres outage", outage_of_postgres(seed).boxed_local()),
        ("rebuild", rebuild_of_a_catalogue(seed).boxed_local()),
    ];
    let mut all_held = true;
    for (what, measuring) in all {
        all_held &= measuring.await.unwrap_or_else(|error| {
            say_measure(what, &format!("failed (seed {seed}): {error}"), "", false)
        });
    }
    all_held
}

fn say_measure(what: &str, measured: &str, target: &str, held: bool) -> bool {
    let verdict = if held { "held" } else { "MISSED" };
    say(&format!("{what:<84}{measured:>10}  target {target:<12}{verdict}"));
    held
}

fn say_time(what: &str, seconds: &[f64], most: Option<f64>) -> bool {
    let middle = median(seconds).unwrap_or(f64::INFINITY);
    let target = most.map_or("stated only".to_owned(), |most| format!("<= {most} s"));
    let what = format!("{what}, median of {}", seconds.len());
    let held = most.is_none_or(|most| middle <= most);
    say_measure(&what, &format!("{middle:.2} s"), &target, held)
}

async fn until_bought(world: &Arc<World>, since: Instant) -> Result<f64> {
    let client = Client::new(world, 0);
    let bought = poll(TWO_MINUTES, 5, async || {
        let (answer, _) = client.ask(&Buyer::new(world, 0), Kind::Buy, NO_ORDER, 0).await;
        Ok::<_, Error>((answer == Answer::Accepted).then(|| since.elapsed().as_secs_f64()))
    });
    bought.await?.ok_or("nothing could be bought within two minutes".into())
}

async fn deploy(seed: u64, stock: i64) -> Result<(Cluster, Arc<World>)> {
    let cluster = Cluster::start(&[SERVER], Vec::new()).await?;
    let habits = [Habits { stock, ..ORDINARY }];
    let mut world = create_world(&cluster, seed, &habits, Duration::from_secs(3_600)).await?;
    world.timeout = Duration::from_secs(10);
    Ok((cluster, Arc::new(world)))
}

async fn insert_buyers(cluster: &Cluster, [first, last]: [i64; 2], each: i64) -> Result {
    // Ids of long ago collide with none. One count for all sales: a thousand would take long.
    let statements = format!(
        "INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, created_at, pay_by,
                             paid_at)
         SELECT sale.id * 10000000 + buyer, sale.id, gen_random_uuid(), 0, 'paid', 100, now(),
                now(), now()
         FROM sales AS sale, generate_series(1, {each}) AS buyer
         WHERE sale.id BETWEEN {first} AND {last};
         INSERT INTO payments (order_id, amount_cents, reference)
         SELECT id, 100, 'made up' FROM orders
         WHERE sale_id BETWEEN {first} AND {last} AND status = 'paid' ON CONFLICT DO NOTHING;
         UPDATE sales SET taken = counted.live FROM (
             SELECT sale_id, count(*) AS live FROM orders
             WHERE status IN ('paid', 'pending_payment') GROUP BY sale_id
         ) AS counted
         WHERE sales.id = counted.sale_id AND sales.id BETWEEN {first} AND {last};
         ANALYZE orders;"
    );
    cluster.postgres().await?.execute(AssertSqlSafe(statements)).await?;
    Ok(())
}

async fn restart_redis(cluster: &mut Cluster, with_data: bool) -> Result<Instant> {
    let since = Instant::now();
    cluster.redis.kill();
    if !with_data {
        cluster.redis.empty()?;
    }
    cluster.redis.come_back().await?;
    Ok(since)
}

async fn restart_of_redis(seed: u64) -> Result<bool> {
    let (mut cluster, world) = deploy(seed, 200_000).await?;
    let sale = world.sales[0].id;
    insert_buyers(&cluster, [sale, sale], 100_000).await?;
    // The first restart makes Redis know the buyers that were inserted behind its back.
    let since = restart_redis(&mut cluster, false).await?;
    until_bought(&world, since).await?;
    let mut seconds = Vec::new();
    for _ in 0..REPEATS {
        let since = restart_redis(&mut cluster, true).await?;
        seconds.push(until_bought(&world, since).await?);
    }
    Ok(say_time("kill -9 of redis to the next purchase, 100,000 buyers", &seconds, Some(2.0)))
}

/// Every purchase is answered without Postgres, and the backlog is written soon.
async fn outage_of_postgres(seed: u64) -> Result<bool> {
    const ORDERS: usize = 100_000;
    const AT_ONCE: u16 = 64;
    let (cluster, world) = deploy(seed, 200_000).await?;
    until_bought(&world, Instant::now()).await?;
    let before = world.operations().len();
    cluster.refuse_postgres(true).await;
    let began = Instant::now();
    let mut buyers: JoinSet<()> = JoinSet::new();
    for number in 0..AT_ONCE {
        let client = Client::new(&world, number);
        buyers.spawn(async move {
            for _ in 0..ORDERS / usize::from(AT_ONCE) {
                client.ask(&Buyer::new(&client.world, 0), Kind::Buy, NO_ORDER, 0).await;
            }
        });
    }
    buyers.join_all().await;
    let bought_in = began.elapsed().as_secs_f64();
    let during = world.operations().split_off(before);
    let accepted = during.iter().filter(|one| one.answer == Answer::Accepted).count();
    cluster.refuse_postgres(false).await;
    let since = Instant::now();
    let mut connection = cluster.postgres().await?;
    poll(TWO_MINUTES, 20, async || {
        let written = sqlx::query_scalar("SELECT count(*) FROM orders WHERE sale_id = $1");
        let written = written.bind(world.sales[0].id).fetch_one(&mut connection);
        let written: i64 = written.await?;
        Ok::<_, Error>((written > accepted as i64).then_some(()))
    })
    .await?;
    let drained_in = since.elapsed().as_secs_f64();
    let what = format!("{accepted} purchases in {bought_in:.0} s without Postgres: failed");
    let all_accepted = during.len() == accepted && accepted > 0;
    let served = say_measure(&what, &(during.len() - accepted).to_string(), "0", all_accepted);
    let what = format!("backlog of {accepted} orders drained after Postgres returned");
    Ok(say_time(&what, &[drained_in], Some(5.0)) && served)
}

async fn rebuild_of_a_catalogue(seed: u64) -> Result<bool> {
    let (mut cluster, world) = deploy(seed, 10_000).await?;
    let mut connection = cluster.postgres().await?;
    connection
        .execute(
            "INSERT INTO sales (title, price_cents, stock, opens_at, closes_at,
                                payment_timeout_secs)
             SELECT 'sale ' || n, 100, 2000, now(), now() + interval '1 day', 2
             FROM generate_series(1, 999) AS n",
        )
        .await?;
    let last = sqlx::query_scalar("SELECT max(id) FROM sales");
    let last: i64 = last.fetch_one(&mut connection).await?;
    insert_buyers(&cluster, [world.sales[0].id, last], 1_000).await?;
    let since = restart_redis(&mut cluster, false).await?;
    let first_purchase = until_bought(&world, since).await?;
    let settled = settle(&cluster, TWO_MINUTES).await;
    settled.after.ok_or_else(|| format!("not rebuilt: {}", settled.still))?;
    let what = "redis restarted empty, 1,000 sales with 1,000,000 buyers, to the next purchase";
    Ok(say_time(what, &[first_purchase], None))
}
