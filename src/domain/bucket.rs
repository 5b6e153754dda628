//! Buckets: the parts of a hot sale. Each has a share of the stock, its own buyers and its own log, under
//! keys of its own, so that several Redis servers carry one sale. A user belongs to one bucket of a sale,
//! by a hash; so one script is still enough to judge them, and nobody buys in two.
//!
//! A sale with one bucket is the ordinary one, and its keys look as if there were no buckets.

use super::{Sale, SaleId, UserId};
use std::fmt;

/// The most buckets a sale can have: enough for as many Redis servers, few enough to be read in one look.
pub const MAX_BUCKETS: i64 = 256;

/// Which part of a sale: `index` counts from 0 and is below `of`, the number of its buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Part {
    pub index: u16,
    pub of: u16,
}

impl Part {
    /// The only part of a sale that is not divided.
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// This part's share of `total` units: the same for each, and one more for the first few. Grows with the
    /// total in every part, so that adding units takes away from nobody.
    pub const fn share(self, total: i64) -> i64 {
        let (of, index) = (self.of as i64, self.index as i64);
        total.div_euclid(of) + (index < total.rem_euclid(of)) as i64
    }
}

/// One bucket of one sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket {
    pub sale: SaleId,
    pub part: Part,
}

/// The one bucket of a sale that is not divided.
impl From<SaleId> for Bucket {
    fn from(sale: SaleId) -> Self {
        Self {
            sale,
            part: Part::WHOLE,
        }
    }
}

/// As it stands in the keys: `7`, or `7:3` where the sale is divided.
impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.part.of == 1 {
            write!(f, "{}", self.sale)
        } else {
            write!(f, "{}:{}", self.sale, self.part.index)
        }
    }
}

impl Bucket {
    /// All buckets of a sale that has `of` of them.
    pub fn all(sale: SaleId, of: u16) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator {
        (0..of).map(move |index| Self {
            sale,
            part: Part { index, of },
        })
    }

    /// Another bucket of the same sale.
    pub const fn sibling(self, index: u16) -> Self {
        Self {
            sale: self.sale,
            part: Part { index, ..self.part },
        }
    }

    /// Every place in Redis where a sale with `of` buckets, and `former` before that, may have something: a
    /// number of buckets is only ever raised, and the keys do not tell how many there are, except that the
    /// whole sale has others than its parts.
    pub fn places(sale: SaleId, of: u16, former: u16) -> Vec<Self> {
        let mut places: Vec<Self> = Self::all(sale, of).collect();
        if former == 1 && of > 1 {
            places.push(sale.into());
        }
        places
    }
}

/// The index of a user's bucket among `of`.
///
/// Mixed from all of the user id by the finalizer of MurmurHash3, and so independent of
/// the shard within a bucket, which multiplies one half of it: the users of a bucket spread over all of
/// its shards.
pub fn index_of(user: UserId, of: u16) -> u16 {
    if of == 1 {
        return 0;
    }
    let id = u128::from_be_bytes(*user.as_bytes());
    let mut mixed = (id >> 64) as u64 ^ (id as u64).rotate_left(32);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^= mixed >> 33;
    // Less than `of`, so it fits.
    (((mixed >> 32) * u64::from(of)) >> 32) as u16
}

impl Sale {
    /// How many buckets it has.
    pub fn bucket_count(&self) -> u16 {
        self.buckets.max(1).unsigned_abs()
    }

    pub fn all_buckets(&self) -> impl DoubleEndedIterator<Item = Bucket> + ExactSizeIterator {
        Bucket::all(self.id, self.bucket_count())
    }

    /// The bucket that a user belongs to.
    pub fn bucket_of(&self, user: UserId) -> Bucket {
        let of = self.bucket_count();
        Bucket {
            sale: self.id,
            part: Part {
                index: index_of(user, of),
                of,
            },
        }
    }

    /// See [`Bucket::places`].
    pub fn places(&self) -> Vec<Bucket> {
        let former = self.former_buckets.max(1).unsigned_abs();
        Bucket::places(self.id, self.bucket_count(), former)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_is_in_range(bytes: [u8; 16], of in 1..=256u16) {
            prop_assert!(index_of(UserId::from_bytes(bytes), of) < of);
        }

        #[test]
        fn shares_add_up_and_never_shrink_when_units_are_added(total in 0i64..1_000_000, add in 0i64..1_000, of in 1..=256u16) {
            let parts = || (0..of).map(|index| Part { index, of });
            prop_assert_eq!(parts().map(|part| part.share(total)).sum::<i64>(), total);
            prop_assert!(parts().all(|part| part.share(total + add) >= part.share(total)));
        }
    }

    #[test]
    fn users_that_differ_in_little_do_not_share_a_bucket() {
        let mut counts = [0u32; 4];
        for number in 0..1_000u128 {
            counts[usize::from(index_of(UserId::from_bytes(number.to_be_bytes()), 4))] += 1;
        }
        assert!(
            counts.iter().all(|count| (180..330).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn raising_leaves_no_place_out() {
        let (sale, names) = (SaleId::from_i64(7), |places: Vec<Bucket>| {
            places.iter().map(Bucket::to_string).collect::<Vec<_>>()
        });
        assert_eq!(names(Bucket::places(sale, 1, 1)), ["7"]);
        assert_eq!(names(Bucket::places(sale, 2, 1)), ["7:0", "7:1", "7"]);
        assert_eq!(names(Bucket::places(sale, 3, 2)), ["7:0", "7:1", "7:2"]);
    }
}
