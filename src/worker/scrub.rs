//! The scrubber: compares Redis with Postgres all the time, a little at a time, and has a sale rebuilt
//! that they disagree about. It finds what no purchase meets: buyers that were deleted or evicted,
//! counters that somebody has written, a log that was trimmed.
//!
//! Orders come and go while it looks, so a difference counts only beyond what the changes meanwhile
//! explain, and only if the next look finds it again.

use crate::{
    domain::{OrderId, SaleId, UserId},
    redis::functions::{self, Snapshot},
    sale::{Shop, ShopError, board::Listing},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

/// How often it looks.
pub const PAUSE: Duration = Duration::from_secs(1);
/// Sales whose counters are compared in one look, and orders that are looked up in Redis.
const SALES: usize = 64;
const ORDERS: i64 = 64;

/// What a look remembers for the next one.
#[derive(Default)]
pub struct Scrubber {
    /// Sales that Redis and Postgres disagreed about.
    suspects: HashSet<SaleId>,
    /// The sale after which the next look goes on, and whether it takes the newest orders.
    after: Option<SaleId>,
    newest: bool,
}

impl Scrubber {
    /// One look. Answers how many sales are to be rebuilt because of it.
    pub async fn step(&mut self, shop: &Arc<Shop>) -> Result<usize, ShopError> {
        let mut found = disagreements(shop, &self.next_sales(shop)).await?;
        self.newest = !self.newest;
        found.extend(sample(shop, self.newest).await?);
        let again: Vec<SaleId> = found.intersection(&self.suspects).copied().collect();
        for sale in &again {
            tracing::error!(%sale, "redis holds something else than postgres: the sale is rebuilt");
            shop.suspect(*sale);
        }
        self.suspects = found;
        Ok(again.len())
    }

    /// The suspects of the last look, and some more in the order of their ids.
    fn next_sales(&mut self, shop: &Shop) -> Vec<Arc<Listing>> {
        let mut sales = shop.board.listings();
        sales.retain(|listing| listing.was_read() && listing.is_sellable());
        sales.sort_unstable_by_key(|listing| listing.id);
        let split = sales.partition_point(|listing| Some(listing.id) <= self.after);
        sales.rotate_left(split);
        let (suspects, mut others): (Vec<_>, Vec<_>) = sales
            .into_iter()
            .partition(|listing| self.suspects.contains(&listing.id));
        others.truncate(SALES);
        self.after = others.last().map(|listing| listing.id);
        [suspects, others].concat()
    }
}

/// What Redis said of a sale: its state, the entries of its log, and its users.
struct Look {
    state: Snapshot,
    entries: i64,
    users: i64,
}

/// Looks at these sales. Those that Redis may not sell are left out: the rebuild has them already.
async fn look(shop: &Shop, sales: &[Arc<Listing>]) -> Result<HashMap<SaleId, Look>, ShopError> {
    let keys = &shop.redis.keys;
    let mut asked = Vec::with_capacity(3 * sales.len());
    for listing in sales {
        asked.push(functions::snapshot(keys, listing.id));
        asked.push(redis::cmd("XLEN").arg(keys.log(listing.id)).to_owned());
        let buyers = keys.buyers(listing.id, listing.sale().epoch);
        asked.push(redis::cmd("HLEN").arg(buyers).to_owned());
    }
    let replies = shop.redis.query_all(asked).await?;
    let looks = sales.iter().zip(replies.chunks_exact(3));
    let looks = looks.filter_map(|(listing, replies)| {
        let [state, entries, users] = replies else {
            return None;
        };
        let number = |reply: &Result<redis::Value, _>| {
            redis::from_redis_value(reply.as_ref().ok()?.clone()).ok()
        };
        let state = Snapshot::from_reply(state.as_ref().ok()?.clone())?;
        let look = Look {
            entries: number(entries)?,
            users: number(users)?,
            state,
        };
        let is_sellable = look.state.epoch == listing.sale().epoch && look.state.is_approved();
        is_sellable.then_some((listing.id, look))
    });
    Ok(looks.collect())
}

/// What Postgres says of a sale.
#[derive(sqlx::FromRow)]
struct Counted {
    id: SaleId,
    epoch: i64,
    stock: i64,
    taken: i64,
    /// Units on their way back to Redis.
    outbox: i64,
}

/// The sales of these whose counters differ by more than what happened meanwhile.
async fn disagreements(shop: &Shop, sales: &[Arc<Listing>]) -> Result<HashSet<SaleId>, ShopError> {
    let before = look(shop, sales).await?;
    if before.is_empty() {
        return Ok(HashSet::new());
    }
    let counted: Vec<Counted> = sqlx::query_as(
        "SELECT id, epoch, stock::bigint, taken::bigint,
                (SELECT count(*) FROM releases WHERE sale_id = sales.id) AS outbox
         FROM sales WHERE id = ANY($1)",
    )
    .bind(before.keys().map(|sale| sale.get()).collect::<Vec<_>>())
    .fetch_all(&shop.postgres)
    .await?;
    let after = look(shop, sales).await?;
    let mut found = HashSet::new();
    for counted in counted {
        let listing = sales.iter().find(|listing| listing.id == counted.id);
        if let (Some(before), Some(after)) = (before.get(&counted.id), after.get(&counted.id))
            && let Some(listing) = listing
            && let per_user = i64::from(listing.sale().per_user_limit)
            && let Some(why) = disagreement(before, &counted, after, per_user)
        {
            tracing::debug!(sale = %counted.id, why, "redis and postgres disagree");
            found.insert(counted.id);
        }
    }
    Ok(found)
}

/// Compares the counters of a sale, which Redis told before Postgres and after it.
fn disagreement(
    before: &Look,
    counted: &Counted,
    after: &Look,
    per_user: i64,
) -> Option<&'static str> {
    let held = |look: &Look| look.state.stock - look.state.remaining;
    let admitted = after.state.admitted - before.state.admitted;
    let returned = held(before) + admitted - held(after);
    let is_changing = [before, after]
        .iter()
        .any(|look| (look.state.epoch, look.state.stock) != (counted.epoch, counted.stock));
    if is_changing || admitted < 0 || returned < 0 {
        return None; // an operator changes it
    }
    // What Redis holds is a row, waits to be one, or is on its way back.
    let waiting = before.state.pending + admitted + counted.outbox;
    let is_quiet = before.state.change == after.state.change;
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

/// Looks up some live orders of Postgres in Redis. Answers the sales of those that are not there.
async fn sample(shop: &Shop, newest: bool) -> Result<HashSet<SaleId>, ShopError> {
    let some = if newest { NEWEST } else { ANYWHERE };
    let orders = sqlx::query_as(some).bind(ORDERS).fetch_all(&shop.postgres);
    let mut orders: Vec<(SaleId, OrderId, UserId)> = orders.await?;
    let epoch = |sale: &SaleId| {
        let listing = shop
            .board
            .get(*sale)
            .filter(|listing| listing.is_sellable());
        listing.map(|listing| listing.sale().epoch)
    };
    orders.retain(|(sale, ..)| epoch(sale).is_some());
    let ask = |(sale, _, user): &(SaleId, OrderId, UserId)| {
        functions::ask_record(&shop.redis.keys, *sale, epoch(sale).unwrap_or(0), *user)
    };
    let replies = shop
        .redis
        .query_all(orders.iter().map(ask).collect())
        .await?;
    let missing = orders
        .iter()
        .zip(replies)
        .filter_map(|((sale, order, _), reply)| {
            let held = functions::read_record(reply.ok()?)?;
            let is_held = held
                .iter()
                .any(|held| held.order_id == *order && !held.returned);
            (!is_held).then(|| (order.get(), *sale))
        });
    let missing: HashMap<i64, SaleId> = missing.collect();
    if missing.is_empty() {
        return Ok(HashSet::new());
    }
    // It may have been closed, and its unit returned, while this looked.
    let live = sqlx::query_scalar(
        "SELECT id FROM orders WHERE id = ANY($1) AND status IN ('pending_payment', 'paid')",
    );
    let live = live.bind(missing.keys().copied().collect::<Vec<_>>());
    let live: Vec<i64> = live.fetch_all(&shop.postgres).await?;
    Ok(live
        .iter()
        .filter_map(|id| missing.get(id).copied())
        .collect())
}
