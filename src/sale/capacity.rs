//! How many purchases this process can have judged in a second, measured at the gates: buyers answered over the
//! time that their batches took. Batches grow when more people come, so a quiet shop measures less than it could
//! do; whoever lets people in by this figure sees it rise as they come.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Buyers answered by all gates, and the time their batches took.
#[derive(Debug, Default)]
pub struct Capacity {
    answered: AtomicU64,
    busy_us: AtomicU64,
}

/// The two at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading {
    answered: u64,
    busy_us: u64,
}

impl Capacity {
    /// A batch took this long, and so many of its buyers got a verdict.
    pub fn note(&self, answered: usize, busy: Duration) {
        self.answered.fetch_add(answered as u64, Relaxed);
        let busy_us = u64::try_from(busy.as_micros()).unwrap_or(u64::MAX);
        self.busy_us.fetch_add(busy_us, Relaxed);
    }

    pub fn reading(&self) -> Reading {
        Reading {
            answered: self.answered.load(Relaxed),
            busy_us: self.busy_us.load(Relaxed),
        }
    }
}

impl Reading {
    /// Purchases a second between an earlier reading and this one; `None`: no gate was busy.
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
        let capacity = Capacity::default();
        let start = capacity.reading();
        assert_eq!(start.since(&Reading::default()), None);
        capacity.note(500, Duration::from_millis(5));
        let fast = capacity.reading();
        assert_eq!(fast.since(&start), Some(100_000.0));
        capacity.note(0, Duration::from_secs(2));
        assert_eq!(capacity.reading().since(&fast), Some(0.0));
    }
}
