//! `example`: a strategy of your own. docs/exercises.md has eight tasks for it.

use crate::prelude::*;

/// What one server keeps in memory.
pub struct Node;

/// What a server does when it starts.
pub async fn open(_: &Bench) -> Result<Node> {
    Ok(Node)
}

impl Sell for Node {
    /// One purchase.
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
        bench.interleave("the stock is read").await; // here another buyer comes in

        const WRITE: &str =
            "UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'";
        sql.run(WRITE, (bench.arena(), remaining - 1)).await?;
        bench.crash_point("the stock is written").await; // here the server may die
        bench.write_order(&mut sql, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "example",
    crash_points: &["the stock is written"],
    ..Strategy::PLAIN // it declares nothing, so it must be sound
};
