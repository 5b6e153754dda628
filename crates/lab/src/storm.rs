//! The server's own load: so many buyers, so many at once, some of whom click twice.

use crate::{LabError, arena::Arena, limits::Share, selling::Buyer};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tokio::task::JoinSet;
use utoipa::ToSchema;

pub const MOST_BUYERS: u32 = 100_000;
pub const MOST_AT_ONCE: u32 = 1_000;

const _: () = assert!(MOST_BUYERS == 100_000 && MOST_AT_ONCE == 1_000);

#[derive(Debug, Clone, Copy, PartialEq, Args, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = StartStorm)]
pub struct Storm {
    /// How many people want one
    #[arg(long, value_name = "B", default_value_t = 1_000)]
    #[schema(minimum = 1, maximum = 100_000)]
    pub buyers: u32,
    /// How many of them at a time
    #[arg(long, value_name = "C", default_value_t = 100)]
    #[schema(minimum = 1, maximum = 1_000)]
    pub concurrency: u32,
    /// Of all buyers, how many click twice: 0 to 1 [default: 0]
    #[arg(long, value_name = "SHARE")]
    #[schema(minimum = 0, maximum = 1)]
    pub duplicate_share: Option<f64>,
}

/// Marks the storm as over, however its task ends.
struct Running {
    arena: Arc<Arena>,
    _share: Option<Share>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.arena.storm.end();
    }
}

impl Storm {
    /// Why it may not be.
    pub fn check(&self) -> Result<(), LabError> {
        let invalid = |field, why| Err(LabError::Invalid { field, why });
        if !(1..=MOST_BUYERS).contains(&self.buyers) {
            return invalid("buyers", format!("must be from 1 to {MOST_BUYERS}"));
        }
        if !(1..=MOST_AT_ONCE).contains(&self.concurrency) {
            return invalid("concurrency", format!("must be from 1 to {MOST_AT_ONCE}"));
        }
        if !(0.0..=1.0).contains(&self.duplicate_share()) {
            return invalid("duplicate_share", "must be from 0 to 1".to_owned());
        }
        Ok(())
    }

    fn duplicate_share(&self) -> f64 {
        self.duplicate_share.unwrap_or(0.0)
    }

    /// Who attempts, in order: a second click follows the first at once.
    fn attempts(&self) -> Vec<u32> {
        let mut attempts = Vec::with_capacity(self.buyers as usize);
        let mut owed = 0.0;
        for buyer in 0..self.buyers {
            attempts.push(buyer);
            owed += self.duplicate_share();
            if owed >= 1.0 - 1e-9 {
                owed -= 1.0;
                attempts.push(buyer);
            }
        }
        attempts
    }

    /// Starts it in the background; one at a time in each arena.
    pub fn start(self, arena: &Arc<Arena>, share: Option<Share>) -> Result<(), LabError> {
        self.check()?;
        let attempts = Arc::new(self.attempts());
        let stop = arena.storm.begin(attempts.len()).ok_or(LabError::StormIsRunning)?;
        let running = Running { arena: arena.clone(), _share: share };
        tokio::spawn(async move {
            let arena = &running.arena;
            let next = Arc::new(AtomicU64::new(0));
            let mut workers = JoinSet::new();
            let storm = async {
                // A server of a real sale runs before the sale opens: starting it is not measured.
                arena.open_nodes().await;
                for _ in 0..self.concurrency.min(attempts.len() as u32) {
                    workers.spawn(buy(arena.clone(), attempts.clone(), next.clone()));
                }
                while workers.join_next().await.is_some() {}
            };
            tokio::select! {
                () = storm => {}
                () = stop.cancelled() => {}
            }
            workers.shutdown().await;
            drop(running);
        });
        Ok(())
    }
}

/// One after the other, as long as there are attempts.
async fn buy(arena: Arc<Arena>, attempts: Arc<Vec<u32>>, next: Arc<AtomicU64>) {
    loop {
        let attempt = next.fetch_add(1, Relaxed);
        let Some(buyer) = attempts.get(attempt as usize) else {
            return;
        };
        let buyer = Buyer { name: format!("buyer-{buyer}") };
        // One node after the other, as a load balancer does: two clicks of one buyer reach
        // different nodes.
        arena.purchase(&buyer, Some((attempt % 1_024) as u32)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_clicks_follow_the_first() {
        let storm = |buyers, share| Storm { buyers, concurrency: 1, duplicate_share: Some(share) };
        assert_eq!(storm(3, 0.0).attempts(), [0, 1, 2]);
        assert_eq!(storm(2, 1.0).attempts(), [0, 0, 1, 1]);
        assert_eq!(storm(4, 0.5).attempts(), [0, 1, 1, 2, 3, 3]);
        assert_eq!(storm(100, 0.2).attempts().len(), 120);
    }

    #[test]
    fn a_storm_has_its_bounds() {
        for (buyers, concurrency, duplicate_share) in [
            (0, 1, 0.0),
            (MOST_BUYERS + 1, 1, 0.0),
            (1, 0, 0.0),
            (1, MOST_AT_ONCE + 1, 0.0),
            (1, 1, -0.1),
            (1, 1, 1.1),
            (1, 1, f64::NAN),
        ] {
            let duplicate_share = Some(duplicate_share);
            assert!(Storm { buyers, concurrency, duplicate_share }.check().is_err());
        }
        let storm = Storm { buyers: 1, concurrency: 1, duplicate_share: Some(1.0) };
        assert!(storm.check().is_ok());
    }
}
