//! `row-lock`: `SELECT … FOR UPDATE`, then check and write.

use crate::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub struct Node {
    buyers: AtomicU64,
}

pub async fn open(_: &Bench) -> Result<Node> {
    Ok(Node { buyers: AtomicU64::new(0) })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let odd = self.buyers.fetch_add(1, Relaxed) % 2 == 1;
        let order = bench.choice("lock_order");
        //= CURE one order for everybody: no two wait for each other
        let mut both = ["thing", "gift"];
        //= FLAW every second buyer locks the two rows the other way round: they wait for each other
        if odd && order == "opposite" {
            both.reverse();
        }
        let rows = if order == "one-row" { &both[..1] } else { &both[..] };
        let mut retries = bench.whole("retries");
        loop {
            match bench.in_transaction(async |tx| sell(bench, tx, buyer, rows).await).await {
                Err(error) if error.is("40P01") && retries > 0 => bench.note(DEADLOCK),
                outcome => return outcome,
            }
            retries -= 1;
        }
    }
}

async fn sell(bench: &Bench, tx: &mut Sql, buyer: &Buyer, rows: &[&str]) -> Result<Outcome> {
    let mut remaining = i32::MAX;
    for row in rows {
        const LOCK: &str =
            "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = $2 FOR UPDATE";
        //= CURE the row is this buyer's until the commit: the others wait here
        let left: i32 = tx.one(LOCK, (bench.arena(), *row)).await?;
        remaining = remaining.min(left);
        bench.interleaving_point("a row is locked").await; // nobody else has the same one
    }
    if remaining < 1 {
        return Ok(Outcome::SoldOut);
    }
    // Under the lock: its last holder has committed.
    if bench.has_bought(tx, buyer).await? {
        return Ok(Outcome::Duplicate);
    }

    bench.pause().await;
    bench.work().await;

    const WRITE: &str = "UPDATE lab.stock SET remaining = $3 WHERE arena = $1 AND item = ANY($2)";
    tx.run(WRITE, (bench.arena(), rows, remaining - 1)).await?;
    bench.crash_point("the stock is written").await;
    bench.write_order(tx, buyer).await
}

pub const STRATEGY: Strategy = Strategy {
    id: "row-lock",
    options: &[choice("lock_order", &["one-row", "same", "opposite"]), retries(3)],
    demonstrations: &[
        show("deadlock", Notes(DEADLOCK), TWO_BUYERS.options(&[OPPOSITE])).at(2),
        show("deadlock-without-retries", Fails, TWO_BUYERS.options(&[OPPOSITE, ONCE])).at(2),
        show("same-order", Holds, SMALL.options(&[("lock_order", "same")])).at(1),
    ],
    ..DATABASE_STRATEGY
};

const DEADLOCK: &str = "40P01 deadlock detected";
const OPPOSITE: (&str, &str) = ("lock_order", "opposite");
const ONCE: (&str, &str) = ("retries", "0");
const TWO_BUYERS: Scenario = SMALL.buyers(2);
