//! The life of an order after it was written: paying, cancelling, expiring.
//!
//! Races between the three have one winner, the statement that finds the order pending (see
//! [`orders`]); the losers read what it became and answer accordingly.

use crate::{
    domain::{Order, OrderId, OrderStatus, UserId},
    postgres::timed_out,
    sale::{Shop, ShopError, orders, payment::Charge},
};
use std::{sync::Arc, time::Duration};

/// When a client that was too early for its queued order should come back.
const STILL_QUEUED_RETRY: Duration = Duration::from_secs(1);
/// How long a payment waits for Postgres. It outlives its request, so nobody else ends it.
const MARK_LIMIT: Duration = Duration::from_secs(10);

fn unrecorded(order: &Order, charge: &Charge) {
    let reference = &charge.reference;
    tracing::error!(order = %order.id, reference, "charged, but postgres did not say what became of the order: if it is not paid, the charge has to be refunded");
}

async fn bounded<T>(asked: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
    let answered = tokio::time::timeout(MARK_LIMIT, asked).await;
    answered.unwrap_or_else(|_| Err(timed_out()))
}

impl Shop {
    /// Pays the caller's order. Paying a paid one again is the same answer.
    pub async fn pay(self: &Arc<Self>, user: UserId, id: OrderId) -> Result<Order, ShopError> {
        let order = self.order(user, id).await?;
        match order.status {
            OrderStatus::PendingPayment => {}
            OrderStatus::Paid => return Ok(order),
            OrderStatus::Queued => {
                return Err(ShopError::StillQueued {
                    retry_after: STILL_QUEUED_RETRY,
                });
            }
            status => return Err(ShopError::NotPayable { status }),
        }
        // In a task of its own: a client that hangs up must not leave a charge without its record.
        let shop = self.clone();
        tokio::spawn(async move { shop.charge_and_mark(user, order).await })
            .await
            .map_err(|_| ShopError::Unavailable {
                what: "the payment was interrupted",
                retry_after: STILL_QUEUED_RETRY,
            })?
    }

    async fn charge_and_mark(&self, user: UserId, order: Order) -> Result<Order, ShopError> {
        let charge =
            self.payments
                .charge(&order)
                .await
                .map_err(|declined| ShopError::PaymentDeclined {
                    reason: declined.reason,
                })?;
        let fail_points = &self.fail_points;
        fail_points.at("pay.charged").await?;
        let marking = orders::mark_paid(&self.postgres, user, order.id, &charge.reference);
        let won = bounded(marking)
            .await
            .inspect_err(|_| unrecorded(&order, &charge))?;
        fail_points.at("pay.marked").await?;
        if won {
            self.metrics.orders(OrderStatus::Paid).increment(1);
        } else if let Err(error) = self.expire_if_due(order.id).await {
            tracing::debug!(%error, order = %order.id, "the sweeper will expire it");
        }
        // Not a shared look, which would give up earlier: without this answer nobody gets a refund.
        let looking = bounded(orders::of_user(&self.postgres, user, order.id));
        let found = looking.await.inspect_err(|_| unrecorded(&order, &charge))?;
        let after = found.ok_or(ShopError::OrderNotFound)?;
        self.watch.tell(&after);
        match after.status {
            OrderStatus::Paid => Ok(after),
            status => {
                self.payments.refund(&order, &charge).await;
                Err(ShopError::NotPayable { status })
            }
        }
    }

    /// Cancels the caller's order; its unit is buyable when this answers. Cancelling again is the
    /// same answer.
    pub async fn cancel(self: &Arc<Self>, user: UserId, id: OrderId) -> Result<Order, ShopError> {
        if orders::mark_cancelled(&self.postgres, user, id).await? {
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
            status => Err(ShopError::NotCancellable { status }),
        }
    }

    /// Expires one order now if its time is over, rather than when the sweeper comes by: whoever asks
    /// is told what it is.
    async fn expire_if_due(&self, id: OrderId) -> Result<(), ShopError> {
        if orders::expire_if_due(&self.postgres, id).await? {
            self.metrics.orders(OrderStatus::Expired).increment(1);
            self.release_now().await;
        }
        Ok(())
    }

    /// Brings the outbox to Redis at once. Best effort: the release worker does it otherwise.
    async fn release_now(&self) {
        if let Err(error) = self.release_step().await {
            tracing::debug!(%error, "the release worker will return the unit");
            self.release_bell.notify_one();
        }
    }
}
