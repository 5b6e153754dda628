//! `setnx-getset`: the value says when the lock ends, and GETSET decides who takes an ended one.

use crate::prelude::*;
use locks::{SetnxGetset, wire::Clock};

pub struct Node {
    lock: SetnxGetset,
}

pub async fn open(stand: &Stand) -> Result<Node, Trouble> {
    let clock = Clock::default();
    clock.set_offset_ms(stand.whole("clock_skew_ms") * i64::from(stand.node));
    Ok(Node { lock: SetnxGetset::new(stand.line.clone(), stand.millis("lease_ms"), clock) })
}

impl Sell for Node {
    async fn buy(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        //= FLAW each node judges by its own clock whether the lock has ended
        stand.under_lock(&self.lock, async |_| naive_sale(stand, buyer).await).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "setnx-getset",
    options: &[LEASE_MS, WAIT_MS, whole("clock_skew_ms", (0, 0, 60_000))],
    demonstrations: &[
        // Enough units that the fast clock does not sell them all; no lease ends by the true time.
        show("clock-skew", Oversells, SMALL.nodes(3).stock(8).buyers(32).options(SKEWED)),
        show("paused", Oversells, ONE_UNIT.options(PAUSED)),
        show("double-click", Duplicates, DOUBLE_CLICK.options(PAUSED)),
        show("impatient", Undersells, IMPATIENT),
    ],
    locks: &["setnx-getset"],
    ..LOCK_STRATEGY
};

const SKEWED: &[(&str, &str)] =
    &[("clock_skew_ms", "10000"), ("lease_ms", "8000"), ("wait_ms", "20000"), ("work_ms", "200")];
