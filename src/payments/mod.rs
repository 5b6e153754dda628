//! Payments: charging an order, and recording that it is paid.

pub mod provider;

use crate::domain::{Order, OrderId, OrderStatus, UserId};
use crate::error::{RETRY_AFTER, ServiceError, ServiceResult};
use crate::fail_point::FailPoints;
use crate::orders::{Orders, queries, statements};
use crate::postgres::{Pool, within};
use crate::telemetry::instruments::Metrics;
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
    postgres: Pool,
    metrics: Arc<Metrics>,
    fail_points: FailPoints,
}

impl Payments {
    pub fn new(
        orders: Arc<Orders>,
        provider: Arc<dyn PaymentProvider>,
        postgres: Pool,
        metrics: Arc<Metrics>,
        fail_points: FailPoints,
    ) -> Self {
        Self { orders, provider, postgres, metrics, fail_points }
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
        self.fail_points.at("pay.charged").await?;
        let marking = statements::mark_paid(&self.postgres, user, order.id, &charge.reference);
        let marked = within(MARK_LIMIT, marking).await;
        let won = marked.inspect_err(|_| unrecorded(&order, &charge))?;
        self.fail_points.at("pay.marked").await?;
        if won {
            self.metrics.orders(OrderStatus::Paid).increment(1);
        } else if let Err(error) = self.orders.expire_if_due(order.id).await {
            tracing::debug!(%error, order = %order.id, "the sweeper will expire it");
        }
        // A query of its own, with a longer limit: without its answer nothing is refunded.
        let reading = queries::of_user(&self.postgres, user, order.id);
        let found = within(MARK_LIMIT, reading).await;
        let found = found.inspect_err(|_| unrecorded(&order, &charge))?;
        let after = found.ok_or(ServiceError::OrderNotFound)?;
        self.orders.watch.tell(&after);
        match after.status {
            OrderStatus::Paid => Ok(after),
            status => {
                self.provider.refund(&order, &charge).await;
                Err(ServiceError::NotPayable { status })
            }
        }
    }
}
