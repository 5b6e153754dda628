//! The recovery pass: writes what stayed in the logs.
//!
//! An entry of an instance that writes its own orders is left alone for [`GRACE`], in which that
//! instance normally writes and deletes it; an entry of one without a writer (`--no-writer`) is
//! everybody's at once. Two passes may take the same entry: writing and acknowledging are
//! idempotent.

use crate::{
    domain::{Bucket, Part},
    sale::{Shop, ShopError, board::Listing, log, log::AcceptedBatch, orders::Expect},
};
use std::{sync::Arc, time::Duration};

/// How old another writer's entry must be before it counts as left behind. Longer than a writer's
/// slowest ordinary batch, so that orders are rarely written twice.
pub const GRACE: Duration = Duration::from_secs(2);

/// Entries that are read at a time.
const CHUNK: usize = 64;

/// About how many orders one transaction writes.
const ORDERS: usize = 2_000;

/// One pass over all sales that have a backlog. Answers how many orders it settled.
pub async fn step(shop: &Arc<Shop>) -> Result<usize, ShopError> {
    let (mut settled, mut failed) = (0, None);
    for listing in shop.board.listings() {
        // Known before the log is read, so an entry of an older epoch was not left by a rebuild under way.
        let readings = listing.division().readings();
        for (part, reading) in readings {
            if reading.pending == 0 {
                continue;
            }
            // One that cannot be written must not hold up the others.
            match drain(shop, &listing, part, reading.epoch, GRACE).await {
                Ok(count) => settled += count,
                Err(error) => failed = Some(error),
            }
        }
    }
    if settled > 0 {
        tracing::debug!(orders = settled, "recovered from the log");
        shop.metrics.recovered_orders.increment(settled as u64);
    }
    match failed {
        Some(error) if settled == 0 => Err(error),
        _ => Ok(settled),
    }
}

/// Writes the entries of one bucket's log that are older than `grace` or have no writer of their own.
async fn drain(
    shop: &Arc<Shop>,
    listing: &Listing,
    part: Part,
    live: i64,
    grace: Duration,
) -> Result<usize, ShopError> {
    let mut settled = 0;
    let mut after = String::new();
    let bucket = Bucket {
        sale: listing.id,
        part,
    };
    // Almost always the oldest entry is young, and then so are all: one is enough to see that.
    let mut count = 1;
    loop {
        let entries = {
            let mut connection = shop.redis.pooled().await?;
            log::read(&mut *connection, &shop.redis.keys, bucket, &after, count).await?
        };
        shop.fail_points
            .at("recovery.read")
            .await
            .map_err(sqlx::Error::Io)?;
        let full = entries.len() == count;
        count = CHUNK;
        let latest = shop.now().unix_timestamp_nanos() / 1_000_000 - grace.as_millis() as i128;
        let mut due: Vec<AcceptedBatch> = Vec::new();
        let mut young = false;
        for entry in entries {
            match entry {
                Ok(batch) => {
                    after.clone_from(&batch.entry);
                    if batch.epoch < live {
                        // No epoch begins before the log of the one before it is empty, so this
                        // program did not leave it here; nor would it acknowledge it. The rebuild drains.
                        tracing::error!(sale = %listing.id, entry = batch.entry, "a log entry of an epoch that has ended");
                        listing.suspect();
                    }
                    if !batch.own_writer || i128::from(batch.created_ms) <= latest {
                        due.push(batch);
                    } else {
                        young = true;
                    }
                }
                Err(unreadable) => {
                    // The rebuild puts it aside and returns its units.
                    tracing::error!(error = %unreadable, "the sale will be rebuilt without it");
                    listing.suspect();
                    after = unreadable.entry;
                }
            }
        }
        for batches in chunks_of_orders(&due) {
            super::writer::persist(shop, batches, Expect::PerhapsWritten).await?;
            settled += batches
                .iter()
                .map(|batch| batch.orders.len())
                .sum::<usize>();
        }
        // Entries are in the order of their admission: behind a young one all are young, unless some
        // instances have no writer, whose entries a later pass finds.
        if !full || (young && due.is_empty()) {
            return Ok(settled);
        }
    }
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
