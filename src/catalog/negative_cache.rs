//! Bounds the look-ups of sales that are not cached.
//!
//! Another instance may just have created a sale, so an unknown id is looked up in Postgres at
//! once. Clients can make up ids for free; so few look-ups run at a time, which leaves connections
//! for orders and payments, and an id that was missing stays missing for a moment.
//!
//! A crash loses nothing but these entries.

use crate::domain::SaleId;
use dashmap::DashMap;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Connections, of 16 by default, that may be busy with unknown ids.
const AT_ONCE: usize = 2;
/// How long "no such sale" is cached. Requests for a future id delay that sale here by this much at
/// most; its announcement usually comes first.
const LIFE: Duration = Duration::from_millis(250);
/// Expired entries are removed beyond this many.
const SWEEP_AT: usize = 4_096;

pub struct NegativeCache {
    places: Semaphore,
    missing: DashMap<SaleId, Instant>,
}

impl Default for NegativeCache {
    fn default() -> Self {
        Self { places: Semaphore::new(AT_ONCE), missing: DashMap::new() }
    }
}

impl NegativeCache {
    /// Waits for a permit to ask Postgres.
    pub async fn turn(&self) -> SemaphorePermit<'_> {
        let turn = self.places.acquire().await;
        turn.expect("the semaphore is never closed")
    }

    /// Whether it was found missing a moment ago.
    pub fn is_missing(&self, id: SaleId) -> bool {
        let found = self.missing.get(&id).map(|at| at.elapsed());
        found.is_some_and(|age| age < LIFE)
    }

    pub fn found_missing(&self, id: SaleId) {
        if self.missing.len() >= SWEEP_AT {
            self.missing.retain(|_, at| at.elapsed() < LIFE);
        }
        // Still full: clearing costs less than keeping.
        if self.missing.len() >= SWEEP_AT {
            self.missing.clear();
        }
        self.missing.insert(id, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_sale_is_missing_for_a_moment() {
        let (unknown, id) = (NegativeCache::default(), SaleId::from_i64(7));
        assert!(!unknown.is_missing(id));
        unknown.found_missing(id);
        assert!(unknown.is_missing(id));
        std::thread::sleep(LIFE);
        assert!(!unknown.is_missing(id));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let unknown = NegativeCache::default();
        for number in 1..=10_000 {
            unknown.found_missing(SaleId::from_i64(number));
        }
        assert!(unknown.missing.len() <= SWEEP_AT);
        assert!(unknown.is_missing(SaleId::from_i64(10_000)));
    }

    #[tokio::test]
    async fn few_ask_at_a_time() {
        let unknown = NegativeCache::default();
        let first = unknown.turn().await;
        let _second = unknown.turn().await;
        assert!(unknown.places.try_acquire().is_err());
        drop(first);
        assert!(unknown.places.try_acquire().is_ok());
    }
}
