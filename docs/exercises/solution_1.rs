//! `my-idea`: as it was, but it says what it does.

use crate::prelude::*;

pub struct Node;

pub async fn open(_: &Stand) -> Result<Node, Trouble> {
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let mut sql = stand.sql().await?;
        if stand.has_bought(&mut sql, buyer).await? {
            return Ok(Outcome::Duplicate);
        }
        const READ: &str = "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'";
        let remaining: i32 = sql.one(READ, (stand.arena(),)).await?;
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }
        stand.interleave("the stock is read").await;

        const WRITE: &str =
            "UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'";
        sql.run(WRITE, (stand.arena(), remaining - 1)).await?;
        stand.crash_point("the stock is written").await;
        stand.write_order(&mut sql, buyer).await
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
