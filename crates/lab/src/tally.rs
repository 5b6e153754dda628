//! The counts of one process while it sells in an arena; a verdict adds those of all processes.
//!
//! They decide nothing: sales are counted from Postgres' rows (`verdict.rs`). A tally has the
//! buyers' answers, their waiting times and the round trips.

use crate::selling::{Outcome, Result, hash_of};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// Counts that can be added up over processes.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub struct Counts {
    pub attempts: u64,
    pub sold: u64,
    pub contended: u64,
    pub failed: u64,
    /// Unix microseconds; 0 before the first.
    pub first_us: i64,
    pub last_us: i64,
    pub redis: u64,
    pub postgres: u64,
    pub zookeeper: u64,
    pub winners: Latencies,
    pub losers: Latencies,
    pub notes: BTreeMap<String, u64>,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.attempts += other.attempts;
        self.sold += other.sold;
        self.contended += other.contended;
        self.failed += other.failed;
        self.redis += other.redis;
        self.postgres += other.postgres;
        self.zookeeper += other.zookeeper;
        self.span(other.first_us, other.last_us);
        self.winners.add(&other.winners);
        self.losers.add(&other.losers);
        for (note, count) in &other.notes {
            *self.notes.entry(note.clone()).or_default() += count;
        }
    }

    /// Somebody bought from `first` to `last`.
    pub fn span(&mut self, first: i64, last: i64) {
        if first > 0 && (self.first_us == 0 || first < self.first_us) {
            self.first_us = first;
        }
        self.last_us = self.last_us.max(last);
    }

    /// From the first purchase's start to the last one's end.
    pub fn elapsed(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.last_us - self.first_us).unwrap_or(0))
    }

    /// With one digit after the point.
    pub fn throughput_per_s(&self) -> f64 {
        let seconds = self.elapsed().as_secs_f64();
        let rate = if seconds > 0.0 { self.attempts as f64 / seconds } else { 0.0 };
        (rate * 10.0).round() / 10.0
    }

    /// Of everybody.
    pub fn latencies(&self) -> Latencies {
        let mut all = self.winners.clone();
        all.add(&self.losers);
        all
    }
}

/// Latencies in buckets of 1/32 of an octave: a percentile is right to 3 %. Sparse, so that it can
/// be stored as text and added to another one.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub struct Latencies {
    buckets: BTreeMap<u16, u64>,
    max_us: u64,
}

const PER_OCTAVE: f64 = 32.0;

impl Latencies {
    pub fn record(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1);
        *self.buckets.entry(bucket_of(us)).or_default() += 1;
        self.max_us = self.max_us.max(us);
    }

    pub fn add(&mut self, other: &Self) {
        for (bucket, count) in &other.buckets {
            *self.buckets.entry(*bucket).or_default() += count;
        }
        self.max_us = self.max_us.max(other.max_us);
    }

    /// Milliseconds at this quantile (0 to 1); 0 if nothing was recorded.
    pub fn at_ms(&self, quantile: f64) -> f64 {
        let count: u64 = self.buckets.values().sum();
        let wanted = (count as f64 * quantile).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in &self.buckets {
            seen += count;
            if seen >= wanted {
                return millis(Duration::from_micros(upper_bound(*bucket).min(self.max_us)));
            }
        }
        0.0
    }

    pub fn max_ms(&self) -> f64 {
        millis(Duration::from_micros(self.max_us))
    }
}

/// Milliseconds with two digits after the point.
pub fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 100_000.0).round() / 100.0
}

fn bucket_of(us: u64) -> u16 {
    ((us as f64).log2() * PER_OCTAVE).ceil() as u16
}

/// The greatest value of the bucket, never rounded below it.
fn upper_bound(bucket: u16) -> u64 {
    ((f64::from(bucket) / PER_OCTAVE).exp2() * (1.0 + 1e-9)) as u64
}

/// The live tally of this process.
#[derive(Default)]
pub struct Tally {
    inner: Mutex<Inner>,
    in_flight: AtomicU64,
}

#[derive(Default)]
struct Inner {
    counts: Counts,
    /// Orders that buyers were told of, by the hash of the buyer's name: names can be long.
    sold_to: HashMap<u64, u32>,
    unsaved: Unsaved,
}

/// Counts that are not in Postgres yet.
#[derive(Default)]
pub struct Unsaved {
    /// Buyer and how often they tried.
    pub buyers: HashMap<String, i32>,
    /// Ids of orders.
    pub told: Vec<String>,
}

/// One purchase under way; dropped before its end (the client hung up) it counts as failed.
pub struct Attempt<'a> {
    tally: &'a Tally,
    began: Instant,
    ended: bool,
}

impl Attempt<'_> {
    /// Answers how long the buyer waited.
    pub fn end(mut self, buyer: &str, outcome: &Result<Outcome>) -> Duration {
        self.ended = true;
        let waited = self.began.elapsed();
        self.tally.count(waited, outcome.as_ref().ok().map(|told| (buyer, told)));
        waited
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.tally.count(self.began.elapsed(), None);
        }
        self.tally.in_flight.fetch_sub(1, AcqRel);
    }
}

impl Tally {
    pub fn begin(&self) -> Attempt<'_> {
        self.in_flight.fetch_add(1, AcqRel);
        Attempt { tally: self, began: Instant::now(), ended: false }
    }

    /// `told`: the buyer and the answer. A buyer who only met failures does not count as unserved.
    fn count(&self, waited: Duration, told: Option<(&str, &Outcome)>) {
        let mut inner = self.inner.lock();
        let Inner { counts, sold_to, unsaved } = &mut *inner;
        counts.attempts += 1;
        let micros = |at: OffsetDateTime| (at.unix_timestamp_nanos() / 1_000) as i64;
        let now = OffsetDateTime::now_utc();
        counts.span(micros(now - waited), micros(now));
        let latencies = match told {
            Some((_, Outcome::Sold { .. })) => &mut counts.winners,
            _ => &mut counts.losers,
        };
        latencies.record(waited);
        let Some((buyer, outcome)) = told else {
            counts.failed += 1;
            return;
        };
        *unsaved.buyers.entry(buyer.to_owned()).or_default() += 1;
        match outcome {
            Outcome::Sold { order_id } => {
                counts.sold += 1;
                unsaved.told.push(order_id.clone());
                *sold_to.entry(hash_of(buyer)).or_default() += 1;
            }
            Outcome::Contended => counts.contended += 1,
            Outcome::SoldOut | Outcome::Duplicate => {}
        }
    }

    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Acquire)
    }

    pub fn counts(&self) -> Counts {
        self.inner.lock().counts.clone()
    }

    /// Orders that were told of beyond what each buyer may have.
    pub fn told_beyond(&self, per_user_limit: u64) -> u64 {
        let inner = self.inner.lock();
        inner.sold_to.values().map(|orders| u64::from(*orders).saturating_sub(per_user_limit)).sum()
    }

    /// How many buyers and orders wait to be saved.
    pub fn unsaved(&self) -> usize {
        let inner = self.inner.lock();
        inner.unsaved.buyers.len() + inner.unsaved.told.len()
    }

    /// How many attempts there were, those under way too.
    pub fn attempts(&self) -> u64 {
        self.inner.lock().counts.attempts + self.in_flight()
    }

    pub fn take_unsaved(&self) -> Unsaved {
        std::mem::take(&mut self.inner.lock().unsaved)
    }

    /// Puts back counts that could not be saved.
    pub fn return_unsaved(&self, unsaved: Unsaved) {
        let mut inner = self.inner.lock();
        for (buyer, tries) in unsaved.buyers {
            *inner.unsaved.buyers.entry(buyer).or_default() += tries;
        }
        inner.unsaved.told.extend(unsaved.told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_is_near_its_value(us in 1u64..=1 << 50) {
            let upper = upper_bound(bucket_of(us));
            prop_assert!(upper >= us, "{us} {upper}");
            prop_assert!(upper - us <= us / 32 + 1, "{us} {upper}");
        }

        #[test]
        fn adding_is_counting_together(first in prop::collection::vec(1u64..10_000_000, 0..50),
            second in prop::collection::vec(1u64..10_000_000, 0..50)) {
            let record = |values: &[u64]| {
                let mut latencies = Latencies::default();
                values.iter().for_each(|us| latencies.record(Duration::from_micros(*us)));
                latencies
            };
            let mut sum = record(&first);
            sum.add(&record(&second));
            prop_assert_eq!(&sum, &record(&[first, second].concat()));
            let stored = serde_json::to_string(&sum).expect("JSON");
            let stored: Latencies = serde_json::from_str(&stored).expect("as written");
            prop_assert_eq!(stored, sum);
        }
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let mut latencies = Latencies::default();
        (1..=1_000u64).for_each(|ms| latencies.record(Duration::from_millis(ms)));
        for (quantile, expected) in [(0.5, 500.0), (0.95, 950.0), (0.99, 990.0)] {
            let found = latencies.at_ms(quantile);
            assert!((expected..expected * 1.04).contains(&found), "{quantile}: {found}");
        }
        assert_eq!(latencies.max_ms(), 1_000.0);
        assert_eq!(latencies.at_ms(1.0), 1_000.0);
    }

    #[test]
    fn a_purchase_that_was_given_up_has_failed() {
        let tally = Tally::default();
        let sold = |id: &str| Ok(Outcome::Sold { order_id: id.to_owned() });
        drop(tally.begin());
        tally.begin().end("ann", &sold("1"));
        tally.begin().end("ann", &sold("2"));
        let counts = tally.counts();
        assert_eq!((counts.attempts, counts.failed, counts.sold), (3, 1, 2));
        assert_eq!((tally.in_flight(), tally.told_beyond(1)), (0, 1));
    }
}
