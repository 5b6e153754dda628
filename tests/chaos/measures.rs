//! Times that the project promises, measured against their targets: each one alone, on a deployment
//! without proxies' faults and without other load, several times, and the median counts.

use crate::{
    Error,
    cluster::{Cluster, Shape, start_redis},
    http::{Connection, Ended, request},
    look,
    report::{Measure, median},
    shoppers::{Client, Shopper},
    support::{
        history::{Answer, Kind, NO_KEY, NO_ORDER},
        proxy::Fault as NetFault,
    },
    world::{ORDINARY, World},
};
use flash_sale::embedded::RedisServer;
use sqlx::Executor;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// How often each is repeated.
const REPEATS: usize = 5;
const ONE_SERVER: Shape = Shape {
    servers: 1,
    without_writer: 0,
    workers: 0,
};

/// All of them. One that cannot be done is reported as missed.
pub async fn run(seed: u64) -> Vec<Measure> {
    let mut measures = Vec::new();
    measures.extend(told(seed, "app restart", restart_of_the_app(seed).await));
    measures.extend(told(seed, "redis restart", restart_of_redis(seed).await));
    measures.extend(told(
        seed,
        "postgres outage",
        outage_of_postgres(seed).await,
    ));
    measures.extend(told(seed, "rebuild", rebuild_of_a_catalogue(seed).await));
    measures
}

fn told(seed: u64, what: &str, measured: Result<Vec<Measure>, Error>) -> Vec<Measure> {
    let measures = measured.unwrap_or_else(|error| {
        vec![Measure {
            what: what.to_owned(),
            measured: format!("failed (seed {seed}): {error}"),
            target: String::new(),
            held: false,
        }]
    });
    for measure in &measures {
        eprintln!("{}", measure.line());
    }
    measures
}

/// A time against the most that it may be; without a target it is only stated.
fn time(what: &str, seconds: &[f64], most: Option<f64>) -> Measure {
    let middle = median(seconds).unwrap_or(f64::INFINITY);
    Measure {
        what: format!("{what}, median of {}", seconds.len()),
        measured: format!("{middle:.2} s"),
        target: most.map_or("stated only".to_owned(), |most| format!("<= {most} s")),
        held: most.is_none_or(|most| middle <= most),
    }
}

/// Somebody new tries until they have bought; how long that took since `since`.
async fn until_bought(world: &Arc<World>, since: Instant) -> Result<f64, Error> {
    let mut client = Client::new(world, 0);
    let deadline = since + Duration::from_secs(120);
    while Instant::now() < deadline {
        let user = world.new_user();
        let shopper = Shopper {
            user,
            sale: 0,
            key: NO_KEY,
            token: world.token(user),
        };
        let (answer, _) = client.ask(&shopper, Kind::Buy, NO_ORDER, 0).await;
        if answer == Answer::Accepted {
            return Ok(since.elapsed().as_secs_f64());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err("nothing could be bought within two minutes".into())
}

/// One open sale with room for everybody.
async fn world_with(cluster: &Cluster, seed: u64, stock: i64) -> Result<Arc<World>, Error> {
    let mut habits = ORDINARY;
    habits.stock = stock;
    let world = World::create(cluster, seed, &[habits], Duration::from_secs(3_600)).await?;
    Ok(Arc::new(world))
}

/// kill -9 of the app, from its start to the first purchase it accepts.
async fn restart_of_the_app(seed: u64) -> Result<Vec<Measure>, Error> {
    let mut cluster = Cluster::start(ONE_SERVER, &[]).await?;
    let world = world_with(&cluster, seed, 10_000).await?;
    let mut seconds = Vec::new();
    for _ in 0..REPEATS {
        until_bought(&world, Instant::now()).await?;
        cluster.instances[0].kill();
        let since = Instant::now();
        cluster.instances[0].start(&[])?;
        seconds.push(until_bought(&world, since).await?);
    }
    Ok(vec![time(
        "kill -9 of the app to its next purchase",
        &seconds,
        Some(2.0),
    )])
}

/// Paid orders, as a sale has them, so that a rebuild has buyers to find.
async fn insert_buyers(
    cluster: &Cluster,
    first_sale: i64,
    last_sale: i64,
    each: i64,
) -> Result<(), Error> {
    let mut connection = cluster.direct().await?;
    // Ids of the year 2026 or later would take a second of now; these are of long ago.
    sqlx::query(
        "INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, created_at, pay_by, paid_at)
         SELECT sale.id * 10000000 + buyer, sale.id, gen_random_uuid(), 0, 'paid', 100, now(), now(), now()
         FROM sales AS sale, generate_series(1, $3) AS buyer WHERE sale.id BETWEEN $1 AND $2",
    )
    .bind(first_sale)
    .bind(last_sale)
    .bind(each)
    .execute(&mut connection)
    .await?;
    sqlx::query(
        "INSERT INTO payments (order_id, amount_cents, reference)
         SELECT id, 100, 'made up' FROM orders WHERE sale_id BETWEEN $1 AND $2 AND status = 'paid'
         ON CONFLICT DO NOTHING",
    )
    .bind(first_sale)
    .bind(last_sale)
    .execute(&mut connection)
    .await?;
    sqlx::query(
        // Counted once for all: a count for each sale would read the table a thousand times.
        "UPDATE sales SET taken = counted.live FROM (
             SELECT sale_id, count(*) AS live FROM orders
             WHERE status IN ('paid', 'pending_payment') GROUP BY sale_id
         ) AS counted
         WHERE sales.id = counted.sale_id AND sales.id BETWEEN $1 AND $2",
    )
    .bind(first_sale)
    .bind(last_sale)
    .execute(&mut connection)
    .await?;
    connection.execute("ANALYZE orders").await?;
    Ok(())
}

/// Starts Redis again, with its data or without; when it was killed.
async fn restart_redis(cluster: &mut Cluster, with_data: bool) -> Result<Instant, Error> {
    let redis: RedisServer = cluster.redis.take().ok_or("redis is not running")?;
    let since = Instant::now();
    redis.kill();
    redis.stop().await;
    if !with_data {
        std::fs::remove_dir_all(cluster.redis_folder.join("redis"))?;
    }
    let (folder, port) = (cluster.redis_folder.clone(), cluster.redis_port);
    cluster.redis = Some(start_redis(&folder, port, &[]).await?);
    Ok(since)
}

/// kill -9 of Redis to the first purchase, with 100,000 buyers in the sale.
async fn restart_of_redis(seed: u64) -> Result<Vec<Measure>, Error> {
    let mut cluster = Cluster::start(ONE_SERVER, &[]).await?;
    let world = world_with(&cluster, seed, 200_000).await?;
    let sale = world.sales[0].id;
    insert_buyers(&cluster, sale, sale, 100_000).await?;
    // The first restart makes Redis know the buyers that were inserted behind its back.
    let since = restart_redis(&mut cluster, false).await?;
    until_bought(&world, since).await?;
    let mut seconds = Vec::new();
    for _ in 0..REPEATS {
        let since = restart_redis(&mut cluster, true).await?;
        seconds.push(until_bought(&world, since).await?);
    }
    let what = "kill -9 of redis to the next purchase, 100,000 buyers";
    Ok(vec![time(what, &seconds, Some(2.0))])
}

/// Postgres goes while 100,000 people buy, and comes back: nobody may notice, and the backlog is
/// written soon.
async fn outage_of_postgres(seed: u64) -> Result<Vec<Measure>, Error> {
    const ORDERS: usize = 100_000;
    const AT_ONCE: usize = 64;
    let cluster = Cluster::start(ONE_SERVER, &[]).await?;
    let world = world_with(&cluster, seed, 200_000).await?;
    until_bought(&world, Instant::now()).await?;
    for proxy in &cluster.postgres_proxies {
        proxy.set(NetFault::Refuse).await;
        proxy.cut();
    }
    let began = Instant::now();
    let mut buyers: JoinSet<(usize, usize)> = JoinSet::new();
    for _ in 0..AT_ONCE {
        buyers.spawn(buy_many(world.clone(), ORDERS / AT_ONCE));
    }
    let (mut accepted, mut failed) = (0, 0);
    while let Some(buyer) = buyers.join_next().await {
        let (some, others) = buyer?;
        accepted += some;
        failed += others;
    }
    let bought_in = began.elapsed();
    for proxy in &cluster.postgres_proxies {
        proxy.set(NetFault::None).await;
    }
    let since = Instant::now();
    let mut connection = cluster.direct().await?;
    loop {
        let written: i64 = sqlx::query_scalar("SELECT count(*) FROM orders WHERE sale_id = $1")
            .bind(world.sales[0].id)
            .fetch_one(&mut connection)
            .await?;
        if usize::try_from(written)? > accepted || since.elapsed() > Duration::from_secs(120) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let drained = time(
        &format!("backlog of {accepted} orders drained after Postgres returned"),
        &[since.elapsed().as_secs_f64()],
        Some(5.0),
    );
    let served = Measure {
        what: format!(
            "{accepted} purchases in {:.0} s without Postgres: failed",
            bought_in.as_secs_f64()
        ),
        measured: failed.to_string(),
        target: "0".to_owned(),
        held: failed == 0 && accepted > 0,
    };
    Ok(vec![served, drained])
}

async fn buy_many(world: Arc<World>, count: usize) -> (usize, usize) {
    let mut connection = Connection::new(world.addresses[0]);
    let (mut accepted, mut failed) = (0, 0);
    let path = format!("/api/v1/sales/{}/orders", world.sales[0].id);
    for _ in 0..count {
        let token = world.token(world.new_user());
        let asked = request("POST", &path, &token, "", "");
        match connection.call(&asked, Duration::from_secs(10)).await {
            Ended::Answered(response) if response.status == 202 => accepted += 1,
            _ => failed += 1,
        }
    }
    (accepted, failed)
}

/// Redis restarts empty, with 1,000 sales of 1,000 buyers each in Postgres.
async fn rebuild_of_a_catalogue(seed: u64) -> Result<Vec<Measure>, Error> {
    let mut cluster = Cluster::start(ONE_SERVER, &[]).await?;
    let world = world_with(&cluster, seed, 10_000).await?;
    let first: i64 = world.sales[0].id;
    let mut connection = cluster.direct().await?;
    sqlx::query(
        "INSERT INTO sales (title, price_cents, stock, opens_at, closes_at, payment_timeout_secs)
         SELECT 'sale ' || n, 100, 2000, now(), now() + interval '1 day', 2 FROM generate_series(1, 999) AS n",
    )
    .execute(&mut connection)
    .await?;
    let last: i64 = sqlx::query_scalar("SELECT max(id) FROM sales")
        .fetch_one(&mut connection)
        .await?;
    insert_buyers(&cluster, first, last, 1_000).await?;
    let since = restart_redis(&mut cluster, false).await?;
    let first_purchase = until_bought(&world, since).await?;
    let settled = look::settle(&cluster, Duration::from_secs(120)).await;
    if settled.after.is_none() {
        return Err(format!("not rebuilt: {}", settled.still).into());
    }
    let what = "redis restarted empty, 1,000 sales with 1,000,000 buyers, to the next purchase";
    Ok(vec![time(what, &[first_purchase], None)])
}
