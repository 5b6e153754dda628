//! The sweeper: orders whose time to pay is over expire, by Postgres' clock.
//!
//! Sweepers of several instances skip each other's rows. On a crash nothing is half-done: the
//! transition, the counter and the outbox row are one statement.

use crate::{
    domain::OrderStatus,
    sale::{Shop, ShopError, life, orders},
};
use std::sync::Arc;

/// The most orders that one statement expires.
const BATCH: i64 = 500;

/// Expires everything that is due. Answers how many.
pub async fn step(shop: &Arc<Shop>) -> Result<u64, ShopError> {
    let mut total = 0;
    loop {
        let fail_points = &shop.fail_points;
        fail_points
            .at("expiry.due")
            .await
            .map_err(sqlx::Error::Io)?;
        let expired = orders::expire_due(&shop.postgres, BATCH).await?;
        fail_points
            .at("expiry.expired")
            .await
            .map_err(sqlx::Error::Io)?;
        total += expired;
        if expired > 0 {
            life::count(OrderStatus::Expired, expired);
            shop.release_bell.notify_one();
            shop.watch.bell.notify_one();
        }
        if expired < BATCH.unsigned_abs() {
            return Ok(total);
        }
    }
}
