//! Service errors. They know nothing of HTTP.

use crate::domain::OrderStatus;
use crate::fail_point::Injected;
use ::payments::ledger::LedgerError;
use std::time::Duration;

/// How long clients are asked to wait before they try again.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

pub type ServiceResult<T> = Result<T, ServiceError>;

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("no such sale")]
    SaleNotFound,
    #[error("no such order")]
    OrderNotFound,
    /// `field` is the request member at fault.
    #[error("{field}: {why}")]
    Invalid { field: &'static str, why: String },
    /// A dependency did not answer, purchases are paused, or a queue is full. Nothing was decided,
    /// or a retry finds what was.
    #[error("{what}")]
    Unavailable { what: &'static str, retry_after: Duration },
    #[error("the order is {}", .status.as_str())]
    NotPayable { status: OrderStatus },
    #[error("the order is still queued")]
    StillQueued { retry_after: Duration },
    #[error("the payment was declined: {reason}")]
    PaymentDeclined { reason: String },
    /// A charge of which nothing is known; reconciliation asks for it.
    #[error("nothing is known of the payment yet")]
    PaymentPending { retry_after: Duration },
    #[error("payment is simulated")]
    NoPaymentPage,
    #[error("the order is {}", .status.as_str())]
    NotRefundable { status: OrderStatus },
    #[error("the order is {}", .status.as_str())]
    NotCancellable { status: OrderStatus },
    #[error("only {remaining} units remain")]
    NotEnoughRemaining { remaining: i64 },
    #[error("postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("ids: {0}")]
    Ids(String),
    #[error(transparent)]
    Injected(#[from] Injected),
}

impl ServiceError {
    /// A failure that passes within a moment.
    pub fn unavailable(what: &'static str) -> Self {
        Self::Unavailable { what, retry_after: RETRY_AFTER }
    }
}

impl From<LedgerError> for ServiceError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Postgres(error) => error.into(),
            LedgerError::Provider(_) => Self::unavailable("the payment provider does not answer"),
            error => {
                tracing::error!(%error, "a charge cannot be applied");
                Self::PaymentPending { retry_after: RETRY_AFTER }
            }
        }
    }
}
