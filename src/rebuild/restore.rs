//! Steps 4 to 6 of a rebuild: from the logs and from Postgres into the new epoch.
//!
//! Sales are restored in groups: orders of sales that sold at the same time are scattered over the
//! same pages of Postgres, which would be read once for each sale.

use super::epochs::FencedEpoch;
use super::service::{Outcome, PAUSE, Rebuild};
use crate::domain::{IdempotencyKey, OrderId, OrderStatus, Sale, SaleId, UserId};
use crate::error::{ServiceError, ServiceResult};
use crate::order_log::{self, AcceptedBatch};
use crate::orders::insert::Expect;
use crate::orders::log_recovery::chunks_of_orders;
use crate::postgres::{SNAPSHOT, unless_silent};
use crate::redis::functions::record::Held;
use crate::redis::functions::{self, Activated, Ended};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::HashMap;

/// Returned orders of a user that are kept for replays, the newest, as in `library/orders.lua`.
const RETURNED_KEPT: i64 = 8;
/// Sales that are drained or activated concurrently.
const CONCURRENCY: usize = 4;
/// The bounds of a group: live orders (about 100 bytes of memory each) and sales.
const GROUP_ORDERS: i64 = 250_000;
const GROUP_SALES: usize = 256;

/// Splits fenced sales into groups. `taken`: live orders of each, a moment ago.
pub(super) fn groups(sales: Vec<Sale>, taken: &HashMap<SaleId, i64>) -> Vec<Vec<Sale>> {
    let mut groups = vec![Vec::new()];
    let mut orders = 0;
    for sale in sales {
        let size = taken.get(&sale.id).copied().unwrap_or(0);
        if let Some(group) = groups.last_mut()
            && (group.is_empty() || (orders + size <= GROUP_ORDERS && group.len() < GROUP_SALES))
        {
            orders += size;
            group.push(sale);
        } else {
            orders = size;
            groups.push(vec![sale]);
        }
    }
    groups
}

impl Rebuild {
    /// Restores a group of fenced sales.
    ///
    /// A sale that cannot be rebuilt stays fenced by its epoch, and is tried again; the others
    /// open.
    pub(super) async fn restore(
        &self,
        group: Vec<Sale>,
        fenced: &HashMap<SaleId, FencedEpoch>,
        outcome: &mut Outcome,
    ) {
        let mut drained = Vec::new();
        let mut draining = stream::iter(group)
            .map(async |sale| {
                self.catalog.cache.learn(sale.clone());
                let drained = self.drain(&sale).await;
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
            self.fail_points.at("rebuild.drained").await?;
            self.live_orders(&drained).await
        };
        let mut live = match together.await {
            Ok(live) => live,
            Err(error) => {
                // One sale may be too large to be read in time: the others must not wait for it.
                tracing::warn!(%error, sales = drained.len(), "could not be read together");
                let mut live = HashMap::new();
                for sale in std::mem::take(&mut drained) {
                    match self.live_orders(std::slice::from_ref(&sale)).await {
                        Ok(orders) => {
                            live.extend(orders);
                            drained.push(sale);
                        }
                        Err(error) => outcome.fail(sale.id, error),
                    }
                }
                live
            }
        };
        let mut filling = stream::iter(drained)
            .map(|sale| (live.remove(&sale.id).unwrap_or_default(), sale))
            .map(async |(live, sale)| {
                let opened = self.open_sale(&sale, live).await;
                if let (Ok(_), Some(epoch)) = (&opened, fenced.get(&sale.id)) {
                    self.unlink_shards(&sale, epoch.ended).await;
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

    /// Writes the buyers of the new epoch and activates it. Answers how many orders it restored.
    async fn open_sale(&self, sale: &Sale, live: LiveOrders) -> ServiceResult<usize> {
        let LiveOrders { taken, held } = live;
        self.fail_points.at("rebuild.recomputed").await?;
        self.write_buyers(sale, &held).await?;
        self.fail_points.at("rebuild.buyers_written").await?;
        let (redis, remaining) = (&self.redis, i64::from(sale.stock) - taken);
        let (mut connection, keys) = (redis.pooled().await?, &redis.keys);
        let activated =
            functions::activate(&mut connection, keys, sale, remaining, taken, held.len()).await?;
        drop(connection);
        if !is_active(activated)? {
            if let Err(error) = self.unlink_if_overtaken(sale).await {
                tracing::warn!(sale = %sale.id, %error,
                    "could not remove the buyers of an overtaken rebuild");
            }
            return Ok(0);
        }
        self.fail_points.at("rebuild.activated").await?;
        // An operator may have changed the sale since the fence.
        let now = unless_silent(self.catalog.refresh(sale.id)).await?.sale();
        if now.epoch == sale.epoch && now.version > sale.version {
            functions::apply_version(&mut redis.pooled().await?, keys, &now).await?;
        }
        Ok(held.values().map(Vec::len).sum())
    }

    /// Removes buyers' keys of versions before the function library, those of unfinished rebuilds
    /// too.
    pub(super) async fn unlink_shards(&self, sale: &Sale, old: Ended) {
        let keys = &self.redis.keys;
        let of_epoch = |epoch| (0..old.shards).map(move |shard| (epoch, shard));
        let shards: Vec<(i64, i32)> = (old.epoch..sale.epoch).flat_map(of_epoch).collect();
        for some in shards.chunks(1_000) {
            let mut unlink = redis::cmd("UNLINK");
            for (epoch, shard) in some {
                unlink.arg(keys.buyers_shard(sale.id, *epoch, *shard));
            }
            if let Err(error) = self.execute(&unlink).await {
                // Nobody reads these keys: they waste memory, no more.
                tracing::warn!(sale = %sale.id, %error,
                    "could not remove the buyers of an older epoch");
                return;
            }
        }
    }

    /// Writes the fenced log as orders of the new epoch, in which nothing else is written before
    /// the activation. `false`: overtaken.
    pub(super) async fn drain(&self, sale: &Sale) -> ServiceResult<bool> {
        let (redis, id) = (&self.redis, sale.id);
        let is_log = order_log::is_log(&mut redis.pooled().await?, &redis.keys, id).await?;
        let drained = match is_log {
            true => self.drain_readable(sale).await?,
            false => Drained::Readable,
        };
        if let Drained::Readable = drained {
            // The readable entries are written and deleted; the rest is kept for a person to
            // inspect.
            let mut connection = redis.pooled().await?;
            let moved = order_log::quarantine(&mut connection, &redis.keys, id, sale.epoch);
            let key = moved.await?;
            tracing::error!(sale = %id, key, "unreadable log entries were quarantined");
        }
        Ok(!matches!(drained, Drained::Overtaken))
    }

    /// Writes the entries that can be read, from the first to the last.
    async fn drain_readable(&self, sale: &Sale) -> ServiceResult<Drained> {
        let (redis, keys) = (&self.redis, &self.redis.keys);
        let (mut after, mut drained) = (String::new(), Drained::All);
        loop {
            let mut connection = redis.pooled().await?;
            let entries = order_log::read(&mut connection, keys, sale.id, &after, 256).await?;
            drop(connection);
            if entries.is_empty() {
                return Ok(drained);
            }
            let mut batches: Vec<AcceptedBatch> = Vec::new();
            for entry in entries {
                match entry {
                    // Entries of a live epoch must not be taken for old ones: they would be deleted
                    // unwritten.
                    Ok(batch) if batch.epoch >= sale.epoch => return Ok(Drained::Overtaken),
                    Ok(batch) => {
                        after.clone_from(&batch.entry);
                        batches.push(AcceptedBatch { epoch: sale.epoch, ..batch });
                    }
                    Err(error) => {
                        tracing::error!(%error, "cannot be drained");
                        drained = Drained::Readable;
                        after = error.entry;
                    }
                }
            }
            for some in chunks_of_orders(&batches) {
                self.orders.persist(some, Expect::PerhapsWritten).await?;
            }
        }
    }

    /// The orders of all these sales, in one snapshot.
    async fn live_orders(&self, sales: &[Sale]) -> ServiceResult<HashMap<SaleId, LiveOrders>> {
        type Row = (SaleId, OrderId, UserId, Option<i16>, Option<i64>, OrderStatus);
        let ids: Vec<i64> = sales.iter().map(|sale| sale.id.get()).collect();
        let mut snapshot = unless_silent(self.postgres.begin(SNAPSHOT)).await?;
        let mut live: HashMap<SaleId, LiveOrders> = HashMap::new();
        let rows = sqlx::query_as::<_, Row>(
            "SELECT sale_id, id, user_id, slot, idempotency_hash, status FROM orders
         WHERE sale_id = ANY($1) AND status IN ('pending_payment', 'paid')
         UNION ALL
         SELECT sale_id, id, user_id, slot, idempotency_hash, status FROM (
             SELECT *, row_number() OVER (PARTITION BY sale_id, user_id ORDER BY id DESC) AS place
                 FROM orders
             WHERE sale_id = ANY($1) AND status IN ('cancelled', 'expired', 'rejected')
                 AND idempotency_hash IS NOT NULL
         ) AS closed WHERE place <= $2",
        );
        let mut rows = rows.bind(ids).bind(RETURNED_KEPT).fetch(&mut *snapshot);
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
                key: hash.map(IdempotencyKey::from_i64),
            });
        }
        drop(rows);
        unless_silent(snapshot.rollback()).await?;
        for orders in live.values_mut().flat_map(|live| live.held.values_mut()) {
            orders.sort_unstable_by_key(|order| order.order_id);
        }
        Ok(live)
    }

    pub(super) async fn write_buyers(
        &self,
        sale: &Sale,
        held: &HashMap<UserId, Vec<Held>>,
    ) -> ServiceResult<()> {
        let key = self.redis.keys.buyers(sale.id, sale.epoch);
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
            pipeline.expire(&key, INACTIVE_SECS).ignore();
            let mut connection = self.redis.pooled().await?;
            pipeline.exec_async(&mut connection).await?;
        }
        Ok(())
    }

    /// Deletes the buyers of this rebuild if another one has fenced its epoch: that one may have
    /// deleted them too early.
    pub(super) async fn unlink_if_overtaken(&self, sale: &Sale) -> ServiceResult<()> {
        if unless_silent(self.catalog.refresh(sale.id)).await?.sale().epoch > sale.epoch {
            let key = self.redis.keys.buyers(sale.id, sale.epoch);
            self.execute(redis::cmd("UNLINK").arg(key)).await?;
        }
        Ok(())
    }

    async fn execute(&self, command: &redis::Cmd) -> Result<(), redis::RedisError> {
        let mut connection = self.redis.pooled().await?;
        command.exec_async(&mut connection).await
    }
}

/// The result of draining a log.
enum Drained {
    All,
    /// Some entries could not be read.
    Readable,
    /// Entries of this epoch or a later one: another rebuild owns the log now.
    Overtaken,
}

/// The orders of a sale, as Redis keeps them.
#[derive(Debug, Default)]
struct LiveOrders {
    /// How many are live.
    taken: i64,
    /// The orders of each user, with closed ones that answer replays of their idempotency key.
    held: HashMap<UserId, Vec<Held>>,
}

/// Users of one command, and commands of one round trip.
const USERS: usize = 500;
const COMMANDS: usize = 8;

/// Buyers of a rebuild that ends before its activation expire after this time.
const INACTIVE_SECS: i64 = 600;

/// False: another instance has taken the sale further.
fn is_active(step: Activated) -> ServiceResult<bool> {
    let what = match step {
        Activated::Open => return Ok(true),
        Activated::Newer => return Ok(false),
        Activated::Unfenced => "redis lost the sale again while it was being rebuilt",
        Activated::LogNotEmpty => "the log of a fenced sale holds entries that cannot be read",
    };
    Err(ServiceError::Unavailable { what, retry_after: PAUSE })
}
