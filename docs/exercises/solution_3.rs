//! `my-idea`: unit and order in one transaction.

use crate::prelude::*;

pub struct Node;

pub async fn open(_: &Stand) -> Result<Node, Trouble> {
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let sale = stand.in_transaction(async |tx| {
            if !stand.take_one(tx).await? {
                return Ok(Outcome::SoldOut);
            }
            stand.crash_point("the stock is written").await;
            stand.interleave("the stock is written").await;

            // The row of the stock is locked since the update: nobody else is buying.
            if stand.has_bought(tx, buyer).await? {
                return Ok(Outcome::Duplicate); // rolled back, and the unit with it
            }
            stand.write_order(tx, buyer).await
        });
        sale.await
    }
}

pub const STRATEGY: Strategy =
    Strategy { id: "my-idea", crash_points: &["the stock is written"], ..Strategy::PLAIN };
