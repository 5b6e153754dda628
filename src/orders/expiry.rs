//! The sweeper: expires unpaid orders after their time to pay, by Postgres' clock.
//!
//! Sweepers of several instances skip each other's rows. Transition, counter and outbox row are one
//! statement, so a crash leaves nothing half-done.

use crate::domain::OrderStatus;
use crate::error::ServiceResult;
use crate::orders::outcome::Refusal;
use crate::orders::service::Orders;
use crate::orders::statements;
use crate::postgres::within;
use std::sync::Arc;
use std::time::Duration;
use tasks::{STEP_LIMIT, Tasks};

const PAUSE: Duration = Duration::from_millis(250);

/// The most orders that one statement expires.
const BATCH: i64 = 500;

pub fn spawn(orders: &Arc<Orders>, tasks: &Tasks) {
    tasks.spawn("expiry", orders, |orders, task| async move {
        // Many orders may be due at once; each statement is bounded.
        let mut periodic = task.every(PAUSE).without_limit();
        while periodic.tick(orders.expire_step()).await {}
    });
}

impl Orders {
    /// Expires all due orders. Answers how many.
    pub async fn expire_step(&self) -> ServiceResult<u64> {
        let mut total = 0;
        loop {
            self.fail_points.at("expiry.due").await?;
            let expired =
                match within(STEP_LIMIT, statements::expire_due(&self.postgres, None, BATCH)).await
                {
                    Err(error) if Refusal::of(&error).is_some() => {
                        return self.expire_each_sale().await;
                    }
                    expired => expired?,
                };
            self.fail_points.at("expiry.expired").await?;
            total += expired;
            self.note_expired(expired);
            if expired < BATCH.unsigned_abs() {
                return Ok(total);
            }
        }
    }

    /// Sale by sale, when a batch breaks a constraint: one damaged counter must not keep the units
    /// of other sales.
    pub(super) async fn expire_each_sale(&self) -> ServiceResult<u64> {
        let (mut total, mut failed) = (0, None);
        for sale in within(STEP_LIMIT, statements::sales_with_due(&self.postgres)).await? {
            match within(STEP_LIMIT, statements::expire_due(&self.postgres, Some(sale), BATCH))
                .await
            {
                Ok(expired) => total += expired,
                Err(error) => {
                    tracing::error!(%sale, %error,
                        "its unpaid orders cannot expire; run the audit");
                    failed = Some(error);
                }
            }
        }
        self.note_expired(total);
        failed.map_or(Ok(total), |error| Err(error.into()))
    }

    fn note_expired(&self, orders: u64) {
        if orders > 0 {
            self.metrics.orders(OrderStatus::Expired).increment(orders);
            self.release_wakeup.notify_one();
            self.watch.wakeup.notify_one();
        }
    }
}
