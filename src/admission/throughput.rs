//! Purchases that this process can decide in a second, measured at its queues: buyers answered over
//! the time of their batches. Batches grow with the crowd, so a quiet sale measures less than is
//! possible; the figure rises as the waiting room lets people in.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buyers answered by all queues, and the time their batches took.
#[derive(Debug, Default)]
pub struct ThroughputMeter {
    answered: AtomicU64,
    busy_us: AtomicU64,
}

/// Both counters at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThroughputSample {
    answered: u64,
    busy_us: u64,
}

impl ThroughputMeter {
    /// Counts a batch: how many of its buyers got a verdict, and how long it took.
    pub fn note(&self, answered: usize, busy: Duration) {
        self.answered.fetch_add(answered as u64, Relaxed);
        let busy_us = u64::try_from(busy.as_micros()).unwrap_or(u64::MAX);
        self.busy_us.fetch_add(busy_us, Relaxed);
    }

    pub fn sample(&self) -> ThroughputSample {
        ThroughputSample {
            answered: self.answered.load(Relaxed),
            busy_us: self.busy_us.load(Relaxed),
        }
    }
}

impl ThroughputSample {
    /// Purchases a second between an earlier sample and this one; `None`: no queue was busy.
    pub fn since(&self, earlier: &Self) -> Option<f64> {
        let busy_us = self.busy_us.wrapping_sub(earlier.busy_us);
        let answered = self.answered.wrapping_sub(earlier.answered);
        (busy_us > 0).then(|| answered as f64 * 1e6 / busy_us as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_buyers_over_time_and_failures_lower_it() {
        let throughput = ThroughputMeter::default();
        let start = throughput.sample();
        assert_eq!(start.since(&ThroughputSample::default()), None);
        throughput.note(500, Duration::from_millis(5));
        let fast = throughput.sample();
        assert_eq!(fast.since(&start), Some(100_000.0));
        throughput.note(0, Duration::from_secs(2));
        assert_eq!(throughput.sample().since(&fast), Some(0.0));
    }
}
