//! The audit: recomputes a sale's invariants I1 to I4 from the contents of Postgres and Redis.
//!
//! Redis is read before and after Postgres. Only if it did not change, and log and outbox are
//! empty, both sides are of one moment (`quiescent`); then conservation (I4) and the equality of
//! both sides' orders (I3) are checked. I1 and I2 must hold in every snapshot.

pub mod scrubber;

use crate::catalog::Catalog;
use crate::catalog::cached_sale::EVICT_AFTER;
use crate::catalog::changes::sale_query;
use crate::databases::Databases;
use crate::domain::{OrderId, OrderStatus, Sale, SaleId, UserId};
use crate::error::{ServiceError, ServiceResult};
use crate::order_log;
use crate::postgres::{Pool, SNAPSHOT};
use crate::redis::Redis;
use crate::redis::functions::{self, Snapshot, record};
use futures_util::TryStreamExt;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use utoipa::ToSchema;

/// The audit of one sale. Counts are orders.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Audit {
    pub sale_id: SaleId,
    /// Whether all checked invariants hold.
    pub ok: bool,
    /// Whether both sides could be compared as of one moment.
    pub quiescent: bool,
    pub stock: i64,
    /// Units left, by Redis' count; by Postgres' if Redis does not hold the sale.
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
    /// The broken invariants, in words.
    pub problems: Vec<String>,
}

/// The Redis side; nulls if Redis does not hold the sale.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct RedisSide {
    pub remaining: Option<i64>,
    /// Users with a live order.
    pub buyers: Option<i64>,
    /// Entries in the log (each holds the orders of one batch).
    pub stream: Option<i64>,
    pub epoch: Option<i64>,
    /// Whether the sale is in the process in which it was activated, and Postgres has approved
    /// that.
    pub run_id_approved: bool,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PostgresSide {
    /// The guarded counter; equals `live`.
    pub taken: i64,
    pub epoch: i64,
}

/// A snapshot of Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RedisSnapshot {
    state: Option<Snapshot>,
    stream: i64,
    /// Orders in those entries.
    logged: i64,
}

/// A snapshot of Postgres.
struct PostgresSnapshot {
    sale: Sale,
    taken: i64,
    counts: HashMap<OrderStatus, i64>,
    duplicate_users: i64,
    outbox: i64,
    live: HashMap<OrderId, UserId>,
}

/// Both sides, and whether Redis changed meanwhile.
struct BothSides {
    quiet: bool,
    /// Redis need not hold the sale any more.
    evictable: bool,
    approved: HashSet<String>,
    redis: RedisSnapshot,
    buyers: Vec<(UserId, OrderId)>,
    postgres: PostgresSnapshot,
}

/// Buyers that a scan reads at a time.
const SCAN: usize = 2_000;

/// Examples that are named of each problem; the rest is counted.
const EXAMPLES: usize = 3;

/// Computes audits.
pub struct Auditor {
    catalog: Arc<Catalog>,
    postgres: Pool,
    redis: Arc<Redis>,
}

impl Auditor {
    pub fn new(catalog: Arc<Catalog>, Databases { postgres, redis }: Databases) -> Self {
        Self { catalog, postgres, redis }
    }

    /// Audits one sale. Reads all its live orders and buyers: seconds for a million.
    pub async fn audit(&self, id: SaleId) -> ServiceResult<Audit> {
        let before = self.read_redis(id).await?;
        let postgres = self.read_postgres(id).await?;
        let postgres = postgres.ok_or(ServiceError::SaleNotFound)?;
        let buyers = self.read_buyers(id, &before).await?;
        let redis = self.read_redis(id).await?;
        let sides = BothSides {
            quiet: before == redis,
            evictable: self.catalog.now() > postgres.sale.closes_at + EVICT_AFTER,
            approved: self.catalog.approved_processes().await?,
            redis,
            buyers,
            postgres,
        };
        Ok(sides.audit())
    }

    async fn read_redis(&self, id: SaleId) -> ServiceResult<RedisSnapshot> {
        let keys = &self.redis.keys;
        let xlen = redis::cmd("XLEN").arg(keys.log(id)).to_owned();
        let questions = vec![functions::snapshot(keys, id), xlen];
        let mut replies = self.redis.query_all(questions).await?.into_iter();
        let mut reply = || replies.next().unwrap_or(Ok(redis::Value::Nil));
        let state = Snapshot::from_reply(reply()?);
        let stream: i64 = redis::from_redis_value(reply()?).map_err(redis::RedisError::from)?;
        let logged = match stream {
            0 => 0,
            _ => self.count_logged(id).await?,
        };
        Ok(RedisSnapshot { state, stream, logged })
    }

    /// The orders in the log, counted by its entries.
    async fn count_logged(&self, id: SaleId) -> ServiceResult<i64> {
        let redis = &self.redis;
        let (mut logged, mut after) = (0, String::new());
        loop {
            let mut connection = redis.pooled().await?;
            let entries = order_log::read(&mut connection, &redis.keys, id, &after, 256).await?;
            match entries.last() {
                Some(Ok(batch)) => after.clone_from(&batch.entry),
                Some(Err(unreadable)) => after.clone_from(&unreadable.entry),
                None => return Ok(logged),
            }
            let orders = entries.iter().flatten().map(|batch| batch.orders.len());
            logged += count(orders.sum());
        }
    }

    /// Every user's live orders in Redis.
    async fn read_buyers(
        &self,
        id: SaleId,
        redis: &RedisSnapshot,
    ) -> ServiceResult<Vec<(UserId, OrderId)>> {
        let mut buyers = Vec::new();
        if let Some(Snapshot { epoch, .. }) = redis.state {
            let collect = |(user, orders): (UserId, Vec<u8>)| {
                let live = record::decode(&orders).filter(|held| !held.returned);
                buyers.extend(live.map(|held| (user, held.order_id)));
            };
            self.catalog.each_buyer(id, epoch, SCAN, collect).await?;
            // A scan may return a user twice.
            buyers.sort_unstable();
            buyers.dedup();
        }
        Ok(buyers)
    }

    /// The Postgres side, in one snapshot.
    async fn read_postgres(&self, id: SaleId) -> ServiceResult<Option<PostgresSnapshot>> {
        let mut snapshot = self.postgres.begin(SNAPSHOT).await?;
        let sale = sale_query!("SELECT ", " FROM sales WHERE id = $1").bind(id);
        let Some(sale) = sale.fetch_optional(&mut *snapshot).await? else {
            snapshot.rollback().await?;
            return Ok(None);
        };
        let counters = sqlx::query_as(
            "SELECT taken::bigint, (SELECT count(*) FROM releases WHERE sale_id = $1)
             FROM sales WHERE id = $1",
        );
        let counters: (i64, i64) = counters.bind(id).fetch_one(&mut *snapshot).await?;
        let counts = sqlx::query_as(
            "SELECT status, count(*) FROM orders WHERE sale_id = $1 GROUP BY status",
        );
        let counts: Vec<(OrderStatus, i64)> = counts.bind(id).fetch_all(&mut *snapshot).await?;
        let duplicate_users = sqlx::query_scalar(
            "SELECT count(*) FROM (
                 SELECT 1 FROM orders WHERE sale_id = $1 AND status IN ('pending_payment', 'paid')
                 GROUP BY user_id HAVING count(*) > $2) AS over_limit",
        );
        let duplicate_users = duplicate_users.bind(id);
        let duplicate_users = duplicate_users.bind(i64::from(sale.per_user_limit));
        let duplicate_users: i64 = duplicate_users.fetch_one(&mut *snapshot).await?;
        let live = sqlx::query_as::<_, (OrderId, UserId)>(
            "SELECT id, user_id FROM orders
             WHERE sale_id = $1 AND status IN ('pending_payment', 'paid')",
        );
        let live = live.bind(id).fetch(&mut *snapshot).try_collect().await?;
        snapshot.rollback().await?;
        Ok(Some(PostgresSnapshot {
            sale,
            taken: counters.0,
            counts: counts.into_iter().collect(),
            duplicate_users,
            outbox: counters.1,
            live,
        }))
    }
}

fn count(items: usize) -> i64 {
    i64::try_from(items).unwrap_or(i64::MAX)
}

fn examples(orders: &[OrderId]) -> String {
    let some = orders.iter().take(EXAMPLES).map(OrderId::to_string);
    let some: Vec<_> = some.collect();
    format!("{} (for example {})", orders.len(), some.join(", "))
}

/// What is checked of a sale; shown by its number in docs/guarantees.md.
#[derive(Clone, Copy)]
enum Invariant {
    /// I1: no more live orders than stock.
    NoOversell = 1,
    /// I2: no more live orders of a user than the sale allows.
    NoDuplicate,
    /// I3: an accepted purchase becomes a row.
    NothingLost,
    /// I4: stock is what remains, is held and is paid.
    Conservation,
}

use Invariant::{Conservation, NoDuplicate, NoOversell, NothingLost};

impl Display for Invariant {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "I{}", *self as u8)
    }
}

/// The texts of all conditions that hold.
macro_rules! problems {
    ($($broken:expr => $words:literal;)*) => {
        [$(($broken).then(|| format!($words))),*].into_iter().flatten()
    };
}

impl BothSides {
    fn orders(&self, status: OrderStatus) -> i64 {
        self.postgres.counts.get(&status).copied().unwrap_or(0)
    }

    fn live(&self) -> i64 {
        self.orders(OrderStatus::PendingPayment) + self.orders(OrderStatus::Paid)
    }

    /// Whether both sides are of one moment. A sale without its Redis state is being rebuilt, and
    /// cannot be compared.
    fn is_quiescent(&self) -> bool {
        let state = self.redis.state.as_ref();
        let is_comparable = state.is_some() || self.evictable;
        let waiting =
            [state.map_or(0, |state| state.pending), self.redis.stream, self.postgres.outbox];
        self.quiet && is_comparable && waiting == [0; 3]
    }

    /// Violations in any snapshot.
    fn always_broken(&self) -> Vec<String> {
        let (live, stock) = (self.live(), self.postgres.sale.stock);
        let (duplicates, taken) = (self.postgres.duplicate_users, self.postgres.taken);
        let mut problems = Vec::from_iter(problems! {
            live > i64::from(stock) => "{NoOversell} broken: {live} live orders on a stock of \
             {stock}";
            duplicates > 0 =>
            "{NoDuplicate} broken: {duplicates} users hold more live orders than the sale allows";
            taken != live =>
            "{Conservation} broken in postgres: the counter says {taken} taken, {live} orders \
             are live";
        });
        if let Some(state) = &self.redis.state {
            let (remaining, pending, logged) = (state.remaining, state.pending, self.redis.logged);
            problems.extend(problems! {
                remaining < 0 => "{NoOversell} broken in redis: {remaining} units remain";
                self.quiet && pending != logged =>
                "{NothingLost} broken: {pending} orders are counted as waiting, but the log \
                 holds {logged}";
            });
        }
        problems
    }

    /// Violations in a quiescent state: of the epochs; of conservation (I4); of the equality of
    /// both sides' orders (I3).
    fn broken_at_rest(&self, state: &Snapshot) -> [Vec<String>; 3] {
        let (epoch, stock) = (self.postgres.sale.epoch, i64::from(self.postgres.sale.stock));
        let (redis_epoch, redis_stock, left) = (state.epoch, state.stock, state.remaining);
        let (held, live, due) = (count(self.buyers.len()), self.live(), stock - self.live());
        let epochs = problems! {
            redis_epoch != epoch => "redis has epoch {redis_epoch}, postgres epoch {epoch}";
        };
        let units = problems! {
            redis_stock != left + held =>
            "{Conservation} broken in redis: a stock of {redis_stock} is not {left} remaining + \
             {held} held";
            redis_stock != stock =>
            "{Conservation} broken: redis knows a stock of {redis_stock}, postgres of {stock}";
            left != due =>
            "{Conservation} broken: {left} remain in redis, but {stock} in stock - {live} live \
             orders is {due}";
        };
        [epochs.collect(), units.collect(), self.unlike_orders()]
    }

    /// I3: the buyers of Redis and the live orders of Postgres are the same.
    fn unlike_orders(&self) -> Vec<String> {
        let live = &self.postgres.live;
        let lost = self.buyers.iter();
        let lost = lost.filter(|(user, id)| live.get(id) != Some(user));
        let lost: Vec<OrderId> = lost.map(|(_, id)| *id).collect();
        let known: HashSet<&OrderId> = self.buyers.iter().map(|(_, id)| id).collect();
        let extra = live.keys().filter(|id| !known.contains(id));
        let extra: Vec<OrderId> = extra.copied().collect();
        let (no_lost, lost) = (lost.is_empty(), examples(&lost));
        let (no_extra, extra) = (extra.is_empty(), examples(&extra));
        Vec::from_iter(problems! {
            !no_lost =>
            "{NothingLost} broken: accepted orders that are neither live in postgres nor \
             waiting: {lost}";
            !no_extra =>
            "{NothingLost} broken: live orders in postgres that redis never accepted: {extra}";
        })
    }

    fn audit(self) -> Audit {
        let (sale, state) = (&self.postgres.sale, self.redis.state.as_ref());
        let (stock, live, quiescent) = (i64::from(sale.stock), self.live(), self.is_quiescent());
        let mut problems = self.always_broken();
        let mut conserved = self.postgres.taken == live;
        if let (true, Some(state)) = (quiescent, state) {
            let at_rest = self.broken_at_rest(state);
            conserved &= at_rest[1].is_empty();
            problems.extend(at_rest.into_iter().flatten());
        }
        let is_approved =
            |state: &Snapshot| state.is_approved() && self.approved.contains(&*state.process);
        let users: HashSet<&UserId> = self.buyers.iter().map(|(user, _)| user).collect();
        Audit {
            sale_id: sale.id,
            ok: problems.is_empty(),
            quiescent,
            stock,
            remaining: state.map_or(stock - self.postgres.taken, |state| state.remaining),
            live,
            pending_payment: self.orders(OrderStatus::PendingPayment),
            paid: self.orders(OrderStatus::Paid),
            cancelled: self.orders(OrderStatus::Cancelled),
            expired: self.orders(OrderStatus::Expired),
            rejected: self.orders(OrderStatus::Rejected),
            backlog: state.map_or(0, |state| state.pending),
            oversold: (live - stock).max(0),
            duplicate_users: self.postgres.duplicate_users,
            conserved: quiescent.then_some(conserved),
            redis: RedisSide {
                remaining: state.map(|state| state.remaining),
                buyers: state.map(|_| count(users.len())),
                stream: state.map(|_| self.redis.stream),
                epoch: state.map(|state| state.epoch),
                run_id_approved: state.is_some_and(is_approved),
            },
            postgres: PostgresSide { taken: self.postgres.taken, epoch: sale.epoch },
            problems,
        }
    }
}
