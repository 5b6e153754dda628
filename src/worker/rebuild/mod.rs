//! Rebuilding Redis from Postgres, and deciding when that is needed.
//!
//! The gate is open only while the live Redis process is one that Postgres has approved, and only
//! for sales whose Redis state carries the epoch that Postgres names. In a cluster each process is approved
//! by itself, and a failover of one primary shuts and rebuilds the sales on its slots alone. [`step`] checks
//! both; if one does not hold, one instance is elected (a Postgres advisory lock, gone with its connection)
//! and rebuilds:
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
    redis::Node,
    sale::{Shop, ShopError, board::Listing},
    worker::{Pace, supervise::supervise},
};
use epochs::{Seals, fence, is_among, let_writers_finish, seal};
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
    supervise(shop, tasks, "rebuild", stop, |shop, stop| async move {
        let mut suspects = HashSet::new();
        let bell = Some(&shop.rebuild_bell);
        // No limit as a whole: a catalogue of millions takes its time. Each statement has one.
        let mut pace = Pace::new(&shop, "rebuild", PAUSE, bell, &stop).without_limit();
        while pace.rest(step(&shop, &mut suspects)).await {}
    });
}

/// What has to be rebuilt.
enum Scope {
    /// The live processes there are not approved: everything that they have is doubtful.
    Servers(Vec<Arc<Node>>),
    /// The processes are approved, but these sales are missing or of another epoch (FLUSHALL, a
    /// deleted key).
    Sales(Vec<SaleId>),
}

/// One check, and a rebuild if it is needed and this instance is elected. `suspects` are sales that
/// were missing at the last check: only a second look counts, since a sale may just be being created.
///
/// Each server is judged by itself: while one is away, or is being rebuilt, the sales of the others go on.
pub async fn step(shop: &Arc<Shop>, suspects: &mut HashSet<SaleId>) -> Result<(), ShopError> {
    if let Err(error) = shop.redis.look_around().await {
        for node in shop.redis.primaries() {
            node.drop_hot();
        }
        return Err(error.into());
    }
    let Processes {
        live,
        silent,
        mut failed,
    } = Box::pin(Processes::look(shop)).await;
    if live.is_empty() {
        return failed.map_or(Ok(()), Err);
    }
    let approved = approved_run_ids(shop).await?;
    let mut doubtful = Vec::new();
    let mut joined = Vec::new();
    for (node, run_id) in live {
        if !approved.contains(&run_id) {
            // Connections that were made to it while it was approved count no more.
            node.disapprove();
            node.drop_hot();
            doubtful.push(node);
        } else if node.approved_run_id().as_deref() != Some(&run_id) {
            joined.push((node, run_id));
        } else if let Err(error) = node.look_after_hot().await {
            // The next buyer would connect, but until then the gate would be shown as shut.
            tracing::debug!(%error, "could not connect to the approved redis");
        }
    }
    if !joined.is_empty() {
        // Approved by another instance: its rebuild has changed the epochs.
        shop.ids.discard_lease().await;
        bounded(shop.refresh_catalogue()).await?;
        let nodes: Vec<_> = joined.iter().map(|(node, _)| node.clone()).collect();
        shop.read_tallies(&listings_on(shop, &nodes)).await?;
        for (node, run_id) in joined {
            node.approve(&run_id);
            if let Err(error) = node.hot().await {
                tracing::debug!(%error, "could not connect to the approved redis");
            }
        }
    }
    if !doubtful.is_empty()
        && let Err(error) =
            Box::pin(elect_and_rebuild(shop, Scope::Servers(doubtful.clone()))).await
    {
        failed = Some(error);
    }
    let mut missing = missing_sales(shop);
    // What is on a server that was not approved a moment ago was rebuilt with it, or could not be.
    missing.retain(|sale| !is_on(shop, *sale, &silent) && !is_on(shop, *sale, &doubtful));
    let again: Vec<SaleId> = missing.intersection(suspects).copied().collect();
    *suspects = missing;
    if !again.is_empty()
        && let Err(error) = Box::pin(elect_and_rebuild(shop, Scope::Sales(again))).await
    {
        failed = Some(error);
    }
    failed.map_or(Ok(()), Err)
}

/// One look at all primaries.
#[derive(Default)]
struct Processes {
    /// Those that answer, and their incarnations.
    live: Vec<(Arc<Node>, String)>,
    silent: Vec<Arc<Node>>,
    /// What kept the last of the silent ones that have keys from answering.
    failed: Option<ShopError>,
}

impl Processes {
    /// Asks all at once. One that does not answer shuts its gate: it is shown as closed, although nobody may
    /// be buying at this moment.
    async fn look(shop: &Shop) -> Self {
        async fn ask(node: Arc<Node>) -> (Arc<Node>, Result<String, redis::RedisError>) {
            let live = node.live_run_id().await;
            (node, live)
        }
        let asked = shop.redis.primaries().into_iter().map(ask);
        let mut found = Self::default();
        let owners = shop.redis.owners();
        for (node, answered) in futures_util::future::join_all(asked).await {
            match answered {
                Ok(run_id) => found.live.push((node, run_id)),
                Err(error) => {
                    node.drop_hot();
                    if owners.iter().any(|owner| Arc::ptr_eq(owner, &node)) {
                        found.failed = Some(ShopError::Redis(error));
                    }
                    found.silent.push(node);
                }
            }
        }
        found
    }
}

/// The Redis processes that were checked against this Postgres: an approval that another timeline has
/// given is void.
async fn approved_run_ids(shop: &Shop) -> Result<HashSet<String>, ShopError> {
    let timeline = unless_silent(postgres::timeline(&shop.postgres)).await?;
    let approved = sqlx::query_scalar("SELECT run_id FROM redis_incarnation WHERE timeline = $1")
        .bind(timeline);
    let approved: Vec<String> = unless_silent(approved.fetch_all(&shop.postgres)).await?;
    Ok(approved.into_iter().collect())
}

/// Whether one of these servers has the keys of the sale, as last heard.
fn is_on(shop: &Shop, sale: SaleId, nodes: &[Arc<Node>]) -> bool {
    let owner = shop.redis.owner(&shop.redis.keys.state(sale));
    owner.is_some_and(|owner| is_among(nodes, &owner))
}

fn listings_on(shop: &Shop, nodes: &[Arc<Node>]) -> Vec<Arc<Listing>> {
    let mut listings = shop.board.listings();
    listings.retain(|listing| is_on(shop, listing.id, nodes));
    listings
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
    let (only, mut approving) = match scope {
        Scope::Servers(nodes) => {
            let approved = approved_run_ids(shop).await?;
            let mut doubtful = Vec::new();
            let mut failed = None;
            for node in nodes {
                match node.live_run_id().await {
                    Ok(live) if approved.contains(&live) => {} // somebody was faster
                    Ok(live) => doubtful.push((node, live)),
                    Err(error) => failed = Some(error), // gone since; the others need not wait for it
                }
            }
            if doubtful.is_empty() {
                return failed.map_or(Ok(()), |error| Err(error.into()));
            }
            (sales_on(shop, &doubtful).await?, doubtful)
        }
        Scope::Sales(ids) => {
            // A fresh look under the lock: the other instance may have rebuilt them meanwhile.
            for id in &ids {
                bounded(shop.refresh(*id)).await?;
            }
            let missing = missing_sales(shop);
            let still: Vec<SaleId> = ids.into_iter().filter(|id| missing.contains(id)).collect();
            if still.is_empty() {
                return Ok(());
            }
            (Some(still), Vec::new())
        }
    };
    let outcome = Box::pin(rebuild_sales(shop, only.as_deref(), false)).await?;
    // A server on which something old may still sell stays shut.
    approving.retain(|(node, _)| !is_among(&outcome.unsealed, node));
    if !approving.is_empty() {
        bounded(Box::pin(approve(shop, &approving))).await?;
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

/// Every sale whose keys one of these servers has; `None` if that is all there are.
async fn sales_on(
    shop: &Shop,
    servers: &[(Arc<Node>, String)],
) -> Result<Option<Vec<SaleId>>, ShopError> {
    if !shop.redis.is_cluster() {
        return Ok(None);
    }
    let nodes: Vec<_> = servers.iter().map(|(node, _)| node.clone()).collect();
    let sales = sqlx::query_scalar("SELECT id FROM sales ORDER BY id").fetch_all(&shop.postgres);
    let mut sales: Vec<SaleId> = unless_silent(sales).await?;
    sales.retain(|id| is_on(shop, *id, &nodes));
    Ok(Some(sales))
}

/// What a rebuild did.
#[derive(Default)]
struct Outcome {
    sales: usize,
    /// Orders restored.
    buyers: usize,
    /// Servers on which something old may still sell.
    unsealed: Vec<Arc<Node>>,
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
    fail_points
        .at("rebuild.elected")
        .await
        .map_err(sqlx::Error::Io)?;
    let Seals {
        sealed,
        unsealed,
        failed,
        ..
    } = seal(shop, only, retired).await?;
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
        unsealed,
        ..Outcome::default()
    };
    if let Some((sale, error)) = failed {
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

/// Step 7. What Postgres approves from now on: these processes, and of those it had approved before the ones
/// that are primaries still. A primary that another one has replaced may be alive somewhere, cut off with
/// some of its clients: it is none any more for anybody who reaches Postgres.
async fn approve(shop: &Shop, rebuilt: &[(Arc<Node>, String)]) -> Result<(), ShopError> {
    // The id counters may have been rolled back together with the rest.
    let nodes: Vec<_> = rebuilt.iter().map(|(node, _)| node.clone()).collect();
    shop.ids.start_over_on(&nodes).await?;
    let fail_points = &shop.fail_points;
    fail_points
        .at("rebuild.id_floor_raised")
        .await
        .map_err(sqlx::Error::Io)?;
    let timeline = postgres::timeline(&shop.postgres).await?;
    shop.redis.look_around().await?;
    let Processes { live, silent, .. } = Processes::look(shop).await;
    let mut standing: Vec<String> = live.into_iter().map(|(_, run_id)| run_id).collect();
    // One that does not answer may only be slow; it is not replaced before the cluster says so.
    standing.extend(
        silent
            .iter()
            .filter_map(|node| Some(node.approved_run_id()?.to_string())),
    );
    let rebuilt_ids: Vec<String> = rebuilt.iter().map(|(_, run_id)| run_id.clone()).collect();
    standing.extend(rebuilt_ids.iter().cloned());
    sqlx::query(
        "WITH replaced AS (DELETE FROM redis_incarnation WHERE run_id <> ALL($3))
         INSERT INTO redis_incarnation (run_id, timeline) SELECT DISTINCT run_id, $2 FROM UNNEST($1) AS rebuilt (run_id)
         ON CONFLICT ON CONSTRAINT redis_incarnation_pkey
         DO UPDATE SET timeline = EXCLUDED.timeline, approved_at = now()",
    )
    .bind(&rebuilt_ids)
    .bind(timeline)
    .bind(&standing)
    .execute(&shop.postgres)
    .await?;
    fail_points
        .at("rebuild.approved")
        .await
        .map_err(sqlx::Error::Io)?;
    for (node, run_id) in rebuilt {
        node.approve(run_id);
        if let Err(error) = node.hot().await {
            tracing::debug!(%error, "could not connect to the approved redis");
        }
    }
    Ok(())
}

/// Rebuilds at an operator's word: all sales, or one, whatever state Redis is in. Waits for a rebuild
/// that is under way, for as long as that takes, and says so every [`WAITING_NEWS`]. Answers how many
/// sales.
pub async fn by_hand(shop: &Arc<Shop>, only: Option<SaleId>) -> Result<usize, ShopError> {
    let mut election = elected_at_last(shop).await?;
    let rebuilt = async {
        shop.redis.look_around().await?;
        let Processes { live, failed, .. } = Processes::look(shop).await;
        if let Some(error) = failed {
            return Err(error);
        }
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
