//! `cas-stock`: write only if the stock is still what was read.

use crate::{early_bird::EarlyBird, prelude::*};

pub struct Node {
    /// With `aba=on`: bought before everybody else, and cancels after the first sale.
    early_bird: Option<EarlyBird>,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    Ok(Node { early_bird: EarlyBird::of(bench).await? })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW without retries a buyer who was overtaken is turned away, and the unit stays
        bench.retrying(bench.whole("retries"), || self.attempt(bench, buyer)).await
    }
}

impl Node {
    async fn attempt(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let mut sql = bench.sql().await?;
        const READ: &str = "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'";
        let remaining: i32 = sql.one(READ, (bench.arena(),)).await?;
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }
        if bench.has_bought(&mut sql, buyer).await? {
            return Ok(Outcome::Duplicate);
        }
        drop(sql);

        bench.interleave("the stock is read").await; // somebody else reads the same number
        EarlyBird::lets_the_first_go(&self.early_bird).await;

        let sale = bench.in_transaction(async |tx| {
            const TAKE: &str = "UPDATE lab.stock SET remaining = remaining - 1
                                 WHERE arena = $1 AND item = 'thing' AND remaining = $2";
            //= CURE no row has this stock any more if somebody has bought since
            //= FLAW a number may come back: one sale and one cancellation, and nothing is noticed
            if tx.run(TAKE, (bench.arena(), remaining)).await? == 0 {
                return Ok(Outcome::Contended);
            }
            bench.crash_point("the stock is written").await;
            bench.write_order(tx, buyer).await
        });
        let outcome = sale.await;
        EarlyBird::cancels(&self.early_bird, bench).await?;
        outcome
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "cas-stock",
    promise: Promise::everywhere(Harms { oversells: Never, ..Harms::POSSIBLE }),
    options: &[retries(10_000), choice("aba", &["off", "on"])],
    demonstrations: &[
        show("aba", Duplicates, DOUBLE_CLICK.options(&[("aba", "on")])).at(3),
        show("without-aba", Holds, DOUBLE_CLICK).at(2),
        show("no-retries", Undersells, SMALL.buyers(6).options(&[("retries", "0")])).at(1),
    ],
    ..DATABASE_STRATEGY
};
