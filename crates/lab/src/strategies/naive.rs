//! `naive`: read the stock, check it, write it back less one.

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
        //= FLAW two buyers read the same number here, before either writes
        let remaining: i32 = sql.one(READ, (bench.arena(),)).await?;
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }

        bench.interleave("the stock is read").await; // somebody else reads the same number

        const WRITE: &str =
            "UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'";
        //= FLAW overwrites what others have sold; and a crash before the order loses the unit
        sql.run(WRITE, (bench.arena(), remaining - 1)).await?;
        bench.crash_point("the stock is written").await;
        //= FLAW nobody asks again: two clicks of one buyer found no order, and both get one
        bench.write_order(&mut sql, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "naive",
    family: Family::Nothing,
    promise: Promise::everywhere(Harms { oversells: Expected, ..Harms::POSSIBLE }),
    crash_points: &["the stock is written"],
    demonstrations: &[
        show("double-click", Duplicates, DOUBLE_CLICK).at(3),
        // One at a time, so that nothing hides the missing unit.
        show("crash", Undersells, SMALL.concurrency(1).options(CRASH)).at(2),
    ],
    ..Strategy::PLAIN
};

const CRASH: &[(&str, &str)] = &[("crash_at", "the stock is written"), ("restart_ms", "0")];
