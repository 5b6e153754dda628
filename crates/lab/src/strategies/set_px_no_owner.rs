//! `set-px-no-owner`: SET NX PX with the same value for everybody, and a plain DEL.

use crate::prelude::*;
use locks::SetPxNoOwner;

pub type Node = SetPxNoOwner;

pub async fn open(bench: &Bench) -> Result<Node> {
    Ok(SetPxNoOwner::new(bench.line.clone(), bench.millis("lease_ms")))
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW at its end this deletes the lock, even if it is the next holder's by then
        //= FLAW the write never asks whether the lock is still held: the lease may be over
        //= FLAW a buyer who waits in vain for the lock leaves, although there is stock
        bench.under_lock(self, async |_| naive_sale(bench, buyer).await).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "set-px-no-owner",
    demonstrations: &[
        show("paused", Oversells, ONE_UNIT.options(PAUSED)).at(2),
        show("slow-work", Oversells, SMALL.options(SLOW)).at(2),
        show("double-click", Duplicates, DOUBLE_CLICK.options(PAUSED)).at(2),
        show("impatient", Undersells, IMPATIENT).at(3),
    ],
    locks: &["set-px-no-owner"],
    ..LOCK_STRATEGY
};

const SLOW: &[(&str, &str)] = &[("lease_ms", "50"), ("work_ms", "120")];
