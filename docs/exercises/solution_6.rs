//! `my-idea`: a lock keeps the crowd away, and the database decides all the same.

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
        let under_lock = stand.under_lock(&self.lock, async |_| {
            stand.interleave("the lock is held").await; // the lease may be over after this
            let sale = stand.in_transaction(async |tx| {
                if !stand.take_one(tx).await? {
                    return Ok(Outcome::SoldOut);
                }
                stand.crash_point("the stock is written").await;
                if stand.has_bought(tx, buyer).await? {
                    return Ok(Outcome::Duplicate);
                }
                stand.write_order(tx, buyer).await
            });
            sale.await
        });
        under_lock.await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "my-idea",
    options: &[LEASE_MS],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[show("paused", Holds, SMALL.options(PAUSED))],
    ..Strategy::PLAIN
};
