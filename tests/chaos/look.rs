//! What the runner itself sees of the stores, past the program and past all proxies: snapshots during
//! the chaos, whether everything has come to rest, and everything there is in the end.

use crate::{
    Error,
    cluster::{Cluster, connect},
    http::Connection,
    support::checkers::{AuditSaid, RedisSale, Row, SaleFacts, Settled, Snapshot},
    world::{World, admin},
};
use flash_sale::domain::OrderStatus;
use futures_util::TryStreamExt;
use sqlx::{PgConnection, postgres::PgConnectOptions};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// How often a snapshot is taken, if it is quick.
const EVERY: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Takes snapshots until the world stops.
pub async fn take_snapshots(
    world: Arc<World>,
    primary: Arc<Mutex<PgConnectOptions>>,
) -> Vec<Snapshot> {
    let mut snapshots = Vec::new();
    let mut connection = None;
    while !world.is_stopping() {
        let mut current = match connection.take() {
            Some(current) => current,
            None => match connect(&primary).await {
                Ok(current) => current,
                Err(_) => continue, // it waited for long enough
            },
        };
        let began = Instant::now();
        // A primary that is stopped or gone must not hold up the others.
        let look = tokio::time::timeout(Duration::from_secs(2), snapshot(&mut current, &world));
        if let Ok(Ok(mut found)) = look.await {
            snapshots.append(&mut found);
            connection = Some(current);
        }
        // Counting many orders takes time of its own; it must not become the load.
        let pause = (began.elapsed() * 9).clamp(EVERY, LONGEST_PAUSE);
        tokio::time::sleep(pause).await;
    }
    snapshots
}

/// All sales in one statement, and so in one snapshot.
async fn snapshot(
    connection: &mut PgConnection,
    world: &World,
) -> Result<Vec<Snapshot>, sqlx::Error> {
    let sales: Vec<i64> = world.sales.iter().map(|sale| sale.id).collect();
    let rows: Vec<(i64, i64, i64, i64, i64)> = sqlx::query_as(
        "SELECT s.id, s.stock::bigint, s.taken::bigint, coalesce(sum(held.n), 0)::bigint,
                count(*) FILTER (WHERE held.n > s.per_user_limit)
         FROM sales s LEFT JOIN (
             SELECT sale_id, user_id, count(*) AS n FROM orders
             WHERE status IN ('pending_payment', 'paid') GROUP BY sale_id, user_id
         ) AS held ON held.sale_id = s.id
         WHERE s.id = ANY($1) GROUP BY s.id",
    )
    .bind(&sales)
    .fetch_all(connection)
    .await?;
    let at = world.now();
    Ok(rows
        .into_iter()
        .map(|(sale, stock, taken, live, users_over_limit)| Snapshot {
            at,
            sale,
            stock,
            taken,
            live,
            users_over_limit,
        })
        .collect())
}

/// Waits until nothing is under way: nothing pending, nothing in a log, nothing in the outbox, and
/// Redis approved. Bounded by `limit`.
pub async fn settle(cluster: &Cluster, limit: Duration) -> Settled {
    let began = Instant::now();
    let mut still = String::from("nobody could look");
    loop {
        match tokio::time::timeout(limit, under_way(cluster)).await {
            Ok(Ok(None)) => {
                return Settled {
                    after: Some(began.elapsed()),
                    limit,
                    still: String::new(),
                };
            }
            Ok(Ok(Some(what))) => still = what,
            Ok(Err(error)) => still = error.to_string(),
            Err(_) => {}
        }
        if began.elapsed() > limit {
            return Settled {
                after: None,
                limit,
                still,
            };
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn under_way(cluster: &Cluster) -> Result<Option<String>, Error> {
    let mut postgres = cluster.direct().await?;
    let (pending, outbox): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM orders WHERE status = 'pending_payment'),
                (SELECT count(*) FROM releases)",
    )
    .fetch_one(&mut postgres)
    .await?;
    let epochs: Vec<(i64, i64)> = sqlx::query_as("SELECT id, epoch FROM sales")
        .fetch_all(&mut postgres)
        .await?;
    let approved: Option<String> = sqlx::query_scalar("SELECT run_id FROM redis_incarnation")
        .fetch_optional(&mut postgres)
        .await?;
    let mut redis = redis_connection(cluster).await?;
    let info: String = redis::cmd("INFO")
        .arg("server")
        .query_async(&mut redis)
        .await?;
    let is_approved = is_incarnation_of(&approved.unwrap_or_default(), &info);
    let (mut waiting, mut entries, mut foreign) = (0, 0, 0);
    // Also sales that were created on the way and that no shopper knows.
    for (sale, in_postgres) in epochs {
        let (state, length): (Vec<Option<i64>>, i64) = redis::pipe()
            .cmd("HMGET")
            .arg(format!("{{sale:{sale}}}"))
            .arg(&["pending", "epoch"])
            .cmd("XLEN")
            .arg(format!("{{sale:{sale}}}:log"))
            .query_async(&mut redis)
            .await?;
        waiting += state[0].unwrap_or(0);
        entries += length;
        foreign += i64::from(state[1] != Some(in_postgres));
    }
    let at_rest = pending == 0 && outbox == 0 && waiting == 0 && entries == 0 && foreign == 0;
    Ok((!(at_rest && is_approved)).then(|| {
        format!(
            "{pending} orders to pay, {outbox} units to return, {waiting} orders in {entries} log \
             entries, {foreign} sales not rebuilt, redis {}approved",
            if is_approved { "" } else { "not " }
        )
    }))
}

/// Whom somebody who stands still keeps waiting, in words: those who bought longer than `patience` ago
/// and whose order is no row yet, and everybody, if nothing was sold since (of the first sale, which is
/// open and has plenty).
pub async fn left_waiting(
    (mut postgres, redis): (PgConnection, String),
    world: &World,
    patience: Duration,
) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    let first = world.sales.first().ok_or("a run without sales")?;
    let newest: Option<f64> = sqlx::query_scalar(
        "SELECT extract(epoch FROM now() - max(created_at))::float8 FROM orders WHERE sale_id = $1",
    )
    .bind(first.id)
    .fetch_one(&mut postgres)
    .await?;
    let newest = newest.unwrap_or(f64::INFINITY);
    if newest > patience.as_secs_f64() {
        found.push(format!(
            "the newest order of sale {} in postgres was {newest:.0} s old",
            first.id
        ));
    }
    let client = redis::Client::open(redis)?;
    let mut redis = client.get_multiplexed_async_connection().await?;
    for sale in &world.sales {
        let oldest: redis::streams::StreamRangeReply = redis::cmd("XRANGE")
            .arg(format!("{{sale:{}}}:log", sale.id))
            .arg(&["-", "+", "COUNT", "1"])
            .query_async(&mut redis)
            .await?;
        let now: (u64, u64) = redis::cmd("TIME").query_async(&mut redis).await?;
        let since = oldest.ids.first().and_then(|entry| {
            let millis: u64 = entry.id.split('-').next()?.parse().ok()?;
            Some(Duration::from_millis(
                (now.0 * 1_000).saturating_sub(millis),
            ))
        });
        if let Some(waits) = since.filter(|waits| *waits > patience) {
            found.push(format!(
                "an order of sale {} has waited for {waits:.0?} to be written",
                sale.id
            ));
        }
    }
    Ok(found)
}

/// Whether the approved incarnation is the Redis that says this of itself. A replica that was promoted
/// has more than the run id in its name.
pub fn is_incarnation_of(approved: &str, info: &str) -> bool {
    let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    run_id.is_some_and(|run_id| approved.split('+').next() == Some(run_id.trim()))
}

/// What Postgres holds in the end.
pub async fn dump_postgres(
    cluster: &Cluster,
    world: &World,
    sold_off: bool,
) -> Result<(Vec<SaleFacts>, Vec<Row>, i64), Error> {
    let mut connection = cluster.direct().await?;
    let mut sales = Vec::new();
    for sale in &world.sales {
        let (stock, taken, limit, opens_at, closes_at): (i64, i64, i64, i64, i64) = sqlx::query_as(
            "SELECT stock::bigint, taken::bigint, per_user_limit::bigint,
                    (extract(epoch FROM opens_at) * 1e6)::bigint,
                    (extract(epoch FROM closes_at) * 1e6)::bigint
             FROM sales WHERE id = $1",
        )
        .bind(sale.id)
        .fetch_one(&mut connection)
        .await?;
        sales.push(SaleFacts {
            name: sale.habits.name,
            id: sale.id,
            first_stock: sale.habits.stock,
            stock,
            taken,
            per_user_limit: limit,
            opens_at,
            closes_at,
            sold_off: sold_off && sale.habits.is_sold_off,
        });
    }
    let ids: Vec<i64> = world.sales.iter().map(|sale| sale.id).collect();
    let mut rows = Vec::new();
    let mut stream = sqlx::query_as::<_, (i64, i64, uuid::Uuid, OrderStatus, i64, bool)>(
        "SELECT id, sale_id, user_id, status, (extract(epoch FROM created_at) * 1e6)::bigint,
                EXISTS (SELECT FROM payments WHERE order_id = orders.id)
         FROM orders WHERE sale_id = ANY($1)",
    )
    .bind(&ids)
    .fetch(&mut connection);
    while let Some((id, sale, user, status, created_at, has_payment)) = stream.try_next().await? {
        rows.push(Row {
            id,
            sale,
            user: user.as_u128(),
            status,
            created_at,
            has_payment,
        });
    }
    drop(stream);
    let outbox = sqlx::query_scalar("SELECT count(*) FROM releases")
        .fetch_one(&mut connection)
        .await?;
    Ok((sales, rows, outbox))
}

pub async fn redis_connection(
    cluster: &Cluster,
) -> Result<redis::aio::MultiplexedConnection, Error> {
    let client = redis::Client::open(cluster.redis()?.url())?;
    let connected = client.get_multiplexed_async_connection();
    Ok(tokio::time::timeout(Duration::from_secs(5), connected).await??)
}

/// What Redis holds in the end, read without the program's own code: the layout is in
/// docs/architecture.md.
pub async fn dump_redis(cluster: &Cluster, world: &World) -> Result<Vec<RedisSale>, Error> {
    let mut connection = redis_connection(cluster).await?;
    let mut found = Vec::new();
    for sale in &world.sales {
        let key = format!("{{sale:{}}}", sale.id);
        let (state, log_entries): (Vec<Option<i64>>, i64) = redis::pipe()
            .cmd("HMGET")
            .arg(&key)
            .arg(&["stock", "remaining", "pending", "epoch"])
            .cmd("XLEN")
            .arg(format!("{key}:log"))
            .query_async(&mut connection)
            .await?;
        let [Some(stock), Some(remaining), Some(pending), Some(epoch)] = state[..] else {
            continue; // the checker says that it is missing
        };
        let buyers: Vec<(Vec<u8>, Vec<u8>)> = redis::cmd("HGETALL")
            .arg(format!("{key}:{epoch}:buyers"))
            .query_async(&mut connection)
            .await?;
        let mut live = Vec::new();
        for (user, orders) in buyers {
            let user = user
                .as_slice()
                .try_into()
                .map_err(|_| "a buyer without 16 bytes")?;
            // 17 bytes an order: slot (128 and more: returned), id, idempotency key.
            for order in orders.chunks_exact(17).filter(|order| order[0] < 128) {
                let id = order[1..9].try_into().map_err(|_| "an id of 8 bytes")?;
                live.push((u128::from_be_bytes(user), i64::from_be_bytes(id)));
            }
        }
        found.push(RedisSale {
            sale: sale.id,
            stock,
            remaining,
            pending,
            log_entries,
            live,
        });
    }
    Ok(found)
}

/// What the program's own audit says of each sale that Postgres knows.
pub async fn audits(cluster: &Cluster) -> Result<Vec<AuditSaid>, Error> {
    let mut postgres = cluster.direct().await?;
    let sales: Vec<i64> = sqlx::query_scalar("SELECT id FROM sales ORDER BY id")
        .fetch_all(&mut postgres)
        .await?;
    let first = *cluster.serving().first().ok_or("no instance serves")?;
    let mut connection = Connection::new(first);
    let mut said = Vec::new();
    for sale in sales {
        let path = format!("/api/v1/admin/sales/{sale}/audit");
        let response = admin(&mut connection, "GET", &path, "").await?;
        let verdict: serde_json::Value = serde_json::from_str(&response.body)
            .map_err(|error| format!("GET {path}: {error}: {}", response.body))?;
        said.push(AuditSaid {
            sale,
            ok: verdict["ok"].as_bool().unwrap_or(false),
            conserved: verdict["conserved"].as_bool(),
            problems: verdict["problems"].to_string(),
        });
    }
    Ok(said)
}
