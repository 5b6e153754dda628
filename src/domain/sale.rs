//! A sale, its state and its access policy.

use super::ids::SaleId;
use serde::de::{MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use time::OffsetDateTime;
use utoipa::ToSchema;

/// The state that clients see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SaleState {
    /// Before `opens_at`.
    Scheduled,
    Open,
    /// Open, but no unit is left now; a returned unit opens it again.
    SoldOut,
    Paused,
    /// Past `closes_at`, or closed by an operator.
    Ended,
}

/// A sale as Postgres holds it. Redis counts the remaining units while the sale runs.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// The generation of its Redis state; a rebuild increments it, which fences older writers.
    pub epoch: i64,
    /// Incremented by every operator's change; Redis applies newer versions only.
    pub version: i64,
    pub access_policy: AccessPolicy,
}

/// Requirements of a purchase besides the window and the stock. By default none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessPolicy {
    /// How long before the opening the waiting room can be joined; `None`: there is none.
    pub room_opens_before_secs: Option<i32>,
    pub room_per_second: i32,
    pub room_turn_secs: i32,
    pub room_overbooking: i32,
    /// A purchase needs a pass; passes are issued once the sale is open.
    pub purchase_pass: bool,
    /// Bits of the proof of work for a purchase, or for joining the waiting room; 0: none.
    pub challenge_bits: i32,
}

impl Default for AccessPolicy {
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

impl AccessPolicy {
    /// Whether a purchase needs more than a user token.
    pub fn is_restricted(&self) -> bool {
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

/// Settings of a waiting room.
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

/// An object or null: by itself serde would also read an array as a struct.
struct Room;

impl<'de> Visitor<'de> for Room {
    type Value = Option<RoomSettings>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object or null")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Self::Value, A::Error> {
        RoomSettings::deserialize(MapAccessDeserializer::new(members)).map(Some)
    }
}

pub fn read_room<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<RoomSettings>, D::Error> {
    deserializer.deserialize_any(Room)
}

impl Default for RoomSettings {
    fn default() -> Self {
        Self { opens_before_secs: 600, per_second: 1_000, turn_secs: 120, overbooking_percent: 20 }
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

/// A sale as clients see it, with the units left and the time of Redis.
#[derive(Debug, Clone)]
pub struct SaleView {
    pub sale: std::sync::Arc<Sale>,
    pub remaining: i64,
    pub state: SaleState,
    pub server_time: OffsetDateTime,
}
