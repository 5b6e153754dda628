//! Takes ended sales out of Redis, whose memory is the dearest place to keep them.
//!
//! [`RETIREMENT`] after its end a sale has no more retries to expect; units that still come back are
//! only counted in Postgres. From then on the cache answers `ended` by itself; Postgres keeps
//! everything.

use crate::{
    redis::functions,
    sale::{Shop, ShopError, board::Listing, board::RETIREMENT},
};
use std::sync::Arc;

/// One pass. Answers how many sales were removed.
pub async fn step(shop: &Arc<Shop>) -> Result<usize, ShopError> {
    let now = shop.now();
    let mut removed = 0;
    for listing in shop.board.listings() {
        if !listing.is_retired(now) {
            continue;
        }
        let settled = listing.snapshot().is_some_and(|known| known.pending == 0);
        if settled && remove(shop, &listing).await? {
            removed += 1;
        }
    }
    if removed > 0 {
        tracing::info!(sales = removed, "ended sales were taken out of redis");
    }
    Ok(removed)
}

async fn remove(shop: &Arc<Shop>, listing: &Arc<Listing>) -> Result<bool, ShopError> {
    // What the board believes may be old: an operator may have extended the sale a moment ago.
    let sale = shop.refresh(listing.id).await?.sale();
    if !listing.is_retired(shop.now()) {
        return Ok(false);
    }
    shop.fail_points.at("retire.judging").await?;
    let gone = {
        let (mut connection, keys) = (shop.redis.pooled().await?, &shop.redis.keys);
        functions::evict(&mut connection, keys, sale.id, sale.epoch, RETIREMENT).await?
    };
    shop.read_snapshots(std::slice::from_ref(listing)).await?;
    Ok(gone)
}
