//! The sweeper: orders whose time to pay is over expire, by Postgres' clock.
//!
//! Sweepers of several instances skip each other's rows. On a crash nothing is half-done: the
//! transition, the counter and the outbox row are one statement.

use crate::{
    domain::OrderStatus,
    postgres::timed_out,
    sale::{Shop, ShopError, orders},
    worker::{STEP_LIMIT, writer},
};
use std::sync::Arc;

/// The most orders that one statement expires.
const BATCH: i64 = 500;

/// Expires everything that is due. Answers how many.
pub async fn step(shop: &Arc<Shop>) -> Result<u64, ShopError> {
    let mut total = 0;
    loop {
        let fail_points = &shop.fail_points;
        fail_points.at("expiry.due").await?;
        let expired = match bounded(orders::expire_due(&shop.postgres, None, BATCH)).await {
            Err(error) if writer::is_refusal(&error) => return expire_each_sale(shop).await,
            expired => expired?,
        };
        fail_points.at("expiry.expired").await?;
        total += expired;
        if expired > 0 {
            shop.metrics.orders(OrderStatus::Expired).increment(expired);
            shop.release_bell.notify_one();
            shop.watch.bell.notify_one();
        }
        if expired < BATCH.unsigned_abs() {
            return Ok(total);
        }
    }
}

async fn bounded<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    tokio::time::timeout(STEP_LIMIT, statement)
        .await
        .unwrap_or_else(|_| Err(timed_out()))
}

/// Sale by sale, when the batch as a whole breaks a constraint: a sale whose counter was damaged from
/// outside must not keep the others' units.
async fn expire_each_sale(shop: &Arc<Shop>) -> Result<u64, ShopError> {
    let (mut total, mut failed) = (0, None);
    for sale in bounded(orders::sales_with_due(&shop.postgres)).await? {
        match bounded(orders::expire_due(&shop.postgres, Some(sale), BATCH)).await {
            Ok(expired) => total += expired,
            Err(error) => {
                tracing::error!(%sale, %error, "its unpaid orders cannot expire; run the audit");
                failed = Some(error);
            }
        }
    }
    if total > 0 {
        shop.metrics.orders(OrderStatus::Expired).increment(total);
        shop.release_bell.notify_one();
        shop.watch.bell.notify_one();
    }
    failed.map_or(Ok(total), |error| Err(error.into()))
}
