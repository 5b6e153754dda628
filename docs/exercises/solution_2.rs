//! `my-idea`: the database checks and writes in one statement.

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
        stand.interleave("the orders are read").await;

        const TAKE: &str = "UPDATE lab.stock SET remaining = remaining - 1
                             WHERE arena = $1 AND item = 'thing' AND remaining > 0";
        if sql.run(TAKE, (stand.arena(),)).await? == 0 {
            return Ok(Outcome::SoldOut);
        }
        stand.crash_point("the stock is written").await;
        stand.write_order(&mut sql, buyer).await
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
