//! Payments: charging an order, and recording that it is paid.

pub mod provider;

use crate::domain::{Order, OrderId, OrderStatus, UserId};
use crate::error::{RETRY_AFTER, ServiceError, ServiceResult};
use crate::orders::{Orders, queries, statements};
use crate::postgres::within;
use provider::{Charge, Declined, PaymentProvider};
use std::sync::Arc;
use std::time::Duration;

/// How long recording a payment may take; it outlives its request.
const MARK_LIMIT: Duration = Duration::from_secs(10);

fn unrecorded(order: &Order, charge: &Charge) {
    tracing::error!(
        order = %order.id,
        reference = charge.reference,
        "charged, but postgres did not answer: \
         unless the order is paid, the charge has to be refunded"
    );
}

/// The payment service. One per process.
pub struct Payments {
    orders: Arc<Orders>,
    provider: Arc<dyn PaymentProvider>,
}

impl Payments {
    pub fn new(orders: Arc<Orders>, provider: Arc<dyn PaymentProvider>) -> Self {
        Self { orders, provider }
    }

    /// Pays the caller's order. Repeatable.
    pub async fn pay(self: &Arc<Self>, user: UserId, id: OrderId) -> ServiceResult<Order> {
        let order = self.orders.order(user, id).await?;
        match order.status {
            OrderStatus::PendingPayment => {}
            OrderStatus::Paid => return Ok(order),
            OrderStatus::Queued => {
                let retry_after = RETRY_AFTER;
                return Err(ServiceError::StillQueued { retry_after });
            }
            status => return Err(ServiceError::NotPayable { status }),
        }
        // In its own task: a client that hangs up must not leave a charge without its record.
        let payments = self.clone();
        tokio::spawn(async move { payments.charge_and_mark(user, order).await })
            .await
            .map_err(|_| ServiceError::unavailable("the payment was interrupted"))?
    }

    async fn charge_and_mark(&self, user: UserId, order: Order) -> ServiceResult<Order> {
        let charged = self.provider.charge(&order).await;
        let declined = |Declined { reason }| ServiceError::PaymentDeclined { reason };
        let charge = charged.map_err(declined)?;
        let orders = &self.orders;
        orders.fail_points.at("pay.charged").await?;
        let marking = statements::mark_paid(&orders.postgres, user, order.id, &charge.reference);
        let marked = within(MARK_LIMIT, marking).await;
        let won = marked.inspect_err(|_| unrecorded(&order, &charge))?;
        orders.fail_points.at("pay.marked").await?;
        if won {
            orders.metrics.orders(OrderStatus::Paid).increment(1);
        } else if let Err(error) = orders.expire_if_due(order.id).await {
            tracing::debug!(%error, order = %order.id, "the sweeper will expire it");
        }
        // A query of its own, with a longer limit: without its answer nothing is refunded.
        let reading = queries::of_user(&orders.postgres, user, order.id);
        let found = within(MARK_LIMIT, reading).await;
        let found = found.inspect_err(|_| unrecorded(&order, &charge))?;
        let after = found.ok_or(ServiceError::OrderNotFound)?;
        orders.watch.tell(&after);
        match after.status {
            OrderStatus::Paid => Ok(after),
            status => {
                self.provider.refund(&order, &charge).await;
                Err(ServiceError::NotPayable { status })
            }
        }
    }
}
