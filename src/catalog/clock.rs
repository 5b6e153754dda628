//! An estimate of Redis' clock.

use crate::domain::{from_unix_ms, unix_ms};
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::time::Instant;
use time::OffsetDateTime;

/// Redis' clock, estimated from its last reading and the monotonic clock. Steps of this machine's
/// wall clock do not matter.
pub struct RedisClock {
    reading: ArcSwap<Reading>,
}

struct Reading {
    ms: i64,
    /// The clock was read between these two.
    asked: Instant,
    answered: Instant,
}

impl Reading {
    fn latest_ms(&self) -> i64 {
        self.ms.saturating_add(elapsed_ms(self.asked)).saturating_add(1)
    }
}

impl Default for RedisClock {
    fn default() -> Self {
        // Until Redis answers, the wall clock is the best estimate.
        let now = Instant::now();
        let ms = unix_ms(OffsetDateTime::now_utc());
        Self { reading: ArcSwap::from_pointee(Reading { ms, asked: now, answered: now }) }
    }
}

impl RedisClock {
    /// Notes that Redis' clock read `ms` between `asked` and now.
    ///
    /// Of two consistent readings the later estimate stays, so that a delayed answer does not turn
    /// time back; an inconsistent one means that Redis' clock was set.
    pub fn read(&self, ms: i64, asked: Instant) {
        let new = Reading { ms, asked, answered: Instant::now() };
        let known = self.earliest_ms();
        let was_set_back = new.latest_ms() < known;
        if ms >= known || was_set_back {
            self.reading.store(Arc::new(new));
        }
    }

    /// The latest that Redis' clock can show now, Unix ms.
    pub fn latest_ms(&self) -> i64 {
        self.reading.load().latest_ms()
    }

    /// The earliest that Redis' clock can show now, Unix ms.
    pub fn earliest_ms(&self) -> i64 {
        let reading = self.reading.load();
        reading.ms.saturating_add(elapsed_ms(reading.answered))
    }

    pub fn now(&self) -> OffsetDateTime {
        from_unix_ms(self.earliest_ms())
    }
}

pub(super) fn elapsed_ms(since: Instant) -> i64 {
    i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_clock_can_be_read(readings in prop::collection::vec(any::<i64>(), 1..5)) {
            let clock = RedisClock::default();
            for ms in readings {
                clock.read(ms, Instant::now());
                prop_assert!(clock.earliest_ms() <= clock.latest_ms());
                clock.now();
            }
        }
    }
}
