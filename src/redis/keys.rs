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
//! | `{spent:ID:SALT}` | integer | a solved challenge that was used, and by which purchase |
//! | `{ids:LANE:…}:clock`, `…:yyyymmdd` | hash, integer | the same in a cluster, for each of 16 lanes; see [`IdLane`] |
//! | `changes` | channel | ids of sales whose state changed in a way that other instances should see at once |

use super::slots::{SLOTS, slot_of};
use crate::domain::{SaleId, UserId};
use std::{fmt, io::Write, sync::Arc};
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

    /// The keys of an epoch's shards, for a script that takes many.
    pub fn shards(&self, sale: SaleId, epoch: i64) -> ShardKeys {
        ShardKeys {
            common: format!("{}{{sale:{sale}}}:{epoch}:buyers:", self.prefix).into_bytes(),
            key: Vec::new(),
        }
    }

    pub fn id_clock(&self) -> String {
        self.id_clock_of(IdLane::WHOLE)
    }

    pub fn id_counter(&self, day: Date) -> String {
        self.id_counter_of(IdLane::WHOLE, day)
    }

    pub fn id_clock_of(&self, lane: IdLane) -> String {
        format!("{}{{ids{lane}}}:clock", self.prefix)
    }

    pub fn id_counter_of(&self, lane: IdLane, day: Date) -> String {
        let (year, month, day) = day.to_calendar_date();
        format!(
            "{}{{ids{lane}}}:{year:04}{:02}{day:02}",
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

/// Writes one [`Keys::shard`] after the other into the same place.
pub struct ShardKeys {
    common: Vec<u8>,
    key: Vec<u8>,
}

impl ShardKeys {
    pub fn key(&mut self, shard: i32) -> &[u8] {
        self.key.clear();
        self.key.extend_from_slice(&self.common);
        // Writing to a Vec cannot fail.
        let _ = write!(self.key, "{shard}");
        &self.key
    }
}

/// A share of each day's order numbers, with a counter and a clock of its own.
///
/// One server has one, for all numbers. In a cluster one counter would be on one node, and with that node
/// every sale would stop: so the numbers are split into 16 lanes, by their highest bits, and the keys of lane
/// *n* are in the *n*-th sixteenth of the slots. A sale takes its numbers from a lane that is on its own node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdLane {
    number: u16,
    /// Makes the tag fall into its share of the slots; `None` for the one that is whole.
    salt: Option<u16>,
}

impl IdLane {
    /// The only one of a single server: it has all numbers.
    pub const WHOLE: Self = Self {
        number: 0,
        salt: None,
    };
    /// As a power of two.
    const LANES: u32 = 4;

    /// Every lane there is.
    pub fn all(is_cluster: bool) -> Vec<Self> {
        if !is_cluster {
            return vec![Self::WHOLE];
        }
        let share = SLOTS >> Self::LANES;
        let lane = |number| {
            // One in 16 falls where it should: the search ends soon.
            let mut lanes = (0..u16::MAX).map(|salt| Self {
                number,
                salt: Some(salt),
            });
            let is_home = |lane: &Self| slot_of(format!("ids{lane}").as_bytes()) / share == number;
            lanes.find(is_home).unwrap_or(Self {
                number,
                salt: Some(0),
            })
        };
        (0..1 << Self::LANES).map(lane).collect()
    }

    /// The lane whose keys are in the same share of the slots as this one.
    pub fn nearest_to(slot: u16) -> usize {
        usize::from(slot / (SLOTS >> Self::LANES))
    }

    /// How many numbers a day it has, beginning with number 0.
    fn size(self) -> i64 {
        let bits = if self.salt.is_none() {
            32
        } else {
            32 - Self::LANES
        };
        1 << bits
    }

    /// The sequence number of the id that is the `number`-th of this lane today; `None` if there are not so
    /// many.
    pub fn sequence(self, number: i64) -> Option<u32> {
        if !(0..self.size()).contains(&number) {
            return None;
        }
        u32::try_from(i64::from(self.number) * self.size() + number).ok()
    }
}

impl fmt::Display for IdLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.salt {
            None => Ok(()),
            Some(salt) => write!(f, ":{}:{salt}", self.number),
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
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_shard_is_in_range(bytes: [u8; 16], shards in 1..=100_000) {
            let shard = shard_of(UserId::from_bytes(bytes), shards);
            prop_assert!((0..shards).contains(&shard));
        }
    }

    #[test]
    fn keys_of_shards_are_written_alike() {
        let (keys, sale) = (Keys::new("p:"), SaleId::from_i64(7));
        let mut shards = keys.shards(sale, 3);
        for shard in [0, 9, 100_000, i32::MAX] {
            assert_eq!(shards.key(shard), keys.shard(sale, 3, shard).as_bytes());
        }
    }

    #[test]
    fn lanes_are_spread_over_the_slots_and_share_no_number() {
        let lanes = IdLane::all(true);
        assert_eq!(lanes.len(), 16);
        let keys = Keys::new("prefix:");
        for (place, lane) in lanes.iter().enumerate() {
            let slot = slot_of(keys.id_clock_of(*lane).as_bytes());
            assert_eq!(IdLane::nearest_to(slot), place);
            let first = lane.sequence(0).expect("its first");
            let last = lane.sequence((1 << 28) - 1).expect("its last");
            assert_eq!(
                (first >> 28, last >> 28, last - first),
                (place as u32, place as u32, (1 << 28) - 1)
            );
            assert_eq!(lane.sequence(1 << 28), None);
        }
        let whole = IdLane::all(false);
        assert_eq!(whole, [IdLane::WHOLE]);
        assert_eq!(whole[0].sequence(i64::from(u32::MAX)), Some(u32::MAX));
        assert_eq!(whole[0].sequence(1 << 32), None);
        assert_eq!(keys.id_clock(), "prefix:{ids}:clock");
    }

    #[test]
    fn keys_are_named_as_they_always_were() {
        let (keys, sale) = (Keys::new("p:"), SaleId::from_i64(7));
        assert_eq!(keys.state(sale), "p:{sale:7}");
        assert_eq!(keys.log(sale), "p:{sale:7}:log");
        assert_eq!(keys.shard(sale, 5, 1), "p:{sale:7}:5:buyers:1");
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
