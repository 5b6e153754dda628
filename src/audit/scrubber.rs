//! The scrubber: continuously compares a few sales of Redis with Postgres, and has a sale rebuilt
//! if they disagree. It finds damage that no purchase meets: deleted or evicted buyers, overwritten
//! counters, a trimmed log.
//!
//! Orders come and go meanwhile, so a difference counts only beyond those changes, and only if the
//! next step finds it again. Each step compares the counters of some sales, and looks for some live
//! orders in Redis: the newest, and the next ones by id, so that every order has its turn.

use super::Auditor;
use crate::catalog::cached_sale::CachedSale;
use crate::domain::{SaleId, UserId};
use crate::error::ServiceResult;
use crate::postgres::row;
use crate::redis::functions::record::Held;
use crate::redis::functions::{self, Snapshot};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tasks::Tasks;

/// How often it reads.
const PAUSE: Duration = Duration::from_secs(1);
/// Sales that one step compares.
const SALES: usize = 64;
/// How many of the newest orders one step looks for, and how many others.
const NEWEST_ORDERS: i64 = 64;
const OTHER_ORDERS: i64 = 256;

pub fn spawn(auditor: &Arc<Auditor>, tasks: &Tasks) {
    tasks.spawn("scrubber", auditor, |auditor, task| async move {
        let mut scrubber = Scrubber::default();
        let mut periodic = task.every(PAUSE);
        while periodic.tick(scrubber.step(&auditor)).await {}
    });
}

/// The scrubber's state between two steps.
#[derive(Default)]
pub struct Scrubber {
    /// Sales whose counters differed in the last step.
    suspects: HashSet<SaleId>,
    /// Orders that were missing in Redis in the last step.
    missing: Vec<Order>,
    /// The last sale and the last order of the last step.
    after: Option<SaleId>,
    after_order: i64,
}

impl Scrubber {
    /// One step. Answers how many sales are to be rebuilt.
    pub async fn step(&mut self, auditor: &Auditor) -> ServiceResult<usize> {
        let found = disagreements(auditor, &self.next_sales(auditor)).await?;
        let missing = missing(auditor, self.next_orders(auditor).await?).await?;
        let again = missing.iter().filter(|order| self.missing.contains(order));
        let mut again: HashSet<SaleId> = again.map(|order| order.sale).collect();
        again.extend(found.intersection(&self.suspects));
        for sale in &again {
            tracing::error!(%sale, "redis and postgres disagree: the sale is rebuilt");
            auditor.catalog.suspect(*sale);
        }
        (self.suspects, self.missing) = (found, missing);
        Ok(again.len())
    }

    /// The orders that were missing in the last step, the newest ones, and the next by id.
    async fn next_orders(&mut self, auditor: &Auditor) -> ServiceResult<Vec<Order>> {
        let newest = sqlx::query_as(NEWEST).bind(NEWEST_ORDERS).fetch_all(&auditor.postgres);
        let mut orders: Vec<Order> = newest.await?;
        let next = sqlx::query_as(NEXT).bind(self.after_order).bind(OTHER_ORDERS);
        let next: Vec<Order> = next.fetch_all(&auditor.postgres).await?;
        self.after_order = next.last().map_or(0, |order| order.id);
        orders.extend(next);
        orders.extend(self.missing.iter().copied());
        Ok(orders)
    }

    /// The suspects of the last step, and the next sales in the order of their ids.
    fn next_sales(&mut self, auditor: &Auditor) -> Vec<Arc<CachedSale>> {
        let mut sales = auditor.catalog.cache.cached_sales();
        sales.retain(|cached| cached.was_read() && cached.is_sellable());
        sales.sort_unstable_by_key(|cached| cached.id);
        let split = sales.partition_point(|cached| Some(cached.id) <= self.after);
        sales.rotate_left(split);
        let is_suspect = |cached: &Arc<CachedSale>| self.suspects.contains(&cached.id);
        let (suspects, mut others): (Vec<_>, Vec<_>) = sales.into_iter().partition(is_suspect);
        others.truncate(SALES);
        self.after = others.last().map(|cached| cached.id);
        [suspects, others].concat()
    }
}

/// The counters of a sale in Redis: its state, log entries and users.
struct RedisCounters {
    state: Snapshot,
    entries: i64,
    users: i64,
}

/// Reads these sales, without those that Redis may not sell: the rebuild task has them.
async fn read(
    auditor: &Auditor,
    sales: &[Arc<CachedSale>],
) -> ServiceResult<HashMap<SaleId, RedisCounters>> {
    let keys = &auditor.redis.keys;
    let mut asked = Vec::with_capacity(3 * sales.len());
    for cached in sales {
        asked.push(functions::snapshot(keys, cached.id));
        asked.push(redis::cmd("XLEN").arg(keys.log(cached.id)).to_owned());
        let buyers = keys.buyers(cached.id, cached.sale().epoch);
        asked.push(redis::cmd("HLEN").arg(buyers).to_owned());
    }
    let replies = auditor.redis.query_all(asked).await?;
    let counters = sales.iter().zip(replies.chunks_exact(3));
    let counters = counters.filter_map(|(cached, replies)| {
        let [state, entries, users] = replies else {
            return None;
        };
        let number = |reply: &Result<redis::Value, _>| {
            redis::from_redis_value(reply.as_ref().ok()?.clone()).ok()
        };
        let state = Snapshot::from_reply(state.as_ref().ok()?.clone())?;
        let counters = RedisCounters { entries: number(entries)?, users: number(users)?, state };
        let is_sellable =
            counters.state.epoch == cached.sale().epoch && counters.state.is_approved();
        is_sellable.then_some((cached.id, counters))
    });
    Ok(counters.collect())
}

/// The counters of a sale in Postgres.
struct Counted {
    id: SaleId,
    epoch: i64,
    stock: i64,
    taken: i64,
    /// Units on their way back to Redis.
    outbox: i64,
}

row!(Counted: id, epoch, stock, taken, outbox);

/// The sales whose counters differ by more than the changes meanwhile.
async fn disagreements(
    auditor: &Auditor,
    sales: &[Arc<CachedSale>],
) -> ServiceResult<HashSet<SaleId>> {
    let before = read(auditor, sales).await?;
    if before.is_empty() {
        return Ok(HashSet::new());
    }
    let counted = sqlx::query_as(
        "SELECT id, epoch, stock::bigint, taken::bigint,
                (SELECT count(*) FROM releases WHERE sale_id = sales.id) AS outbox
         FROM sales WHERE id = ANY($1)",
    );
    let counted = counted.bind(before.keys().map(|sale| sale.get()).collect::<Vec<_>>());
    let counted: Vec<Counted> = counted.fetch_all(&auditor.postgres).await?;
    let after = read(auditor, sales).await?;
    let mut found = HashSet::new();
    for counted in counted {
        let cached = sales.iter().find(|cached| cached.id == counted.id);
        if let (Some(before), Some(after)) = (before.get(&counted.id), after.get(&counted.id))
            && let Some(cached) = cached
            && let per_user = i64::from(cached.sale().per_user_limit)
            && let Some(why) = disagreement(before, &counted, after, per_user)
        {
            tracing::debug!(sale = %counted.id, why, "redis and postgres disagree");
            found.insert(counted.id);
        }
    }
    Ok(found)
}

/// Compares the counters of a sale; Redis was read before and after Postgres.
fn disagreement(
    before: &RedisCounters,
    counted: &Counted,
    after: &RedisCounters,
    per_user: i64,
) -> Option<&'static str> {
    let held = |counters: &RedisCounters| counters.state.stock - counters.state.remaining;
    let admitted = after.state.admitted - before.state.admitted;
    let returned = held(before) + admitted - held(after);
    let is_changing = [before, after].iter().any(|counters| {
        (counters.state.epoch, counters.state.stock) != (counted.epoch, counted.stock)
    });
    if is_changing || admitted < 0 || returned < 0 {
        return None; // an operator changes it
    }
    // An order of Redis is a row, waits to be one, or is being returned.
    let waiting = before.state.pending + admitted + counted.outbox;
    let is_quiet = before.state.revision == after.state.revision;
    if counted.taken > held(before) + admitted {
        Some("postgres has more orders than redis has sold")
    } else if held(before) - returned > counted.taken + waiting {
        Some("redis has sold more than there are orders")
    } else if is_quiet && before.users * per_user < held(before) {
        Some("buyers are missing in redis")
    } else if before.entries == 0 && admitted == 0 && after.state.pending > 0 {
        Some("orders wait in a log that is empty")
    } else {
        None
    }
}

/// An order of Postgres.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Order {
    id: i64,
    sale: SaleId,
    user: UserId,
    is_live: bool,
}

row!(Order: id, sale, user, is_live);

const NEWEST: &str = "SELECT id, sale_id AS sale, user_id AS \"user\",
    status IN ('pending_payment', 'paid') AS is_live
    FROM orders ORDER BY id DESC LIMIT $1";
const NEXT: &str = "SELECT id, sale_id AS sale, user_id AS \"user\",
    status IN ('pending_payment', 'paid') AS is_live
    FROM orders WHERE id > $1 ORDER BY id LIMIT $2";

/// Those of these orders that are live and not in Redis.
async fn missing(auditor: &Auditor, mut orders: Vec<Order>) -> ServiceResult<Vec<Order>> {
    let epoch = |sale: SaleId| {
        let cached = auditor.catalog.cache.get(sale);
        let cached = cached.filter(|cached| cached.is_sellable());
        cached.map(|cached| cached.sale().epoch)
    };
    orders.retain(|order| order.is_live && epoch(order.sale).is_some());
    let keys = &auditor.redis.keys;
    let ask = |order: &Order| {
        functions::ask_record(keys, order.sale, epoch(order.sale).unwrap_or(0), order.user)
    };
    let replies = auditor.redis.query_all(orders.iter().map(ask).collect()).await?;
    let mut replies = replies.into_iter();
    orders.retain(|order| {
        let held = replies.next().and_then(|reply| functions::read_record(reply.ok()?));
        let is_this = |held: &Held| held.order_id.get() == order.id && !held.returned;
        held.is_some_and(|held| !held.iter().any(is_this))
    });
    if orders.is_empty() {
        return Ok(orders);
    }
    // They may have been closed meanwhile.
    let live = sqlx::query_scalar(
        "SELECT id FROM orders WHERE id = ANY($1) AND status IN ('pending_payment', 'paid')",
    );
    let live = live.bind(orders.iter().map(|order| order.id).collect::<Vec<_>>());
    let live: Vec<i64> = live.fetch_all(&auditor.postgres).await?;
    orders.retain(|order| live.contains(&order.id));
    Ok(orders)
}
