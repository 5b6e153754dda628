//! The recovery pass: writes what stayed in the logs.
//!
//! An entry of an instance that writes its own orders is left alone for [`GRACE`], in which that
//! instance normally writes and deletes it (longer while this instance's own writer is behind); an entry of
//! one without a writer (`--no-writer`) is everybody's at once. Two passes may take the same entry: writing and acknowledging are
//! idempotent.

use crate::{
    domain::Bucket,
    sale::{Shop, ShopError, board::Listing, log, log::AcceptedBatch, orders::Expect},
};
use std::{collections::VecDeque, sync::Arc, time::Duration};

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
        for (part, reading) in listing.division().readings() {
            if reading.pending != 0 {
                logs.push(Log {
                    bucket: Bucket {
                        sale: listing.id,
                        part,
                    },
                    listing: listing.clone(),
                    live: reading.epoch,
                    after: String::new(),
                });
            }
        }
    }
    let mut pass = Pass::new(shop);
    let mut with_due = VecDeque::new();
    while !logs.is_empty() {
        let some = logs.split_off(logs.len().saturating_sub(LOGS));
        with_due.extend(pass.look(some).await?);
    }
    // All sales together, so that a thousand that have one order each are not a thousand transactions.
    let mut group = Vec::new();
    while let Some(mut log) = with_due.pop_front() {
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

/// The log of a bucket, and how far it has been read.
struct Log {
    bucket: Bucket,
    listing: Arc<Listing>,
    /// The epoch that was live when the pass began.
    live: i64,
    after: String,
}

struct Pass<'a> {
    shop: &'a Arc<Shop>,
    grace: Duration,
    settled: usize,
    failed: Option<ShopError>,
}

impl<'a> Pass<'a> {
    fn new(shop: &'a Arc<Shop>) -> Self {
        Self {
            shop,
            grace: GRACE + shop.writer_delay().min(MOST_PATIENCE),
            settled: 0,
            failed: None,
        }
    }

    /// Whether an entry is one that its own writer may still be about to write.
    fn is_young(&self, entry: &AcceptedBatch) -> bool {
        let now_ms = self.shop.now().unix_timestamp_nanos() / 1_000_000;
        let latest = now_ms - self.grace.as_millis() as i128;
        entry.own_writer && i128::from(entry.created_ms) > latest
    }

    /// Those of the logs that may have something due. Almost always the oldest entry is young, and then so are all:
    /// one is enough to see that.
    async fn look(&mut self, logs: Vec<Log>) -> Result<Vec<Log>, ShopError> {
        let buckets: Vec<Bucket> = logs.iter().map(|log| log.bucket).collect();
        let oldest = {
            let mut connection = self.shop.redis.pooled().await?;
            log::oldest(&mut *connection, &self.shop.redis.keys, &buckets).await?
        };
        let mut with_due = Vec::new();
        for (log, oldest) in logs.into_iter().zip(oldest) {
            match oldest {
                Ok(None) => {}
                Ok(Some(Ok(entry))) if self.is_young(&entry) => {}
                // Also what cannot be read: that is the reader's to judge.
                Ok(Some(_)) => with_due.push(log),
                Err(error) => self.failed = Some(error.into()),
            }
        }
        Ok(with_due)
    }

    /// The next entries of a log that are older than the grace or have no writer of their own; and whether there may be
    /// more.
    async fn read(&self, log: &mut Log) -> Result<(Vec<AcceptedBatch>, bool), ShopError> {
        let shop = self.shop;
        let entries = {
            let mut connection = shop.redis.pooled().await?;
            let keys = &shop.redis.keys;
            log::read(&mut *connection, keys, log.bucket, &log.after, CHUNK).await?
        };
        shop.fail_points
            .at("recovery.read")
            .await
            .map_err(sqlx::Error::Io)?;
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
                        tracing::error!(sale = %log.bucket, entry = batch.entry, "a log entry of an epoch that has ended");
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
            let is_mixed = batches
                .iter()
                .any(|batch| batch.bucket() != batches[0].bucket());
            match super::writer::persist(self.shop, batches, Expect::PerhapsWritten).await {
                Ok(()) => self.settled += orders_of(batches),
                Err(error) if !is_mixed => self.failed = Some(error),
                Err(_) => {
                    for of_one in batches.chunk_by(|a, b| a.bucket() == b.bucket()) {
                        let persisted =
                            super::writer::persist(self.shop, of_one, Expect::PerhapsWritten);
                        match persisted.await {
                            Ok(()) => self.settled += orders_of(of_one),
                            Err(error) => self.failed = Some(error),
                        }
                    }
                }
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
