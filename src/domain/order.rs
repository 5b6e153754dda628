//! An order, its status, and the outcomes of a purchase.

use super::ids::{OrderId, SaleId, UserId};
use ::payments::ledger::PaymentState;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use time::OffsetDateTime;
use utoipa::ToSchema;

/// The status of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OrderStatus {
    /// Accepted and logged by Redis, not yet a row in Postgres.
    Queued,
    PendingPayment,
    Paid,
    Cancelled,
    Expired,
    /// Redis admitted it, but a constraint in Postgres refused the row.
    Rejected,
}

impl OrderStatus {
    pub const ALL: [Self; 6] = [
        Self::Queued,
        Self::PendingPayment,
        Self::Paid,
        Self::Cancelled,
        Self::Expired,
        Self::Rejected,
    ];

    /// No transition leads out of it, but an operator's refund may cancel a paid order.
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Queued | Self::PendingPayment)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::PendingPayment => "pending_payment",
            Self::Paid => "paid",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Rejected => "rejected",
        }
    }
}

impl FromStr for OrderStatus {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or(())
    }
}

/// An order as its owner sees it. Times are null until they happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Order {
    #[serde(rename = "order_id")]
    pub id: OrderId,
    pub sale_id: SaleId,
    pub sale_title: String,
    #[serde(skip)]
    pub user_id: UserId,
    pub status: OrderStatus,
    /// In the currency's minor unit.
    pub price_cents: i64,
    #[schema(example = "USD")]
    pub currency: String,
    /// When Redis admitted it.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// Until when it can be paid; null while queued or when rejected.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub pay_by: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub paid_at: Option<OffsetDateTime>,
    /// When it was cancelled, expired or rejected.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub closed_at: Option<OffsetDateTime>,
    /// Where its payment stands; absent if none was begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payment: Option<PaymentState>,
}

/// The answer to one purchase. Every variant is an ordinary outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurchaseResult {
    /// The order is in Redis' log and becomes a row, or an explicit `rejected`.
    Accepted {
        order_id: OrderId,
        /// The same `Idempotency-Key` had been accepted before; this is that order.
        replayed: bool,
    },
    /// The user holds as many orders of this sale as it allows; this is the newest.
    AlreadyOrdered {
        order_id: OrderId,
    },
    SoldOut,
    NotOpen {
        opens_at: OffsetDateTime,
    },
    Paused,
    Ended,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn only_a_status_is_a_status(text in "[a-z_]{0,16}|.{0,16}") {
            match text.parse::<OrderStatus>() {
                Ok(status) => prop_assert_eq!(status.as_str(), text),
                Err(()) => prop_assert!(OrderStatus::ALL.iter().all(|status| status.as_str() !=
                    text)),
            }
        }
    }
}
