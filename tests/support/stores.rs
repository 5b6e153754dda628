//! What Postgres and Redis hold, read past the program and past all proxies.

use super::checkers::{Evidence, RedisSale, Row, SaleFacts, Settled, Snapshot};
pub use super::driver::{Error, Result};
use super::driver::{World, admin, shopper::sell_off};
use super::history::History;
use crate::support::prelude::*;
use futures_util::TryStreamExt;

pub trait Stores {
    async fn postgres(&self) -> Result<PgConnection>;
    async fn redis(&self, key: &str) -> Result<MultiplexedConnection>;
    async fn is_approved(&self) -> Result<bool>;
}

/// Connects to wherever Postgres is now; waits for it for up to 30 s.
pub async fn connect(primary: &Mutex<PgConnectOptions>) -> Result<PgConnection> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let options = locked(primary).clone();
        let attempt = PgConnection::connect_with(&options);
        let why = match tokio::time::timeout(Duration::from_secs(5), attempt).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in 5 s".to_owned(),
        };
        if Instant::now() > deadline {
            return Err(format!("postgres takes no connection: {why}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const EVERY: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub async fn take_snapshots(
    world: Arc<World>,
    primary: Arc<Mutex<PgConnectOptions>>,
) -> Vec<Snapshot> {
    let (mut snapshots, mut connection) = (Vec::new(), None);
    while !world.is_over.load(Relaxed) {
        if connection.is_none() {
            connection = connect(&primary).await.ok();
        }
        let Some(current) = &mut connection else { continue };
        let began = Instant::now();
        // A primary that is stopped or gone must not hold up the others.
        match tokio::time::timeout(Duration::from_secs(2), snapshot(current, &world)).await {
            Ok(Ok(mut found)) => snapshots.append(&mut found),
            _ => connection = None,
        }
        // Counting many orders takes time of its own; it must not become the load.
        tokio::time::sleep((began.elapsed() * 9).clamp(EVERY, LONGEST_PAUSE)).await;
    }
    snapshots
}

async fn snapshot(postgres: &mut PgConnection, world: &World) -> Result<Vec<Snapshot>> {
    let sales: Vec<i64> = world.sales.iter().map(|sale| sale.id).collect();
    let rows: Vec<(i64, i64, i64, i64)> = sqlx::query_as(
        "SELECT s.id, s.stock::bigint, coalesce(sum(held.n), 0)::bigint,
                count(*) FILTER (WHERE held.n > s.per_user_limit)
         FROM sales s LEFT JOIN (
             SELECT sale_id, user_id, count(*) AS n FROM orders
             WHERE status IN ('pending_payment', 'paid') GROUP BY sale_id, user_id
         ) AS held ON held.sale_id = s.id
         WHERE s.id = ANY($1) GROUP BY s.id",
    )
    .bind(&sales)
    .fetch_all(postgres)
    .await?;
    let at = world.now();
    let of_row =
        |(sale, stock, live, over)| Snapshot { at, sale, stock, live, users_over_limit: over };
    Ok(rows.into_iter().map(of_row).collect())
}

/// Nothing to pay, nothing in a log or the outbox, all rebuilt, Redis approved.
pub async fn settle(stores: &impl Stores, limit: Duration) -> Settled {
    let began = Instant::now();
    let mut still = "nobody could look".to_owned();
    let at_rest = poll::<_, Error>(limit, 20, async || {
        if let Ok(looked) = tokio::time::timeout(limit, under_way(stores)).await {
            still = looked.unwrap_or_else(|error| error.to_string());
        }
        Ok(still.is_empty().then(|| began.elapsed()))
    });
    Settled { after: at_rest.await.ok().flatten(), limit, still }
}

async fn under_way(stores: &impl Stores) -> Result<String> {
    let mut postgres = stores.postgres().await?;
    let (pending, outbox): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM orders WHERE status = 'pending_payment'),
                (SELECT count(*) FROM releases)",
    )
    .fetch_one(&mut postgres)
    .await?;
    // Also sales that were created on the way and that no shopper knows.
    let epochs = sqlx::query_as("SELECT id, epoch FROM sales");
    let epochs: Vec<(i64, i64)> = epochs.fetch_all(&mut postgres).await?;
    postgres.close().await?;
    let (mut waiting, mut entries, mut foreign) = (0, 0, 0);
    for (sale, epoch) in epochs {
        let (state, length) = sale_state(stores, sale, &["pending", "epoch"]).await?;
        waiting += state[0].unwrap_or(0);
        entries += length;
        foreign += i64::from(state[1] != Some(epoch));
    }
    let is_approved = stores.is_approved().await?;
    if pending + outbox + waiting + entries + foreign == 0 && is_approved {
        return Ok(String::new());
    }
    let not = if is_approved { "" } else { "not " };
    Ok(format!(
        "{pending} orders to pay, {outbox} units to return, {waiting} orders in {entries} log \
         entries, {foreign} sales not rebuilt, redis {not}approved"
    ))
}

fn key_of(sale: i64) -> String {
    format!("{{sale:{sale}}}")
}

async fn sale_state(at: &impl Stores, sale: i64, of: &[&str]) -> Result<(Vec<Option<i64>>, i64)> {
    let key = key_of(sale);
    let mut pipeline = redis::pipe();
    pipeline.cmd("HMGET").arg(&key).arg(of).cmd("XLEN").arg(format!("{key}:log"));
    let mut redis = at.redis(&key).await?;
    Ok(pipeline.query_async(&mut redis).await?)
}

/// Waits for rest, sells the last units off, waits again, and reads all that both stores hold.
pub async fn settle_and_read(
    stores: &impl Stores,
    world: &Arc<World>,
    snapshots: JoinHandle<Vec<Snapshot>>,
    limit: Duration,
) -> Result<Evidence> {
    let mut settled = settle(stores, limit).await;
    let (mut late, mut sold_off) = (Vec::new(), false);
    // The second time what lapsed in the first: a busy machine may need too long to pay.
    for _ in 0..2 {
        if settled.after.is_none() {
            break;
        }
        sold_off = sell_off(world).await;
        if !sold_off {
            late.push("in the end buyers found neither a unit nor \"sold out\"".to_owned());
        }
        let again = settle(stores, limit).await;
        settled = if again.after.is_some() { settled } else { again };
    }
    world.is_over.store(true, Relaxed);
    let snapshots = snapshots.await?;
    let mut postgres = stores.postgres().await?;
    let sales = dump_sales(&mut postgres, world, sold_off).await?;
    let rows = dump_rows(&mut postgres, world).await?;
    let outbox = sqlx::query_scalar("SELECT count(*) FROM releases");
    let outbox = outbox.fetch_one(&mut postgres).await?;
    let all = sqlx::query_scalar("SELECT id FROM sales ORDER BY id");
    let all: Vec<i64> = all.fetch_all(&mut postgres).await?;
    postgres.close().await?;
    let (mut audits, mut redis) = (Vec::new(), Vec::new());
    let first = *world.addresses.first().ok_or("no instance serves")?;
    for sale in all {
        let path = format!("sales/{sale}/audit");
        // An instance that was cut off just now answers 503 until it has its way back.
        let audit = poll(limit, 100, async || {
            let (status, body) = admin(first, &path, None).await?;
            Ok::<_, Error>((status == 200).then_some(body))
        });
        audits.push(audit.await?.ok_or("an audit cannot be had")?);
    }
    for sale in &world.sales {
        redis.extend(dump_redis(stores, sale.id).await?);
    }
    let (seed, began_at) = (world.seed, world.began_at);
    let history = History { seed, began_at, operations: std::mem::take(&mut *world.operations()) };
    let read = Evidence { history, sales, rows, redis, snapshots, ..Evidence::default() };
    Ok(Evidence { audits, settled, late, outbox, ..read })
}

async fn dump_sales(
    postgres: &mut PgConnection,
    world: &World,
    sold_off: bool,
) -> Result<Vec<SaleFacts>> {
    let mut sales = Vec::new();
    for sale in &world.sales {
        let facts = sqlx::query_as(
            "SELECT stock::bigint, taken::bigint, per_user_limit::bigint,
                    (extract(epoch FROM opens_at) * 1e6)::bigint,
                    (extract(epoch FROM closes_at) * 1e6)::bigint
             FROM sales WHERE id = $1",
        );
        let (stock, taken, per_user_limit, opens_at, closes_at) =
            facts.bind(sale.id).fetch_one(&mut *postgres).await?;
        sales.push(SaleFacts {
            name: sale.habits.name,
            id: sale.id,
            first_stock: sale.habits.stock,
            stock,
            taken,
            per_user_limit,
            opens_at,
            closes_at,
            sold_off: sold_off && sale.habits.is_sold_off,
        });
    }
    Ok(sales)
}

async fn dump_rows(postgres: &mut PgConnection, world: &World) -> Result<Vec<Row>> {
    let ids: Vec<i64> = world.sales.iter().map(|sale| sale.id).collect();
    let found = sqlx::query_as(
        "SELECT id, sale_id, user_id, status, (extract(epoch FROM created_at) * 1e6)::bigint,
                EXISTS (SELECT FROM payments
                        WHERE order_id = orders.id AND state = 'captured')
         FROM orders WHERE sale_id = ANY($1)",
    )
    .bind(&ids)
    .fetch(postgres);
    let row = |(id, sale, user, status, created_at, has_payment)| Row {
        id,
        sale,
        user,
        status,
        created_at,
        has_payment,
    };
    Ok(found.map_ok(row).try_collect().await?)
}

/// Without the program's own code: docs/architecture.md. `None` if it is missing.
async fn dump_redis(stores: &impl Stores, sale: i64) -> Result<Option<RedisSale>> {
    let fields = ["stock", "remaining", "pending", "epoch"];
    let (state, log_entries) = sale_state(stores, sale, &fields).await?;
    let [Some(stock), Some(remaining), Some(pending), Some(epoch)] = state[..] else {
        return Ok(None);
    };
    let key = key_of(sale);
    let buyers: Vec<(Vec<u8>, Vec<u8>)> = redis::cmd("HGETALL")
        .arg(format!("{key}:{epoch}:buyers"))
        .query_async(&mut stores.redis(&key).await?)
        .await?;
    let mut live = Vec::new();
    for (user, orders) in buyers {
        let user = user.try_into().map_err(|_| "a buyer without 16 bytes")?;
        // 17 bytes an order: slot (128 and more: returned), id, idempotency key.
        for order in orders.chunks_exact(17).filter(|order| order[0] < 128) {
            let id = order[1..9].try_into().map_err(|_| "an id of 8 bytes")?;
            live.push((UserId::from_bytes(user), i64::from_be_bytes(id)));
        }
    }
    Ok(Some(RedisSale { sale, stock, remaining, pending, log_entries, live }))
}
