//! `set-px-no-owner`: SET NX PX with the same value for everybody, and a plain DEL.

use crate::prelude::*;
use locks::SetPxNoOwner;

pub struct Node {
    lock: SetPxNoOwner,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    Ok(Node { lock: SetPxNoOwner::new(bench.line.clone(), bench.millis("lease_ms")) })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW at its end this deletes the lock, even if it is the next holder's by then
        bench.under_lock(&self.lock, async |_| naive_sale(bench, buyer).await).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "set-px-no-owner",
    demonstrations: &[
        show("paused", Oversells, ONE_UNIT.options(PAUSED)),
        show("slow-work", Oversells, SMALL.options(&[("lease_ms", "50"), ("work_ms", "120")])),
        show("double-click", Duplicates, DOUBLE_CLICK.options(PAUSED)),
        show("impatient", Undersells, IMPATIENT),
    ],
    locks: &["set-px-no-owner"],
    ..LOCK_STRATEGY
};
