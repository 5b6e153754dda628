//! Identifiers: of sales, orders and users, and idempotency keys.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;
use uuid::Uuid;

/// Why a string is not an identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an id: expected a decimal number from 1 to 9223372036854775807 without sign or leading \
     zero"
)]
pub struct MalformedId;

/// Declares a positive 63-bit identifier that JSON carries as a string: JavaScript numbers lose
/// precision past 2^53.
macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(i64);

        impl $name {
            /// Wraps an identifier from Postgres or from the generator.
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
    /// An order's identifier; its layout is in [`crate::admission::ids`].
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
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(transparent)]
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

/// A client's `Idempotency-Key`: the first 8 bytes of its SHA-256, never zero.
///
/// Keys are compared within one user and sale only: a collision needs 2^64 pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(i64);

impl IdempotencyKey {
    /// The longest key a client may send, in bytes.
    pub const MAX_LEN: usize = 64;

    /// `None` unless `text` is 1 to 64 printable ASCII characters.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let printable = text.iter().all(|byte| (0x20..=0x7e).contains(byte));
        if text.is_empty() || text.len() > Self::MAX_LEN || !printable {
            return None;
        }
        // ring is faster than sha2 on processors without SHA instructions.
        let digest = ring::digest::digest(&ring::digest::SHA256, text);
        let mut head = [0; 8];
        head.copy_from_slice(&digest.as_ref()[..8]);
        // Zero means "no key" in a buyer's record.
        Some(Self(match i64::from_be_bytes(head) {
            0 => 1,
            key => key,
        }))
    }

    pub const fn from_i64(value: i64) -> Self {
        Self(value)
    }

    pub const fn get(self) -> i64 {
        self.0
    }
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
                Err(MalformedId) => prop_assert!(text.parse::<i64>().map_or(true, |n| n < 1
                    || n.to_string() != text)),
            }
        }

        #[test]
        fn an_idempotency_key_is_1_to_64_printable_ascii(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let good = !bytes.is_empty() && bytes.len() <= 64
                && bytes.iter().all(|b| (0x20..=0x7e).contains(b));
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
    }
}
