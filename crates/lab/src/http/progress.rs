//! How a storm goes, in the same members wherever it does: a lane of the race shows them.

use crate::{arena::Arena, judgement::Judgement, tally::Counts, verdict::Percentiles};
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// How often a stream of events tells it.
pub const PACE: Duration = Duration::from_millis(200);

/// How a storm goes, as this process sees it.
#[derive(Serialize, ToSchema)]
pub struct Progress {
    pub attempts: u64,
    /// How many attempts the storm makes; 0 without a storm.
    pub of: u64,
    /// Buyers who were told so.
    pub sold: u64,
    pub oversold: u64,
    /// Orders that were told of beyond what a buyer may have.
    pub duplicates: u64,
    pub contended: u64,
    pub failed: u64,
    pub throughput_per_s: f64,
    pub latency_ms: Percentiles,
    pub elapsed_ms: u64,
}

impl Progress {
    pub fn of(arena: &Arena) -> Self {
        let definition = arena.definition();
        let limit = u64::from(definition.per_user_limit.unsigned_abs());
        let stock = u64::from(definition.stock.unsigned_abs());
        let beyond = arena.tally.told_beyond(limit);
        Self::from(&arena.counts(), arena.storm.of(), stock, beyond)
    }

    /// Buyers who ask again add to the planned attempts.
    pub fn of_judgement(judgement: &Judgement) -> Self {
        let live = judgement.live.lock();
        let of = live.planned.max(live.counts.attempts);
        Self::from(&live.counts, of, judgement.stock, live.beyond)
    }

    fn from(counts: &Counts, of: u64, stock: u64, duplicates: u64) -> Self {
        Self {
            attempts: counts.attempts,
            of,
            sold: counts.sold,
            oversold: counts.sold.saturating_sub(stock),
            duplicates,
            contended: counts.contended,
            failed: counts.failed,
            throughput_per_s: counts.throughput_per_s(),
            latency_ms: Percentiles::from(&counts.latencies()),
            elapsed_ms: u64::try_from(counts.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}
