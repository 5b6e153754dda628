//! Transitions of a written order: cancelling and expiring.
//!
//! Races have one winner, the statement that finds the order pending ([`statements`]); the losers
//! read the new status and answer accordingly.

use crate::domain::{Order, OrderId, OrderStatus, UserId};
use crate::error::{ServiceError, ServiceResult};
use crate::orders::service::Orders;
use crate::orders::statements;
use std::sync::Arc;

impl Orders {
    /// Cancels the caller's order and tries to make its unit buyable at once. Repeatable.
    pub async fn cancel(self: &Arc<Self>, user: UserId, id: OrderId) -> ServiceResult<Order> {
        if statements::mark_cancelled(&self.postgres, user, id).await? {
            self.fail_points.at("cancel.marked").await?;
            self.metrics.orders(OrderStatus::Cancelled).increment(1);
            self.release_now().await;
        } else {
            self.expire_if_due(id).await?;
        }
        let order = self.order(user, id).await?;
        self.watch.tell(&order);
        match order.status {
            OrderStatus::Cancelled => Ok(order),
            status => Err(ServiceError::NotCancellable { status }),
        }
    }

    /// Expires one order now if it is due, rather than at the next sweep.
    pub async fn expire_if_due(&self, id: OrderId) -> ServiceResult<()> {
        if statements::expire_if_due(&self.postgres, id).await? {
            self.metrics.orders(OrderStatus::Expired).increment(1);
            self.release_now().await;
        }
        Ok(())
    }

    /// Empties the outbox now. Best effort: the release task repeats it.
    pub async fn release_now(&self) {
        if let Err(error) = self.release_step().await {
            tracing::debug!(%error, "the release worker will return the unit");
            self.release_wakeup.notify_one();
        }
    }
}
