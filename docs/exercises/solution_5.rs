//! `my-idea`: no lock; a write that finds another version is tried again.

use crate::prelude::*;

pub struct Node;

pub async fn open(_: &Bench) -> Result<Node> {
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        bench.retrying(i64::MAX, || attempt(bench, buyer)).await
    }
}

async fn attempt(bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
    let mut sql = bench.sql().await?;
    const READ: &str =
        "SELECT remaining, version FROM lab.stock WHERE arena = $1 AND item = 'thing'";
    let (remaining, version): (i32, i64) = sql.row(READ, (bench.arena(),)).await?;
    if remaining < 1 {
        return Ok(Outcome::SoldOut);
    }
    // After the version was read: whatever is ordered from here on changes it.
    if bench.has_bought(&mut sql, buyer).await? {
        return Ok(Outcome::Duplicate);
    }
    drop(sql); // nobody waits with a connection in hand
    bench.interleave("the stock is read").await;

    let sale = bench.in_transaction(async |tx| {
        const TAKE: &str = "UPDATE lab.stock SET remaining = remaining - 1, version = version + 1
                             WHERE arena = $1 AND item = 'thing' AND version = $2";
        if tx.run(TAKE, (bench.arena(), version)).await? == 0 {
            return Ok(Outcome::Contended);
        }
        bench.crash_point("the stock is written").await;
        bench.write_order(tx, buyer).await
    });
    sale.await
}

pub const STRATEGY: Strategy =
    Strategy { id: "my-idea", crash_points: &["the stock is written"], ..Strategy::PLAIN };
