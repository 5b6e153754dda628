//! The rate of turns, by the measured throughput of admission.

use crate::admission::throughput::ThroughputSample;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const MEASURING: Duration = Duration::from_millis(500);
/// Turns a second before the first measurement.
const FIRST_RATE: f64 = 50.0;
/// The share of the measured throughput that waiting rooms may use; the rest is for retries and
/// sudden changes.
const SHARE: f64 = 0.5;
/// The lowest rate: without turns nothing would be measured any more.
const SLOWEST: f64 = 1.0;

/// The pacer of this process.
#[derive(Default)]
pub(crate) struct Pacer(Mutex<Pacing>);

#[derive(Default)]
struct Pacing {
    last: Option<(Instant, ThroughputSample)>,
    /// Purchases a second; `None`: admission was never busy.
    throughput: Option<f64>,
}

impl Pacer {
    /// Turns a second, by the measurements until `now`.
    pub fn rate(&self, sample: ThroughputSample, now: Instant) -> f64 {
        let mut pacing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, last) = pacing.last.unwrap_or((now, sample));
        if pacing.last.is_none() {
            pacing.last = Some((now, sample));
        } else if now.duration_since(since) >= MEASURING {
            pacing.last = Some((now, sample));
            if let Some(measured) = sample.since(&last) {
                // The latest sample counts for half: a stall shows at once, a lucky batch does not.
                let known = pacing.throughput.unwrap_or(measured);
                pacing.throughput = Some((known + measured) / 2.0);
            }
        }
        pacing.throughput.map_or(FIRST_RATE, |throughput| (throughput * SHARE).max(SLOWEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::throughput::ThroughputMeter;

    #[test]
    fn the_rate_follows_the_measured_admissions() {
        let (pacer, throughput, start) =
            (Pacer::default(), ThroughputMeter::default(), Instant::now());
        let rate = |at_ms| pacer.rate(throughput.sample(), start + Duration::from_millis(at_ms));
        assert_eq!(rate(0), FIRST_RATE);
        assert_eq!(rate(600), FIRST_RATE, "nothing was measured");
        throughput.note(100, Duration::from_millis(100));
        assert_eq!(rate(700), FIRST_RATE, "not yet");
        assert_eq!(rate(1_200), 500.0, "half of 1,000 a second");
        throughput.note(0, Duration::from_secs(2));
        assert_eq!(rate(1_800), 250.0, "a stall");
        for round in 0u32..20 {
            throughput.note(0, Duration::from_secs(2));
            rate(2_400 + 600 * u64::from(round));
        }
        assert_eq!(rate(60_000), SLOWEST);
        throughput.note(1_000, Duration::from_millis(100));
        assert!(rate(61_000) > 1_000.0);
    }
}
