//! What the stores hold, read past the program: the other half of what the checkers judge.

use super::crowd::World;
use crate::support::{
    Database,
    app::TestApp,
    checkers::{
        self, AuditSaid, Evidence, RedisSale, Row, SaleFacts, Settled, Snapshot, Violation,
    },
    history::{Answer, History, Kind},
    redis_servers::KeyHolder,
};
use flash_sale::domain::OrderStatus;
use reqwest::Method;
use sqlx::Connection;
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Within this time after the last purchase everything is at rest.
const REST: Duration = Duration::from_secs(20);
/// How often somebody looks at all sales in one statement.
const EVERY: Duration = Duration::from_millis(50);

/// The verdict, and what it is about.
pub struct Judged {
    pub violations: Vec<Violation>,
    pub evidence: Evidence,
}

impl Judged {
    /// Looks at everything. `sold_off`: the first sale was sold to its last unit; `lost_data`: Redis has lost
    /// something that it had acknowledged.
    pub async fn of(
        app: &TestApp,
        servers: &impl KeyHolder,
        world: &World,
        snapshots: Vec<Snapshot>,
        settled: Settled,
        (sold_off, lost_data): (bool, bool),
    ) -> Self {
        let (sales, rows, outbox) = dump_postgres(app, world, sold_off).await;
        let mut audits = Vec::new();
        for sale in &world.sales {
            let path = format!("/api/v1/admin/sales/{sale}/audit");
            let said = app.admin(Method::GET, &path, None).await.body;
            audits.push(AuditSaid {
                sale: sale.parse().expect("an id"),
                ok: said["ok"].as_bool().unwrap_or(false),
                conserved: said["conserved"].as_bool(),
                problems: said["problems"].to_string(),
            });
        }
        let operations =
            std::mem::take(&mut *world.operations.lock().expect("nobody panics with it"));
        let evidence = Evidence {
            history: History {
                seed: world.seed,
                began_at: world.began_at,
                operations,
            },
            sales,
            rows,
            redis: dump_redis(servers, world).await,
            snapshots,
            audits,
            settled,
            outbox,
            late_effects: Duration::from_secs(5),
            redis_lost_data: lost_data,
            may_lose_accepted: false,
            may_panic: false,
        };
        Self {
            violations: checkers::check(&evidence),
            evidence,
        }
    }

    /// How many of these orders ended as `rejected`.
    pub fn rejected_of(&self, orders: &[i64]) -> usize {
        let rows = self.evidence.rows.iter();
        rows.filter(|row| row.status == OrderStatus::Rejected && orders.contains(&row.id))
            .count()
    }

    /// Every promise was kept, and there was something to judge. Prints what there was.
    pub fn assert_kept(&self, what: &str) {
        let count = |answer: Answer| {
            let told = |one: &_| {
                let one: &crate::support::history::Operation = one;
                one.kind == Kind::Buy && one.answer == answer
            };
            self.evidence.history.count(told)
        };
        let with = |status| {
            self.evidence
                .rows
                .iter()
                .filter(|row| row.status == status)
                .count()
        };
        println!(
            "{what}: {} told 202, {} told 503; {} paid, {} cancelled, {} expired, {} rejected; {} snapshots, at rest \
             after {:?}",
            count(Answer::Accepted),
            count(Answer::Unavailable),
            with(OrderStatus::Paid),
            with(OrderStatus::Cancelled),
            with(OrderStatus::Expired),
            with(OrderStatus::Rejected),
            self.evidence.snapshots.len(),
            self.evidence.settled.after,
        );
        let found: Vec<String> = self.violations.iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
        assert!(count(Answer::Accepted) > 50, "too little happened");
        assert!(!self.evidence.snapshots.is_empty(), "nobody looked");
    }
}

/// Takes snapshots of Postgres until the world is over.
pub async fn take_snapshots(world: Arc<World>, database: Database) -> Vec<Snapshot> {
    let mut connection = database.connect().await;
    let sales: Vec<i64> = world
        .sales
        .iter()
        .map(|sale| sale.parse().expect("an id"))
        .collect();
    let mut snapshots = Vec::new();
    while !world.is_over.load(Relaxed) {
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
        .fetch_all(&mut connection)
        .await
        .expect("a snapshot");
        let at = world.now();
        snapshots.extend(
            rows.into_iter()
                .map(|(sale, stock, taken, live, users_over_limit)| Snapshot {
                    at,
                    sale,
                    stock,
                    taken,
                    live,
                    users_over_limit,
                }),
        );
        tokio::time::sleep(EVERY).await;
    }
    connection.close().await.expect("close");
    snapshots
}

/// Waits until nothing is under way: nothing to pay, nothing in a log, nothing in the outbox, every sale in
/// the epoch of Postgres.
pub async fn settle(app: &TestApp, servers: &impl KeyHolder, world: &World) -> Settled {
    let began = Instant::now();
    loop {
        let still = under_way(app, servers, world).await;
        let over = still.is_empty();
        if over || began.elapsed() > REST {
            return Settled {
                after: over.then(|| began.elapsed()),
                limit: REST,
                still,
            };
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn under_way(app: &TestApp, servers: &impl KeyHolder, world: &World) -> String {
    let pending = app
        .number("SELECT count(*) FROM orders WHERE status = 'pending_payment'")
        .await;
    let outbox = app.number("SELECT count(*) FROM releases").await;
    let (mut waiting, mut foreign) = (0, 0);
    for sale in &world.sales {
        let epoch = app
            .number(&format!("SELECT epoch FROM sales WHERE id = {sale}"))
            .await;
        let found = state(servers, sale, &["pending", "epoch"]).await;
        waiting += found.first().copied().flatten().unwrap_or(1);
        foreign += i64::from(found.get(1).copied().flatten() != Some(epoch));
    }
    if pending + outbox + waiting + foreign == 0 {
        return String::new();
    }
    format!(
        "{pending} to pay, {outbox} units to return, {waiting} to write, {foreign} sales not rebuilt"
    )
}

/// Fields of a sale's state. Empty if nobody answers.
async fn state(servers: &impl KeyHolder, sale: &str, fields: &[&str]) -> Vec<Option<i64>> {
    let key = super::key_of(sale);
    let words = [&["HMGET", key.as_str()], fields].concat();
    servers
        .holder(&key)
        .await
        .ask(&words)
        .await
        .unwrap_or_default()
}

async fn dump_postgres(
    app: &TestApp,
    world: &World,
    sold_off: bool,
) -> (Vec<SaleFacts>, Vec<Row>, i64) {
    let mut connection = app.database.connect().await;
    let mut sales = Vec::new();
    for (number, sale) in world.sales.iter().enumerate() {
        let id: i64 = sale.parse().expect("an id");
        let (stock, taken, limit, opens_at, closes_at): (i64, i64, i64, i64, i64) = sqlx::query_as(
            "SELECT stock::bigint, taken::bigint, per_user_limit::bigint,
                    (extract(epoch FROM opens_at) * 1e6)::bigint, (extract(epoch FROM closes_at) * 1e6)::bigint
             FROM sales WHERE id = $1",
        )
        .bind(id)
        .fetch_one(&mut connection)
        .await
        .expect("the sale");
        sales.push(SaleFacts {
            name: if number == 0 { "the first" } else { "another" },
            id,
            first_stock: stock,
            stock,
            taken,
            per_user_limit: limit,
            opens_at,
            closes_at,
            sold_off: sold_off && number == 0,
        });
    }
    let rows: Vec<(i64, i64, uuid::Uuid, OrderStatus, i64, bool)> = sqlx::query_as(
        "SELECT id, sale_id, user_id, status, (extract(epoch FROM created_at) * 1e6)::bigint,
                EXISTS (SELECT FROM payments WHERE order_id = orders.id) FROM orders",
    )
    .fetch_all(&mut connection)
    .await
    .expect("the orders");
    let rows = rows
        .into_iter()
        .map(|(id, sale, user, status, created_at, has_payment)| Row {
            id,
            sale,
            user: user.as_u128(),
            status,
            created_at,
            has_payment,
        });
    let rows = rows.collect();
    connection.close().await.expect("close");
    (
        sales,
        rows,
        app.number("SELECT count(*) FROM releases").await,
    )
}

/// The layout is in docs/architecture.md.
async fn dump_redis(servers: &impl KeyHolder, world: &World) -> Vec<RedisSale> {
    let mut found = Vec::new();
    for sale in &world.sales {
        let key = super::key_of(sale);
        let fields = state(servers, sale, &["stock", "remaining", "pending", "epoch"]).await;
        let [Some(stock), Some(remaining), Some(pending), Some(epoch)] = fields[..] else {
            continue; // the checker says that it is missing
        };
        let server = servers.holder(&key).await;
        let buyers: Vec<(Vec<u8>, Vec<u8>)> = server
            .command(&["HGETALL", &format!("{key}:{epoch}:buyers")])
            .await;
        let mut live = Vec::new();
        for (user, orders) in buyers {
            let user = u128::from_be_bytes(user.try_into().expect("16 bytes"));
            // 17 bytes an order: slot (128 and more: returned), id, idempotency key.
            for order in orders.chunks_exact(17).filter(|order| order[0] < 128) {
                live.push((
                    user,
                    i64::from_be_bytes(order[1..9].try_into().expect("8 bytes")),
                ));
            }
        }
        found.push(RedisSale {
            sale: sale.parse().expect("an id"),
            stock,
            remaining,
            pending,
            log_entries: server.command(&["XLEN", &format!("{key}:log")]).await,
            live,
        });
    }
    found
}
