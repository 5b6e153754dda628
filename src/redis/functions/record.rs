//! A buyer's record as `library/admit.lua` lays it out: 17 bytes an order.

use crate::domain::{IdempotencyKey, OrderId};

const LEN: usize = 17;
pub const RETURNED: u8 = 128;

/// One order in a buyer's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Which of the user's `per_user_limit` places it takes.
    pub slot: u8,
    /// Its unit was returned; kept to answer replays of its idempotency key.
    pub returned: bool,
    pub order_id: OrderId,
    pub key: Option<IdempotencyKey>,
}

impl Held {
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[0] = self.slot | if self.returned { RETURNED } else { 0 };
        bytes[1..9].copy_from_slice(&self.order_id.get().to_be_bytes());
        bytes[9..].copy_from_slice(&self.key.map_or(0, IdempotencyKey::get).to_be_bytes());
        bytes
    }
}

/// Reads a record; ignores an incomplete tail.
pub fn decode(record: &[u8]) -> impl Iterator<Item = Held> + '_ {
    record.chunks_exact(LEN).map(|order| {
        let number = |bytes: &[u8]| bytes.iter().fold(0u64, |n, byte| (n << 8) | u64::from(*byte));
        let key = number(&order[9..]);
        Held {
            slot: order[0] & !RETURNED,
            returned: order[0] & RETURNED != 0,
            order_id: OrderId::from_i64(number(&order[1..9]).cast_signed()),
            key: (key != 0).then(|| IdempotencyKey::from_i64(key.cast_signed())),
        }
    })
}
