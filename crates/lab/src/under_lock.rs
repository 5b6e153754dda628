//! A sale under a lock.

use crate::bench::Bench;
use crate::selling::{Outcome, Result, Trying};
use futures_util::TryFutureExt;
use locks::{Held, Lock, Protocol, Released};
use std::{panic::Location, time::Duration};

/// Longer than a purchase may take: without `wait_ms` no buyer is told "contended".
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Bench {
    /// Sells under a lock. Waits for it `wait_ms`, or, if the strategy has no such option, for as
    /// long as a purchase may take.
    #[track_caller]
    pub fn under_lock<L: Lock>(
        &self,
        lock: &L,
        sell: impl AsyncFnOnce(&Held<L>) -> Result<Outcome>,
    ) -> impl Trying<Outcome> {
        self.passed(Location::caller());
        let wait = self.options().millis_or("wait_ms", LONGEST_WAIT);
        async move {
            let Some(guard) = lock.acquire(&self.key("lock"), wait).await?.held() else {
                return Ok(Outcome::Contended);
            };
            // A Redis that is to forget the lock does so now.
            let outcome = self.lose_redis().and_then(|()| sell(&guard)).await;
            // A crash here leaves a lease to run out; ZooKeeper's guard removes its node.
            self.crash_point("committed").await;
            self.release(guard).await;
            outcome
        }
    }

    /// Releases a lock, and notes if it was lost before. A sale under it stays a sale.
    async fn release(&self, guard: Held<impl Protocol>) {
        match guard.release().await {
            Ok(Released::NotHeld) => self.note("the lock was gone before it was released"),
            Ok(Released::Freed | Released::StillHeld { .. }) => {}
            Err(error) => {
                tracing::debug!(%error, "a lock could not be released");
                self.note("the lock could not be released");
            }
        }
    }
}
