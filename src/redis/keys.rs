//! Every Redis key the program uses, built in one place.
//!
//! All keys of a sale carry the hash tag `{sale:ID}`, so that a Redis Cluster keeps them on one
//! slot and one script may touch them together.
//!
//! | key | type | holds |
//! |---|---|---|
//! | `{sale:ID}` | hash | the live epoch: window, stock, what remains, how many orders wait |
//! | `{sale:ID}:log` | stream | accepted orders that are not yet committed in Postgres |
//! | `{sale:ID}:EPOCH:buyers:SHARD` | hash | user → their orders, 17 bytes each |
//! | `{sale:ID}:EPOCH:unreadable` | stream | log entries that could not be read, put aside |
//! | `{sale:ID}:EPOCH:unwritable` | stream | orders that could not be rows of any kind, put aside |
//! | `{ids}:clock` | hash | floor and day of the id generator |
//! | `{ids}:yyyymmdd` | integer | how many order numbers that UTC day has leased |
//! | `{room:ID}` | hash | the waiting room: who was early, the seed of the draw, whose turn it is |
//! | `{room:ID}:who:SHARD` | hash | user → their number in the waiting room |
//! | `{room:ID}:turns` | string | the seconds in which turns began, and how many |
//! | `{limit:user:USER}`, `{limit:address:ADDRESS}` | integer | when the bucket of requests is full again, Unix µs |
//! | `{suspect:ADDRESS}:deeds`, `…:users` | integer, HyperLogLog | what an address did, and how many users it has |
//! | `{spent:ID:SALT}` | integer | a solved challenge that was used, and by which purchase |
//! | `changes` | channel | ids of sales whose state changed in a way that other instances should see at once |

use crate::domain::{SaleId, UserId};
use std::sync::Arc;
use time::Date;

/// How many buyers share a hash, on average. A small one is a listpack (up to Redis' default
/// `hash-max-listpack-entries` of 128), which takes a third of the memory of a hash table but is
/// searched from its start at every purchase: so few of them, but enough to share the cost of a key.
pub const BUYERS_PER_SHARD: i64 = 16;

/// Into how many hashes the buyers of a sale with this stock are spread.
pub fn shards_for(stock: i64) -> i32 {
    let shards = (stock.max(1) / BUYERS_PER_SHARD).max(1);
    i32::try_from(shards).unwrap_or(i32::MAX)
}

/// Into how many hashes those who wait are spread. A million of them are 122 a hash, which is still a listpack.
const ROOM_SHARDS: i32 = 8_192;

/// Builds keys below one prefix, which lets several deployments (or tests) share a Redis.
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: Arc<str>,
}

impl Keys {
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.into(),
        }
    }

    /// What stands before every key.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn state(&self, sale: SaleId) -> String {
        format!("{}{{sale:{sale}}}", self.prefix)
    }

    pub fn log(&self, sale: SaleId) -> String {
        format!("{}{{sale:{sale}}}:log", self.prefix)
    }

    /// Where a log is put whose entries cannot be read.
    pub fn unreadable_log(&self, sale: SaleId, epoch: i64) -> String {
        format!("{}{{sale:{sale}}}:{epoch}:unreadable", self.prefix)
    }

    /// Where orders are put that Postgres cannot store.
    pub fn unwritable_log(&self, sale: SaleId, epoch: i64) -> String {
        format!("{}{{sale:{sale}}}:{epoch}:unwritable", self.prefix)
    }

    pub fn shard(&self, sale: SaleId, epoch: i64, shard: i32) -> String {
        format!("{}{{sale:{sale}}}:{epoch}:buyers:{shard}", self.prefix)
    }

    pub fn id_clock(&self) -> String {
        format!("{}{{ids}}:clock", self.prefix)
    }

    pub fn id_counter(&self, day: Date) -> String {
        let (year, month, day) = day.to_calendar_date();
        format!(
            "{}{{ids}}:{year:04}{:02}{day:02}",
            self.prefix,
            u8::from(month)
        )
    }

    pub fn room(&self, sale: SaleId) -> String {
        format!("{}{{room:{sale}}}", self.prefix)
    }

    /// Where a user's number in the waiting room stands.
    pub fn room_shard(&self, sale: SaleId, user: UserId) -> String {
        let shard = shard_of(user, ROOM_SHARDS);
        format!("{}{{room:{sale}}}:who:{shard}", self.prefix)
    }

    pub fn room_turns(&self, sale: SaleId) -> String {
        format!("{}{{room:{sale}}}:turns", self.prefix)
    }

    /// A bucket of requests of one user or address; the whole name is the hash tag.
    pub fn limit(&self, kind: &str, whose: &str) -> String {
        format!("{}{{limit:{kind}:{whose}}}", self.prefix)
    }

    /// Where the deeds of an address stand, and its users.
    pub fn suspect(&self, address: &str) -> [String; 2] {
        ["deeds", "users"].map(|what| format!("{}{{suspect:{address}}}:{what}", self.prefix))
    }

    /// Where the use of a solution stands.
    pub fn spent(&self, sale: SaleId, salt: &[u8]) -> String {
        let mut name = format!("{}{{spent:{sale}:", self.prefix);
        for byte in salt {
            name.push_str(&format!("{byte:02x}"));
        }
        name.push('}');
        name
    }

    pub fn changes(&self) -> String {
        format!("{}changes", self.prefix)
    }
}

/// The shard of a user: Fibonacci hashing of the last 8 bytes, which are random in a v4 UUID.
pub fn shard_of(user: UserId, shards: i32) -> i32 {
    let [.., a, b, c, d, e, f, g, h] = *user.as_bytes();
    let mixed = u64::from_be_bytes([a, b, c, d, e, f, g, h]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The high half of a 32 × 32 bit product maps evenly onto 0..shards without a division.
    let shards = u64::from(shards.max(1).unsigned_abs());
    (((mixed >> 32) * shards) >> 32) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_shard_is_in_range(bytes: [u8; 16], shards in 1..=100_000) {
            let shard = shard_of(UserId::from_bytes(bytes), shards);
            prop_assert!((0..shards).contains(&shard));
        }
    }

    #[test]
    fn random_users_spread_evenly() {
        let mut counts = [0u32; 100];
        for _ in 0..6_400 {
            counts[shard_of(UserId::random(), 100) as usize] += 1;
        }
        assert!(
            counts.iter().all(|&count| (20..128).contains(&count)),
            "{counts:?}"
        );
    }
}
