//! `setnx-getset`: the value says when the lock ends, and GETSET decides who takes an ended one.

use crate::prelude::*;
use locks::{SetnxGetset, wire::Clock};

pub type Node = SetnxGetset;

pub async fn open(bench: &Bench) -> Result<Node> {
    let clock = Clock::default();
    clock.set_offset_ms(bench.whole("clock_skew_ms") * i64::from(bench.node));
    Ok(SetnxGetset::new(bench.line.clone(), bench.millis("lease_ms"), clock))
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW each node judges by its own clock whether the lock has ended
        //= FLAW the write never asks whether the lock is still held: the lease may be over
        //= FLAW a buyer who waits in vain for the lock leaves, although there is stock
        bench.under_lock(self, async |_| naive_sale(bench, buyer).await).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "setnx-getset",
    options: &[LEASE_MS, WAIT_MS, whole("clock_skew_ms", (0, 0, 60_000))],
    demonstrations: &[
        // Enough units that the fast clock does not sell them all; no lease ends by the true time.
        show("clock-skew", Oversells, SMALL.nodes(3).stock(8).buyers(32).options(SKEWED)).at(4),
        show("paused", Oversells, ONE_UNIT.options(PAUSED)).at(2),
        show("double-click", Duplicates, DOUBLE_CLICK.options(PAUSED)).at(2),
        show("impatient", Undersells, IMPATIENT).at(3),
    ],
    locks: &["setnx-getset"],
    ..LOCK_STRATEGY
};

const SKEWED: &[(&str, &str)] =
    &[("clock_skew_ms", "10000"), ("lease_ms", "8000"), ("wait_ms", "20000"), ("work_ms", "200")];
