//! `token-lock`: SET NX PX with a value that only its maker knows.

use crate::prelude::*;
use locks::TokenLock;

pub struct Node {
    lock: TokenLock,
}

pub async fn open(stand: &Stand) -> Result<Node, Trouble> {
    Ok(Node { lock: TokenLock::new(stand.line.clone(), stand.millis("lease_ms")) })
}

impl Sell for Node {
    async fn buy(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        //= FLAW nothing tells the holder when the lease is over: it writes beside the next one
        stand.under_lock(&self.lock, async |_| naive_sale(stand, buyer).await).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "token-lock",
    demonstrations: &[
        show("paused", Oversells, ONE_UNIT.options(PAUSED)),
        show(
            "told-too-late",
            Notes("the lock was gone before it was released"),
            ONE_UNIT.options(PAUSED),
        ),
        show("double-click", Duplicates, DOUBLE_CLICK.options(PAUSED)),
        show("impatient", Undersells, IMPATIENT),
    ],
    locks: &["token-lock"],
    ..LOCK_STRATEGY
};
