//! Rebuilding Redis from Postgres, and deciding when that is needed.
//!
//! The gate is open only while the live Redis process is the one that Postgres has approved, and only
//! for sales whose Redis state carries the epoch that Postgres names. [`step`] checks both; if one
//! does not hold, one instance is elected (a Postgres advisory lock, gone with its connection) and
//! rebuilds:
//!
//! 1. **seal**: the old state is deleted in Redis. Nothing is admitted from here on.
//! 2. **let the writers finish**: what was accepted and is still in a channel is written in the old
//!    epoch, so that nobody new can take its unit. Bounded; what comes later asks for a place again.
//! 3. **fence**: the new epoch in Postgres. Writers of the older one are refused from here on.
//! 4. **drain**: what the log still holds is written to Postgres.
//! 5. **recompute**: live orders become buyers of the new epoch, under keys of their own.
//! 6. **install**: the new state opens the sale. It refuses if a newer epoch is live or on its way.
//! 7. **approve**: Postgres records the process, and every instance opens its gate.
//!
//! On a crash anywhere, the lock is free and the next one starts at 1 with a higher epoch. One that was
//! paused while another took over finds itself overtaken at its next step: a seal or a fence of a
//! higher epoch, entries of a higher epoch in the log. What it still writes goes to keys that nobody
//! reads.

use crate::{
    domain::{IdempotencyKey, OrderId, OrderStatus, Sale, SaleId, UserId},
    postgres::{self, SNAPSHOT, Transaction, unless_silent},
    redis::{
        keys::{BUYERS_PER_SHARD, shard_of},
        scripts::{self, Installed, Sealed, record::Held},
    },
    sale::{
        Shop, ShopError,
        board::RETIREMENT,
        catalogue::{sale_columns, unlink_buyers},
        log::{self, AcceptedBatch},
        orders::Expect,
    },
    worker::{Pace, recovery::chunks_of_orders, writer},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use metrics::counter;
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

/// How long the writers get to finish what they have in hand, at least (other instances' channels
/// cannot be seen from here; a batch takes some ten milliseconds) and at most (while this instance's
/// own channel is not empty).
const WRITERS_LEAST: Duration = Duration::from_millis(100);
const WRITERS_MOST: Duration = Duration::from_secs(2);

pub fn spawn(shop: &Arc<Shop>, tasks: &TaskTracker, stop: &CancellationToken) {
    let (shop, stop) = (shop.clone(), stop.clone());
    tasks.spawn(async move {
        let mut suspects = HashSet::new();
        // No limit as a whole: a catalogue of millions takes its time. Each statement has one.
        let mut pace = Pace::new("rebuild", PAUSE, Some(&shop.rebuild_bell), &stop).without_limit();
        while pace.rest(step(&shop, &mut suspects)).await {}
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
    if approved.as_deref() != Some(live.as_str()) {
        // Connections that were made to it while it was approved count no more.
        shop.redis.disapprove();
        shop.redis.drop_hot();
    }
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

/// The Redis process that was checked against this Postgres: an approval that another timeline has
/// given is void.
async fn approved_run_id(shop: &Shop) -> Result<Option<String>, ShopError> {
    let timeline = unless_silent(postgres::timeline(&shop.postgres)).await?;
    let approved = sqlx::query_scalar("SELECT run_id FROM redis_incarnation WHERE timeline = $1")
        .bind(timeline);
    Ok(unless_silent(approved.fetch_optional(&shop.postgres)).await?)
}

/// Sales that Redis should hold in the epoch of Postgres, and as far as the board knows does not, or
/// not in a state that the program can read.
fn missing_sales(shop: &Shop) -> HashSet<SaleId> {
    let now = shop.now();
    shop.board
        .listings()
        .iter()
        .filter(|listing| !listing.is_retired(now))
        .filter(|listing| {
            listing.is_suspect()
                || listing.tally().map(|tally| tally.epoch) != Some(listing.sale().epoch)
        })
        .map(|listing| listing.id)
        .collect()
}

/// Rebuilds if no other instance is at it. `only`: these sales; otherwise all, and approve.
async fn elect_and_rebuild(shop: &Arc<Shop>, only: Option<Vec<SaleId>>) -> Result<(), ShopError> {
    // A transaction of its own that touches no row: it only carries the lock, and the lock ends
    // with it, whatever happens to this process.
    let mut election = unless_silent(Transaction::begin(&shop.postgres, "BEGIN")).await?;
    let elected: bool = unless_silent(
        sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)")
            .bind(ELECTION)
            .fetch_one(&mut *election),
    )
    .await?;
    if !elected {
        return Ok(election.rollback().await?);
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
    let outcome = rebuild_sales(shop, only.as_deref(), false).await?;
    if only.is_none() {
        approve(shop, &live).await?;
    }
    counter!("flash_sale_rebuilds_total").increment(1);
    tracing::info!(
        sales = outcome.sales,
        buyers = outcome.buyers,
        ms = began.elapsed().as_millis() as u64,
        "redis is rebuilt from postgres"
    );
    Ok(())
}

/// What a rebuild did.
#[derive(Debug, Default)]
struct Outcome {
    sales: usize,
    /// Orders restored.
    buyers: usize,
    /// The last sale that could not be rebuilt, and why.
    failed: Option<(SaleId, ShopError)>,
}

/// Steps 1 to 6 for these sales, or for all; `retired` ones too, or only those that Redis should hold.
///
/// One sale that cannot be rebuilt must not keep the others shut: it stays fenced by its epoch, and the
/// next steps try it again.
async fn rebuild_sales(
    shop: &Arc<Shop>,
    only: Option<&[SaleId]>,
    retired: bool,
) -> Result<Outcome, ShopError> {
    let fail_points = &shop.fail_points;
    fail_points
        .at("rebuild.elected")
        .await
        .map_err(sqlx::Error::Io)?;
    let sealed = seal(shop, only, retired).await?;
    fail_points
        .at("rebuild.sealed")
        .await
        .map_err(sqlx::Error::Io)?;
    let_writers_finish(shop).await;
    let sales = fence(shop, &sealed).await?;
    fail_points
        .at("rebuild.fenced")
        .await
        .map_err(sqlx::Error::Io)?;
    let mut outcome = Outcome {
        sales: sales.len(),
        ..Outcome::default()
    };
    let mut rebuilt = stream::iter(sales)
        .map(async |sale| {
            let (id, old) = (sale.id, sealed.get(&sale.id).copied());
            (id, rebuild_sale(shop, sale, old).await)
        })
        .buffer_unordered(CONCURRENCY);
    while let Some((id, rebuilt)) = rebuilt.next().await {
        match rebuilt {
            Ok(restored) => outcome.buyers += restored,
            Err(error) => {
                tracing::error!(sale = %id, %error, "could not be rebuilt, will retry");
                outcome.failed = Some((id, error));
            }
        }
    }
    Ok(outcome)
}

/// What a seal ended: the epoch to build, and what was live before (0: nothing).
#[derive(Debug, Clone, Copy)]
struct Ended {
    new_epoch: i64,
    epoch: i64,
    shards: i32,
}

/// Step 1.
async fn seal(
    shop: &Shop,
    only: Option<&[SaleId]>,
    retired: bool,
) -> Result<HashMap<SaleId, Ended>, ShopError> {
    let ids: Option<Vec<i64>> = only.map(|ids| ids.iter().map(|id| id.get()).collect());
    let sales = sqlx::query_as(
        "SELECT id, epoch FROM sales
         WHERE ($2 OR closes_at > now() - make_interval(secs => $3)) AND ($1::bigint[] IS NULL OR id = ANY($1))
         ORDER BY id",
    )
    .bind(ids)
    .bind(retired)
    .bind(RETIREMENT.as_seconds_f64());
    let sales: Vec<(SaleId, i64)> = unless_silent(sales.fetch_all(&shop.postgres)).await?;
    let mut ended = HashMap::new();
    for (id, epoch) in sales {
        if let Some(sealed) = seal_sale(shop, id, epoch).await? {
            ended.insert(id, sealed);
        }
    }
    Ok(ended)
}

/// `None`: somebody else is rebuilding this sale, and further on.
async fn seal_sale(shop: &Shop, id: SaleId, epoch: i64) -> Result<Option<Ended>, ShopError> {
    let mut new_epoch = epoch + 1;
    loop {
        let mut connection = shop.redis.pooled().await?;
        match scripts::seal(&mut *connection, &shop.redis.keys, id, new_epoch).await? {
            Sealed::Ended { epoch, shards } => {
                return Ok(Some(Ended {
                    new_epoch,
                    epoch,
                    shards,
                }));
            }
            Sealed::Newer { epoch: live } => {
                drop(connection);
                let now: i64 = sqlx::query_scalar("SELECT epoch FROM sales WHERE id = $1")
                    .bind(id)
                    .fetch_one(&shop.postgres)
                    .await?;
                if now >= live {
                    return Ok(None);
                }
                // Postgres is behind Redis: it was restored, or promoted with a gap.
                new_epoch = live + 1;
            }
        }
    }
}

/// Step 2. See the module's text.
async fn let_writers_finish(shop: &Shop) {
    let began = Instant::now();
    loop {
        tokio::time::sleep(WRITERS_LEAST).await;
        if shop.handoff_is_empty() || began.elapsed() >= WRITERS_MOST {
            return;
        }
    }
}

/// Step 3. Answers the sales that are fenced; those that somebody else has taken further are left out.
async fn fence(shop: &Shop, sealed: &HashMap<SaleId, Ended>) -> Result<Vec<Sale>, ShopError> {
    let (ids, epochs): (Vec<i64>, Vec<i64>) = sealed
        .iter()
        .map(|(id, ended)| (id.get(), ended.new_epoch))
        .unzip();
    // Locked by id, as everywhere, so that writers and this cannot wait for each other.
    let fenced = sqlx::query_as(concat!(
        "WITH target AS (
             SELECT s.id AS target_id, d.epoch AS target_epoch
             FROM UNNEST($1::bigint[], $2::bigint[]) AS d (id, epoch)
             JOIN sales s ON s.id = d.id AND s.epoch < d.epoch
             ORDER BY s.id FOR NO KEY UPDATE OF s
         )
         UPDATE sales SET epoch = target_epoch, buyer_shards = GREATEST(1, stock / $3)
         FROM target WHERE id = target_id RETURNING ",
        sale_columns!()
    ))
    .bind(ids)
    .bind(epochs)
    .bind(i32::try_from(BUYERS_PER_SHARD).unwrap_or(i32::MAX));
    Ok(unless_silent(fenced.fetch_all(&shop.postgres)).await?)
}

/// Step 7.
async fn approve(shop: &Shop, run_id: &str) -> Result<(), ShopError> {
    // The id counters may have been rolled back together with the rest.
    shop.ids.start_over().await?;
    let fail_points = &shop.fail_points;
    fail_points
        .at("rebuild.id_floor_raised")
        .await
        .map_err(sqlx::Error::Io)?;
    let timeline = postgres::timeline(&shop.postgres).await?;
    sqlx::query(
        "INSERT INTO redis_incarnation (run_id, timeline) VALUES ($1, $2)
         ON CONFLICT ON CONSTRAINT redis_incarnation_pkey
         DO UPDATE SET run_id = EXCLUDED.run_id, timeline = EXCLUDED.timeline, approved_at = now()",
    )
    .bind(run_id)
    .bind(timeline)
    .execute(&shop.postgres)
    .await?;
    fail_points
        .at("rebuild.approved")
        .await
        .map_err(sqlx::Error::Io)?;
    shop.redis.approve(run_id);
    Ok(())
}

/// Steps 4 to 6 for one sale that is sealed and fenced. Answers how many orders it restored.
async fn rebuild_sale(
    shop: &Arc<Shop>,
    sale: Sale,
    old: Option<Ended>,
) -> Result<usize, ShopError> {
    let keys = &shop.redis.keys;
    let fail_points = &shop.fail_points;
    shop.board.learn(sale.clone());
    if !drain(shop, &sale).await? {
        return Ok(0);
    }
    fail_points
        .at("rebuild.drained")
        .await
        .map_err(sqlx::Error::Io)?;
    let (taken, held) = live_orders(shop, &sale).await?;
    fail_points
        .at("rebuild.recomputed")
        .await
        .map_err(sqlx::Error::Io)?;
    write_buyers(shop, &sale, &held).await?;
    fail_points
        .at("rebuild.buyers_written")
        .await
        .map_err(sqlx::Error::Io)?;
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
    fail_points
        .at("rebuild.installed")
        .await
        .map_err(sqlx::Error::Io)?;
    if let Some(old) = old
        && let Err(error) = remove_old_buyers(shop, &sale, old).await
    {
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
                log::set_aside(&mut *connection, &shop.redis.keys, sale.id, sale.epoch).await?;
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
            log::read(&mut *connection, &shop.redis.keys, sale.id, &after, 256).await?
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

/// Which orders each user holds, and how many are live, in one snapshot. Closed orders are included
/// where they answer the replay of an idempotency key.
async fn live_orders(
    shop: &Shop,
    sale: &Sale,
) -> Result<(i64, HashMap<UserId, Vec<Held>>), ShopError> {
    let mut snapshot = unless_silent(Transaction::begin(&shop.postgres, SNAPSHOT)).await?;
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
    while let Some((order_id, user, slot, hash, status)) = unless_silent(rows.try_next()).await? {
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
async fn remove_old_buyers(shop: &Shop, sale: &Sale, old: Ended) -> Result<(), ShopError> {
    let live = (old.epoch > 0).then_some((old.epoch, old.shards));
    // After a loss nothing was live, and there is nothing older that could have survived it.
    let first_half_done = if old.epoch > 0 {
        old.epoch + 1
    } else {
        sale.epoch - 1
    };
    let half_done = (first_half_done..sale.epoch).map(|epoch| (epoch, sale.buyer_shards));
    for (epoch, shards) in live.into_iter().chain(half_done) {
        unlink_buyers(shop, sale.id, epoch, shards).await?;
    }
    Ok(())
}

/// Rebuilds at an operator's word: all sales, or one, whatever state Redis is in. Waits for a rebuild
/// that is under way. Answers how many sales.
pub async fn by_hand(shop: &Arc<Shop>, only: Option<SaleId>) -> Result<usize, ShopError> {
    let mut election = Transaction::begin(&shop.postgres, "BEGIN").await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(ELECTION)
        .execute(&mut *election)
        .await?;
    let live = shop.redis.live_run_id().await?;
    let outcome = rebuild_sales(
        shop,
        only.as_ref().map(std::slice::from_ref),
        only.is_some(),
    )
    .await?;
    if let Some((_, error)) = outcome.failed {
        return Err(error);
    }
    if only.is_none() {
        approve(shop, &live).await?;
    }
    election.rollback().await?;
    Ok(outcome.sales)
}
