//! `my-idea`: the database checks and writes in one statement.

use crate::prelude::*;

pub struct Node;

pub async fn open(_: &Bench) -> Result<Node> {
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let mut sql = bench.sql().await?;
        if bench.has_bought(&mut sql, buyer).await? {
            return Ok(Outcome::Duplicate);
        }
        bench.interleave("the orders are read").await;

        const TAKE: &str = "UPDATE lab.stock SET remaining = remaining - 1
                             WHERE arena = $1 AND item = 'thing' AND remaining > 0";
        if sql.run(TAKE, (bench.arena(),)).await? == 0 {
            return Ok(Outcome::SoldOut);
        }
        bench.crash_point("the stock is written").await;
        bench.write_order(&mut sql, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "my-idea",
    promise: Promise::everywhere(Harms {
        oversells: Never,
        undersells: Possible,
        duplicates: Possible,
    }),
    crash_points: &["the stock is written"],
    demonstrations: &[
        show("double-click", Duplicates, DOUBLE_CLICK),
        show("crash", Undersells, SMALL.concurrency(1).options(CRASH)),
    ],
    ..Strategy::PLAIN
};

const CRASH: &[(&str, &str)] = &[("crash_at", "the stock is written"), ("restart_ms", "0")];
