//! `version-column`: write only if nobody has written since.

use crate::prelude::*;

pub struct Node;

pub async fn open(_: &Bench) -> Result<Node> {
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW without retries a buyer who was overtaken is turned away, and the unit stays
        //= CURE a buyer who was overtaken looks again, for as long as there is a unit
        bench.retrying(bench.whole("retries"), || attempt(bench, buyer)).await
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
    // After the version: an order that is written from here on changes it.
    if bench.has_bought(&mut sql, buyer).await? {
        return Ok(Outcome::Duplicate);
    }
    drop(sql);

    bench.interleave("the stock is read").await; // somebody else reads the same version

    let sale = bench.in_transaction(async |tx| {
        const TAKE: &str = "UPDATE lab.stock SET remaining = remaining - 1, version = version + 1
                             WHERE arena = $1 AND item = 'thing' AND version = $2";
        //= CURE no row has this version any more if somebody has written since
        if tx.run(TAKE, (bench.arena(), version)).await? == 0 {
            return Ok(Outcome::Contended);
        }
        bench.crash_point("the stock is written").await;
        bench.write_order(tx, buyer).await
    });
    sale.await
}

pub const STRATEGY: Strategy = Strategy {
    id: "version-column",
    promise: Promise::everywhere(Harms::UNSOLD),
    options: &[retries(10_000)],
    demonstrations: &[
        show("no-retries", Undersells, SIX_BUYERS.options(&[("retries", "0")])).at(1),
        show("turned-away", Contends, SMALL.options(&[("retries", "0")])).at(1),
        show("with-retries", Holds, SIX_BUYERS).at(2),
    ],
    ..DATABASE_STRATEGY
};

const SIX_BUYERS: Scenario = SMALL.buyers(6);
