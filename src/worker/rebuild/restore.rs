//! Steps 4 to 6 of a rebuild: from the logs and from Postgres into the new epoch.
//!
//! Sales are restored in groups, because of Postgres: the orders of sales that sold at the same time lie
//! scattered over the same pages, and asking for one sale after the other would read all of them each
//! time.

use super::{Outcome, PAUSE, bounded, epochs::Sealing};
use crate::{
    domain::{IdempotencyKey, OrderId, OrderStatus, Sale, SaleId, UserId},
    postgres::{SNAPSHOT, Transaction, unless_silent},
    redis::functions::{self, Ended, Installed, record::Held},
    sale::{
        Shop, ShopError,
        log::{self, AcceptedBatch},
        orders::Expect,
    },
    worker::{recovery::chunks_of_orders, writer},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::{collections::HashMap, sync::Arc};

/// How many returned orders of a user are kept for replays, the newest, as in `library/orders.lua`.
const RETURNED_KEPT: i64 = 8;
/// Sales that are drained, or filled, at the same time.
const CONCURRENCY: usize = 4;
/// A group ends after so many live orders (about 100 bytes of memory each) or so many sales.
const GROUP_ORDERS: i64 = 250_000;
const GROUP_SALES: usize = 256;

/// Splits fenced sales into groups. `taken` says how many live orders each had a moment ago.
pub(super) fn groups(sales: Vec<Sale>, taken: &HashMap<SaleId, i64>) -> Vec<Vec<Sale>> {
    let mut groups = vec![Vec::new()];
    let mut orders = 0;
    for sale in sales {
        let size = taken.get(&sale.id).copied().unwrap_or(0);
        if let Some(group) = groups.last_mut()
            && (group.is_empty() || (orders + size <= GROUP_ORDERS && group.len() < GROUP_SALES))
        {
            orders = if group.is_empty() {
                size
            } else {
                orders + size
            };
            group.push(sale);
        } else {
            orders = size;
            groups.push(vec![sale]);
        }
    }
    groups
}

/// Restores a group of sales that are sealed and fenced.
///
/// One sale that cannot be rebuilt must not keep the others shut: it stays fenced by its epoch, and the
/// next steps try it again.
pub(super) async fn restore(
    shop: &Arc<Shop>,
    group: Vec<Sale>,
    sealed: &HashMap<SaleId, Sealing>,
    outcome: &mut Outcome,
) {
    let mut drained = Vec::new();
    let mut draining = stream::iter(group)
        .map(async |sale| {
            shop.board.learn(sale.clone());
            let drained = drain(shop, &sale).await;
            (sale, drained)
        })
        .buffer_unordered(CONCURRENCY);
    while let Some((sale, done)) = draining.next().await {
        match done {
            Ok(true) => drained.push(sale),
            Ok(false) => {} // overtaken
            Err(error) => outcome.fail(sale.id, error),
        }
    }
    drop(draining);
    let together = async {
        shop.fail_points.at("rebuild.drained").await?;
        live_orders(shop, &drained).await
    };
    let mut live = match together.await {
        Ok(live) => live,
        Err(error) => {
            // One of them may be too large to be read in time: the others must not wait for it.
            tracing::warn!(%error, sales = drained.len(), "could not be read together");
            let mut live = HashMap::new();
            let mut readable = Vec::new();
            for sale in drained {
                match live_orders(shop, std::slice::from_ref(&sale)).await {
                    Ok(orders) => {
                        live.extend(orders);
                        readable.push(sale);
                    }
                    Err(error) => outcome.fail(sale.id, error),
                }
            }
            drained = readable;
            live
        }
    };
    let mut filling = stream::iter(drained)
        .map(|sale| (live.remove(&sale.id).unwrap_or_default(), sale))
        .map(async |(live, sale)| {
            let opened = open(shop, &sale, live).await;
            if let (Ok(_), Some(sealing)) = (&opened, sealed.get(&sale.id)) {
                unlink_shards(shop, &sale, sealing.ended).await;
            }
            (sale.id, opened)
        })
        .buffer_unordered(CONCURRENCY);
    while let Some((id, opened)) = filling.next().await {
        match opened {
            Ok(orders) => outcome.buyers += orders,
            Err(error) => outcome.fail(id, error),
        }
    }
}

/// Writes a sale's buyers under the new epoch and opens it. Answers how many orders it restored.
async fn open(shop: &Arc<Shop>, sale: &Sale, live: LiveOrders) -> Result<usize, ShopError> {
    let fail_points = &shop.fail_points;
    let LiveOrders { taken, held } = live;
    fail_points.at("rebuild.recomputed").await?;
    write_buyers(shop, sale, &held).await?;
    fail_points.at("rebuild.buyers_written").await?;
    let installed = {
        let remaining = i64::from(sale.stock) - taken;
        let (mut connection, keys) = (shop.redis.pooled().await?, &shop.redis.keys);
        functions::install(&mut connection, keys, sale, remaining, taken, held.len()).await?
    };
    if !went_well(installed)? {
        if let Err(error) = unlink_if_overtaken(shop, sale).await {
            tracing::warn!(sale = %sale.id, %error, "could not remove the buyers of an overtaken rebuild");
        }
        return Ok(0);
    }
    fail_points.at("rebuild.installed").await?;
    // An operator may have changed the sale since it was fenced, and been told that the change takes
    // effect with the rebuild.
    let now = bounded(shop.refresh(sale.id)).await?.sale();
    if now.epoch == sale.epoch && now.version > sale.version {
        let mut connection = shop.redis.pooled().await?;
        functions::apply_version(&mut connection, &shop.redis.keys, &now).await?;
    }
    Ok(held.values().map(Vec::len).sum())
}

/// Removes what a version before the function library kept: buyers in many small hashes, also those
/// of a rebuild that did not come to its end.
async fn unlink_shards(shop: &Shop, sale: &Sale, old: Ended) {
    let keys = &shop.redis.keys;
    let of_epoch = |epoch| (0..old.shards).map(move |shard| (epoch, shard));
    let shards: Vec<(i64, i32)> = (old.epoch..sale.epoch).flat_map(of_epoch).collect();
    for some in shards.chunks(1_000) {
        let mut unlink = redis::cmd("UNLINK");
        for (epoch, shard) in some {
            unlink.arg(keys.buyers_shard(sale.id, *epoch, *shard));
        }
        let unlinked = async { unlink.exec_async(&mut shop.redis.pooled().await?).await };
        if let Err(error) = unlinked.await {
            // Keys that nobody reads any more: a waste, not a fault.
            tracing::warn!(sale = %sale.id, %error, "could not remove the buyers of an older epoch");
            return;
        }
    }
}

/// What draining a log came to.
enum Drained {
    All,
    /// Some entries could not be read.
    Readable,
    /// Entries of this epoch or a later one: another rebuild has overtaken this one, and the log is
    /// no longer its own.
    Overtaken,
}

/// Writes everything that the sealed log holds, as orders of the new epoch: the rebuild owns it, and
/// it has not been installed, so nothing else can be written in it. `false`: overtaken.
async fn drain(shop: &Arc<Shop>, sale: &Sale) -> Result<bool, ShopError> {
    let drained = if log::is_of_another_type(shop, sale.id).await? {
        Drained::Readable
    } else {
        drain_readable(shop, sale).await?
    };
    match drained {
        Drained::All => Ok(true),
        Drained::Overtaken => Ok(false),
        Drained::Readable => {
            // What could be read is written and deleted: the rest is put aside as it is, for
            // somebody to look at.
            let mut connection = shop.redis.pooled().await?;
            let aside =
                log::set_aside(&mut connection, &shop.redis.keys, sale.id, sale.epoch).await?;
            tracing::error!(sale = %sale.id, key = aside, "unreadable log entries were put aside");
            Ok(true)
        }
    }
}

/// Writes the entries that can be read, from the first to the last.
async fn drain_readable(shop: &Arc<Shop>, sale: &Sale) -> Result<Drained, ShopError> {
    let (mut after, mut drained) = (String::new(), Drained::All);
    loop {
        let entries = {
            let mut connection = shop.redis.pooled().await?;
            log::read(&mut connection, &shop.redis.keys, sale.id, &after, 256).await?
        };
        if entries.is_empty() {
            return Ok(drained);
        }
        let mut batches: Vec<AcceptedBatch> = Vec::new();
        for entry in entries {
            match entry {
                // Taking a live epoch's entries for old ones would end in deleting them unwritten.
                Ok(batch) if batch.epoch >= sale.epoch => return Ok(Drained::Overtaken),
                Ok(batch) => {
                    after.clone_from(&batch.entry);
                    batches.push(AcceptedBatch {
                        epoch: sale.epoch,
                        ..batch
                    });
                }
                Err(error) => {
                    tracing::error!(%error, "cannot be drained");
                    drained = Drained::Readable;
                    after = error.entry;
                }
            }
        }
        for some in chunks_of_orders(&batches) {
            writer::persist(shop, some, Expect::PerhapsWritten).await?;
        }
    }
}

/// A sale's orders as Redis keeps them.
#[derive(Debug, Default)]
struct LiveOrders {
    /// How many are live.
    taken: i64,
    /// The orders of each user; closed ones too, where they answer the replay of an idempotency key.
    held: HashMap<UserId, Vec<Held>>,
}

/// The orders of all these sales, in one snapshot.
async fn live_orders(
    shop: &Shop,
    sales: &[Sale],
) -> Result<HashMap<SaleId, LiveOrders>, ShopError> {
    type Row = (
        SaleId,
        OrderId,
        UserId,
        Option<i16>,
        Option<i64>,
        OrderStatus,
    );
    let ids: Vec<i64> = sales.iter().map(|sale| sale.id.get()).collect();
    let mut snapshot = unless_silent(Transaction::begin(&shop.postgres, SNAPSHOT)).await?;
    let mut live: HashMap<SaleId, LiveOrders> = HashMap::new();
    let mut rows = sqlx::query_as::<_, Row>(
        "SELECT sale_id, id, user_id, slot, idempotency_hash, status FROM orders
         WHERE sale_id = ANY($1) AND status IN ('pending_payment', 'paid')
         UNION ALL
         SELECT sale_id, id, user_id, slot, idempotency_hash, status FROM (
             SELECT *, row_number() OVER (PARTITION BY sale_id, user_id ORDER BY id DESC) AS place FROM orders
             WHERE sale_id = ANY($1) AND status IN ('cancelled', 'expired', 'rejected') AND idempotency_hash IS NOT NULL
         ) AS closed WHERE place <= $2",
    )
    .bind(ids)
    .bind(RETURNED_KEPT)
    .fetch(&mut *snapshot);
    while let Some(row) = unless_silent(rows.try_next()).await? {
        let (sale, order_id, user, slot, hash, status) = row;
        let of_sale = live.entry(sale).or_default();
        let returned = !matches!(status, OrderStatus::PendingPayment | OrderStatus::Paid);
        of_sale.taken += i64::from(!returned);
        of_sale.held.entry(user).or_default().push(Held {
            // A returned order takes no place.
            slot: slot.and_then(|slot| u8::try_from(slot).ok()).unwrap_or(0),
            returned,
            order_id,
            key: hash.map(IdempotencyKey::from_stored),
        });
    }
    drop(rows);
    unless_silent(snapshot.rollback()).await?;
    for orders in live
        .values_mut()
        .flat_map(|of_sale| of_sale.held.values_mut())
    {
        orders.sort_unstable_by_key(|order| order.order_id);
    }
    Ok(live)
}

/// Users whose records go into one command, and commands of one round trip.
const USERS: usize = 500;
const COMMANDS: usize = 8;

/// Buyers that are being written are gone after so long if nobody installs or removes them.
const UNINSTALLED_SECS: i64 = 600;

async fn write_buyers(
    shop: &Shop,
    sale: &Sale,
    held: &HashMap<UserId, Vec<Held>>,
) -> Result<(), ShopError> {
    let key = shop.redis.keys.buyers(sale.id, sale.epoch);
    let users: Vec<_> = held.iter().collect();
    for some in users.chunks(USERS * COMMANDS) {
        let mut pipeline = redis::pipe();
        for users in some.chunks(USERS) {
            let command = pipeline.cmd("HSET").arg(&key);
            for (user, orders) in users {
                let record: Vec<u8> = orders.iter().flat_map(Held::encode).collect();
                command.arg(&user.as_bytes()[..]).arg(record);
            }
            command.ignore();
        }
        pipeline.expire(&key, UNINSTALLED_SECS).ignore();
        pipeline.exec_async(&mut shop.redis.pooled().await?).await?;
    }
    Ok(())
}

/// False: somebody else has taken the sale further.
fn went_well(step: Installed) -> Result<bool, ShopError> {
    let what = match step {
        Installed::Open => return Ok(true),
        Installed::Newer => return Ok(false),
        Installed::Unsealed => "redis lost the sale again while it was being rebuilt",
        Installed::LogNotEmpty => "the log of a sealed sale holds entries that cannot be read",
    };
    Err(ShopError::Unavailable {
        what,
        retry_after: PAUSE,
    })
}

/// Deletes the buyers that this rebuild has just written, if another one has fenced its epoch: the
/// other one may have looked for them too early.
async fn unlink_if_overtaken(shop: &Arc<Shop>, sale: &Sale) -> Result<(), ShopError> {
    if bounded(shop.refresh(sale.id)).await?.sale().epoch > sale.epoch {
        let key = shop.redis.keys.buyers(sale.id, sale.epoch);
        redis::cmd("UNLINK")
            .arg(key)
            .exec_async(&mut shop.redis.pooled().await?)
            .await?;
    }
    Ok(())
}
