//! Orders that were accepted in an epoch that has ended, and that the rebuild did not find: their log
//! entry was lost, and a living process still had them.
//!
//! What is a row by now is settled. The others ask for a place in the live epoch like everybody else,
//! under their own ids, and become rows or `rejected`. Until then this process holds the only copy, so
//! it writes them itself rather than leave them to the log entry of their second admission: Redis may
//! lose that too.

use super::writer;
use crate::{
    domain::SaleId,
    postgres::timed_out,
    redis::functions::{Fenced, Verdict},
    sale::{
        Shop, ShopError,
        board::Listing,
        gate,
        log::{AcceptedBatch, AcceptedOrder},
        orders::{self, Expect},
    },
};
use std::{sync::Arc, time::Duration};

/// The most orders that ask in one call.
const CALL: usize = 512;

/// How long it may take to see which of them are rows.
const LOOK: Duration = Duration::from_secs(10);

/// How long one call, and the rows that come of it, may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// An order and the time of its admission, Unix ms.
type Late = (AcceptedOrder, i64);

/// Settles every order of these batches, all of one sale, whatever their epoch. Idempotent.
pub(super) async fn settle(
    shop: &Arc<Shop>,
    sale: SaleId,
    batches: &[AcceptedBatch],
) -> Result<(), ShopError> {
    let ids: Vec<i64> = batches
        .iter()
        .flat_map(|batch| batch.orders.iter().map(|order| order.id.get()))
        .collect();
    let looking = async { Ok(orders::existing(&shop.postgres, &ids).await?) };
    let written = within(LOOK, looking).await?;
    let mut late: Vec<Late> = batches
        .iter()
        .flat_map(|batch| batch.orders.iter().map(|order| (*order, batch.created_ms)))
        .filter(|(order, _)| !written.contains(&order.id))
        .collect();
    late.sort_unstable_by_key(|(order, _)| order.id);
    for some in late.chunks(CALL) {
        within(PATIENCE, ask_again(shop, sale, some)).await?;
    }
    Ok(())
}

/// No part of this may wait for a server that has fallen silent: this process holds the only copy.
async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, ShopError>>,
) -> Result<T, ShopError> {
    tokio::time::timeout(limit, work)
        .await
        .unwrap_or_else(|_| Err(timed_out().into()))
}

async fn ask_again(shop: &Arc<Shop>, sale: SaleId, late: &[Late]) -> Result<(), ShopError> {
    let listing = match shop.refresh_row(sale).await {
        Ok(listing) => listing,
        Err(ShopError::SaleNotFound) => {
            tracing::error!(%sale, orders = late.len(), "accepted orders of a sale that does not exist");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let fail_points = &shop.fail_points;
    fail_points.at("writer.readmitting").await?;
    // One time for all, and not now: the window was open when they were admitted.
    let created_ms = late.iter().map(|(_, created)| *created).min().unwrap_or(0);
    let orders: Vec<AcceptedOrder> = late.iter().map(|(order, _)| *order).collect();
    let live = listing.sale();
    let readmitted = match gate::readmit(shop, &live, created_ms, &orders).await? {
        Ok(readmitted) => readmitted,
        Err(Fenced::Absent) if listing.is_retired(shop.now()) => {
            // Nobody rebuilds it any more, so nobody could ever admit them.
            for order in &orders {
                let single = alone(&listing, created_ms, *order);
                writer::reject(shop, &single, *order, "its sale has long been over").await?;
            }
            return Ok(());
        }
        Err(fenced) => {
            if fenced == Fenced::Corrupt {
                listing.suspect();
            }
            shop.rebuild_bell.notify_one();
            return Err(wait("late orders wait until the sale is rebuilt"));
        }
    };
    fail_points.at("writer.readmitted").await?;
    for batch in &readmitted.live {
        writer::settle_live(shop, batch, Expect::PerhapsWritten).await?;
    }
    let mut full = false;
    for (order, verdict) in orders.iter().zip(&readmitted.verdicts) {
        match verdict {
            Verdict::Accepted { .. } | Verdict::AcceptedBefore { .. } => {}
            Verdict::BacklogFull => full = true,
            _ => {
                let single = alone(&listing, created_ms, *order);
                let why = "redis lost it, and its unit or its place was given away since";
                writer::reject(shop, &single, *order, why).await?;
            }
        }
    }
    if let Err(error) = writer::acknowledge(shop, &readmitted.live).await {
        // They are rows: a recovery pass acknowledges.
        tracing::debug!(%sale, %error, "readmitted orders stay in the log");
    }
    if full {
        return Err(wait("late orders wait until the backlog is written"));
    }
    Ok(())
}

/// A batch of this one order.
fn alone(listing: &Listing, created_ms: i64, order: AcceptedOrder) -> AcceptedBatch {
    let sale = listing.sale();
    AcceptedBatch {
        sale: listing.id,
        epoch: sale.epoch,
        entry: String::new(),
        created_ms,
        own_writer: true,
        orders: vec![order],
        traced: Vec::new(),
    }
}

fn wait(what: &'static str) -> ShopError {
    ShopError::Unavailable {
        what,
        retry_after: Duration::from_secs(1),
    }
}
