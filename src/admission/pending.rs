//! A purchase that waits for its batch.

use crate::{
    domain::{IdempotencyKey, PurchaseResult, UserId},
    telemetry::traces::SpanContext,
};
use std::time::Instant;
use tokio::sync::oneshot;

pub(super) const NO_ANSWER: &str = "the stock could not be asked in time; if the purchase went \
    through, a retry will name its order";

/// The reply to a buyer in the queue; `Err` says why there is no verdict.
pub(super) type Reply = Result<PurchaseResult, &'static str>;

/// A buyer in the queue.
pub(super) struct PendingPurchase {
    pub user: UserId,
    pub key: Option<IdempotencyKey>,
    pub trace: Option<Box<SpanContext>>,
    pub since: Instant,
    pub reply: oneshot::Sender<Reply>,
}
