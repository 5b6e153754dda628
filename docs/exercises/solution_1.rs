//! `my-idea`: as it was, but it says what it does.

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
        const READ: &str = "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'";
        let remaining: i32 = sql.one(READ, (bench.arena(),)).await?;
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }
        bench.interleave("the stock is read").await;

        const WRITE: &str =
            "UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'";
        sql.run(WRITE, (bench.arena(), remaining - 1)).await?;
        bench.crash_point("the stock is written").await;
        bench.write_order(&mut sql, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "my-idea",
    promise: Promise::everywhere(Harms {
        oversells: Expected,
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
