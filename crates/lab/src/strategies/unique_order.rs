//! `unique-order`: the database refuses a second order of the same buyer.

use crate::prelude::*;

pub struct Node;

pub async fn open(_: &Bench) -> Result<Node> {
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let stock_first = bench.choice("order") == "stock-first";
        if stock_first {
            //= FLAW a transaction of its own: a duplicate does not give the unit back
            if !bench.take_one(&mut bench.sql().await?).await? {
                return Ok(Outcome::SoldOut);
            }
        }
        let sale = bench.in_transaction(async |tx| {
            //= CURE the unique index lets one order of a buyer in, before the stock moves
            let outcome = bench.write_unique_order(tx, buyer).await?;
            bench.crash_point("the order is written").await;

            bench.interleave("the order is written").await; // a second click waits at the index

            let sold = matches!(outcome, Outcome::Sold { .. });
            if sold && !stock_first && !bench.take_one(tx).await? {
                return Ok(Outcome::SoldOut); // rolled back, and the order with it
            }
            Ok(outcome)
        });
        let outcome = sale.await;
        bench.crash_point("committed").await;
        outcome
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "unique-order",
    promise: Promise::everywhere(Harms::UNSOLD),
    options: &[choice("order", &["order-first", "stock-first"])],
    crash_points: &["the order is written", "committed"],
    demonstrations: &[
        show("stock-first", Undersells, CLICK_TWICE.concurrency(1).options(STOCK_FIRST)).at(1),
        show("order-first", Holds, CLICK_TWICE.concurrency(10).nodes(3)).at(2),
    ],
    ..DATABASE_STRATEGY
};

const STOCK_FIRST: &[(&str, &str)] = &[("order", "stock-first")];
const CLICK_TWICE: Scenario = SMALL.buyers(5).double_clicks();
