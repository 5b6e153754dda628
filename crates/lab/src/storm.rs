//! The server's own load: so many buyers, so many at once, some of whom click twice.

use crate::error::{LabError, Result, within};
use crate::{arena::Arena, selling::Buyer};
use clap::Args;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use std::{iter::repeat_n, sync::Arc};
use tokio_util::task::AbortOnDropHandle;
use utoipa::ToSchema;
use web::address_limit::Share;

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

impl Storm {
    /// Refuses a storm beyond the limits.
    pub fn check(&self) -> Result {
        within::<u32>("buyers", self.buyers.into(), MOST_BUYERS.into())?;
        within::<u32>("concurrency", self.concurrency.into(), MOST_AT_ONCE.into())?;
        if !(0.0..=1.0).contains(&self.duplicate_share()) {
            return Err(LabError::invalid("duplicate_share", "must be from 0 to 1"));
        }
        Ok(())
    }

    fn duplicate_share(&self) -> f64 {
        self.duplicate_share.unwrap_or(0.0)
    }

    /// The buyers, in the order of their attempts: a second click follows the first at once.
    fn attempts(&self) -> Vec<u32> {
        let second_clicks =
            |buyers: u32| (f64::from(buyers) * self.duplicate_share() + 1e-9) as u32;
        let clicks = |buyer| 1 + second_clicks(buyer + 1) - second_clicks(buyer);
        (0..self.buyers).flat_map(|buyer| repeat_n(buyer, clicks(buyer) as usize)).collect()
    }

    /// Starts it in the background; one at a time in each arena.
    pub fn start(self, arena: &Arc<Arena>, share: Option<Share>) -> Result {
        self.check()?;
        let attempts = self.attempts();
        let (count, arena_of_storm) = (attempts.len(), arena.clone());
        let storm = async move {
            let (arena, _share) = (arena_of_storm, share);
            // A server of a real sale runs before the sale opens: starting it is not measured.
            arena.open_nodes().await;
            // One node after the other, as a load balancer does: two clicks of one buyer reach
            // different nodes.
            let purchases = attempts.into_iter().zip((0..1_024).cycle()).map(|(buyer, node)| {
                let (arena, buyer) = (arena.clone(), Buyer { name: format!("buyer-{buyer}") });
                let buying = async move { arena.purchase(&buyer, Some(node)).await };
                AbortOnDropHandle::new(tokio::spawn(buying))
            });
            let mut purchases = stream::iter(purchases).buffer_unordered(self.concurrency as usize);
            while purchases.next().await.is_some() {}
        };
        let has_begun = arena.storm.begin(count, storm);
        if has_begun { Ok(()) } else { Err(LabError::StormIsRunning) }
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
