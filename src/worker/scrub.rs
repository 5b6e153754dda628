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
        let mut found = HashSet::new();
        for listing in self.next_sales(shop) {
            if let Some(why) = disagreement(shop, &listing).await? {
                tracing::debug!(sale = %listing.id, why, "redis and postgres disagree");
                found.insert(listing.id);
            }
        }
        self.newest = !self.newest;
        found.extend(sample(shop, self.newest).await?);
        let mut rebuilt = 0;
        for sale in &found {
            if self.suspects.contains(sale) {
                tracing::error!(%sale, "redis holds something else than postgres: the sale is rebuilt");
                shop.suspect(*sale);
                rebuilt += 1;
            }
        }
        self.suspects = found;
        Ok(rebuilt)
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

async fn look(shop: &Shop, listing: &Listing) -> Result<Option<Look>, ShopError> {
    let (keys, epoch) = (&shop.redis.keys, listing.sale().epoch);
    let count = |command: &str, key: String| {
        let mut asked = redis::cmd(command);
        asked.arg(key);
        asked
    };
    let replies = shop
        .redis
        .query_all(vec![
            functions::snapshot(keys, listing.id),
            count("XLEN", keys.log(listing.id)),
            count("HLEN", keys.buyers(listing.id, epoch)),
        ])
        .await?;
    let mut replies = replies
        .into_iter()
        .map(|reply| reply.unwrap_or(redis::Value::Nil));
    let mut next = || replies.next().unwrap_or(redis::Value::Nil);
    let state = Snapshot::from_reply(next());
    let (entries, users) = (
        redis::from_redis_value(next()).ok(),
        redis::from_redis_value(next()).ok(),
    );
    Ok(state
        .zip(entries.zip(users))
        .filter(|(state, _)| state.epoch == epoch && state.is_approved())
        .map(|(state, (entries, users))| Look {
            state,
            entries,
            users,
        }))
}

/// Compares the counters of a sale. `None`: they agree, or the rebuild has it already.
async fn disagreement(shop: &Shop, listing: &Listing) -> Result<Option<&'static str>, ShopError> {
    let Some(before) = look(shop, listing).await? else {
        return Ok(None);
    };
    let counted = sqlx::query_as(
        "SELECT taken::bigint, (SELECT count(*) FROM releases WHERE sale_id = id)
         FROM sales WHERE id = $1 AND epoch = $2 AND stock = $3",
    )
    .bind(listing.id)
    .bind(before.state.epoch)
    .bind(i32::try_from(before.state.stock).unwrap_or(i32::MAX))
    .fetch_optional(&shop.postgres)
    .await?;
    let (Some((taken, outbox)), Some(after)) = (counted, look(shop, listing).await?) else {
        return Ok(None); // an operator is changing it
    };
    let (taken, outbox): (i64, i64) = (taken, outbox);
    let held = |look: &Look| look.state.stock - look.state.remaining;
    let admitted = after.state.admitted - before.state.admitted;
    let returned = held(&before) + admitted - held(&after);
    if before.state.stock != after.state.stock || admitted < 0 || returned < 0 {
        return Ok(None);
    }
    // What Redis holds is a row, waits to be one, or is on its way back.
    let waiting = before.state.pending + admitted + outbox;
    let per_user = i64::from(listing.sale().per_user_limit);
    let is_quiet = before.state.change == after.state.change;
    Ok(if taken > held(&before) + admitted {
        Some("postgres has more orders than redis has sold")
    } else if held(&before) - returned > taken + waiting {
        Some("redis has sold more than there are orders")
    } else if is_quiet && before.users * per_user < held(&before) {
        Some("buyers are missing in redis")
    } else if before.entries == 0 && admitted == 0 && after.state.pending > 0 {
        Some("orders wait in a log that is empty")
    } else {
        None
    })
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
    let orders: Vec<(SaleId, OrderId, UserId)> = orders.await?;
    let mut asked = Vec::new();
    for (sale, order, user) in orders {
        if let Some(listing) = shop.board.get(sale)
            && listing.is_sellable()
        {
            asked.push((sale, listing.sale().epoch, order, user));
        }
    }
    let keys = &shop.redis.keys;
    let ask = |(sale, epoch, _, user): &(SaleId, i64, OrderId, UserId)| {
        functions::ask_record(keys, *sale, *epoch, *user)
    };
    if asked.is_empty() {
        return Ok(HashSet::new());
    }
    let replies = shop
        .redis
        .query_all(asked.iter().map(ask).collect())
        .await?;
    let mut missing = HashMap::new();
    for ((sale, _, order, _), reply) in asked.iter().zip(replies) {
        let Some(held) = reply.ok().and_then(functions::read_record) else {
            continue;
        };
        if !held
            .iter()
            .any(|held| held.order_id == *order && !held.returned)
        {
            missing.insert(order.get(), *sale);
        }
    }
    if missing.is_empty() {
        return Ok(HashSet::new());
    }
    // It may have been closed, and its unit returned, while this looked.
    let ids: Vec<i64> = missing.keys().copied().collect();
    let live: Vec<i64> = sqlx::query_scalar(
        "SELECT id FROM orders WHERE id = ANY($1) AND status IN ('pending_payment', 'paid')",
    )
    .bind(ids)
    .fetch_all(&shop.postgres)
    .await?;
    Ok(live
        .iter()
        .filter_map(|id| missing.get(id).copied())
        .collect())
}
