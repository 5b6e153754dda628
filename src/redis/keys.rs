//! Every Redis key the program uses, built in one place.
//!
//! All keys of a sale carry the hash tag `{sale:ID}`, so that a Redis Cluster keeps them on one
//! slot and one script may touch them together. Where the sale is divided into buckets, the tag is
//! `{sale:ID:BUCKET}`, each bucket has all of these keys, and nothing touches two of them together.
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
//! | `changes` | channel | ids of sales whose state changed in a way that other instances should see at once |

use crate::domain::{Bucket, UserId};
use std::sync::Arc;
use time::Date;

/// How many buyers share a hash, on average. A small one is a listpack (up to Redis' default
/// `hash-max-listpack-entries` of 128), which takes a third of the memory of a hash table but is
/// searched from its start at every purchase: so few of them, but enough to share the cost of a key.
pub const BUYERS_PER_SHARD: i64 = 16;

/// Into how many hashes the buyers of each of `buckets` are spread, in a sale with this stock.
pub fn shards_for(stock: i64, buckets: i64) -> i32 {
    let shards = (stock.max(1) / (BUYERS_PER_SHARD * buckets.max(1))).max(1);
    i32::try_from(shards).unwrap_or(i32::MAX)
}

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

    // A sale's own id stands for the one bucket of a sale that is not divided.

    pub fn state(&self, bucket: impl Into<Bucket>) -> String {
        format!("{}{{sale:{}}}", self.prefix, bucket.into())
    }

    pub fn log(&self, bucket: impl Into<Bucket>) -> String {
        format!("{}{{sale:{}}}:log", self.prefix, bucket.into())
    }

    /// Where a log is put whose entries cannot be read.
    pub fn unreadable_log(&self, bucket: impl Into<Bucket>, epoch: i64) -> String {
        format!(
            "{}{{sale:{}}}:{epoch}:unreadable",
            self.prefix,
            bucket.into()
        )
    }

    /// Where orders are put that Postgres cannot store.
    pub fn unwritable_log(&self, bucket: impl Into<Bucket>, epoch: i64) -> String {
        format!(
            "{}{{sale:{}}}:{epoch}:unwritable",
            self.prefix,
            bucket.into()
        )
    }

    pub fn shard(&self, bucket: impl Into<Bucket>, epoch: i64, shard: i32) -> String {
        let (prefix, bucket) = (&self.prefix, bucket.into());
        format!("{prefix}{{sale:{bucket}}}:{epoch}:buyers:{shard}")
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
    use crate::domain::{SaleId, bucket::index_of};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_shard_is_in_range(bytes: [u8; 16], shards in 1..=100_000) {
            let shard = shard_of(UserId::from_bytes(bytes), shards);
            prop_assert!((0..shards).contains(&shard));
        }
    }

    #[test]
    fn the_users_of_each_bucket_spread_over_all_shards() {
        let mut counts = [[0u32; 8]; 8];
        for _ in 0..64 * 200 {
            let user = UserId::random();
            counts[usize::from(index_of(user, 8))][shard_of(user, 8) as usize] += 1;
        }
        let mut counts_of_all = counts.iter().flatten();
        assert!(
            counts_of_all.all(|count| (120..300).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn keys_of_an_undivided_sale_do_not_name_a_bucket() {
        let (keys, sale) = (Keys::new("p:"), SaleId::from_i64(7));
        assert_eq!(keys.state(sale), "p:{sale:7}");
        let third = Bucket::all(sale, 4).nth(2).expect("four buckets");
        assert_eq!(keys.log(third), "p:{sale:7:2}:log");
        assert_eq!(keys.shard(third, 5, 1), "p:{sale:7:2}:5:buyers:1");
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
