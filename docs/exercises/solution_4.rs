//! `my-idea`: a unique index refuses the second order, before the stock is touched.

use crate::prelude::*;

pub struct Node;

pub async fn open(_: &Bench) -> Result<Node> {
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let sale = bench.in_transaction(async |tx| {
            let outcome = bench.write_unique_order(tx, buyer).await?;
            if outcome == Outcome::Duplicate {
                return Ok(outcome);
            }
            bench.crash_point("the order is written").await;
            bench.interleave("the order is written").await;

            if !bench.take_one(tx).await? {
                return Ok(Outcome::SoldOut); // rolled back, and the order with it
            }
            Ok(outcome)
        });
        sale.await
    }
}

pub const STRATEGY: Strategy =
    Strategy { id: "my-idea", crash_points: &["the order is written"], ..Strategy::PLAIN };
