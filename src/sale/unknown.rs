//! Looking up sales that this process does not know, without letting strangers' ids do harm.
//!
//! A sale that another instance has just made has to be found at once, so an id that is not on the
//! board is asked of Postgres. Anybody can make up ids, and asking is free. Two bounds keep that cheap:
//! few look-ups run at a time, so that they never hold the connections that orders are written and
//! paid with; and an id that was just found missing stays missing for a moment.
//!
//! A crash loses nothing: what was missing is asked again.

use crate::domain::SaleId;
use dashmap::DashMap;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Of the pool's connections (16 by default) these may be busy with unknown ids.
const AT_ONCE: usize = 2;
/// How long "no such sale" is believed. Somebody who keeps asking for the next id delays that sale by
/// this much at this instance, or until it hears the announcement, which comes first as a rule.
const BELIEVED: Duration = Duration::from_millis(250);
/// When this many are remembered, what is not believed any more is swept out.
const SWEEP_AT: usize = 4_096;

pub struct UnknownSales {
    places: Semaphore,
    missing: DashMap<SaleId, Instant>,
}

impl UnknownSales {
    pub fn new() -> Self {
        Self {
            places: Semaphore::new(AT_ONCE),
            missing: DashMap::new(),
        }
    }

    /// Waits for leave to ask Postgres about an id; held while asking.
    pub async fn turn(&self) -> SemaphorePermit<'_> {
        let turn = self.places.acquire().await;
        turn.expect("the semaphore is never closed")
    }

    /// Whether it was found missing a moment ago.
    pub fn is_missing(&self, id: SaleId) -> bool {
        let found = self.missing.get(&id).map(|at| at.elapsed());
        found.is_some_and(|age| age < BELIEVED)
    }

    pub fn found_missing(&self, id: SaleId) {
        if self.missing.len() >= SWEEP_AT {
            self.missing.retain(|_, at| at.elapsed() < BELIEVED);
        }
        // Still full: so many look-ups in so short a time that forgetting costs less than keeping.
        if self.missing.len() >= SWEEP_AT {
            self.missing.clear();
        }
        self.missing.insert(id, Instant::now());
    }
}

impl Default for UnknownSales {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_sale_is_missing_for_a_moment() {
        let (unknown, id) = (UnknownSales::new(), SaleId::from_i64(7));
        assert!(!unknown.is_missing(id));
        unknown.found_missing(id);
        assert!(unknown.is_missing(id));
        std::thread::sleep(BELIEVED);
        assert!(!unknown.is_missing(id));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let unknown = UnknownSales::new();
        for number in 1..=10_000 {
            unknown.found_missing(SaleId::from_i64(number));
        }
        assert!(unknown.missing.len() <= SWEEP_AT);
        assert!(unknown.is_missing(SaleId::from_i64(10_000)));
    }

    #[tokio::test]
    async fn few_ask_at_a_time() {
        let unknown = UnknownSales::new();
        let first = unknown.turn().await;
        let _second = unknown.turn().await;
        assert!(unknown.places.try_acquire().is_err());
        drop(first);
        assert!(unknown.places.try_acquire().is_ok());
    }
}
