//! `my-idea`: a unique index refuses the second order, before the stock is touched.

use crate::prelude::*;

pub struct Node;

pub async fn open(_: &Stand) -> Result<Node, Trouble> {
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let sale = stand.in_transaction(async |tx| {
            let outcome = stand.write_unique_order(tx, buyer).await?;
            if outcome == Outcome::Duplicate {
                return Ok(outcome);
            }
            stand.crash_point("the order is written").await;
            stand.interleave("the order is written").await;

            if !stand.take_one(tx).await? {
                return Ok(Outcome::SoldOut); // rolled back, and the order with it
            }
            Ok(outcome)
        });
        sale.await
    }
}

pub const STRATEGY: Strategy =
    Strategy { id: "my-idea", crash_points: &["the order is written"], ..Strategy::PLAIN };
