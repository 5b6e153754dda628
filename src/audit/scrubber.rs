//! The scrubber: continuously compares a few sales of Redis with Postgres, and has a sale rebuilt
//! if they disagree. It finds damage that no purchase meets: deleted or evicted buyers, overwritten
//! counters, a trimmed log.
//!
//! Orders come and go meanwhile, so a difference counts only beyond those changes, and only if the
//! next step finds it again.

use crate::catalog::Catalog;
use crate::catalog::cached_sale::CachedSale;
use crate::domain::{OrderId, SaleId, UserId};
use crate::error::ServiceResult;
use crate::postgres::row;
use crate::redis::functions::record::Held;
use crate::redis::functions::{self, Snapshot};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// How often it reads.
pub const PAUSE: Duration = Duration::from_secs(1);
/// Sales and orders that one step compares.
const SALES: usize = 64;
const ORDERS: i64 = 64;

/// The scrubber's state between two steps.
#[derive(Default)]
pub struct Scrubber {
    /// Sales with a difference in the last step.
    suspects: HashSet<SaleId>,
    /// The last sale of the last step, and whether it took the newest orders.
    after: Option<SaleId>,
    newest: bool,
}

impl Scrubber {
    /// One step. Answers how many sales are to be rebuilt.
    pub async fn step(&mut self, catalog: &Catalog) -> ServiceResult<usize> {
        let mut found = disagreements(catalog, &self.next_sales(catalog)).await?;
        self.newest = !self.newest;
        found.extend(sample(catalog, self.newest).await?);
        let again: Vec<SaleId> = found.intersection(&self.suspects).copied().collect();
        for sale in &again {
            tracing::error!(%sale, "redis and postgres disagree: the sale is rebuilt");
            catalog.suspect(*sale);
        }
        self.suspects = found;
        Ok(again.len())
    }

    /// The suspects of the last step, and the next sales in the order of their ids.
    fn next_sales(&mut self, catalog: &Catalog) -> Vec<Arc<CachedSale>> {
        let mut sales = catalog.cache.cached_sales();
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
    catalog: &Catalog,
    sales: &[Arc<CachedSale>],
) -> ServiceResult<HashMap<SaleId, RedisCounters>> {
    let keys = &catalog.redis.keys;
    let mut asked = Vec::with_capacity(3 * sales.len());
    for cached in sales {
        asked.push(functions::snapshot(keys, cached.id));
        asked.push(redis::cmd("XLEN").arg(keys.log(cached.id)).to_owned());
        let buyers = keys.buyers(cached.id, cached.sale().epoch);
        asked.push(redis::cmd("HLEN").arg(buyers).to_owned());
    }
    let replies = catalog.redis.query_all(asked).await?;
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
    catalog: &Catalog,
    sales: &[Arc<CachedSale>],
) -> ServiceResult<HashSet<SaleId>> {
    let before = read(catalog, sales).await?;
    if before.is_empty() {
        return Ok(HashSet::new());
    }
    let counted = sqlx::query_as(
        "SELECT id, epoch, stock::bigint, taken::bigint,
                (SELECT count(*) FROM releases WHERE sale_id = sales.id) AS outbox
         FROM sales WHERE id = ANY($1)",
    );
    let counted = counted.bind(before.keys().map(|sale| sale.get()).collect::<Vec<_>>());
    let counted: Vec<Counted> = counted.fetch_all(&catalog.postgres).await?;
    let after = read(catalog, sales).await?;
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

const NEWEST: &str = "SELECT sale_id, id, user_id FROM
    (SELECT * FROM orders ORDER BY id DESC LIMIT $1) AS picked
    WHERE status IN ('pending_payment', 'paid')";
/// The orders that follow a random id.
const ANYWHERE: &str = "SELECT sale_id, id, user_id FROM
    (SELECT * FROM orders
     WHERE id >= (SELECT (min(id) + random() * (max(id) - min(id)))::bigint FROM orders)
     ORDER BY id LIMIT $1) AS picked
    WHERE status IN ('pending_payment', 'paid')";

/// Checks some live orders of Postgres in Redis. Answers the sales of missing ones.
async fn sample(catalog: &Catalog, newest: bool) -> ServiceResult<HashSet<SaleId>> {
    let some = if newest { NEWEST } else { ANYWHERE };
    let orders = sqlx::query_as(some).bind(ORDERS).fetch_all(&catalog.postgres);
    let mut orders: Vec<(SaleId, OrderId, UserId)> = orders.await?;
    let epoch = |sale: &SaleId| {
        let cached = catalog.cache.get(*sale);
        let cached = cached.filter(|cached| cached.is_sellable());
        cached.map(|cached| cached.sale().epoch)
    };
    orders.retain(|(sale, ..)| epoch(sale).is_some());
    let ask = |(sale, _, user): &(SaleId, OrderId, UserId)| {
        functions::ask_record(&catalog.redis.keys, *sale, epoch(sale).unwrap_or(0), *user)
    };
    let asked = orders.iter().map(ask).collect();
    let replies = catalog.redis.query_all(asked).await?;
    let replies = orders.iter().zip(replies);
    let missing = replies.filter_map(|((sale, order, _), reply)| {
        let held = functions::read_record(reply.ok()?)?;
        let is_this = |held: &Held| held.order_id == *order && !held.returned;
        (!held.iter().any(is_this)).then(|| (order.get(), *sale))
    });
    let missing: HashMap<i64, SaleId> = missing.collect();
    if missing.is_empty() {
        return Ok(HashSet::new());
    }
    // They may have been closed meanwhile.
    let live = sqlx::query_scalar(
        "SELECT id FROM orders WHERE id = ANY($1) AND status IN ('pending_payment', 'paid')",
    );
    let live = live.bind(missing.keys().copied().collect::<Vec<_>>());
    let live: Vec<i64> = live.fetch_all(&catalog.postgres).await?;
    let gone = live.iter().filter_map(|id| missing.get(id).copied());
    Ok(gone.collect())
}
