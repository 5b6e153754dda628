//! `unique-order`: the database refuses a second order of the same buyer.

use crate::prelude::*;

struct Node {
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand })
}

const TAKE: &str = "UPDATE lab.stock SET remaining = remaining - 1
                     WHERE arena = $1 AND item = 'thing' AND remaining > 0";

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let stock_first = stand.choice("order") == "stock-first";
        if stock_first {
            //= FLAW a transaction of its own: a duplicate does not give the unit back
            if stand.sql().await?.run(TAKE, (stand.arena(),)).await? == 0 {
                return Ok(Outcome::SoldOut);
            }
        }
        let sale = stand.in_transaction(async |tx| {
            //= CURE the unique index lets one order of a buyer in, before the stock moves
            let outcome = stand.write_unique_order(tx, buyer).await?;
            stand.crash_point("the order is written").await;

            stand.meet("the order is written").await; // a second click waits at the index
            stand.pause().await;
            stand.work().await;

            let sold = matches!(outcome, Outcome::Sold { .. });
            if sold && !stock_first && tx.run(TAKE, (stand.arena(),)).await? == 0 {
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
        demonstration(
            "stock-first",
            Harm::Undersells,
            CLICK_TWICE.concurrency(1).options(&[("order", "stock-first")]),
        ),
        demonstration("order-first", Harm::Holds, CLICK_TWICE.concurrency(10).nodes(3)),
    ],
    ..Strategy::PLAIN
};

const CLICK_TWICE: Scenario = Scenario::SMALL.buyers(5).duplicates_percent(100);
