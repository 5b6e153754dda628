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
    redis::scripts::{Fenced, Judged},
    sale::{
        Shop, ShopError, gate,
        log::{AcceptedBatch, AcceptedOrder},
        orders::{self, Expect},
    },
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// The most orders that ask in one script call.
const CALL: usize = 512;

/// An order and the time of its admission, Unix ms.
type Late = (AcceptedOrder, i64);

/// Settles every order of these batches, whatever their epoch. Idempotent.
pub(super) async fn settle(shop: &Arc<Shop>, batches: &[AcceptedBatch]) -> Result<(), ShopError> {
    let orders = || batches.iter().flat_map(|batch| &batch.orders);
    let ids: Vec<i64> = orders().map(|order| order.id.get()).collect();
    let written = orders::existing(&shop.postgres, &ids).await?;
    let mut by_sale: BTreeMap<SaleId, Vec<Late>> = BTreeMap::new();
    for batch in batches {
        let missing = batch
            .orders
            .iter()
            .filter(|order| !written.contains(&order.id))
            .map(|order| (*order, batch.created_ms));
        by_sale.entry(batch.sale).or_default().extend(missing);
    }
    for (sale, mut late) in by_sale {
        late.sort_unstable_by_key(|(order, _)| order.id);
        for some in late.chunks(CALL) {
            ask_again(shop, sale, some).await?;
        }
    }
    Ok(())
}

async fn ask_again(shop: &Arc<Shop>, sale: SaleId, late: &[Late]) -> Result<(), ShopError> {
    let listing = match shop.refresh(sale).await {
        Ok(listing) => listing,
        Err(ShopError::SaleNotFound) => {
            tracing::error!(%sale, orders = late.len(), "accepted orders of a sale that does not exist");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let fail_points = &shop.fail_points;
    fail_points
        .at("writer.readmitting")
        .await
        .map_err(sqlx::Error::Io)?;
    let orders: Vec<AcceptedOrder> = late.iter().map(|(order, _)| *order).collect();
    // One time for all, and not now: the window was open when they were admitted.
    let created_ms = late.iter().map(|(_, created)| *created).min().unwrap_or(0);
    let readmitted = match gate::readmit(shop, &listing.sale(), created_ms, &orders).await? {
        Ok(readmitted) => readmitted,
        Err(fenced) => {
            if fenced == Fenced::Corrupt {
                listing.suspect();
            }
            shop.rebuild_bell.notify_one();
            return Err(wait("late orders wait until the sale is rebuilt"));
        }
    };
    fail_points
        .at("writer.readmitted")
        .await
        .map_err(sqlx::Error::Io)?;
    for batch in &readmitted.live {
        writer::settle_live(shop, batch, Expect::PerhapsWritten).await?;
    }
    let mut full = false;
    for (order, verdict) in orders.iter().zip(&readmitted.verdicts) {
        match verdict {
            Judged::Accepted { .. } | Judged::AcceptedBefore { .. } => {}
            Judged::BacklogFull => full = true,
            _ => {
                let single = AcceptedBatch {
                    sale,
                    epoch: listing.sale().epoch,
                    entry: String::new(),
                    created_ms,
                    own_writer: true,
                    orders: vec![*order],
                };
                let why = "its unit was sold again after redis lost data";
                writer::reject(shop, &single, *order, why).await?;
            }
        }
    }
    // Their entry is of the live epoch; if this fails, a recovery pass finds rows and acknowledges.
    writer::acknowledge(shop, &readmitted.live).await?;
    if full {
        return Err(wait("late orders wait until the backlog is written"));
    }
    Ok(())
}

fn wait(what: &'static str) -> ShopError {
    ShopError::Unavailable {
        what,
        retry_after: Duration::from_secs(1),
    }
}
