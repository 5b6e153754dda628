//! What one process counts while it sells in an arena. A verdict adds the tallies of all processes.
//!
//! Nothing here decides anything: how many were sold is counted from Postgres' rows (`verdict.rs`).
//! The tally knows what buyers were told, how long they waited and what it cost.

use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire},
        },
    },
    time::Duration,
};
use time::OffsetDateTime;

/// Counts that can be added up over processes.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub struct Counts {
    pub attempts: u64,
    pub sold: u64,
    pub sold_out: u64,
    pub duplicates: u64,
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
        self.sold_out += other.sold_out;
        self.duplicates += other.duplicates;
        self.contended += other.contended;
        self.failed += other.failed;
        if other.first_us > 0 && (self.first_us == 0 || other.first_us < self.first_us) {
            self.first_us = other.first_us;
        }
        self.last_us = self.last_us.max(other.last_us);
        self.redis += other.redis;
        self.postgres += other.postgres;
        self.zookeeper += other.zookeeper;
        self.winners.add(&other.winners);
        self.losers.add(&other.losers);
        for (note, count) in &other.notes {
            *self.notes.entry(note.clone()).or_default() += count;
        }
    }

    /// From the first purchase's start to the last one's end.
    pub fn elapsed(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.last_us - self.first_us).unwrap_or(0))
    }

    pub fn throughput_per_s(&self) -> f64 {
        let seconds = self.elapsed().as_secs_f64();
        if seconds > 0.0 { self.attempts as f64 / seconds } else { 0.0 }
    }
}

/// Latencies in buckets of 1/32 of an octave: a percentile is right to 3 %. Sparse, so that it can
/// be stored as text and added to another one.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub struct Latencies {
    buckets: BTreeMap<u16, u64>,
    max_us: u64,
}

const PER_OCTAVE: u64 = 32;

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

    pub fn count(&self) -> u64 {
        self.buckets.values().sum()
    }

    /// Milliseconds at this quantile (0 to 1); 0 if nothing was recorded.
    pub fn at_ms(&self, quantile: f64) -> f64 {
        let wanted = (self.count() as f64 * quantile).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in &self.buckets {
            seen += count;
            if seen >= wanted {
                return millis(upper_bound(*bucket).min(self.max_us));
            }
        }
        0.0
    }

    pub fn max_ms(&self) -> f64 {
        millis(self.max_us)
    }
}

/// Microseconds as milliseconds with two digits after the point.
fn millis(us: u64) -> f64 {
    (us as f64 / 10.0).round() / 100.0
}

fn bucket_of(us: u64) -> u16 {
    let octave = u64::from(us.ilog2());
    let within = if octave >= 5 {
        (us >> (octave - 5)) - PER_OCTAVE
    } else {
        (us << (5 - octave)) - PER_OCTAVE
    };
    u16::try_from(octave * PER_OCTAVE + within).unwrap_or(u16::MAX)
}

/// The greatest value of the bucket.
fn upper_bound(bucket: u16) -> u64 {
    let (octave, within) = (u64::from(bucket) / PER_OCTAVE, u64::from(bucket) % PER_OCTAVE);
    let next = PER_OCTAVE + within + 1;
    if octave >= 5 {
        (next << (octave - 5).min(58)).saturating_sub(1)
    } else {
        ((next - 1) >> (5 - octave)).max(1)
    }
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

/// What has not been written to Postgres yet.
#[derive(Default)]
pub struct Unsaved {
    /// Buyer and how often they tried.
    pub buyers: HashMap<String, u32>,
    /// Ids of orders.
    pub told: Vec<String>,
}

/// How an attempt ended, as far as counting goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending<'a> {
    Sold(&'a str),
    SoldOut,
    Duplicate,
    Contended,
    Failed,
}

/// One purchase under way; dropped before its end (the client hung up) it counts as failed.
pub struct Attempt<'a> {
    tally: &'a Tally,
    began: OffsetDateTime,
    since: std::time::Instant,
    ended: bool,
}

impl Attempt<'_> {
    /// Answers how long the buyer waited.
    pub fn end(mut self, buyer: &str, ending: Ending<'_>) -> Duration {
        self.ended = true;
        let waited = self.since.elapsed();
        self.tally.count(self.began, waited, Some(buyer), ending);
        waited
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let waited = self.since.elapsed();
            self.tally.count(self.began, waited, None, Ending::Failed);
        }
        self.tally.in_flight.fetch_sub(1, AcqRel);
    }
}

impl Tally {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin(&self) -> Attempt<'_> {
        self.in_flight.fetch_add(1, AcqRel);
        Attempt {
            tally: self,
            began: OffsetDateTime::now_utc(),
            since: std::time::Instant::now(),
            ended: false,
        }
    }

    fn count(
        &self,
        began: OffsetDateTime,
        waited: Duration,
        buyer: Option<&str>,
        ending: Ending<'_>,
    ) {
        let mut inner = self.lock();
        let Inner { counts, sold_to, unsaved } = &mut *inner;
        counts.attempts += 1;
        let micros = |at: OffsetDateTime| (at.unix_timestamp_nanos() / 1_000) as i64;
        if counts.first_us == 0 || micros(began) < counts.first_us {
            counts.first_us = micros(began);
        }
        counts.last_us = counts.last_us.max(micros(began + waited));
        match ending {
            Ending::Sold(_) => counts.sold += 1,
            Ending::SoldOut => counts.sold_out += 1,
            Ending::Duplicate => counts.duplicates += 1,
            Ending::Contended => counts.contended += 1,
            Ending::Failed => counts.failed += 1,
        }
        if let Ending::Sold(id) = ending {
            counts.winners.record(waited);
            unsaved.told.push(id.to_owned());
        } else {
            counts.losers.record(waited);
        }
        let Some(buyer) = buyer else { return };
        if matches!(ending, Ending::Sold(_)) {
            let mut hasher = DefaultHasher::new();
            buyer.hash(&mut hasher);
            *sold_to.entry(hasher.finish()).or_default() += 1;
        }
        // Who only ever heard of a failure is nobody that this strategy could have sold to.
        if ending != Ending::Failed {
            *unsaved.buyers.entry(buyer.to_owned()).or_default() += 1;
        }
    }

    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Acquire)
    }

    pub fn counts(&self) -> Counts {
        self.lock().counts.clone()
    }

    /// Orders that were told of beyond what each buyer may have.
    pub fn told_beyond(&self, per_user_limit: u64) -> u64 {
        let inner = self.lock();
        inner.sold_to.values().map(|orders| u64::from(*orders).saturating_sub(per_user_limit)).sum()
    }

    /// How many buyers and orders wait to be saved.
    pub fn unsaved(&self) -> usize {
        let inner = self.lock();
        inner.unsaved.buyers.len() + inner.unsaved.told.len()
    }

    /// How many attempts there were, those under way too.
    pub fn attempts(&self) -> u64 {
        self.lock().counts.attempts + self.in_flight()
    }

    pub fn take_unsaved(&self) -> Unsaved {
        std::mem::take(&mut self.lock().unsaved)
    }

    /// Puts back what could not be saved.
    pub fn return_unsaved(&self, unsaved: Unsaved) {
        let mut inner = self.lock();
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
        drop(tally.begin());
        tally.begin().end("ann", Ending::Sold("1"));
        tally.begin().end("ann", Ending::Sold("2"));
        let counts = tally.counts();
        assert_eq!((counts.attempts, counts.failed, counts.sold), (3, 1, 2));
        assert_eq!((tally.in_flight(), tally.told_beyond(1)), (0, 1));
    }
}
