//! `my-idea`: a lock keeps the crowd away, and the database decides all the same.

use crate::prelude::*;
use locks::TokenLock;

pub struct Node {
    lock: TokenLock,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    Ok(Node { lock: TokenLock::new(bench.line.clone(), bench.millis("lease_ms")) })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let under_lock = bench.under_lock(&self.lock, async |_| {
            bench.interleave("the lock is held").await; // the lease may be over after this
            let sale = bench.in_transaction(async |tx| {
                if !bench.take_one(tx).await? {
                    return Ok(Outcome::SoldOut);
                }
                bench.crash_point("the stock is written").await;
                if bench.has_bought(tx, buyer).await? {
                    return Ok(Outcome::Duplicate);
                }
                bench.write_order(tx, buyer).await
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
