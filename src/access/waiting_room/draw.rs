//! The draw: the order of users who joined before the opening.
//!
//! A Fisher-Yates shuffle whose random numbers are the key stream of ChaCha20 under the room's
//! seed: every instance that knows the seed and the number of participants has the same order, and
//! nobody can predict it without the seed. Numbers are drawn without bias, so all orders are
//! equally likely.
//!
//! Preparation does not help: the seed is made after the last number was given out, and a uniform
//! shuffle gives every number every place equally often. The identity of a user does not matter.

use crate::access::waiting_room::functions::Seed;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The drawn order.
#[derive(Debug, PartialEq, Eq)]
pub struct Draw {
    pub seed: Seed,
    /// The place of each number of arrival, both from 0.
    places: Vec<u32>,
}

impl Draw {
    /// Takes some 30 ms for a million people.
    pub fn new(seed: Seed, people: u64) -> Self {
        let people = u32::try_from(people).unwrap_or(u32::MAX);
        let mut places: Vec<u32> = (0..people).collect();
        let mut random = ChaCha20Rng::from_seed(seed);
        for last in (1..people).rev() {
            let chosen = below(&mut random, last + 1);
            places.swap(last as usize, chosen as usize);
        }
        Self { seed, places }
    }

    pub fn people(&self) -> u64 {
        self.places.len() as u64
    }

    /// The place of arrival number `arrival`, both from 0. Arrivals after the draw keep their
    /// number.
    pub fn place(&self, arrival: u64) -> u64 {
        let drawn = usize::try_from(arrival).ok().and_then(|at| self.places.get(at));
        drawn.map_or(arrival, |place| u64::from(*place))
    }
}

/// A number below `end`, each equally likely (Lemire, "Fast random integer generation in an
/// interval", 2019).
fn below(random: &mut impl RngCore, end: u32) -> u32 {
    let threshold = end.wrapping_neg() % end;
    loop {
        let product = u64::from(random.next_u32()) * u64::from(end);
        // Rejects the values that would make some numbers likelier.
        if (product as u32) >= threshold {
            return (product >> 32) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn everybody_gets_a_place_of_their_own(seed: [u8; 32], people in 0u64..300,
            late in 0u64..10) {
            let draw = Draw::new(seed, people);
            let mut places: Vec<u64> = (0..people).map(|arrival| draw.place(arrival)).collect();
            places.sort_unstable();
            prop_assert_eq!(places, (0..people).collect::<Vec<_>>());
            prop_assert_eq!(draw.place(people + late), people + late);
            prop_assert_eq!(draw, Draw::new(seed, people));
        }
    }

    /// All 24 orders of four, over 48,000 seeds: each is expected 2,000 times. A difference of 300
    /// is beyond 6.8 standard deviations, once in 10^11 for one of them.
    #[test]
    fn every_order_is_equally_likely() {
        let mut seen = std::collections::HashMap::new();
        for number in 0u64..48_000 {
            let mut seed = [0; 32];
            seed[..8].copy_from_slice(&number.to_be_bytes());
            let draw = Draw::new(seed, 4);
            *seen.entry(draw.places.clone()).or_insert(0i32) += 1;
        }
        assert_eq!(seen.len(), 24);
        for (order, times) in seen {
            assert!((times - 2_000).abs() < 300, "{order:?}: {times}");
        }
    }

    /// A rolling update has instances of two versions: they must agree on the order for ever.
    #[test]
    fn the_order_of_a_seed_never_changes() {
        let draw = Draw::new([7; 32], 10);
        let places: Vec<u64> = (0..10).map(|arrival| draw.place(arrival)).collect();
        assert_eq!(places, KNOWN);
    }

    const KNOWN: [u64; 10] = [6, 9, 8, 0, 1, 7, 3, 5, 2, 4];
}
