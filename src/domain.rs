//! The words of the sale: identifiers, a sale, an order, and the outcomes of a purchase.
//!
//! Nothing here does I/O. Ordinary refusals (sold out, already ordered, not open) are variants of
//! [`Admission`], because they are answers; errors are for what went wrong.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, str::FromStr};
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// Why a string is not an identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an id: expected a decimal number from 1 to 9223372036854775807 without sign or leading zero"
)]
pub struct MalformedId;

/// Declares a positive 63-bit identifier that JSON carries as a string: JavaScript numbers lose
/// precision past 2^53.
macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, sqlx::Type)]
        #[sqlx(transparent)]
        pub struct $name(i64);

        impl $name {
            /// Wraps a number that is already known to be an identifier (from Postgres or the
            /// generator).
            pub const fn from_i64(value: i64) -> Self {
                Self(value)
            }

            pub const fn get(self) -> i64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = MalformedId;

            fn from_str(text: &str) -> Result<Self, MalformedId> {
                parse_id(text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::schema::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .pattern(Some("^[1-9][0-9]{0,18}$"))
                    .description(Some("A positive 63-bit number, as a string."))
                    .into()
            }
        }

        impl ToSchema for $name {}
    };
}

id_type!(
    /// A sale's identifier.
    SaleId
);
id_type!(
    /// An order's identifier; its layout is in [`crate::sale::ids`].
    OrderId
);

/// Accepts only the canonical spelling, so that one id has one URL.
fn parse_id(text: &str) -> Result<i64, MalformedId> {
    let bytes = text.as_bytes();
    let canonical =
        (1..=19).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_digit) && bytes[0] != b'0';
    if !canonical {
        return Err(MalformedId);
    }
    text.parse().map_err(|_| MalformedId)
}

/// A shopper. Issued by the server, carried in a signed token.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    sqlx::Type,
    ToSchema,
)]
#[serde(transparent)]
#[sqlx(transparent)]
#[schema(value_type = Uuid)]
pub struct UserId(Uuid);

impl UserId {
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    pub const fn from_uuid(value: Uuid) -> Self {
        Self(value)
    }

    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a client's `Idempotency-Key` becomes: the first 8 bytes of its SHA-256, never zero.
///
/// Only compared with keys of the same user on the same sale, so a collision could only ever
/// confuse a user with themselves, once in 2^64 pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(u64);

impl IdempotencyKey {
    /// The longest key a client may send, in bytes.
    pub const MAX_LEN: usize = 64;

    /// `None` unless `text` is 1 to 64 printable ASCII characters.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let printable = text.iter().all(|byte| (0x20..=0x7e).contains(byte));
        if text.is_empty() || text.len() > Self::MAX_LEN || !printable {
            return None;
        }
        // Not sha2's: where the processor has no instructions for SHA, this one is faster.
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text);
        let mut head = [0; 8];
        head.copy_from_slice(&digest.as_ref()[..8]);
        // Zero means "no key" in a buyer's record.
        Some(Self(u64::from_be_bytes(head).max(1)))
    }

    pub const fn from_stored(value: i64) -> Self {
        Self(value.cast_unsigned())
    }

    /// For a Postgres `bigint`.
    pub const fn to_stored(self) -> i64 {
        self.0.cast_signed()
    }

    pub const fn get(self) -> u64 {
        self.0
    }
}

/// What a sale can be seen doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SaleState {
    /// Before `opens_at`.
    Scheduled,
    Open,
    /// Open, but nothing is left at this moment; a returned unit opens it again.
    SoldOut,
    Paused,
    /// Past `closes_at`, or closed by an operator.
    Ended,
}

/// A sale as Postgres holds it: what an operator decided. How much is left lives in Redis while
/// the sale runs.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Sale {
    pub id: SaleId,
    pub title: String,
    pub description: String,
    pub image_url: String,
    pub currency: String,
    pub price_cents: i64,
    pub original_price_cents: Option<i64>,
    /// Units, sold ones included.
    pub stock: i32,
    pub per_user_limit: i16,
    pub opens_at: OffsetDateTime,
    pub closes_at: OffsetDateTime,
    pub payment_timeout_secs: i32,
    pub paused: bool,
    /// Set by an operator's close, which is final.
    pub closed: bool,
    /// The generation of this sale's Redis state; a rebuild increments it, which fences everything
    /// that still acts on the older one.
    pub epoch: i64,
    /// Increments with every operator's change; Redis takes only newer ones.
    pub version: i64,
    /// What else stands between a shopper and the purchase.
    #[sqlx(flatten)]
    pub door: Door,
}

/// What an operator has put between a shopper and the purchase, besides the window and the stock. By default
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct Door {
    /// How long before the opening the waiting room can be joined; `None`: there is none.
    pub room_opens_before_secs: Option<i32>,
    pub room_per_second: i32,
    pub room_turn_secs: i32,
    pub room_overbooking: i32,
    /// A purchase needs a pass, which is given out from the opening on.
    pub purchase_pass: bool,
    /// A purchase, or joining the waiting room, needs a proof of work of so many bits; 0: none.
    pub challenge_bits: i32,
}

impl Default for Door {
    fn default() -> Self {
        let room = RoomSettings::default();
        Self {
            room_opens_before_secs: None,
            room_per_second: room.per_second,
            room_turn_secs: room.turn_secs,
            room_overbooking: room.overbooking_percent,
            purchase_pass: false,
            challenge_bits: 0,
        }
    }
}

impl Door {
    /// Whether a purchase needs more than a token and a moment.
    pub fn is_shut(&self) -> bool {
        self.room_opens_before_secs.is_some() || self.purchase_pass || self.challenge_bits > 0
    }

    pub fn room(&self) -> Option<RoomSettings> {
        Some(RoomSettings {
            opens_before_secs: self.room_opens_before_secs?,
            per_second: self.room_per_second,
            turn_secs: self.room_turn_secs,
            overbooking_percent: self.room_overbooking,
        })
    }
}

/// How the waiting room of a sale is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = WaitingRoom)]
pub struct RoomSettings {
    /// How long before the opening one can join. 600 if absent.
    #[schema(minimum = 0, maximum = 86_400)]
    pub opens_before_secs: i32,
    /// The most people whose turn begins in a second; what is measured and what is left may allow
    /// fewer. 1000 if absent.
    #[schema(minimum = 1, maximum = 100_000)]
    pub per_second: i32,
    /// How long a turn lasts. 120 if absent.
    #[schema(minimum = 1, maximum = 600)]
    pub turn_secs: i32,
    /// How many more people than units may have their turn at once, in percent of the units. 20 if
    /// absent.
    #[schema(minimum = 0, maximum = 400)]
    pub overbooking_percent: i32,
}

impl Default for RoomSettings {
    fn default() -> Self {
        Self {
            opens_before_secs: 600,
            per_second: 1_000,
            turn_secs: 120,
            overbooking_percent: 20,
        }
    }
}

impl Sale {
    /// The state at `now` (Redis time), with `remaining` units left.
    pub fn state(&self, now: OffsetDateTime, remaining: i64) -> SaleState {
        if self.closed || now >= self.closes_at {
            SaleState::Ended
        } else if self.paused {
            SaleState::Paused
        } else if now < self.opens_at {
            SaleState::Scheduled
        } else if remaining <= 0 {
            SaleState::SoldOut
        } else {
            SaleState::Open
        }
    }
}

/// A sale as it is shown: the operator's row, plus what is left and what time it is (Redis time).
#[derive(Debug, Clone)]
pub struct SaleView {
    pub sale: std::sync::Arc<Sale>,
    pub remaining: i64,
    pub state: SaleState,
    pub server_time: OffsetDateTime,
}

/// Where an order stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type, ToSchema)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "order_status", rename_all = "snake_case")]
pub enum OrderStatus {
    /// Accepted and logged by Redis, not yet a row in Postgres.
    Queued,
    PendingPayment,
    Paid,
    Cancelled,
    Expired,
    /// Redis said yes, the last guard in Postgres said no.
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

    /// Nothing happens to it any more.
    pub const fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Paid | Self::Cancelled | Self::Expired | Self::Rejected
        )
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
        Self::ALL
            .into_iter()
            .find(|status| status.as_str() == text)
            .ok_or(())
    }
}

/// An order as its owner sees it. Times are null until they happen.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow, Serialize, ToSchema)]
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
}

/// The answer to one purchase. Every variant is an ordinary outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The order is in Redis' log: it will become a row, or an explicit `rejected`.
    Accepted {
        order_id: OrderId,
        /// The same `Idempotency-Key` had been accepted before; this is that order.
        replayed: bool,
    },
    /// The user holds as many orders of this sale as it allows; the newest of them.
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
        fn an_id_is_read_back_as_it_was_written(value in 1..=i64::MAX) {
            let id = OrderId::from_i64(value);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            let json = serde_json::to_string(&id)?;
            prop_assert_eq!(&json, &format!("\"{value}\""));
            prop_assert_eq!(serde_json::from_str::<OrderId>(&json)?, id);
        }

        #[test]
        fn only_the_canonical_spelling_is_an_id(text in ".{0,24}") {
            match text.parse::<SaleId>() {
                Ok(id) => prop_assert_eq!(id.to_string(), text),
                Err(MalformedId) => prop_assert!(text.parse::<i64>().map_or(true, |n| n < 1 || n.to_string() != text)),
            }
        }

        #[test]
        fn an_idempotency_key_is_1_to_64_printable_ascii(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let good = !bytes.is_empty() && bytes.len() <= 64 && bytes.iter().all(|b| (0x20..=0x7e).contains(b));
            prop_assert_eq!(IdempotencyKey::parse(&bytes).is_some(), good);
        }
    }

    proptest! {
        #[test]
        fn any_json_is_an_id_or_refused(text in "[\\[\\]{}\"0-9a-z:,.+-]{0,24}") {
            if let Ok(id) = serde_json::from_str::<OrderId>(&text) {
                prop_assert_eq!(text, format!("\"{id}\""));
            }
        }

        #[test]
        fn a_number_in_json_is_no_id(value: i64) {
            prop_assert!(serde_json::from_str::<SaleId>(&value.to_string()).is_err());
        }

        #[test]
        fn any_text_is_a_user_or_refused(text in "[0-9a-fA-F{}-]{0,40}|.{0,40}") {
            let _ = serde_json::from_value::<UserId>(text.into());
        }

        #[test]
        fn a_user_is_read_back_as_written(bytes: [u8; 16]) {
            let user = UserId::from_bytes(bytes);
            prop_assert_eq!(serde_json::from_str::<UserId>(&format!("\"{user}\""))?, user);
        }

        #[test]
        fn only_a_status_is_a_status(text in "[a-z_]{0,16}|.{0,16}") {
            match text.parse::<OrderStatus>() {
                Ok(status) => prop_assert_eq!(status.as_str(), text),
                Err(()) => prop_assert!(OrderStatus::ALL.iter().all(|status| status.as_str() != text)),
            }
        }
    }
}
