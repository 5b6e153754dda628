//! `my-idea`: unit and order in one transaction.

use crate::prelude::*;

pub struct Node;

pub async fn open(_: &Bench) -> Result<Node> {
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let sale = bench.in_transaction(async |tx| {
            if !bench.take_one(tx).await? {
                return Ok(Outcome::SoldOut);
            }
            bench.crash_point("the stock is written").await;
            bench.interleave("the stock is written").await;

            // The row of the stock is locked since the update: nobody else is buying.
            if bench.has_bought(tx, buyer).await? {
                return Ok(Outcome::Duplicate); // rolled back, and the unit with it
            }
            bench.write_order(tx, buyer).await
        });
        sale.await
    }
}

pub const STRATEGY: Strategy =
    Strategy { id: "my-idea", crash_points: &["the stock is written"], ..Strategy::PLAIN };
