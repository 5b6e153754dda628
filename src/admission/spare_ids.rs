//! Ids that were offered and not used.

use crate::domain::OrderId;
use std::time::{Duration, Instant};

/// Ids that were offered to buyers who were refused. Reusing them saves numbers (and leases) when a
/// crowd is refused.
#[derive(Default)]
pub(super) struct SpareIds {
    ids: Vec<OrderId>,
    since: Option<Instant>,
}

impl SpareIds {
    /// Keeps the second of an id close to the time of its order.
    const LIFE: Duration = Duration::from_secs(1);

    pub fn take(&mut self, count: usize) -> Vec<OrderId> {
        if self.since.is_none_or(|since| since.elapsed() > Self::LIFE) {
            self.ids.clear();
        }
        let left = self.ids.len().saturating_sub(count);
        self.ids.split_off(left)
    }

    pub fn give_back(&mut self, unused: impl Iterator<Item = OrderId>) {
        if self.ids.is_empty() {
            self.since = Some(Instant::now());
        }
        self.ids.extend(unused);
    }
}
