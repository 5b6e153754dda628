//! `unique-order`: the database refuses a second order of the same buyer.

use crate::prelude::*;

pub struct Node;

pub async fn open(_: &Stand) -> Result<Node, Trouble> {
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stock_first = stand.choice("order") == "stock-first";
        if stock_first {
            //= FLAW a transaction of its own: a duplicate does not give the unit back
            if !stand.take_one(&mut stand.sql().await?).await? {
                return Ok(Outcome::SoldOut);
            }
        }
        let sale = stand.in_transaction(async |tx| {
            //= CURE the unique index lets one order of a buyer in, before the stock moves
            let outcome = stand.write_unique_order(tx, buyer).await?;
            stand.crash_point("the order is written").await;

            stand.interleave("the order is written").await; // a second click waits at the index

            let sold = matches!(outcome, Outcome::Sold { .. });
            if sold && !stock_first && !stand.take_one(tx).await? {
                return Ok(Outcome::SoldOut); // rolled back, and the order with it
            }
            Ok(outcome)
        });
        let outcome = sale.await;
        stand.crash_point("committed").await;
        outcome
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "unique-order",
    family: Family::Database,
    promise: Promise::everywhere(Harms::UNSOLD),
    options: &[choice("order", &["order-first", "stock-first"])],
    crash_points: &["the order is written", "committed"],
    demonstrations: &[
        show(
            "stock-first",
            Undersells,
            CLICK_TWICE.concurrency(1).options(&[("order", "stock-first")]),
        ),
        show("order-first", Holds, CLICK_TWICE.concurrency(10).nodes(3)),
    ],
    ..Strategy::PLAIN
};

const CLICK_TWICE: Scenario = SMALL.buyers(5).double_clicks();
