//! Rebuilding Redis from Postgres, and deciding when that is needed.
//!
//! Redis sells a sale only in the process that it was installed in, and in the epoch that Postgres
//! names (`redis/library/prelude.lua`). [`step`] looks for processes that Postgres has not approved,
//! and for sales that Redis may not sell. If there are any, one instance is elected (a Postgres
//! advisory lock, gone with its transaction) and rebuilds:
//!
//! 1. **seal**: the old state is deleted in Redis. Nothing is admitted from here on.
//! 2. **let the writers finish**: what was accepted and is still in a channel is written in the old
//!    epoch, so that nobody new can take its unit. Bounded; what comes later is readmitted.
//! 3. **fence**: the new epoch in Postgres. Writers of the older one are refused from here on.
//! 4. **drain**: what the log still holds is written to Postgres.
//! 5. **recompute**: live orders become buyers of the new epoch, under a key of their own.
//! 6. **install**: the new state opens the sale in the process that holds it. It refuses if a newer
//!    epoch is live or on its way, or if this is not the process that was sealed.
//! 7. **approve**: Postgres records the process.
//!
//! On a crash anywhere, the lock is free and the next one starts at 1 with a higher epoch. From one that
//! stands still Postgres takes the lock after a while. When it goes on, it gives up, or finds itself
//! overtaken at its next step: a seal or a fence of a higher epoch, entries of a higher epoch in the
//! log. What it has written goes to a key that nobody reads and that expires.

mod epochs;
mod restore;

use crate::{
    domain::SaleId,
    postgres::{self, SILENCE, Transaction, timed_out, unless_silent},
    sale::{Shop, ShopError, board::Listing},
    worker::{Pace, supervise::supervise},
};
use epochs::{Seals, fence, let_writers_finish, seal};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};
use time::OffsetDateTime;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// "flash-sale rebuild", so that no other program picks the same number by accident. Mixed with the name of
/// the schema: a lab arena that runs this same code beside the sale must not hold up the sale's rebuild.
const ELECTION: i64 = 0x666c_6173_685f_7262;
const PAUSE: Duration = Duration::from_millis(200);
/// How often somebody who waits for another rebuild hears that they do.
const WAITING_NEWS: Duration = Duration::from_secs(10);

pub fn spawn(shop: &Arc<Shop>, tasks: &TaskTracker, stop: &CancellationToken) {
    supervise(shop, tasks, "rebuild", stop, |shop, stop| async move {
        let mut absent = HashSet::new();
        let bell = Some(&shop.rebuild_bell);
        // No limit as a whole: a catalogue of millions takes its time. Each statement has one.
        let mut pace = Pace::new(&shop, "rebuild", PAUSE, bell, &stop).without_limit();
        while pace.rest(step(&shop, &mut absent)).await {}
    });
}

/// What has to be rebuilt.
enum Scope {
    /// These processes are not approved: everything that they have is doubtful.
    Processes(Vec<String>),
    /// Sales that Redis may not sell: lost (FLUSHALL, a deleted key), or of another epoch or process.
    Sales(Vec<SaleId>),
}

/// One check, and a rebuild if it is needed and this instance is elected. `absent` are sales that had
/// no state at the last check: only a second look counts, since a sale may just be being created.
pub async fn step(shop: &Arc<Shop>, absent: &mut HashSet<SaleId>) -> Result<(), ShopError> {
    let approved = shop.approved_processes().await?;
    // One node of a cluster that does not answer keeps nobody from looking at the sales of the others.
    let (live, silent) = match shop.redis.processes().await {
        Ok(live) => (live, None),
        Err(error) => (answering(shop), Some(error)),
    };
    let mut doubtful = live.clone();
    doubtful.retain(|process| !approved.contains(process));
    let is_approved = doubtful.is_empty() && silent.is_none();
    shop.redis_is_approved.store(is_approved, Relaxed);
    // In a cluster the others sell on, and a lane of order numbers notices by itself.
    let is_doubtful = !doubtful.is_empty() && !shop.redis.is_cluster();
    shop.redis_is_doubtful.store(is_doubtful, Relaxed);
    if !doubtful.is_empty() {
        bounded(shop.refresh_catalogue()).await?;
        bounded(shop.read_snapshots(&shop.board.listings())).await?;
        // Postgres may have approved another process instead, which sells by now: sell nothing more here.
        for listing in shop.board.listings() {
            if let Some(known) = listing.snapshot()
                && doubtful.iter().any(|process| **process == *known.process)
            {
                listing.suspect();
            }
        }
        return Box::pin(elect_and_rebuild(shop, Scope::Processes(doubtful))).await;
    }
    let mut due = Vec::new();
    let mut missing = HashSet::new();
    let (mut unsellable, now) = (shop.board.listings(), shop.now());
    unsellable.retain(|listing| is_unsellable(listing, now));
    for listing in unsellable {
        match listing.snapshot() {
            None if !listing.is_suspect() && !absent.contains(&listing.id) => {
                missing.insert(listing.id);
            }
            Some(_) if shop.adopt(&listing).await? => {}
            _ => due.push(listing.id),
        }
    }
    *absent = missing;
    if !due.is_empty() {
        Box::pin(elect_and_rebuild(shop, Scope::Sales(due))).await?;
    }
    match silent {
        Some(error) => Err(error.into()),
        None => forget_replaced(shop, &approved, &live).await,
    }
}

/// The processes that answered for a sale when it was last read.
fn answering(shop: &Shop) -> Vec<String> {
    let listings = shop.board.listings();
    let read = listings.iter().filter(|listing| listing.was_read());
    let processes = read.filter_map(|listing| listing.snapshot());
    let processes: HashSet<_> = processes.map(|known| known.process).collect();
    processes
        .iter()
        .map(|process| process.to_string())
        .collect()
}

/// Whether Redis should sell this sale, and as far as the cache knows may not.
fn is_unsellable(listing: &Listing, now: OffsetDateTime) -> bool {
    !listing.is_retired(now)
        && (listing.is_suspect() || listing.was_read())
        && !listing.is_sellable()
}

/// Work on few rows, which takes long only if a server has fallen silent.
async fn bounded<T>(work: impl Future<Output = Result<T, ShopError>>) -> Result<T, ShopError> {
    tokio::time::timeout(SILENCE, work)
        .await
        .unwrap_or_else(|_| Err(timed_out().into()))
}

/// Rebuilds if no other instance is at it.
async fn elect_and_rebuild(shop: &Arc<Shop>, scope: Scope) -> Result<(), ShopError> {
    // A transaction of its own that touches no row: it only carries the lock, and the lock ends
    // with it, whatever happens to this process: also if it stands still.
    let mut election = unless_silent(Transaction::begin(&shop.postgres, "BEGIN")).await?;
    if !try_lock(&mut election).await? {
        return Ok(unless_silent(election.rollback()).await?);
    }
    // Given up with the lock: somebody else has been elected, or will be.
    let result = election.during(Box::pin(rebuild(shop, scope))).await?;
    unless_silent(election.rollback()).await?;
    result
}

/// Rebuilds under the caller's lock.
async fn rebuild(shop: &Arc<Shop>, scope: Scope) -> Result<(), ShopError> {
    let began = Instant::now();
    let (only, doubtful) = match scope {
        Scope::Processes(mut doubtful) => {
            let approved = shop.approved_processes().await?;
            doubtful.retain(|process| !approved.contains(process));
            if doubtful.is_empty() {
                return Ok(()); // another instance was faster
            }
            (sales_in(shop, &doubtful), doubtful)
        }
        Scope::Sales(ids) => {
            // A fresh look under the lock: the other instance may have rebuilt them meanwhile.
            let mut only = Vec::new();
            for id in ids {
                let listing = bounded(shop.refresh(id)).await?;
                let is_due = is_unsellable(&listing, shop.now());
                if is_due && !bounded(shop.adopt(&listing)).await? {
                    only.push(id);
                }
            }
            if only.is_empty() {
                return Ok(());
            }
            (Some(only), Vec::new())
        }
    };
    let outcome = Box::pin(rebuild_sales(shop, only.as_deref(), false)).await?;
    // A process in which something old may still sell is not approved.
    if !doubtful.is_empty() && !outcome.unsealed {
        bounded(approve(shop, &doubtful)).await?;
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

/// The sales that these processes have; `None` for all, which one server has.
fn sales_in(shop: &Shop, processes: &[String]) -> Option<Vec<SaleId>> {
    if !shop.redis.is_cluster() {
        return None;
    }
    let mut listings = shop.board.listings();
    listings.retain(|listing| {
        let known = listing.snapshot();
        known.is_some_and(|known| processes.iter().any(|process| **process == *known.process))
    });
    Some(listings.iter().map(|listing| listing.id).collect())
}

/// What a rebuild did.
#[derive(Default)]
struct Outcome {
    sales: usize,
    /// Orders restored.
    buyers: usize,
    /// Whether the old state of some sale could not be sealed.
    unsealed: bool,
    /// The last sale that could not be rebuilt, and why.
    failed: Option<(SaleId, ShopError)>,
}

impl Outcome {
    fn fail(&mut self, sale: SaleId, error: ShopError) {
        tracing::error!(%sale, %error, "could not be rebuilt, will retry");
        self.failed = Some((sale, error));
    }
}

/// Steps 1 to 6 for these sales, or for all; `retired` ones too, or only those that Redis should hold.
async fn rebuild_sales(
    shop: &Arc<Shop>,
    only: Option<&[SaleId]>,
    retired: bool,
) -> Result<Outcome, ShopError> {
    let fail_points = &shop.fail_points;
    fail_points.at("rebuild.elected").await?;
    // Leased from a process that is perhaps not there any more.
    shop.ids.discard_leases().await;
    let Seals { sealed, failed } = seal(shop, only, retired).await?;
    fail_points.at("rebuild.sealed").await?;
    let_writers_finish(shop).await;
    let sales = fence(shop, &sealed).await?;
    fail_points.at("rebuild.fenced").await?;
    let taken: Vec<(SaleId, i64)> = unless_silent(
        sqlx::query_as("SELECT id, taken::bigint FROM sales").fetch_all(&shop.postgres),
    )
    .await?;
    let taken: HashMap<SaleId, i64> = taken.into_iter().collect();
    let mut outcome = Outcome {
        sales: sales.len(),
        ..Outcome::default()
    };
    if let Some((sale, error)) = failed {
        outcome.unsealed = true;
        outcome.fail(sale, error);
    }
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

/// Step 7. What Postgres approves from now on: these processes, and of those it had approved before
/// the ones that hold keys still. One that does not answer may only be slow: it is not replaced before
/// another one answers for its sales.
async fn approve(shop: &Shop, rebuilt: &[String]) -> Result<(), ShopError> {
    shop.ids.settle().await?;
    let timeline = postgres::timeline(&shop.postgres).await?;
    let mut standing = shop.redis.processes().await.unwrap_or_default();
    standing.extend(rebuilt.iter().cloned());
    let listings = shop.board.listings();
    let known = listings.iter().filter_map(|listing| listing.snapshot());
    standing.extend(known.map(|known| known.process.to_string()));
    sqlx::query(
        "WITH replaced AS (DELETE FROM redis_incarnation WHERE run_id <> ALL($3))
         INSERT INTO redis_incarnation (run_id, timeline) SELECT DISTINCT run_id, $2 FROM UNNEST($1) AS rebuilt (run_id)
         ON CONFLICT ON CONSTRAINT redis_incarnation_pkey
         DO UPDATE SET timeline = EXCLUDED.timeline, approved_at = now()",
    )
    .bind(rebuilt)
    .bind(timeline)
    .bind(&standing)
    .execute(&shop.postgres)
    .await?;
    shop.redis_is_doubtful.store(false, Relaxed);
    let is_one_server = !shop.redis.is_cluster();
    shop.redis_is_approved.fetch_or(is_one_server, Relaxed);
    shop.fail_points.at("rebuild.approved").await?;
    Ok(())
}

/// Approves no more what no sale names and no primary calls itself. An approval does this too, but an
/// old primary that has just woken up may still have answered as one.
async fn forget_replaced(
    shop: &Shop,
    approved: &HashSet<String>,
    live: &[String],
) -> Result<(), ShopError> {
    // With one server an approval replaces all others.
    if !shop.redis.is_cluster() {
        return Ok(());
    }
    let named = answering(shop);
    let is_gone = |process: &&String| !live.contains(process) && !named.contains(process);
    let gone: Vec<&String> = approved.iter().filter(is_gone).collect();
    if gone.is_empty() || live.len() < shop.redis.primaries().await? {
        return Ok(()); // one that does not answer may only be slow
    }
    // What was approved a moment ago may be unknown here still.
    let forgotten = sqlx::query(
        "DELETE FROM redis_incarnation
         WHERE run_id = ANY($1) AND approved_at < now() - interval '5 seconds'",
    )
    .bind(gone);
    unless_silent(forgotten.execute(&shop.postgres)).await?;
    Ok(())
}

/// Rebuilds at an operator's word: all sales, or one, whatever state Redis is in. Waits for a rebuild
/// that is under way, for as long as that takes, and says so every [`WAITING_NEWS`]. Answers how many
/// sales.
pub async fn by_hand(shop: &Arc<Shop>, only: Option<SaleId>) -> Result<usize, ShopError> {
    let mut election = elected_at_last(shop).await?;
    let rebuilt = async {
        // Before the seal: another process that takes its place meanwhile is not approved.
        let live = shop.redis.processes().await?;
        let only = only.as_ref().map(std::slice::from_ref);
        let outcome = rebuild_sales(shop, only, only.is_some()).await?;
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
