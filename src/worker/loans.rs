//! Finishes loans between the buckets of a sale that somebody has begun and not finished: a process that died
//! half-way, or lost its connection. See [`crate::sale::lending`].
//!
//! Each step looks for loans that were open at the step before, and finishes them. That may be one that is
//! being finished by its own process at this moment: every step of a loan may be made twice.

use crate::{
    domain::Bucket,
    redis::loans::Loan,
    sale::{Shop, ShopError, lending},
};
use std::{collections::HashSet, sync::Arc};

/// An open loan: its lender and epoch, the borrower's index, its number.
pub type Open = (Bucket, i64, u16, i64);

/// One pass. `seen` remembers open loans between calls. Answers how many it finished.
pub async fn step(shop: &Arc<Shop>, seen: &mut HashSet<Open>) -> Result<usize, ShopError> {
    let mut open = HashSet::new();
    let (mut finished, mut failed) = (0, None);
    for listing in shop.board.listings() {
        let division = arc_swap::Guard::into_inner(listing.division());
        let sale = listing.sale();
        if division.of() == 1 || sale.bucket_count() != division.of() {
            continue;
        }
        for (part, reading) in division.readings() {
            if reading.lent == 0 {
                continue;
            }
            let lender = Bucket {
                sale: sale.id,
                part,
            };
            let is_due = |to, loan: Loan| {
                let this = (lender, sale.epoch, to, loan.number);
                let was_there = seen.contains(&this);
                open.insert(this);
                was_there
            };
            match lending::finish(shop, &division, &sale, lender, is_due).await {
                Ok(count) => finished += count,
                // What a rebuild is about to end.
                Err(lending::Trouble::Fenced(_) | lending::Trouble::Shut) => {}
                Err(error) => failed = Some(ShopError::from(error)),
            }
        }
    }
    *seen = open;
    if finished > 0 {
        tracing::info!(
            loans = finished,
            "finished loans between buckets that were left open"
        );
    }
    failed.map_or(Ok(finished), Err)
}
