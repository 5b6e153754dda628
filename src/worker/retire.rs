//! Takes ended sales out of Redis, whose memory is the dearest place to keep them.
//!
//! [`RETIREMENT`] after its end a sale has no more retries to expect; units that still come back are
//! only counted in Postgres. Its state goes first, by a script that judges whether it may, and its
//! buyers after it: an operator may extend the sale at the same moment, and then it needs them. On a
//! crash in between, keys stay that nobody reads. From then on the board answers `ended` by itself;
//! Postgres keeps everything.

use crate::{
    redis::scripts,
    sale::{Shop, ShopError, board::Listing, board::RETIREMENT, catalogue::unlink_buyers},
};
use std::sync::Arc;

/// One pass. Answers how many sales were removed.
pub async fn step(shop: &Arc<Shop>) -> Result<usize, ShopError> {
    let now = shop.now();
    let mut removed = 0;
    for listing in shop.board.listings() {
        let over = listing.is_retired(now) && listing.is_present();
        let settled = listing.tally().is_some_and(|tally| tally.pending == 0);
        if over && settled && remove(shop, &listing).await? {
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
    shop.fail_points
        .at("retire.judging")
        .await
        .map_err(sqlx::Error::Io)?;
    let mut connection = shop.redis.pooled().await?;
    let keys = &shop.redis.keys;
    let gone = scripts::retire(&mut *connection, keys, sale.id, sale.epoch, RETIREMENT).await?;
    drop(connection);
    if gone {
        unlink_buyers(shop, sale.id, sale.epoch, sale.buyer_shards).await?;
    }
    shop.read_tallies(std::slice::from_ref(listing)).await?;
    Ok(gone)
}
