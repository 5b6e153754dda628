//! `token-lock`: SET NX PX with a value that only its maker knows.

use crate::prelude::*;
use locks::TokenLock;

pub type Node = TokenLock;

pub async fn open(bench: &Bench) -> Result<Node> {
    Ok(TokenLock::new(bench.line.clone(), bench.millis("lease_ms")))
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW nothing tells the holder when the lease is over: it writes beside the next one
        //= FLAW a buyer who waits in vain for the lock leaves, although there is stock
        bench.under_lock(self, async |_| naive_sale(bench, buyer).await).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "token-lock",
    demonstrations: &[
        show("paused", Oversells, ONE_UNIT.options(PAUSED)).at(1),
        show("told-too-late", Notes(GONE), ONE_UNIT.options(PAUSED)).at(1),
        show("double-click", Duplicates, DOUBLE_CLICK.options(PAUSED)).at(1),
        show("impatient", Undersells, IMPATIENT).at(2),
    ],
    locks: &["token-lock"],
    ..LOCK_STRATEGY
};

const GONE: &str = "the lock was gone before it was released";
