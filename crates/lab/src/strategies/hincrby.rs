//! `hincrby`: the stock is a hash field, and Redis counts it down.

use crate::prelude::*;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

pub struct Node {
    sale: String,
    failing: AtomicI64,
}

pub async fn open(stand: &Stand) -> Result<Node, Trouble> {
    let (sale, failing) = (stand.key("sale"), AtomicI64::new(stand.whole("failing_orders")));
    let _: bool = stand.redis("HSETNX", (&sale, "stock", stand.stock())).await?;
    Ok(Node { sale, failing })
}

impl Sell for Node {
    async fn buy(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        //= CURE subtract and look at the result, in one step: every buyer sees another number
        let left: i64 = stand.redis("HINCRBY", (&self.sale, "stock", -1)).await?;
        if left < 0 {
            //= FLAW the counter stays below zero, where a unit that is given back is lost
            stand.note("the counter went below zero");
            return Ok(Outcome::SoldOut);
        }
        stand.crash_point("the unit is taken").await;

        if self.failing.fetch_sub(1, Relaxed) > 0 {
            stand.pause().await; // the payment takes its time
            let _: i64 = stand.redis("HINCRBY", (&self.sale, "stock", 1)).await?;
            return Err(Trouble::from("this order was to fail"));
        }
        //= FLAW the counter knows numbers, not people: a second click is a second order
        stand.meet("the unit is taken").await;
        stand.work().await;

        stand.write_order(&mut stand.sql().await?, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "hincrby",
    family: Family::RedisCounter,
    promise: Promise::everywhere(Harms {
        oversells: Never,
        undersells: Possible,
        duplicates: Possible,
    }),
    options: &[whole("failing_orders", (0, 0, 100))],
    crash_points: &["the unit is taken"],
    demonstrations: &[
        show("below-zero", Notes("the counter went below zero"), SMALL),
        show("refund", Undersells, SMALL.options(REFUND)),
        show("double-click", Duplicates, DOUBLE_CLICK),
    ],
    ..Strategy::PLAIN
};

const REFUND: &[(&str, &str)] = &[("failing_orders", "1"), ("pause_ms", "500")];
