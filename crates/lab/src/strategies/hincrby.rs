//! `hincrby`: the stock is a hash field, and Redis counts it down.

use crate::prelude::*;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

pub struct Node {
    sale: String,
    failing: AtomicI64,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    let (sale, failing) = (bench.key("sale"), AtomicI64::new(bench.whole("failing_orders")));
    let _: bool = bench.redis("HSETNX", (&sale, "stock", bench.stock())).await?;
    Ok(Node { sale, failing })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= CURE subtract and look at the result, in one step: every buyer sees another number
        let left: i64 = bench.redis("HINCRBY", (&self.sale, "stock", -1)).await?;
        if left < 0 {
            bench.note("the counter went below zero");
            //= FLAW the counter stays below zero, where a unit that is given back is lost
            return Ok(Outcome::SoldOut);
        }
        bench.crash_point("the unit is taken").await;

        if self.failing.fetch_sub(1, Relaxed) > 0 {
            bench.pause().await; // the payment takes its time
            let _: i64 = bench.redis("HINCRBY", (&self.sale, "stock", 1)).await?;
            return Err(PurchaseError::from("this order was to fail"));
        }
        bench.interleaving_point("the unit is taken").await;
        bench.work().await;

        //= FLAW the counter knows numbers, not people: a second click is a second order
        bench.write_order(&mut bench.sql().await?, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "hincrby",
    promise: Promise::everywhere(Harms { oversells: Never, ..Harms::POSSIBLE }),
    options: &[whole("failing_orders", (0, 0, 100))],
    demonstrations: &[
        show("below-zero", Notes("the counter went below zero"), SMALL).at(2),
        show("refund", Undersells, SMALL.options(REFUND)).at(2),
        show("double-click", Duplicates, DOUBLE_CLICK).at(3),
    ],
    ..COUNTER_STRATEGY
};

const REFUND: &[(&str, &str)] = &[("failing_orders", "1"), ("pause_ms", "500")];
