//! Every Redis key the program uses, built in one place.
//!
//! All keys of a sale carry the hash tag `{sale:ID}`, so that a Redis Cluster keeps them on one
//! slot and one function may touch them together.
//!
//! | key | type | holds |
//! |---|---|---|
//! | `{sale:ID}` | hash | the live epoch: window, stock, what remains, how many orders wait |
//! | `{sale:ID}:log` | stream | accepted orders that are not yet committed in Postgres |
//! | `{sale:ID}:EPOCH:buyers` | hash | user → their orders, 17 bytes each |
//! | `{sale:ID}:EPOCH:unreadable` | stream | log entries that could not be read, quarantined |
//! | `{sale:ID}:EPOCH:unwritable` | stream | orders that could not be rows of any kind |
//! | `{ids}:clock` | hash | floor and day of the id generator |
//! | `{ids}:yyyymmdd` | integer | how many order numbers that UTC day has leased |
//! | `{ids:LANE}:clock`, `…:yyyymmdd` | | the same in a cluster, for each [`IdLane`] |
//! | `{room:ID}` | hash | the waiting room: arrivals, the seed of the draw, the frontier |
//! | `{room:ID}:who:SHARD` | hash | user → their number in the waiting room |
//! | `{room:ID}:turns` | string | the seconds in which turns began, and how many |
//! | `{limit:user:USER}`, `{limit:address:ADDRESS}` | string | when it is full again, Unix µs |
//! | `{spent:ID:SALT}` | integer | a used solution, and a mark of its purchase |
//! | `changes` | channel | ids of sales that other instances should read again at once |

use crate::domain::{SaleId, UserId};
use std::fmt;
use std::sync::Arc;
use time::Date;

/// Hashes of a waiting room: a million people are 122 a hash, which is still a listpack.
const ROOM_SHARDS: i32 = 8_192;

/// Builds keys below one prefix, which lets several deployments (or tests) share a Redis.
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: Arc<str>,
}

impl Keys {
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn state(&self, sale: SaleId) -> String {
        format!("{}{{sale:{sale}}}", self.prefix)
    }

    pub fn log(&self, sale: SaleId) -> String {
        format!("{}{{sale:{sale}}}:log", self.prefix)
    }

    pub fn buyers(&self, sale: SaleId, epoch: i64) -> String {
        format!("{}{{sale:{sale}}}:{epoch}:buyers", self.prefix)
    }

    /// The buyers' keys of versions before the function library.
    pub fn buyers_shard(&self, sale: SaleId, epoch: i64, shard: i32) -> String {
        format!("{}{{sale:{sale}}}:{epoch}:buyers:{shard}", self.prefix)
    }

    /// The quarantine of a log with entries that cannot be read.
    pub fn unreadable_log(&self, sale: SaleId, epoch: i64) -> String {
        format!("{}{{sale:{sale}}}:{epoch}:unreadable", self.prefix)
    }

    /// The dead letters: orders that Postgres cannot store.
    pub fn unwritable_log(&self, sale: SaleId, epoch: i64) -> String {
        format!("{}{{sale:{sale}}}:{epoch}:unwritable", self.prefix)
    }

    pub fn id_clock(&self, lane: IdLane) -> String {
        format!("{}{{ids{lane}}}:clock", self.prefix)
    }

    pub fn id_counter(&self, lane: IdLane, day: Date) -> String {
        let (year, month, day) = day.to_calendar_date();
        let month = u8::from(month);
        format!("{}{{ids{lane}}}:{year:04}{month:02}{day:02}", self.prefix)
    }

    pub fn room(&self, sale: SaleId) -> String {
        format!("{}{{room:{sale}}}", self.prefix)
    }

    /// The hash with the user's number in the waiting room.
    pub fn room_shard(&self, sale: SaleId, user: UserId) -> String {
        let shard = shard_of(user, ROOM_SHARDS);
        format!("{}{{room:{sale}}}:who:{shard}", self.prefix)
    }

    pub fn room_turns(&self, sale: SaleId) -> String {
        format!("{}{{room:{sale}}}:turns", self.prefix)
    }

    /// The bucket of one user or address; the whole name is the hash tag.
    pub fn limit(&self, kind: &str, whose: &str) -> String {
        format!("{}{{limit:{kind}:{whose}}}", self.prefix)
    }

    /// The mark of a used solution.
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

/// A share of each day's order numbers, with a counter and a clock of its own.
///
/// One server has a single lane. In a cluster a single counter would be on one node, and every sale
/// would stop with that node; so the highest four bits of a number are its lane, and a sale takes
/// numbers from any lane that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdLane {
    Whole,
    Part(u16),
}

impl IdLane {
    /// As a power of two.
    const LANES: u32 = 4;

    /// Every lane there is.
    pub fn all(is_cluster: bool) -> Vec<Self> {
        match is_cluster {
            true => (0..1 << Self::LANES).map(Self::Part).collect(),
            false => vec![Self::Whole],
        }
    }

    /// The sequence number for the `number`-th id of this lane today; `None` beyond its last.
    pub fn sequence(self, number: i64) -> Option<u32> {
        let (lane, bits) = match self {
            Self::Whole => (0, 32),
            Self::Part(lane) => (i64::from(lane), 32 - Self::LANES),
        };
        let size = 1i64 << bits;
        if !(0..size).contains(&number) {
            return None;
        }
        u32::try_from(lane * size + number).ok()
    }
}

impl fmt::Display for IdLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => Ok(()),
            Self::Part(lane) => write!(f, ":{lane}"),
        }
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

    #[test]
    fn lanes_share_no_number() {
        for (place, lane) in IdLane::all(true).into_iter().enumerate() {
            let first = lane.sequence(0).expect("its first");
            let last = lane.sequence((1 << 28) - 1).expect("its last");
            assert_eq!(
                (first >> 28, last >> 28, last - first),
                (place as u32, place as u32, (1 << 28) - 1)
            );
            assert_eq!(lane.sequence(1 << 28), None);
        }
        assert_eq!(IdLane::Whole.sequence(i64::from(u32::MAX)), Some(u32::MAX));
        assert_eq!(IdLane::Whole.sequence(1 << 32), None);
    }

    #[test]
    fn a_running_sale_is_found_under_the_same_keys() {
        let (keys, sale) = (Keys::new("p:"), SaleId::from_i64(7));
        assert_eq!(keys.state(sale), "p:{sale:7}");
        assert_eq!(keys.log(sale), "p:{sale:7}:log");
        assert_eq!(keys.buyers(sale, 5), "p:{sale:7}:5:buyers");
        assert_eq!(keys.buyers_shard(sale, 5, 1), "p:{sale:7}:5:buyers:1");
        assert_eq!(keys.id_clock(IdLane::Whole), "p:{ids}:clock");
    }
}
