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
//! On a crash anywhere, the lock is free and the next one starts at 1 with a higher epoch. From one that
//! stands still Postgres takes the lock after a while. When it goes on, it gives up, or finds itself
//! overtaken at its next step: a seal or a fence of a higher epoch, entries of a higher epoch in the
//! log. What it still writes goes to keys that nobody reads, and that it removes if it gets to install. What
//! a dead one leaves is removed by the next one at step 5, before it adds its own.

mod epochs;
mod restore;

use crate::{
    domain::SaleId,
    postgres::{self, SILENCE, Transaction, timed_out, unless_silent},
    sale::{
        Shop, ShopError,
        catalogue::{check_buckets, only_raised},
    },
    worker::Pace,
};
use epochs::{fence, let_writers_finish, seal};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// "flash-sale rebuild", so that no other program picks the same number by accident. Mixed with the name of
/// the schema: a lab arena that runs this same code beside the sale must not hold up the sale's rebuild.
const ELECTION: i64 = 0x666c_6173_685f_7262;
const PAUSE: Duration = Duration::from_millis(200);
/// How often somebody who waits for another rebuild hears that they do.
const WAITING_NEWS: Duration = Duration::from_secs(10);

pub fn spawn(shop: &Arc<Shop>, tasks: &TaskTracker, stop: &CancellationToken) {
    let (shop, stop) = (shop.clone(), stop.clone());
    tasks.spawn(async move {
        let mut suspects = HashSet::new();
        // No limit as a whole: a catalogue of millions takes its time. Each statement has one.
        let mut pace =
            Pace::new(&shop, "rebuild", PAUSE, Some(&shop.rebuild_bell), &stop).without_limit();
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
    let live = match shop.redis.live_run_id().await {
        Ok(live) => live,
        Err(error) => {
            // The gate is shown as closed, although nobody may be buying at this moment.
            shop.redis.drop_hot();
            return Err(error.into());
        }
    };
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
            bounded(shop.refresh_catalogue()).await?;
            shop.read_tallies(&shop.board.listings()).await?;
            shop.redis.approve(&live);
        }
        if !shop.redis.gate_is_open()
            && let Err(error) = shop.redis.hot().await
        {
            // The next buyer would connect, but until then the gate would be shown as shut.
            tracing::debug!(%error, "could not connect to the approved redis");
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

/// Work on few rows, which takes long only if a server has fallen silent.
async fn bounded<T>(work: impl Future<Output = Result<T, ShopError>>) -> Result<T, ShopError> {
    tokio::time::timeout(SILENCE, work)
        .await
        .unwrap_or_else(|_| Err(timed_out().into()))
}

/// Rebuilds if no other instance is at it. `only`: these sales; otherwise all, and approve.
async fn elect_and_rebuild(shop: &Arc<Shop>, only: Option<Vec<SaleId>>) -> Result<(), ShopError> {
    // A transaction of its own that touches no row: it only carries the lock, and the lock ends
    // with it, whatever happens to this process: also if it stands still.
    let mut election = unless_silent(Transaction::begin(&shop.postgres, "BEGIN")).await?;
    if !try_lock(&mut election).await? {
        return Ok(unless_silent(election.rollback()).await?);
    }
    // Given up with the lock: somebody else has been elected, or will be.
    let result = election.during(rebuild(shop, only)).await?;
    unless_silent(election.rollback()).await?;
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
                bounded(shop.refresh(*id)).await?;
            }
            let missing = missing_sales(shop);
            let still: Vec<SaleId> = ids.into_iter().filter(|id| missing.contains(id)).collect();
            if still.is_empty() {
                return Ok(());
            }
            Some(still)
        }
    };
    let outcome = rebuild_sales(shop, only.as_deref(), false, None).await?;
    if only.is_none() {
        bounded(approve(shop, &live)).await?;
    }
    if let Some((_, error)) = outcome.failed {
        return Err(error); // the others are open; this one is tried again
    }
    shop.metrics.rebuilds.increment(1);
    let (sales, buyers) = (outcome.sales, outcome.buyers);
    let ms = began.elapsed().as_millis() as u64;
    if shop.metrics.are_published() {
        tracing::info!(sales, buyers, ms, "redis is rebuilt from postgres");
    } else {
        // A shop of the lab: not what an operator has to know.
        tracing::debug!(sales, buyers, ms, "redis is rebuilt from postgres");
    }
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

impl Outcome {
    fn fail(&mut self, sale: SaleId, error: ShopError) {
        tracing::error!(%sale, %error, "could not be rebuilt, will retry");
        self.failed = Some((sale, error));
    }
}

/// Steps 1 to 6 for these sales, or for all; `retired` ones too, or only those that Redis should hold. With
/// `buckets`, the new epoch has so many.
async fn rebuild_sales(
    shop: &Arc<Shop>,
    only: Option<&[SaleId]>,
    retired: bool,
    buckets: Option<i16>,
) -> Result<Outcome, ShopError> {
    let fail_points = &shop.fail_points;
    fail_points
        .at("rebuild.elected")
        .await
        .map_err(sqlx::Error::Io)?;
    let sealed = seal(shop, only, retired, buckets).await?;
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
    let taken: Vec<(SaleId, i64)> = unless_silent(
        sqlx::query_as("SELECT id, taken::bigint FROM sales").fetch_all(&shop.postgres),
    )
    .await?;
    let taken: HashMap<SaleId, i64> = taken.into_iter().collect();
    let mut outcome = Outcome {
        sales: sales.len(),
        ..Outcome::default()
    };
    for group in restore::groups(sales, &taken) {
        restore::restore(shop, group, &sealed, &mut outcome).await;
    }
    Ok(outcome)
}

/// The lock of an election, however long somebody else has it. It is asked for again and again: a
/// statement that waited for it would be ended by its timeout.
async fn elected_at_last(shop: &Shop) -> Result<Transaction, ShopError> {
    let began = Instant::now();
    let mut news = None::<Instant>;
    loop {
        // A new transaction each time: none is left open for as long as another rebuild takes.
        let mut election = unless_silent(Transaction::begin(&shop.postgres, "BEGIN")).await?;
        if try_lock(&mut election).await? {
            return Ok(election);
        }
        if news.is_none_or(|at| at.elapsed() >= WAITING_NEWS) {
            news = Some(Instant::now());
            let holder = unless_silent(
                sqlx::query_scalar(
                    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                     AND (classid::bigint << 32) | objid::bigint = $1 # hashtext(current_schema())::bigint",
                )
                .bind(ELECTION)
                .fetch_optional(&mut *election),
            )
            .await?;
            let holder: Option<i32> = holder;
            tracing::warn!(
                seconds = began.elapsed().as_secs(),
                postgres_backend = holder,
                "waiting: another rebuild is under way (if it hangs, pg_terminate_backend of its Postgres process ends it)"
            );
        }
        unless_silent(election.rollback()).await?;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn try_lock(election: &mut Transaction) -> Result<bool, sqlx::Error> {
    unless_silent(
        sqlx::query_scalar(
            "SELECT pg_try_advisory_xact_lock($1 # hashtext(current_schema())::bigint)",
        )
        .bind(ELECTION)
        .fetch_one(&mut **election),
    )
    .await
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

/// Rebuilds at an operator's word: all sales, or one, whatever state Redis is in. Waits for a rebuild
/// that is under way, for as long as that takes, and says so every [`WAITING_NEWS`]. Answers how many
/// sales.
pub async fn by_hand(shop: &Arc<Shop>, only: Option<SaleId>) -> Result<usize, ShopError> {
    let mut election = elected_at_last(shop).await?;
    let rebuilt = async {
        let live = shop.redis.live_run_id().await?;
        let only = only.as_ref().map(std::slice::from_ref);
        let outcome = rebuild_sales(shop, only, only.is_some(), None).await?;
        if let Some((_, error)) = outcome.failed {
            return Err(error);
        }
        if only.is_none() {
            approve(shop, &live).await?;
        }
        Ok(outcome.sales)
    };
    let sales = election.during(rebuilt).await??;
    election.rollback().await?;
    Ok(sales)
}

/// Divides a sale into more buckets, while it sells: a rebuild of this one sale, whose new epoch has them. From
/// the seal until the first of them is installed, purchases of this sale hear 503 with Retry-After. If it dies
/// half-way, the sale is rebuilt with the old number or with the new one, as with any rebuild.
///
/// Waits for a rebuild that is under way. A number that the sale has already changes nothing.
pub async fn divide(shop: &Arc<Shop>, id: SaleId, buckets: i64) -> Result<(), ShopError> {
    check_buckets(buckets)?;
    let wanted = i16::try_from(buckets).unwrap_or(i16::MAX);
    let mut election = elected_at_last(shop).await?;
    let divided = async {
        let now = bounded(shop.refresh(id)).await?.sale().buckets;
        if wanted == now {
            return Ok(());
        }
        if wanted < now {
            return Err(only_raised(now));
        }
        let live = shop.redis.live_run_id().await?;
        if approved_run_id(shop).await?.as_deref() != Some(live.as_str()) {
            return Err(ShopError::Unavailable {
                what: "nothing was changed: redis is being rebuilt",
                retry_after: PAUSE,
            });
        }
        let outcome = rebuild_sales(shop, Some(&[id]), true, Some(wanted)).await?;
        if let Some((_, error)) = outcome.failed {
            return Err(error);
        }
        bounded(shop.refresh(id)).await?;
        shop.redis.announce(id).await;
        Ok(())
    };
    election.during(divided).await??;
    election.rollback().await?;
    Ok(())
}
