//! The ledger: what a provider was asked for, what came of it, and what goes back.
//!
//! Three sources tell of a charge, in any order and any number of times: the answer to it, its
//! webhooks, and reconciliation. All go through [`Ledger::apply`], in which one transaction decides
//! what the money does to the order. Lock order: the order's payments by id, then the order.

mod apply;
mod attempts;
pub mod books;
mod inbox;
mod reconciliation;
mod refunds;
pub mod tasks;

use crate::provider::{PaymentProvider, ProviderError};
use crate::signature::SignatureError;
use ::metrics::Gauge;
use serde::Serialize;
use sqlx::PgConnection;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgTypeInfo, PgValueRef};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use stores::pool::Pool;
use tokio::sync::Notify;
use utoipa::ToSchema;

/// The shop's orders. Statements run in the ledger's transactions.
pub trait Orders: Send + Sync + 'static {
    /// Whether the order could be paid now; then it cannot be closed before the transaction ends.
    fn is_payable(
        &self,
        on: &mut PgConnection,
        order: i64,
    ) -> impl Future<Output = sqlx::Result<bool>> + Send;

    /// Marks the order paid if it can be: of everything that ends an order, one wins.
    fn mark_paid(
        &self,
        on: &mut PgConnection,
        order: i64,
    ) -> impl Future<Output = sqlx::Result<bool>> + Send;

    /// Cancels a paid order and returns its unit; of any other order nothing.
    fn take_back(
        &self,
        on: &mut PgConnection,
        order: i64,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Whether the order was closed so long ago that no charge for it can be on its way.
    fn is_long_closed(
        &self,
        on: &mut PgConnection,
        order: i64,
    ) -> impl Future<Output = sqlx::Result<bool>> + Send;

    /// All paid orders with their prices.
    fn paid(
        &self,
        on: &mut PgConnection,
    ) -> impl Future<Output = sqlx::Result<Vec<(i64, i64)>>> + Send;

    /// After the commit: a payment of this order has a new state.
    fn changed(&self, order: i64, state: PaymentState) -> impl Future<Output = ()> + Send;
}

/// Where a payment stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaymentState {
    /// Begun: the provider has not been heard yet.
    Pending,
    /// Nothing was charged; another attempt can be made while the order can be paid.
    Declined,
    Captured,
    /// The money is on its way back: it came too late or twice, or an operator returned it.
    Refunding,
    Refunded,
}

impl PaymentState {
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Declined, Self::Captured, Self::Refunding, Self::Refunded];

    /// Its name in Postgres.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "intent",
            Self::Declined => "failed",
            Self::Captured => "captured",
            Self::Refunding => "refunding",
            Self::Refunded => "refunded",
        }
    }
}

/// Read as text: `state::text`.
impl sqlx::Type<sqlx::Postgres> for PaymentState {
    fn type_info() -> PgTypeInfo {
        <str as sqlx::Type<sqlx::Postgres>>::type_info()
    }
}

impl<'r> sqlx::Decode<'r, sqlx::Postgres> for PaymentState {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let text = <&str as sqlx::Decode<sqlx::Postgres>>::decode(value)?;
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| format!("no state of a payment: {text}").into())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("{0}")]
    Provider(#[from] ProviderError),
    #[error("webhook: {0}")]
    Signature(#[from] SignatureError),
    #[error("no event: {0}")]
    Malformed(String),
    #[error("charge {charge}: no payment has the reference {reference:?}")]
    ChargeUnknown { charge: String, reference: String },
    #[error("charge {charge} of {reference:?}: {charged}, but {asked} was asked for")]
    AmountMismatch { charge: String, reference: String, charged: String, asked: String },
    /// The order has no charge to return.
    #[error("nothing was captured for this order")]
    NothingCaptured,
    #[error("{0} refunds wait for more than a minute")]
    RefundsWait(i64),
}

/// A payment has a new state; to be told after the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    pub order: i64,
    pub state: PaymentState,
}

/// One per process.
pub struct Ledger<O> {
    orders: O,
    provider: Arc<dyn PaymentProvider>,
    postgres: Pool,
    /// How much does not agree in the books.
    books_drift: Gauge,
    /// Notified when money has to go back.
    pub refunds_wakeup: Notify,
    provider_is_away: AtomicBool,
}

impl<O: Orders> Ledger<O> {
    pub fn new(
        orders: O,
        provider: Arc<dyn PaymentProvider>,
        postgres: Pool,
        books_drift: Gauge,
    ) -> Self {
        Self {
            orders,
            provider,
            postgres,
            books_drift,
            refunds_wakeup: Notify::new(),
            provider_is_away: AtomicBool::new(false),
        }
    }

    async fn tell(&self, change: Option<Change>) {
        let Some(Change { order, state }) = change else { return };
        if state == PaymentState::Refunding {
            self.refunds_wakeup.notify_one();
        }
        self.orders.changed(order, state).await;
    }
}
