//! The audit: every invariant of a sale, computed from what Postgres and Redis hold, not from what
//! the program believes.
//!
//! Redis is read before and after Postgres. Only if nothing changed in between, nothing waits in the
//! log and nothing waits in the outbox, the two sides are of one moment (`quiescent`), and then the
//! strict comparisons are made: conservation (I4) and that each side knows exactly the other's
//! orders (I3). What must be true in every snapshot (I1, I2) is judged always.

use crate::{
    domain::{OrderId, OrderStatus, Sale, SaleId, UserId},
    postgres::{SNAPSHOT, Transaction},
    redis::functions::{self, Snapshot, record},
    sale::{Shop, ShopError, board::RETIREMENT, catalogue::sale_columns, log},
};
use futures_util::TryStreamExt;
use serde::Serialize;
use sqlx::AssertSqlSafe;
use std::collections::{HashMap, HashSet};
use utoipa::ToSchema;

/// The verdict on one sale. Counts are orders.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Audit {
    pub sale_id: SaleId,
    /// `false` as soon as one invariant is broken.
    pub ok: bool,
    /// Whether both sides could be compared as of one moment.
    pub quiescent: bool,
    pub stock: i64,
    /// Units left by Redis' count; by Postgres' if Redis does not hold the sale (any more).
    pub remaining: i64,
    /// Pending payment or paid.
    pub live: i64,
    pub pending_payment: i64,
    pub paid: i64,
    pub cancelled: i64,
    pub expired: i64,
    pub rejected: i64,
    /// Accepted and not yet in Postgres.
    pub backlog: i64,
    /// max(0, live − stock).
    pub oversold: i64,
    /// Users with more live orders than the sale allows.
    pub duplicate_users: i64,
    /// Whether stock = remaining + held + paid on both sides; null while not quiescent.
    pub conserved: Option<bool>,
    pub redis: RedisSide,
    pub postgres: PostgresSide,
    /// What is broken, in words.
    pub problems: Vec<String>,
}

/// What Redis holds; nulls if it does not hold the sale.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct RedisSide {
    pub remaining: Option<i64>,
    /// Users with a live order.
    pub buyers: Option<i64>,
    /// Entries in the log (each holds the orders of one batch).
    pub stream: Option<i64>,
    pub epoch: Option<i64>,
    /// Whether the live Redis process that has this sale is one that Postgres has approved, and the one
    /// that it was installed in.
    pub run_id_approved: bool,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PostgresSide {
    /// The guarded counter; equals `live`.
    pub taken: i64,
    pub epoch: i64,
}

/// One look at Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RedisLook {
    state: Option<Snapshot>,
    stream: i64,
    /// Orders in those entries.
    logged: i64,
}

/// One snapshot of Postgres.
struct PostgresLook {
    sale: Sale,
    taken: i64,
    counts: HashMap<OrderStatus, i64>,
    duplicate_users: i64,
    outbox: i64,
    approved: Vec<String>,
    live: HashMap<OrderId, UserId>,
}

/// Buyers that Redis is asked for at a time.
const SCAN: usize = 2_000;

/// The most problems of one kind that are told apart; the rest is counted.
const EXAMPLES: usize = 3;

/// A user and their orders, as Redis has them.
type Entry = (Vec<u8>, Vec<u8>);

impl Shop {
    /// Audits one sale. Reads all its live orders and buyers: seconds for a million.
    pub async fn audit(&self, id: SaleId) -> Result<Audit, ShopError> {
        let before = self.look_at_redis(id).await?;
        let postgres = self
            .look_at_postgres(id)
            .await?
            .ok_or(ShopError::SaleNotFound)?;
        let buyers = self.look_at_buyers(id, &before).await?;
        let after = self.look_at_redis(id).await?;
        let quiet = before == after;
        let retired = self.board.clock.now() > postgres.sale.closes_at + RETIREMENT;
        Ok(judge(id, quiet, retired, &after, &buyers, &postgres))
    }

    async fn look_at_redis(&self, id: SaleId) -> Result<RedisLook, ShopError> {
        let keys = &self.redis.keys;
        let mut xlen = redis::cmd("XLEN");
        xlen.arg(keys.log(id));
        let replies = self
            .redis
            .query_all(vec![functions::snapshot(keys, id), xlen])
            .await?;
        let [state, stream] = <[_; 2]>::try_from(replies).unwrap_or_else(|_| {
            [Ok(redis::Value::Nil), Ok(redis::Value::Nil)] // as many answers as questions
        });
        let stream: i64 = redis::from_redis_value(stream?).map_err(redis::RedisError::from)?;
        let logged = if stream == 0 {
            0
        } else {
            self.count_logged(id).await?
        };
        Ok(RedisLook {
            state: Snapshot::from_reply(state?),
            stream,
            logged,
        })
    }

    /// The orders that wait in the log, by the entries themselves.
    async fn count_logged(&self, id: SaleId) -> Result<i64, ShopError> {
        let (mut logged, mut after) = (0, String::new());
        loop {
            let mut connection = self.redis.pooled().await?;
            let entries = log::read(&mut connection, &self.redis.keys, id, &after, 256).await?;
            match entries.last() {
                Some(Ok(batch)) => after.clone_from(&batch.entry),
                Some(Err(unreadable)) => after.clone_from(&unreadable.entry),
                None => return Ok(logged),
            }
            let orders = entries.iter().flatten().map(|batch| batch.orders.len());
            logged += i64::try_from(orders.sum::<usize>()).unwrap_or(i64::MAX);
        }
    }

    /// Every user's live orders in Redis.
    async fn look_at_buyers(
        &self,
        id: SaleId,
        look: &RedisLook,
    ) -> Result<Vec<(UserId, OrderId)>, ShopError> {
        let mut buyers = Vec::new();
        if let Some(state) = &look.state {
            let collect = |(user, orders): (UserId, Vec<u8>)| {
                let live = record::decode(&orders).filter(|held| !held.returned);
                buyers.extend(live.map(|held| (user, held.order_id)));
            };
            self.each_buyer(id, state.epoch, SCAN, collect).await?;
            // A scan may tell of somebody twice.
            buyers.sort_unstable();
            buyers.dedup();
        }
        Ok(buyers)
    }

    /// Reads the buyers of a sale, `count` or so at a time; some perhaps more than once.
    pub async fn each_buyer(
        &self,
        id: SaleId,
        epoch: i64,
        count: usize,
        mut tell: impl FnMut((UserId, Vec<u8>)),
    ) -> Result<(), ShopError> {
        let (key, mut cursor) = (self.redis.keys.buyers(id, epoch), 0);
        let mut connection = self.redis.pooled().await?;
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(&key).arg(cursor).arg("COUNT").arg(count);
            let found = scan.query_async(&mut connection);
            let (next, some): (u64, Vec<Entry>) = found.await?;
            for (user, orders) in some {
                if let Ok(user) = <[u8; 16]>::try_from(user) {
                    tell((UserId::from_bytes(user), orders));
                }
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// All of Postgres' side in one snapshot.
    async fn look_at_postgres(&self, id: SaleId) -> Result<Option<PostgresLook>, ShopError> {
        let mut snapshot = Transaction::begin(&self.postgres, SNAPSHOT).await?;
        let sale: Option<Sale> = sqlx::query_as(concat!(
            "SELECT ",
            sale_columns!(),
            " FROM sales WHERE id = $1"
        ))
        .bind(id)
        .fetch_optional(&mut *snapshot)
        .await?;
        let Some(sale) = sale else {
            snapshot.rollback().await?;
            return Ok(None);
        };
        let taken: i32 = sqlx::query_scalar("SELECT taken FROM sales WHERE id = $1")
            .bind(id)
            .fetch_one(&mut *snapshot)
            .await?;
        let counts: Vec<(OrderStatus, i64)> = sqlx::query_as(
            "SELECT status, count(*) FROM orders WHERE sale_id = $1 GROUP BY status",
        )
        .bind(id)
        .fetch_all(&mut *snapshot)
        .await?;
        let live_condition = "sale_id = $1 AND status IN ('pending_payment', 'paid')";
        let duplicate_users: i64 = sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT count(*) FROM (SELECT 1 FROM orders WHERE {live_condition}
             GROUP BY user_id HAVING count(*) > $2) AS over_limit"
        )))
        .bind(id)
        .bind(i64::from(sale.per_user_limit))
        .fetch_one(&mut *snapshot)
        .await?;
        let outbox: i64 = sqlx::query_scalar("SELECT count(*) FROM releases WHERE sale_id = $1")
            .bind(id)
            .fetch_one(&mut *snapshot)
            .await?;
        let approved = sqlx::query_scalar("SELECT run_id FROM redis_incarnation")
            .fetch_all(&mut *snapshot)
            .await?;
        let live = sqlx::query_as::<_, (OrderId, UserId)>(AssertSqlSafe(format!(
            "SELECT id, user_id FROM orders WHERE {live_condition}"
        )))
        .bind(id)
        .fetch(&mut *snapshot)
        .try_collect()
        .await?;
        snapshot.rollback().await?;
        Ok(Some(PostgresLook {
            sale,
            taken: i64::from(taken),
            counts: counts.into_iter().collect(),
            duplicate_users,
            outbox,
            approved,
            live,
        }))
    }
}

fn judge(
    id: SaleId,
    quiet: bool,
    retired: bool,
    redis: &RedisLook,
    buyers: &[(UserId, OrderId)],
    postgres: &PostgresLook,
) -> Audit {
    let count = |status| postgres.counts.get(&status).copied().unwrap_or(0);
    let (pending_payment, paid) = (count(OrderStatus::PendingPayment), count(OrderStatus::Paid));
    let live = pending_payment + paid;
    let stock = i64::from(postgres.sale.stock);
    let state = redis.state.as_ref();
    let backlog = state.map_or(0, |state| state.pending);
    let remaining = state.map_or(stock - postgres.taken, |state| state.remaining);
    let approved = state.is_some_and(|state| {
        let process = postgres
            .approved
            .iter()
            .any(|approved| **approved == *state.process);
        process && state.is_approved()
    });
    // Without its Redis state a sale that should have one is being rebuilt: nothing to compare with.
    let comparable = state.is_some() || retired;
    let quiescent =
        quiet && comparable && backlog == 0 && redis.stream == 0 && postgres.outbox == 0;

    let mut problems = Vec::new();
    let mut problem = |broken: bool, words: String| {
        if broken {
            problems.push(words);
        }
    };
    problem(
        live > stock,
        format!("I1 broken: {live} live orders on a stock of {stock}"),
    );
    problem(
        postgres.duplicate_users > 0,
        format!(
            "I2 broken: {} users hold more live orders than the sale allows",
            postgres.duplicate_users
        ),
    );
    problem(
        postgres.taken != live,
        format!(
            "I4 broken in postgres: the counter says {} taken, {live} orders are live",
            postgres.taken
        ),
    );
    if let Some(state) = state {
        let (remaining, pending) = (state.remaining, state.pending);
        problem(
            remaining < 0,
            format!("I1 broken in redis: {remaining} units remain"),
        );
        problem(
            quiet && pending != redis.logged,
            format!(
                "I3 broken: {pending} orders are counted as waiting, but the log holds {}",
                redis.logged
            ),
        );
    }

    let mut conserved = None;
    if quiescent {
        let in_postgres = postgres.taken == live;
        let mut in_redis = true;
        if let Some(state) = state {
            let (epoch, redis_stock, remaining) = (state.epoch, state.stock, state.remaining);
            let held = i64::try_from(buyers.len()).unwrap_or(i64::MAX);
            in_redis = redis_stock == remaining + held
                && redis_stock == stock
                && remaining == stock - live;
            problem(
                epoch != postgres.sale.epoch,
                format!(
                    "redis has epoch {epoch}, postgres epoch {}",
                    postgres.sale.epoch
                ),
            );
            problem(
                redis_stock != remaining + held,
                format!(
                    "I4 broken in redis: a stock of {redis_stock} is not {remaining} remaining + {held} held"
                ),
            );
            problem(
                redis_stock != stock,
                format!("I4 broken: redis knows a stock of {redis_stock}, postgres of {stock}"),
            );
            problem(
                remaining != stock - live,
                format!(
                    "I4 broken: {remaining} remain in redis, but {stock} in stock - {live} live orders is {}",
                    stock - live
                ),
            );
            compare_orders(buyers, &postgres.live, &mut problem);
        }
        conserved = Some(in_postgres && in_redis);
    }
    Audit {
        sale_id: id,
        ok: problems.is_empty(),
        quiescent,
        stock,
        remaining,
        live,
        pending_payment,
        paid,
        cancelled: count(OrderStatus::Cancelled),
        expired: count(OrderStatus::Expired),
        rejected: count(OrderStatus::Rejected),
        backlog,
        oversold: (live - stock).max(0),
        duplicate_users: postgres.duplicate_users,
        conserved,
        redis: RedisSide {
            remaining: state.map(|state| state.remaining),
            buyers: state.map(|_| {
                let users: HashSet<&UserId> = buyers.iter().map(|(user, _)| user).collect();
                i64::try_from(users.len()).unwrap_or(i64::MAX)
            }),
            stream: state.map(|_| redis.stream),
            epoch: state.map(|state| state.epoch),
            run_id_approved: approved,
        },
        postgres: PostgresSide {
            taken: postgres.taken,
            epoch: postgres.sale.epoch,
        },
        problems,
    }
}

/// I3: with nothing under way, Redis' buyers and Postgres' live orders are the same orders.
fn compare_orders(
    buyers: &[(UserId, OrderId)],
    live: &HashMap<OrderId, UserId>,
    problem: &mut impl FnMut(bool, String),
) {
    let examples = |orders: &[OrderId]| {
        let some: Vec<String> = orders
            .iter()
            .take(EXAMPLES)
            .map(OrderId::to_string)
            .collect();
        format!("{} (for example {})", orders.len(), some.join(", "))
    };
    let lost: Vec<OrderId> = buyers
        .iter()
        .filter(|(user, id)| live.get(id) != Some(user))
        .map(|(_, id)| *id)
        .collect();
    problem(
        !lost.is_empty(),
        format!(
            "I3 broken: accepted orders that are neither live in postgres nor waiting: {}",
            examples(&lost)
        ),
    );
    let known: HashSet<&OrderId> = buyers.iter().map(|(_, id)| id).collect();
    let extra: Vec<OrderId> = live
        .keys()
        .filter(|id| !known.contains(id))
        .copied()
        .collect();
    problem(
        !extra.is_empty(),
        format!(
            "I3 broken: live orders in postgres that redis never accepted: {}",
            examples(&extra)
        ),
    );
}
