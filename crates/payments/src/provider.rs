//! What the ledger asks of a payment provider. A real one is put behind [`PaymentProvider`]; its
//! calls are idempotent by a key of ours, as such APIs have in common.

use serde::{Deserialize, Serialize};
use std::future::Future;
use std::pin::Pin;
use time::OffsetDateTime;

pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, ProviderError>> + Send + 'a>>;

/// A charge to make, now or by the shopper on the provider's page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargeRequest {
    /// Our name of the payment: the idempotency key of the charge, and the `reference` by which the
    /// provider finds it.
    pub reference: String,
    pub amount_cents: i64,
    /// ISO 4217, like `USD`.
    pub currency: String,
}

/// A hosted page to send the shopper to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckoutRequest {
    #[serde(flatten)]
    pub charge: ChargeRequest,
    /// What is paid for, shown to the shopper.
    pub description: String,
    /// Where the shopper comes back to.
    pub return_url: String,
    /// After it the page charges nothing.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChargeStatus {
    Succeeded,
    Declined,
}

/// A charge as the provider has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// The provider's name, `ch_…`.
    pub id: String,
    pub reference: String,
    pub status: ChargeStatus,
    pub amount_cents: i64,
    pub refunded_cents: i64,
    pub currency: String,
    /// Why it was declined, for the shopper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decline_reason: Option<String>,
}

/// A refund as the provider has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refund {
    /// The provider's name, `re_…`.
    pub id: String,
    /// The id of the charge.
    pub charge: String,
    pub amount_cents: i64,
}

/// A movement of money, in the order in which the provider made them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// Counts from 1, without gaps.
    pub number: u64,
    #[serde(flatten)]
    pub movement: Movement,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Movement {
    Charge(Charge),
    Refund(Refund),
}

/// What a webhook tells. Events may come twice, late, in any order, or never.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// `evt_…`; the same in every delivery.
    pub id: String,
    /// `charge.succeeded`, `charge.declined` or `charge.refunded`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The charge when the event was made, refunds included.
    pub charge: Charge,
}

/// Why a call brought no result.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// Nothing is known: the call may have been carried out. Ask by reference, or repeat it with
    /// the same key.
    #[error("no answer from the payment provider: {0}")]
    Unknown(String),
    /// The provider refused the request; nothing was moved.
    #[error("the payment provider refused: {code}: {message}")]
    Refused { code: String, message: String },
}

/// A payment provider. Calls with the same key have one effect.
pub trait PaymentProvider: Send + Sync + 'static {
    /// Charges now. A decline is a [`Charge`], too.
    fn charge<'a>(&'a self, request: &'a ChargeRequest) -> Pending<'a, Charge>;

    /// Opens a hosted page, or finds the one of this reference; answers its address.
    fn checkout<'a>(&'a self, request: &'a CheckoutRequest) -> Pending<'a, String>;

    /// Refunds `amount_cents` of a charge; `key` makes it happen once.
    fn refund<'a>(
        &'a self,
        key: &'a str,
        charge: &'a str,
        amount_cents: i64,
    ) -> Pending<'a, Refund>;

    /// The charges of a reference, oldest first; none: it was not charged.
    fn charges<'a>(&'a self, reference: &'a str) -> Pending<'a, Vec<Charge>>;

    /// Up to 1,000 transactions with numbers beyond `after`, in order.
    fn transactions(&self, after: u64) -> Pending<'_, Vec<Transaction>>;

    /// Whether it is inside this process and remembers nothing.
    fn is_simulated(&self) -> bool {
        false
    }
}
