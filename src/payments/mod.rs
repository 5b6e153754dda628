//! Paying orders: the shop's side of the ledger (crates/payments).

use crate::domain::{Order, OrderId, OrderStatus, UserId};
use crate::error::{RETRY_AFTER, ServiceError, ServiceResult};
use crate::fail_point::FailPoints;
use crate::orders::{Orders, queries, statements};
use crate::postgres::{Pool, within};
use crate::telemetry::instruments::Metrics;
use ::payments::ledger::{self, Ledger, LedgerError, PaymentState};
use ::payments::provider::{ChargeRequest, ChargeStatus, CheckoutRequest, ProviderError};
use ::payments::settings::PaymentLink;
use sqlx::PgConnection;
use std::sync::Arc;
use std::time::Duration;

/// What callers need of the crate.
pub mod provider {
    pub use ::payments::{settings::PaymentLink, simulated::SimulatedPayments};
}

/// How long recording a payment may take; it outlives its request.
const MARK_LIMIT: Duration = Duration::from_secs(10);

/// The orders as the ledger knows them.
pub struct LedgersOrders {
    orders: Arc<Orders>,
    metrics: Arc<Metrics>,
}

impl ledger::Orders for LedgersOrders {
    async fn is_payable(&self, on: &mut PgConnection, order: i64) -> sqlx::Result<bool> {
        statements::lock_payable(on, OrderId::from_i64(order)).await
    }

    async fn mark_paid(&self, on: &mut PgConnection, order: i64) -> sqlx::Result<bool> {
        statements::mark_paid(on, OrderId::from_i64(order)).await
    }

    async fn take_back(&self, on: &mut PgConnection, order: i64) -> sqlx::Result<()> {
        if statements::take_back(on, OrderId::from_i64(order)).await? {
            self.metrics.orders(OrderStatus::Cancelled).increment(1);
        }
        Ok(())
    }

    async fn is_long_closed(&self, on: &mut PgConnection, order: i64) -> sqlx::Result<bool> {
        let closed = sqlx::query_scalar(
            "SELECT greatest(closed_at, paid_at, pay_by) < now() - interval '10 minutes'
             FROM orders WHERE id = $1",
        );
        closed.bind(order).fetch_one(on).await
    }

    async fn paid(&self, on: &mut PgConnection) -> sqlx::Result<Vec<(i64, i64)>> {
        let paid = sqlx::query_as("SELECT id, price_cents FROM orders WHERE status = 'paid'");
        paid.fetch_all(on).await
    }

    async fn changed(&self, order: i64, state: PaymentState) {
        self.metrics.payments(state).increment(1);
        match state {
            PaymentState::Captured => self.metrics.orders(OrderStatus::Paid).increment(1),
            // It may be late because its order is due.
            PaymentState::Refunding => {
                if let Err(error) = self.orders.expire_if_due(OrderId::from_i64(order)).await {
                    tracing::debug!(%error, order, "the sweeper will expire it");
                }
            }
            _ => {}
        }
        self.orders.watch.wakeup.notify_one();
    }
}

/// The payment service. One per process.
pub struct Payments {
    pub ledger: Arc<Ledger<LedgersOrders>>,
    pub link: PaymentLink,
    orders: Arc<Orders>,
    postgres: Pool,
    fail_points: FailPoints,
}

fn must_be_payable(order: &Order) -> ServiceResult<()> {
    match order.status {
        OrderStatus::PendingPayment => Ok(()),
        OrderStatus::Queued => Err(ServiceError::StillQueued { retry_after: RETRY_AFTER }),
        status => Err(ServiceError::NotPayable { status }),
    }
}

impl Payments {
    pub fn new(
        orders: Arc<Orders>,
        link: PaymentLink,
        postgres: Pool,
        metrics: Arc<Metrics>,
        fail_points: FailPoints,
    ) -> Self {
        let drift = metrics.books_drift.clone();
        let its = LedgersOrders { orders: orders.clone(), metrics };
        let ledger = Ledger::new(its, link.provider.clone(), postgres.clone(), drift);
        Self { ledger: Arc::new(ledger), link, orders, postgres, fail_points }
    }

    /// Pays the caller's order. Repeatable.
    pub async fn pay(self: &Arc<Self>, user: UserId, id: OrderId) -> ServiceResult<Order> {
        let order = self.orders.order(user, id).await?;
        if order.status == OrderStatus::Paid {
            return Ok(order);
        }
        must_be_payable(&order)?;
        // In its own task: a client that hangs up must not leave a charge to reconciliation.
        let payments = self.clone();
        tokio::spawn(async move { payments.charge_and_mark(user, order).await })
            .await
            .map_err(|_| ServiceError::unavailable("the payment was interrupted"))?
    }

    async fn charge_and_mark(&self, user: UserId, order: Order) -> ServiceResult<Order> {
        let Some(request) = self.attempt(&order).await? else {
            return self.paid(user, order.id, None).await;
        };
        let charge = self.ledger.charge(&request).await;
        let charge = charge.map_err(|error| self.unheard(&error))?;
        self.fail_points.at("pay.charged").await?;
        within(MARK_LIMIT, self.ledger.apply(&charge)).await?;
        self.fail_points.at("pay.marked").await?;
        let declined = charge.status == ChargeStatus::Declined;
        let declined = declined.then(|| charge.decline_reason.unwrap_or_default());
        self.paid(user, order.id, declined).await
    }

    /// `None`: the order cannot be paid any more, or others are just paying it.
    async fn attempt(&self, order: &Order) -> ServiceResult<Option<ChargeRequest>> {
        let beginning = self.ledger.attempt(order.id.get(), order.price_cents, &order.currency);
        let attempt = within(MARK_LIMIT, beginning).await?;
        if attempt.is_none() {
            self.orders.expire_if_due(order.id).await?;
        }
        Ok(attempt)
    }

    /// The order if it is paid now.
    async fn paid(
        &self,
        user: UserId,
        id: OrderId,
        declined: Option<String>,
    ) -> ServiceResult<Order> {
        let found = within(MARK_LIMIT, queries::of_user(&self.postgres, user, id)).await?;
        let after = found.ok_or(ServiceError::OrderNotFound)?;
        self.orders.watch.tell(&after);
        match (after.status, declined) {
            (OrderStatus::Paid, _) => Ok(after),
            (OrderStatus::PendingPayment, Some(reason)) => {
                Err(ServiceError::PaymentDeclined { reason })
            }
            (OrderStatus::PendingPayment, None) => {
                Err(ServiceError::unavailable("the order is being paid"))
            }
            (status, _) => Err(ServiceError::NotPayable { status }),
        }
    }

    /// Never a guess: the charge may have been made.
    fn unheard(&self, error: &ProviderError) -> ServiceError {
        match error {
            ProviderError::Unknown(_) => ServiceError::PaymentPending { retry_after: RETRY_AFTER },
            ProviderError::Refused { .. } => {
                tracing::error!(%error, "a payment cannot be begun");
                ServiceError::unavailable("the payment provider cannot be used at the moment")
            }
        }
    }

    /// The address of the provider's page for the caller's order, which leads to `return_url`.
    pub async fn checkout(
        self: &Arc<Self>,
        user: UserId,
        id: OrderId,
        return_url: String,
    ) -> ServiceResult<String> {
        let order = self.orders.order(user, id).await?;
        must_be_payable(&order)?;
        if self.link.webhooks.is_none() {
            return Err(ServiceError::NoPaymentPage);
        }
        if order.price_cents == 0 {
            self.pay(user, id).await?; // no provider charges nothing
            return Ok(return_url);
        }
        let Some(charge) = self.attempt(&order).await? else {
            let order = self.paid(user, id, None).await?;
            return Err(ServiceError::NotPayable { status: order.status });
        };
        let request = CheckoutRequest {
            charge,
            description: order.sale_title,
            return_url,
            expires_at: order.pay_by.unwrap_or(order.created_at),
        };
        self.ledger.checkout(&request).await.map_err(|error| {
            tracing::warn!(%error, order = %id, "no page to pay on");
            ServiceError::unavailable("the payment provider does not answer")
        })
    }

    /// Returns the money of a paid order, and its unit if so. Repeatable; what the provider has
    /// refused is tried again.
    pub async fn refund(&self, id: OrderId, return_unit: bool) -> ServiceResult<Order> {
        let order = async || {
            let found = queries::by_ids(&self.postgres, &[id.get()]).await?;
            found.into_iter().next().ok_or(ServiceError::OrderNotFound)
        };
        let before = order().await?;
        match self.ledger.refund(id.get(), return_unit).await {
            Err(LedgerError::NothingCaptured) => {
                return Err(ServiceError::NotRefundable { status: before.status });
            }
            refunded => refunded?,
        }
        if return_unit {
            self.orders.release_now().await;
        }
        let after = order().await?;
        self.orders.watch.tell(&after);
        Ok(after)
    }
}
