//! Rebuilding Redis from Postgres, and deciding when that is needed.
//!
//! The gate is open only while the live Redis process is the one that Postgres has approved, and only
//! for sales whose Redis state carries the epoch that Postgres names. [`step`] checks both; if one
//! does not hold, one instance is elected (a Postgres advisory lock, gone with its connection) and
//! rebuilds:
//!
//! 1. **fence**: `epoch + 1` in Postgres. Writers of the older epoch are refused from here on.
//! 2. **seal**: the old state is deleted in Redis. Nothing is admitted from here on.
//! 3. **drain**: what the log still holds is written to Postgres.
//! 4. **recompute**: live orders become buyers of the new epoch, under keys of their own.
//! 5. **install**: the new state opens the sale. It refuses if a newer epoch is live.
//! 6. **approve**: Postgres records the process' `run_id`, and every instance opens its gate.
//!
//! On a crash anywhere, the lock is free and the next one starts at 1 with a higher epoch; what the
//! crashed one (or one that was paused) still writes goes to keys that nobody reads.

use crate::{
    domain::{IdempotencyKey, OrderId, OrderStatus, Sale, SaleId, UserId},
    redis::{
        keys::{BUYERS_PER_SHARD, shard_of},
        scripts::{self, Installed, Sealed, record::Held},
    },
    sale::{
        Shop, ShopError,
        board::RETIREMENT,
        catalogue::sale_columns,
        log::{self, AcceptedBatch},
    },
    worker::{Pace, recovery::chunks_of_orders, writer},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// "flash-sale rebuild", so that no other program picks the same number by accident.
const ELECTION: i64 = 0x666c_6173_685f_7262;
const PAUSE: Duration = Duration::from_millis(200);
/// How many returned orders of a user are kept for replays, as in `release.lua`.
const RETURNED_KEPT: usize = 8;
/// Sales rebuilt at the same time.
const CONCURRENCY: usize = 4;

pub fn spawn(shop: &Arc<Shop>, tasks: &TaskTracker, stop: &CancellationToken) {
    let (shop, stop) = (shop.clone(), stop.clone());
    tasks.spawn(async move {
        let mut suspects = HashSet::new();
        let mut pace = Pace::new("rebuild", PAUSE, Some(&shop.rebuild_bell), &stop);
        while pace.rest(step(&shop, &mut suspects).await).await {}
    });
}

/// What is wrong with Redis, if anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The live process is not approved: everything is doubtful.
    Everything,
    /// The process is the approved one, but these sales are missing or of another epoch (FLUSHALL, a
    /// deleted key).
    Sales(Vec<SaleId>),
}

/// One check, and a rebuild if it is needed and this instance is elected. `suspects` are sales that
/// were missing at the last check: only a second look counts, since a sale may just be being created.
pub async fn step(shop: &Arc<Shop>, suspects: &mut HashSet<SaleId>) -> Result<(), ShopError> {
    let live = shop.redis.live_run_id().await?;
    let approved = approved_run_id(shop).await?;
    if approved.as_deref() == Some(live.as_str()) {
        if shop.redis.approved_run_id().as_deref() != Some(&live) {
            // Approved by another instance: its rebuild has changed the epochs.
            shop.ids.discard_lease().await;
            shop.refresh_catalogue().await?;
            shop.read_tallies(&shop.board.listings()).await?;
            shop.redis.approve(&live);
        }
        let missing = missing_sales(shop);
        let again: Vec<SaleId> = missing.intersection(suspects).copied().collect();
        *suspects = missing;
        if again.is_empty() {
            return Ok(());
        }
        return elect_and_rebuild(shop, Some(again)).await;
    }
    elect_and_rebuild(shop, None).await
}

async fn approved_run_id(shop: &Shop) -> Result<Option<String>, ShopError> {
    Ok(sqlx::query_scalar("SELECT run_id FROM redis_incarnation")
        .fetch_optional(&shop.postgres)
        .await?)
}

/// Sales that Redis should hold in the epoch of Postgres, and as far as the board knows does not.
fn missing_sales(shop: &Shop) -> HashSet<SaleId> {
    let now = shop.now();
    shop.board
        .listings()
        .iter()
        .filter(|listing| !listing.is_retired(now))
        .filter(|listing| listing.tally().map(|tally| tally.epoch) != Some(listing.sale().epoch))
        .map(|listing| listing.id)
        .collect()
}

/// Rebuilds if no other instance is at it. `only`: these sales; otherwise all, and approve.
async fn elect_and_rebuild(shop: &Arc<Shop>, only: Option<Vec<SaleId>>) -> Result<(), ShopError> {
    // A transaction of its own that touches no row: it only carries the lock, and the lock ends
    // with it, whatever happens to this process.
    let mut election = shop.postgres.begin().await?;
    let elected: bool = sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)")
        .bind(ELECTION)
        .fetch_one(&mut *election)
        .await?;
    if !elected {
        return Ok(());
    }
    let result = rebuild(shop, only).await;
    election.rollback().await?;
    result
}

/// Rebuilds under the caller's lock.
async fn rebuild(shop: &Arc<Shop>, only: Option<Vec<SaleId>>) -> Result<(), ShopError> {
    let began = Instant::now();
    let live = shop.redis.live_run_id().await?;
    if only.is_none() && approved_run_id(shop).await?.as_deref() == Some(live.as_str()) {
        return Ok(()); // somebody was faster
    }
    let only = match only {
        None => None,
        Some(ids) => {
            // A fresh look under the lock: the other instance may have rebuilt them meanwhile.
            for id in &ids {
                shop.refresh(*id).await?;
            }
            let missing = missing_sales(shop);
            let still: Vec<SaleId> = ids.into_iter().filter(|id| missing.contains(id)).collect();
            if still.is_empty() {
                return Ok(());
            }
            Some(still)
        }
    };
    let sales = fence(shop, only.as_deref(), false).await?;
    let count = sales.len();
    // One sale that cannot be rebuilt must not keep the others shut: it stays fenced by its epoch, and
    // the next steps try it again.
    let mut buyers = 0;
    let mut rebuilt = stream::iter(sales)
        .map(async |sale| (sale.id, rebuild_sale(shop, sale).await))
        .buffer_unordered(CONCURRENCY);
    while let Some((id, outcome)) = rebuilt.next().await {
        match outcome {
            Ok(restored) => buyers += restored,
            Err(error) => tracing::error!(sale = %id, %error, "could not be rebuilt, will retry"),
        }
    }
    drop(rebuilt);
    if only.is_none() {
        approve(shop, &live).await?;
    }
    tracing::info!(
        sales = count,
        buyers,
        ms = began.elapsed().as_millis() as u64,
        "redis is rebuilt from postgres"
    );
    Ok(())
}

/// Step 1 for these sales, or for all; `retired` ones too, or only those that Redis should hold.
async fn fence(
    shop: &Shop,
    only: Option<&[SaleId]>,
    retired: bool,
) -> Result<Vec<Sale>, ShopError> {
    let ids: Option<Vec<i64>> = only.map(|ids| ids.iter().map(|id| id.get()).collect());
    // Locked by id, as everywhere, so that writers and this cannot wait for each other.
    let mut transaction = shop.postgres.begin().await?;
    let ids: Vec<i64> = sqlx::query_scalar(
        "SELECT id FROM sales
         WHERE ($2 OR closes_at > now() - make_interval(secs => $3)) AND ($1::bigint[] IS NULL OR id = ANY($1))
         ORDER BY id FOR NO KEY UPDATE",
    )
    .bind(ids)
    .bind(retired)
    .bind(RETIREMENT.as_seconds_f64())
    .fetch_all(&mut *transaction)
    .await?;
    let fenced = sqlx::query_as(concat!(
        "UPDATE sales SET epoch = epoch + 1, buyer_shards = GREATEST(1, stock / $2) WHERE id = ANY($1) RETURNING ",
        sale_columns!()
    ))
    .bind(ids)
    .bind(i32::try_from(BUYERS_PER_SHARD).unwrap_or(i32::MAX))
    .fetch_all(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(fenced)
}

/// Step 6.
async fn approve(shop: &Shop, run_id: &str) -> Result<(), ShopError> {
    // The id counters may have been rolled back together with the rest.
    shop.ids.start_over().await?;
    sqlx::query(
        "INSERT INTO redis_incarnation (run_id) VALUES ($1)
         ON CONFLICT ON CONSTRAINT redis_incarnation_pkey
         DO UPDATE SET run_id = EXCLUDED.run_id, approved_at = now()",
    )
    .bind(run_id)
    .execute(&shop.postgres)
    .await?;
    shop.redis.approve(run_id);
    Ok(())
}

/// Steps 2 to 5 for one sale whose epoch has been incremented. Answers how many orders it restored.
async fn rebuild_sale(shop: &Arc<Shop>, sale: Sale) -> Result<usize, ShopError> {
    let keys = &shop.redis.keys;
    shop.board.learn(sale.clone());
    let sealed = {
        let mut connection = shop.redis.pooled().await?;
        scripts::seal(&mut *connection, keys, sale.id, sale.epoch).await?
    };
    let Some(old) = sealed else {
        return Ok(0); // a newer rebuild has overtaken this one
    };
    drain(shop, &sale).await?;
    let (taken, held) = live_orders(shop, &sale).await?;
    write_buyers(shop, &sale, &held).await?;
    let mut connection = shop.redis.pooled().await?;
    let remaining = i64::from(sale.stock) - taken;
    match scripts::install(&mut *connection, keys, &sale, remaining, taken).await? {
        Installed::Open => {}
        Installed::Newer => return Ok(0),
        Installed::LogNotEmpty => {
            return Err(ShopError::Unavailable {
                what: "the log of a sealed sale holds entries that cannot be read",
                retry_after: PAUSE,
            });
        }
    }
    drop(connection);
    if let Err(error) = remove_old_buyers(shop, &sale, old).await {
        // Keys that nobody reads any more: a waste, not a fault.
        tracing::warn!(sale = %sale.id, %error, "could not remove the buyers of an older epoch");
    }
    // An operator may have changed the sale since it was fenced, and been told that the change takes
    // effect with the rebuild.
    let now = shop.refresh(sale.id).await?.sale();
    if now.epoch == sale.epoch && now.version > sale.version {
        let mut connection = shop.redis.pooled().await?;
        scripts::project(&mut *connection, keys, &now).await?;
    }
    Ok(held.values().map(Vec::len).sum())
}

/// Writes everything that the sealed log holds, as orders of the new epoch: the rebuild owns it, and
/// it has not been installed, so nothing else can be written in it.
async fn drain(shop: &Arc<Shop>, sale: &Sale) -> Result<(), ShopError> {
    let foreign = log::is_of_another_type(shop, sale.id).await?;
    if foreign || !drain_readable(shop, sale).await? {
        // What could be read is written and deleted: the rest is put aside as it is, for somebody to
        // look at.
        let mut connection = shop.redis.pooled().await?;
        let aside = log::set_aside(&mut *connection, &shop.redis.keys, sale.id, sale.epoch).await?;
        tracing::error!(sale = %sale.id, key = aside, "unreadable log entries were put aside");
    }
    Ok(())
}

/// Writes the entries that can be read, from the first to the last. `false`: some could not.
async fn drain_readable(shop: &Arc<Shop>, sale: &Sale) -> Result<bool, ShopError> {
    let (mut after, mut readable) = (String::new(), true);
    loop {
        let entries = {
            let mut connection = shop.redis.pooled().await?;
            log::read(&mut *connection, &shop.redis.keys, sale.id, &after, 256).await?
        };
        if entries.is_empty() {
            return Ok(readable);
        }
        let mut batches: Vec<AcceptedBatch> = Vec::new();
        for entry in entries {
            match entry {
                Ok(batch) => {
                    after.clone_from(&batch.entry);
                    batches.push(AcceptedBatch {
                        epoch: sale.epoch,
                        ..batch
                    });
                }
                Err(error) => {
                    tracing::error!(%error, "cannot be drained");
                    readable = false;
                    after = error.entry;
                }
            }
        }
        for some in chunks_of_orders(&batches) {
            writer::persist(shop, some).await?;
        }
    }
}

/// Which orders each user holds, and how many are live, in one snapshot. Closed orders are included
/// where they answer the replay of an idempotency key.
async fn live_orders(
    shop: &Shop,
    sale: &Sale,
) -> Result<(i64, HashMap<UserId, Vec<Held>>), ShopError> {
    let mut snapshot = shop
        .postgres
        .begin_with("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await?;
    let mut held: HashMap<UserId, Vec<Held>> = HashMap::new();
    let mut taken = 0;
    let mut rows = sqlx::query_as::<_, (OrderId, UserId, Option<i16>, Option<i64>, OrderStatus)>(
        "SELECT id, user_id, slot, idempotency_hash, status FROM orders
         WHERE sale_id = $1 AND status IN ('pending_payment', 'paid')
         UNION ALL
         SELECT id, user_id, slot, idempotency_hash, status FROM orders
         WHERE sale_id = $1 AND status IN ('cancelled', 'expired', 'rejected') AND idempotency_hash IS NOT NULL",
    )
    .bind(sale.id)
    .fetch(&mut *snapshot);
    while let Some((order_id, user, slot, hash, status)) = rows.try_next().await? {
        let returned = !matches!(status, OrderStatus::PendingPayment | OrderStatus::Paid);
        if !returned {
            taken += 1;
        }
        held.entry(user).or_default().push(Held {
            // A returned order takes no place.
            slot: slot.and_then(|slot| u8::try_from(slot).ok()).unwrap_or(0),
            returned,
            order_id,
            key: hash.map(IdempotencyKey::from_stored),
        });
    }
    drop(rows);
    snapshot.rollback().await?;
    for orders in held.values_mut() {
        orders.sort_unstable_by_key(|order| order.order_id);
        // The scripts keep the newest few returned ones, and so does this.
        let returned = orders.iter().filter(|order| order.returned).count();
        let mut surplus = returned.saturating_sub(RETURNED_KEPT);
        orders.retain(|order| {
            let drop = order.returned && surplus > 0;
            surplus -= usize::from(drop);
            !drop
        });
    }
    Ok((taken, held))
}

async fn write_buyers(
    shop: &Shop,
    sale: &Sale,
    held: &HashMap<UserId, Vec<Held>>,
) -> Result<(), ShopError> {
    let keys = &shop.redis.keys;
    let mut shards: HashMap<i32, Vec<(&UserId, &Vec<Held>)>> = HashMap::new();
    for (user, orders) in held {
        shards
            .entry(shard_of(*user, sale.buyer_shards))
            .or_default()
            .push((user, orders));
    }
    let shards: Vec<_> = shards.into_iter().collect();
    for some in shards.chunks(128) {
        let mut pipeline = redis::Pipeline::with_capacity(some.len());
        for (shard, users) in some {
            let command = pipeline
                .cmd("HSET")
                .arg(keys.shard(sale.id, sale.epoch, *shard));
            for (user, orders) in users {
                let record: Vec<u8> = orders.iter().flat_map(Held::encode).collect();
                command.arg(&user.as_bytes()[..]).arg(record);
            }
            command.ignore();
        }
        let mut connection = shop.redis.pooled().await?;
        pipeline.exec_async(&mut *connection).await?;
    }
    Ok(())
}

/// Deletes the buyers of the epoch that was live, and of half-done rebuilds after it.
async fn remove_old_buyers(shop: &Shop, sale: &Sale, old: Sealed) -> Result<(), ShopError> {
    let live = (old.epoch > 0).then_some((old.epoch, old.shards));
    // After a loss nothing was live, and there is nothing older that could have survived it.
    let first_half_done = if old.epoch > 0 {
        old.epoch + 1
    } else {
        sale.epoch - 1
    };
    let half_done = (first_half_done..sale.epoch).map(|epoch| (epoch, sale.buyer_shards));
    for (epoch, shards) in live.into_iter().chain(half_done) {
        let shards: Vec<i32> = (0..shards).collect();
        for some in shards.chunks(1_024) {
            let key = |shard: &i32| shop.redis.keys.shard(sale.id, epoch, *shard);
            let keys: Vec<String> = some.iter().map(key).collect();
            let mut connection = shop.redis.pooled().await?;
            redis::cmd("UNLINK")
                .arg(keys)
                .exec_async(&mut *connection)
                .await?;
        }
    }
    Ok(())
}

/// Rebuilds at an operator's word: all sales, or one, whatever state Redis is in. Waits for a rebuild
/// that is under way. Answers how many sales.
pub async fn by_hand(shop: &Arc<Shop>, only: Option<SaleId>) -> Result<usize, ShopError> {
    let mut election = shop.postgres.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(ELECTION)
        .execute(&mut *election)
        .await?;
    let live = shop.redis.live_run_id().await?;
    let sales = fence(
        shop,
        only.as_ref().map(std::slice::from_ref),
        only.is_some(),
    )
    .await?;
    let count = sales.len();
    for sale in sales {
        rebuild_sale(shop, sale).await?;
    }
    if only.is_none() {
        approve(shop, &live).await?;
    }
    election.rollback().await?;
    Ok(count)
}
