//! The recovery pass: writes what stayed in the logs.
//!
//! An entry of an instance that writes its own orders is left alone for [`GRACE`], in which that
//! instance normally writes and deletes it (longer while this instance's own writer is behind); an entry of
//! one without a writer (`--no-writer`) is everybody's at once. Two passes may take the same entry: writing and acknowledging are
//! idempotent.

use crate::{
    domain::SaleId,
    sale::{Shop, ShopError, board::Listing, log, log::AcceptedBatch, orders::Expect},
    worker::writer,
};
use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

/// How old another writer's entry must be before it counts as left behind. Longer than a writer's
/// slowest ordinary batch, so that orders are rarely written twice.
pub const GRACE: Duration = Duration::from_secs(2);

/// By how much longer at most entries are left alone while this instance's own writer is behind: most of what is
/// old is then on its way, and to write it here as well would only make the writer later still.
const MOST_PATIENCE: Duration = Duration::from_secs(8);

/// Entries that are read at a time.
const CHUNK: usize = 64;

/// Logs that are looked at in one round trip.
const LOGS: usize = 256;

/// About how many orders one transaction writes.
const ORDERS: usize = 2_000;

/// One pass over all sales that have a backlog. Answers how many orders it settled.
pub async fn step(shop: &Arc<Shop>) -> Result<usize, ShopError> {
    let mut logs = Vec::new();
    for listing in shop.board.listings() {
        // Known before the log is read, so an entry of an older epoch was not left by a rebuild under way.
        if let Some(known) = listing.snapshot()
            && known.pending != 0
        {
            logs.push(Log {
                listing,
                live: known.epoch,
                after: String::new(),
            });
        }
    }
    let mut pass = Pass::new(shop);
    let mut with_due = VecDeque::new();
    while !logs.is_empty() {
        let some = logs.split_off(logs.len().saturating_sub(LOGS));
        with_due.extend(pass.look(some).await);
    }
    // All sales together, so that a thousand that have one order each are not a thousand transactions.
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
            // One that cannot be read must not hold up the others.
            Err(error) => pass.failed = Some(error),
        }
        if orders_of(&group) >= ORDERS {
            pass.write(&std::mem::take(&mut group)).await;
        }
    }
    pass.write(&group).await;
    let Pass {
        settled, failed, ..
    } = pass;
    if settled > 0 {
        tracing::debug!(orders = settled, "recovered from the log");
        shop.metrics.recovered_orders.increment(settled as u64);
    }
    match failed {
        Some(error) if settled == 0 => Err(error),
        _ => Ok(settled),
    }
}

/// The log of a sale, and how far it has been read.
struct Log {
    listing: Arc<Listing>,
    /// The epoch that was live when the pass began.
    live: i64,
    after: String,
}

struct Pass<'a> {
    shop: &'a Arc<Shop>,
    settled: usize,
    failed: Option<ShopError>,
    /// Logs of which something could not be written: the rest of them is left to a later pass.
    stuck: HashSet<SaleId>,
    /// Writes in a row that Postgres said nothing about.
    silences: u32,
    /// Postgres does not answer: everything is.
    is_over: bool,
}

/// One silent write may be a row that somebody holds; so many are Postgres itself.
const SILENCES: u32 = 3;

impl<'a> Pass<'a> {
    fn new(shop: &'a Arc<Shop>) -> Self {
        Self {
            shop,
            settled: 0,
            failed: None,
            stuck: HashSet::new(),
            silences: 0,
            is_over: false,
        }
    }

    fn is_stuck(&self, log: &Log) -> bool {
        self.is_over || self.stuck.contains(&log.listing.id)
    }

    /// Whether an entry is one that its own writer may still be about to write.
    fn is_young(&self, entry: &AcceptedBatch) -> bool {
        let grace = GRACE + self.shop.writer_delay().min(MOST_PATIENCE);
        let now_ms = self.shop.now().unix_timestamp_nanos() / 1_000_000;
        let latest = now_ms - grace.as_millis() as i128;
        entry.own_writer && i128::from(entry.created_ms) > latest
    }

    /// Those of the logs that may have something due. Almost always the oldest entry is young, and then so are all:
    /// one is enough to see that.
    async fn look(&mut self, logs: Vec<Log>) -> Vec<Log> {
        let keys = &self.shop.redis.keys;
        let ask = |log: &Log| log::ask_oldest(keys, log.listing.id);
        let asked = self.shop.redis.query_all(logs.iter().map(ask).collect());
        let mut with_due = Vec::new();
        let oldest = match asked.await {
            Ok(oldest) => oldest,
            Err(error) => {
                self.failed = Some(error.into());
                return with_due;
            }
        };
        for (log, oldest) in logs.into_iter().zip(oldest) {
            match oldest.and_then(|reply| log::read_oldest(log.listing.id, reply)) {
                Ok(None) => {}
                Ok(Some(Ok(entry))) if self.is_young(&entry) => {}
                // Also what cannot be read: that is the reader's to judge.
                Ok(Some(_)) => with_due.push(log),
                Err(error) => self.failed = Some(error.into()),
            }
        }
        with_due
    }

    /// The next entries of a log that are older than the grace or have no writer of their own; and whether there may be
    /// more.
    async fn read(&self, log: &mut Log) -> Result<(Vec<AcceptedBatch>, bool), ShopError> {
        let shop = self.shop;
        let entries = {
            let mut connection = shop.redis.pooled().await?;
            let keys = &shop.redis.keys;
            log::read(&mut connection, keys, log.listing.id, &log.after, CHUNK).await?
        };
        shop.fail_points.at("recovery.read").await?;
        let full = entries.len() == CHUNK;
        let mut due: Vec<AcceptedBatch> = Vec::new();
        let mut young = false;
        for entry in entries {
            match entry {
                Ok(batch) => {
                    log.after.clone_from(&batch.entry);
                    if batch.epoch < log.live {
                        // No epoch begins before the log of the one before it is empty, so this
                        // program did not leave it here; nor would it acknowledge it. The rebuild drains.
                        tracing::error!(sale = %log.listing.id, entry = batch.entry, "a log entry of an epoch that has ended");
                        log.listing.suspect();
                    }
                    if self.is_young(&batch) {
                        young = true;
                    } else {
                        due.push(batch);
                    }
                }
                Err(unreadable) => {
                    // The rebuild puts it aside and returns its units.
                    tracing::error!(error = %unreadable, "the sale will be rebuilt without it");
                    log.listing.suspect();
                    log.after = unreadable.entry;
                }
            }
        }
        // Entries are in the order of their admission: behind a young one all are young, unless some
        // instances have no writer, whose entries a later pass finds.
        let more = full && !(young && due.is_empty());
        Ok((due, more))
    }

    /// Writes and acknowledges batches of several sales. One that cannot be written must not hold up the others.
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
        let persisted = writer::persist(self.shop, batches, Expect::PerhapsWritten).await;
        match persisted {
            Ok(()) => {
                self.settled += orders_of(batches);
                self.silences = 0;
                true
            }
            Err(error) => {
                // Not a word about these orders: whoever comes next would wait as long, and hear as little.
                match &error {
                    ShopError::Postgres(sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed) => {
                        self.is_over = true;
                    }
                    ShopError::Postgres(sqlx::Error::Io(_)) | ShopError::Injected(_) => {
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
pub(super) fn chunks_of_orders(
    batches: &[AcceptedBatch],
) -> impl Iterator<Item = &[AcceptedBatch]> {
    let mut rest = batches;
    std::iter::from_fn(move || {
        let mut orders = 0;
        let end = rest
            .iter()
            .position(|batch| {
                orders += batch.orders.len();
                orders >= ORDERS
            })
            .map_or(rest.len(), |last| last + 1);
        let (run, after) = rest.split_at(end);
        rest = after;
        (!run.is_empty()).then_some(run)
    })
}
