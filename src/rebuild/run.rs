//! Detecting that a rebuild is needed, the election, and the order of its steps.

use super::epochs::Fences;
use super::restore;
use super::service::{Outcome, PAUSE, Rebuild};
use crate::catalog::cached_sale::CachedSale;
use crate::domain::SaleId;
use crate::error::ServiceResult;
use crate::postgres::{self, Transaction, unless_silent};
use crate::redis::functions::Snapshot;
use redis::RedisError;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tasks::Tasks;
use time::OffsetDateTime;

/// The lock's number, "flash_rb" in ASCII. Mixed with the name of the schema: a lab arena must not
/// hold up the sale's rebuild.
const ELECTION: i64 = 0x666c_6173_685f_7262;
const LOCK: &str = "SELECT pg_try_advisory_xact_lock($1 # hashtext(current_schema())::bigint)";
/// The Postgres backend that holds the lock.
const HOLDER: &str = "SELECT pid FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (classid::bigint << 32) | objid::bigint = $1 # hashtext(current_schema())::bigint";
/// How often a command logs that it waits for another rebuild.
const WAITING_NEWS: Duration = Duration::from_secs(10);

pub fn spawn(rebuild: &Arc<Rebuild>, tasks: &Tasks) {
    tasks.spawn("rebuild", rebuild, |rebuild, task| async move {
        let mut absent = HashSet::new();
        // A catalogue of millions takes its time; each statement has a limit.
        let periodic = task.every(PAUSE).or_on(rebuild.approval.rebuild_wakeup());
        let mut periodic = periodic.without_limit();
        while periodic.tick(rebuild.step(&mut absent)).await {}
    });
}

/// The scope of a rebuild.
enum Scope {
    /// All sales of these processes, which are not approved.
    Processes(Vec<String>),
    /// Sales that Redis may not sell: lost (FLUSHALL, a deleted key), or of another epoch or
    /// process.
    Sales(Vec<SaleId>),
}

impl Rebuild {
    /// One check, and a rebuild if it is needed and this instance is elected. `absent`: sales
    /// without state at the last check; only the second check counts, since a sale may be being
    /// created.
    pub async fn step(&self, absent: &mut HashSet<SaleId>) -> ServiceResult<()> {
        let approved = self.catalog.approved_processes().await;
        let processes = self.processes().await;
        let approved = approved?;
        // A silent node of a cluster must not stop the checks of the others.
        let (live, silent) = match processes {
            Ok(live) => (live, None),
            Err(error) => (self.answering(), Some(error)),
        };
        let mut doubtful = live.clone();
        doubtful.retain(|process| !approved.contains(process));
        let is_approved = doubtful.is_empty() && silent.is_none();
        // In a cluster the other nodes go on selling, and lanes of order numbers check their
        // floors.
        let is_doubtful = !doubtful.is_empty() && !self.redis.is_cluster();
        self.approval.set(is_approved, is_doubtful);
        if !doubtful.is_empty() {
            unless_silent(self.catalog.refresh_catalogue()).await?;
            let cached_sales = self.catalog.cache.cached_sales();
            unless_silent(self.catalog.read_snapshots(&cached_sales)).await?;
            // Another process may be approved instead and sell by now: sell nothing more here.
            for cached in self.sales_of(&doubtful) {
                cached.suspect();
            }
            return Box::pin(self.elect_and_rebuild(Scope::Processes(doubtful))).await;
        }
        let mut due = Vec::new();
        let mut missing = HashSet::new();
        let (mut unsellable, now) = (self.catalog.cache.cached_sales(), self.catalog.now());
        unsellable.retain(|cached| is_unsellable(cached, now));
        for cached in unsellable {
            match cached.snapshot() {
                None if !cached.is_suspect() && !absent.contains(&cached.id) => {
                    missing.insert(cached.id);
                }
                Some(_) if self.catalog.adopt(&cached).await? => {}
                _ => due.push(cached.id),
            }
        }
        *absent = missing;
        if !due.is_empty() {
            Box::pin(self.elect_and_rebuild(Scope::Sales(due))).await?;
        }
        match silent {
            Some(error) => Err(error.into()),
            None => self.revoke_gone(&approved, &live).await,
        }
    }

    /// The processes of Redis. Notes an answer that one evicts, until all answer that they do not.
    async fn processes(&self) -> Result<Vec<String>, RedisError> {
        let answered = self.redis.processes().await;
        match &answered {
            Ok(live) if self.approval.evicts() => {
                // The client skips a node without a connection.
                let is_cluster = self.redis.is_cluster();
                let all = if is_cluster { self.redis.primaries().await? } else { 1 };
                self.approval.set_evicts(live.len() < all);
            }
            Err(error) if error.code() == Some("EVICTS") => self.approval.set_evicts(true),
            _ => {}
        }
        answered
    }

    /// The processes by the last snapshots.
    fn answering(&self) -> Vec<String> {
        let cached_sales = self.catalog.cache.cached_sales();
        let read = cached_sales.iter().filter(|cached| cached.was_read());
        let processes = read.filter_map(|cached| cached.snapshot());
        let processes: HashSet<_> = processes.map(|known| known.process).collect();
        processes.iter().map(ToString::to_string).collect()
    }

    /// Rebuilds unless another instance does.
    async fn elect_and_rebuild(&self, scope: Scope) -> ServiceResult<()> {
        // A transaction that carries only the lock: it ends with this process, even if that stands
        // still.
        let mut election = unless_silent(self.postgres.begin("BEGIN")).await?;
        if !try_lock(&mut election).await? {
            return Ok(unless_silent(election.rollback()).await?);
        }
        // Given up when the lock is lost: another instance is elected.
        let result = election.during(Box::pin(self.rebuild_scope(scope))).await?;
        unless_silent(election.rollback()).await?;
        result
    }

    /// Rebuilds under the caller's lock.
    async fn rebuild_scope(&self, scope: Scope) -> ServiceResult<()> {
        let began = Instant::now();
        let (only, doubtful) = match scope {
            Scope::Processes(mut doubtful) => {
                let approved = self.catalog.approved_processes().await?;
                doubtful.retain(|process| !approved.contains(process));
                if doubtful.is_empty() {
                    return Ok(()); // another instance was faster
                }
                (self.sales_in(&doubtful), doubtful)
            }
            Scope::Sales(ids) => {
                // Read again under the lock: another instance may have rebuilt them.
                let mut only = Vec::new();
                for id in ids {
                    let cached = unless_silent(self.catalog.refresh(id)).await?;
                    let is_due = is_unsellable(&cached, self.catalog.now());
                    if is_due && !unless_silent(self.catalog.adopt(&cached)).await? {
                        only.push(id);
                    }
                }
                if only.is_empty() {
                    return Ok(());
                }
                (Some(only), Vec::new())
            }
        };
        let outcome = Box::pin(self.rebuild(only.as_deref(), false)).await?;
        // A process in which an unfenced sale may still sell is not approved.
        if !doubtful.is_empty() && !outcome.unfenced {
            unless_silent(self.approve(&doubtful)).await?;
        }
        if let Some((_, error)) = outcome.failed {
            return Err(error); // the others are open; this one is retried
        }
        self.metrics.rebuilds.increment(1);
        let (sales, buyers) = (outcome.sales, outcome.buyers);
        let ms = began.elapsed().as_millis() as u64;
        match self.metrics.are_published() {
            true => tracing::info!(sales, buyers, ms, "redis is rebuilt from postgres"),
            // A lab arena is of no interest to operators.
            false => tracing::debug!(sales, buyers, ms, "redis is rebuilt from postgres"),
        }
        Ok(())
    }

    /// The sales of these processes; `None` for all, on a single server.
    fn sales_in(&self, processes: &[String]) -> Option<Vec<SaleId>> {
        if !self.redis.is_cluster() {
            return None;
        }
        let cached_sales = self.sales_of(processes);
        Some(cached_sales.iter().map(|cached| cached.id).collect())
    }

    fn sales_of(&self, processes: &[String]) -> Vec<Arc<CachedSale>> {
        let mut cached_sales = self.catalog.cache.cached_sales();
        let is_one = |known: Snapshot| processes.iter().any(|process| **process == *known.process);
        cached_sales.retain(|cached| cached.snapshot().is_some_and(is_one));
        cached_sales
    }

    /// Steps 1 to 6 for these sales, or all; `evictable`: also those that Redis need not hold.
    async fn rebuild(&self, only: Option<&[SaleId]>, evictable: bool) -> ServiceResult<Outcome> {
        self.fail_points.at("rebuild.elected").await?;
        // Their process may be gone.
        self.ids.discard_leases().await;
        let Fences { fenced, failed } = self.fence_redis(only, evictable).await?;
        self.fail_points.at("rebuild.redis_fenced").await?;
        self.let_writers_finish().await;
        let sales = self.fence_postgres(&fenced).await?;
        self.fail_points.at("rebuild.postgres_fenced").await?;
        let taken = sqlx::query_as("SELECT id, taken::bigint FROM sales");
        let taken = unless_silent(taken.fetch_all(&self.postgres)).await?;
        let taken: HashMap<SaleId, i64> = taken.into_iter().collect();
        let mut outcome = Outcome { sales: sales.len(), ..Outcome::default() };
        if let Some((sale, error)) = failed {
            outcome.unfenced = true;
            outcome.fail(sale, error);
        }
        for group in restore::groups(sales, &taken) {
            self.restore(group, &fenced, &mut outcome).await;
        }
        Ok(outcome)
    }

    /// Waits for the lock of the election. By polling: a waiting statement would hit its timeout.
    async fn wait_for_election(&self) -> ServiceResult<Transaction> {
        let began = Instant::now();
        let mut news = None::<Instant>;
        loop {
            // A new transaction each time: none stays open for as long as another rebuild takes.
            let mut election = unless_silent(self.postgres.begin("BEGIN")).await?;
            if try_lock(&mut election).await? {
                return Ok(election);
            }
            if news.is_none_or(|at| at.elapsed() >= WAITING_NEWS) {
                news = Some(Instant::now());
                let holder = sqlx::query_scalar(HOLDER).bind(ELECTION);
                let holder = holder.fetch_optional(&mut *election);
                let holder: Option<i32> = unless_silent(holder).await?;
                tracing::warn!(
                    seconds = began.elapsed().as_secs(),
                    postgres_backend = holder,
                    "waiting: another rebuild is under way (if it hangs, pg_terminate_backend of \
                     its Postgres process ends it)"
                );
            }
            unless_silent(election.rollback()).await?;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Step 7. Approves these processes. In a cluster, those that still hold keys stay approved: a
    /// silent process may only be slow.
    async fn approve(&self, rebuilt: &[String]) -> ServiceResult<()> {
        self.ids.settle().await?;
        let timeline = postgres::timeline(&self.postgres).await?;
        let is_one_server = !self.redis.is_cluster();
        let mut standing = rebuilt.to_vec();
        // Of a single server, the cache may hold a late answer of the process that it was before.
        if !is_one_server {
            standing.extend(self.redis.processes().await.unwrap_or_default());
            let cached_sales = self.catalog.cache.cached_sales();
            let known = cached_sales.iter().filter_map(|cached| cached.snapshot());
            standing.extend(known.map(|known| known.process.to_string()));
        }
        let query = sqlx::query(
            "WITH replaced AS (DELETE FROM redis_incarnation WHERE run_id <> ALL($3))
             INSERT INTO redis_incarnation (run_id, timeline)
             SELECT DISTINCT run_id, $2 FROM UNNEST($1) AS rebuilt (run_id)
             ON CONFLICT ON CONSTRAINT redis_incarnation_pkey
             DO UPDATE SET timeline = EXCLUDED.timeline, approved_at = now()",
        );
        let query = query.bind(rebuilt).bind(timeline).bind(&standing);
        query.execute(&self.postgres).await?;
        self.approval.set(self.approval.is_approved() || is_one_server, false);
        self.fail_points.at("rebuild.approved").await?;
        Ok(())
    }

    /// Revokes approvals of processes that no sale names and that are no primaries.
    /// [`Self::approve`] does so too, but an old primary that wakes up may have answered then.
    async fn revoke_gone(&self, approved: &HashSet<String>, live: &[String]) -> ServiceResult<()> {
        // On a single server an approval replaces all others.
        if !self.redis.is_cluster() {
            return Ok(());
        }
        let named = self.answering();
        let is_gone = |process: &&String| !live.contains(process) && !named.contains(process);
        let gone: Vec<&String> = approved.iter().filter(is_gone).collect();
        if gone.is_empty() || live.len() < self.redis.primaries().await? {
            return Ok(()); // a silent one may only be slow
        }
        // Recent approvals may be unknown here.
        let forgotten = sqlx::query(
            "DELETE FROM redis_incarnation
             WHERE run_id = ANY($1) AND approved_at < now() - interval '5 seconds'",
        )
        .bind(gone);
        unless_silent(forgotten.execute(&self.postgres)).await?;
        Ok(())
    }

    /// Rebuilds all sales or one on an operator's command, after any rebuild under way. Answers how
    /// many.
    pub async fn by_hand(&self, only: Option<SaleId>) -> ServiceResult<usize> {
        let mut election = self.wait_for_election().await?;
        let rebuilt = async {
            // Read before the fence: a process that takes its place meanwhile is not approved.
            let live = self.redis.processes().await?;
            let only = only.as_ref().map(std::slice::from_ref);
            let outcome = self.rebuild(only, only.is_some()).await?;
            if let Some((_, error)) = outcome.failed {
                return Err(error);
            }
            if only.is_none() {
                self.approve(&live).await?;
            }
            Ok(outcome.sales)
        };
        let sales = election.during(rebuilt).await??;
        election.rollback().await?;
        Ok(sales)
    }
}

/// Whether Redis should sell this sale, and by the cache may not.
fn is_unsellable(cached: &CachedSale, now: OffsetDateTime) -> bool {
    !cached.is_evictable(now) && (cached.is_suspect() || cached.was_read()) && !cached.is_sellable()
}

async fn try_lock(election: &mut Transaction) -> sqlx::Result<bool> {
    let lock = sqlx::query_scalar(LOCK).bind(ELECTION);
    unless_silent(lock.fetch_one(&mut **election)).await
}
