//! The recovery pass: writes orders that were left in the logs.
//!
//! An entry of an instance with a writer is left alone for [`GRACE`], in which that instance
//! normally writes it (longer while this instance's own writer is behind); an entry of an instance
//! without one (`--no-writer`) is due at once. Two passes may take the same entry: writing and
//! acknowledging are idempotent.

use crate::catalog::cached_sale::CachedSale;
use crate::domain::{SaleId, unix_ms};
use crate::error::{ServiceError, ServiceResult};
use crate::order_log::{self, AcceptedBatch};
use crate::orders::insert::Expect;
use crate::orders::service::Orders;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tasks::Tasks;

const PAUSE: Duration = Duration::from_millis(100);

/// The age from which another writer's entry counts as left behind: longer than its slowest
/// ordinary batch.
pub const GRACE: Duration = Duration::from_secs(2);

/// The longest extension of the grace while the own writer is behind: old entries are then mostly
/// in its queue, and writing them here as well would slow it further.
const LONGEST_DELAY: Duration = Duration::from_secs(8);

/// Entries that are read at a time.
const CHUNK: usize = 64;

/// Logs that are read in one round trip.
const LOGS: usize = 256;

/// About how many orders one transaction writes.
const ORDERS: usize = 2_000;

pub fn spawn(orders: &Arc<Orders>, tasks: &Tasks) {
    tasks.spawn("recovery", orders, |orders, task| async move {
        // It may drain a whole backlog; each of its writes is bounded.
        let mut periodic = task.every(PAUSE).without_limit();
        while periodic.tick(orders.recover_step()).await {}
    });
}

impl Orders {
    /// One pass over all sales with a backlog. Answers how many orders it settled.
    pub async fn recover_step(&self) -> ServiceResult<usize> {
        let waiting = |cached: Arc<CachedSale>| {
            let known = cached.snapshot().filter(|known| known.pending != 0)?;
            Some(Log {
                cached,
                // Read before the log, so an older entry cannot be of a rebuild under way.
                live: known.epoch,
                after: String::new(),
            })
        };
        let logs = self.catalog.cache.cached_sales().into_iter();
        let mut logs: Vec<Log> = logs.filter_map(waiting).collect();
        let mut pass = Pass {
            orders: self,
            settled: 0,
            failed: None,
            stuck: HashSet::new(),
            silences: 0,
            is_over: false,
        };
        let mut with_due = VecDeque::new();
        while !logs.is_empty() {
            let some = logs.split_off(logs.len().saturating_sub(LOGS));
            with_due.extend(pass.with_due(some).await);
        }
        // Grouped across sales: a thousand sales with one order each are not a thousand
        // transactions.
        let mut group = Vec::new();
        while let Some(mut log) = with_due.pop_front() {
            if pass.is_stuck(&log) {
                continue;
            }
            match pass.read(&mut log).await {
                Ok((due, more)) => {
                    group.extend(due);
                    if more {
                        with_due.push_back(log);
                    }
                }
                // An unreadable log must not hold up the others.
                Err(error) => pass.failed = Some(error),
            }
            if orders_of(&group) >= ORDERS {
                pass.write(&std::mem::take(&mut group)).await;
            }
        }
        pass.write(&group).await;
        if pass.settled > 0 {
            tracing::debug!(orders = pass.settled, "recovered from the log");
            let recovered = &self.metrics.recovered_orders;
            recovered.increment(pass.settled as u64);
        }
        match pass.failed {
            Some(error) if pass.settled == 0 => Err(error),
            _ => Ok(pass.settled),
        }
    }
}

/// The log of a sale, and how far it has been read.
struct Log {
    cached: Arc<CachedSale>,
    /// The epoch that was live when the pass began.
    live: i64,
    after: String,
}

struct Pass<'a> {
    orders: &'a Orders,
    settled: usize,
    failed: Option<ServiceError>,
    /// Sales with a failed write: the rest of their log is left to a later pass.
    stuck: HashSet<SaleId>,
    /// Consecutive writes without an answer.
    silences: u32,
    /// Postgres is away: the pass ends.
    is_over: bool,
}

/// One silent write may be a locked row; this many in a row mean that Postgres is away.
const SILENCES: u32 = 3;

impl Pass<'_> {
    fn is_stuck(&self, log: &Log) -> bool {
        self.is_over || self.stuck.contains(&log.cached.id)
    }

    /// Whether the entry's own writer may still be about to write it.
    fn is_young(&self, entry: &AcceptedBatch) -> bool {
        let grace = GRACE + self.orders.writer_delay().min(LONGEST_DELAY);
        let now_ms = unix_ms(self.orders.catalog.now());
        let latest = now_ms.saturating_sub(grace.as_millis() as i64);
        entry.own_writer && entry.created_ms > latest
    }

    /// The logs that may have due entries: the oldest entry tells, and is almost always young.
    async fn with_due(&mut self, logs: Vec<Log>) -> Vec<Log> {
        let keys = &self.orders.redis.keys;
        let ask = |log: &Log| order_log::ask_oldest(keys, log.cached.id);
        let asked = self.orders.redis.query_all(logs.iter().map(ask).collect());
        let asked = asked.await.unwrap_or_else(|error| vec![Err(error)]);
        let mut with_due = Vec::new();
        for (log, oldest) in logs.into_iter().zip(asked) {
            match oldest.and_then(|reply| order_log::read_oldest(log.cached.id, reply)) {
                Ok(None) => {}
                Ok(Some(Ok(entry))) if self.is_young(&entry) => {}
                // Unreadable ones too: the reader handles them.
                Ok(Some(_)) => with_due.push(log),
                Err(error) => self.failed = Some(error.into()),
            }
        }
        with_due
    }

    /// The next due entries of a log, and whether there may be more.
    async fn read(&self, log: &mut Log) -> ServiceResult<(Vec<AcceptedBatch>, bool)> {
        let orders = self.orders;
        let (mut connection, keys) = (orders.redis.pooled().await?, &orders.redis.keys);
        let entries = order_log::read(&mut connection, keys, log.cached.id, &log.after, CHUNK);
        let entries = entries.await?;
        drop(connection);
        orders.fail_points.at("recovery.read").await?;
        let full = entries.len() == CHUNK;
        let mut due: Vec<AcceptedBatch> = Vec::new();
        let mut young = false;
        for entry in entries {
            match entry {
                Ok(batch) => {
                    log.after.clone_from(&batch.entry);
                    if batch.epoch < log.live {
                        // No epoch begins before the older log is drained, so this entry is
                        // foreign, and would not be acknowledged either: the rebuild drains it.
                        tracing::error!(sale = %log.cached.id, entry = batch.entry,
                            "a log entry of an epoch that has ended");
                        log.cached.suspect();
                    }
                    match self.is_young(&batch) {
                        true => young = true,
                        false => due.push(batch),
                    }
                }
                Err(unreadable) => {
                    // The rebuild quarantines it and returns its units.
                    tracing::error!(error = %unreadable, "the sale will be rebuilt without it");
                    log.cached.suspect();
                    log.after = unreadable.entry;
                }
            }
        }
        // Entries are in order of admission: behind a young one all are young, except those of
        // instances without a writer, which a later pass finds.
        let more = full && !(young && due.is_empty());
        Ok((due, more))
    }

    /// Writes and acknowledges batches of several sales; a failing sale does not hold up the
    /// others.
    async fn write(&mut self, group: &[AcceptedBatch]) {
        for batches in chunks_of_orders(group) {
            let mut logs = batches.chunk_by(|a, b| a.sale == b.sale);
            if logs.clone().nth(1).is_some() && self.persist(batches).await {
                continue;
            }
            while !self.is_over
                && let Some(of_one) = logs.next()
            {
                let sale = of_one[0].sale;
                if !self.stuck.contains(&sale) && !self.persist(of_one).await {
                    self.stuck.insert(sale);
                }
            }
        }
    }

    /// Whether these are settled.
    async fn persist(&mut self, batches: &[AcceptedBatch]) -> bool {
        if self.is_over {
            return false;
        }
        let persisted = self.orders.persist(batches, Expect::PerhapsWritten).await;
        match persisted {
            Ok(()) => {
                self.settled += orders_of(batches);
                self.silences = 0;
                true
            }
            Err(error) => {
                // Without an answer, the next ones would wait as long.
                match &error {
                    ServiceError::Postgres(sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed) => {
                        self.is_over = true;
                    }
                    ServiceError::Postgres(sqlx::Error::Io(_)) | ServiceError::Injected(_) => {
                        self.silences += 1;
                    }
                    _ => {}
                }
                self.is_over |= self.silences >= SILENCES;
                self.failed = Some(error);
                false
            }
        }
    }
}

fn orders_of(batches: &[AcceptedBatch]) -> usize {
    batches.iter().map(|batch| batch.orders.len()).sum()
}

/// Splits batches into runs of about `ORDERS` orders.
pub(crate) fn chunks_of_orders(
    batches: &[AcceptedBatch],
) -> impl Iterator<Item = &[AcceptedBatch]> {
    let mut rest = batches;
    std::iter::from_fn(move || {
        let mut orders = 0;
        let last = rest.iter().position(|batch| {
            orders += batch.orders.len();
            orders >= ORDERS
        });
        let end = last.map_or(rest.len(), |last| last + 1);
        let (run, after) = rest.split_at(end);
        rest = after;
        (!run.is_empty()).then_some(run)
    })
}
