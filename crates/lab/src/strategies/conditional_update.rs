//! `conditional-update`: check and write in one statement.

use crate::prelude::*;

pub struct Node;

pub async fn open(_: &Bench) -> Result<Node> {
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let sale = bench.in_transaction(async |tx| {
            const TAKE: &str = "UPDATE lab.stock SET remaining = remaining - 1
                                 WHERE arena = $1 AND item = 'thing' AND remaining > 0";
            //= CURE checks and writes in one step: nobody can come in between
            if tx.run(TAKE, (bench.arena(),)).await? == 0 {
                return Ok(Outcome::SoldOut);
            }
            bench.crash_point("the stock is written").await;

            bench.interleave("the stock is taken").await; // nobody else takes one before the commit

            //= CURE asked after the update: the row is locked, so no other click is under way
            if bench.has_bought(tx, buyer).await? {
                return Ok(Outcome::Duplicate); // rolled back, and the unit with it
            }
            bench.write_order(tx, buyer).await
        });
        let outcome = sale.await;
        bench.crash_point("committed").await;
        outcome
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "conditional-update",
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        show("three-servers", Holds, SMALL.nodes(3)).at(1),
        show("double-click", Holds, DOUBLE_CLICK.nodes(2)).at(2),
    ],
    ..DATABASE_STRATEGY
};
