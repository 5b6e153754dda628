//! `example`: a strategy of your own. docs/exercises.md has eight tasks for it.

use crate::prelude::*;

/// What one server keeps in memory.
pub struct Node;

/// What a server does when it starts.
pub async fn open(_: &Stand) -> Result<Node, Trouble> {
    Ok(Node)
}

impl Sell for Node {
    /// One purchase.
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
        stand.interleave("the stock is read").await; // here another buyer comes in

        const WRITE: &str =
            "UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'";
        sql.run(WRITE, (stand.arena(), remaining - 1)).await?;
        stand.crash_point("the stock is written").await; // here the server may die
        stand.write_order(&mut sql, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "example",
    crash_points: &["the stock is written"],
    ..Strategy::PLAIN // it declares nothing, so it must be sound
};
