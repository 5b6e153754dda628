//! `cas-stock`: write only if the stock is still what was read.

use crate::{early_bird::EarlyBird, prelude::*};

pub struct Node {
    /// With `aba=on`: bought before everybody else, and cancels after the first sale.
    early_bird: Option<EarlyBird>,
}

pub async fn open(stand: &Stand) -> Result<Node, Trouble> {
    Ok(Node { early_bird: EarlyBird::of(stand).await? })
}

impl Sell for Node {
    async fn buy(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        stand.retrying(stand.whole("retries"), || self.attempt(stand, buyer)).await
    }
}

impl Node {
    async fn attempt(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let mut sql = stand.sql().await?;
        const READ: &str = "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'";
        let remaining: i32 = sql.one(READ, (stand.arena(),)).await?;
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }
        if stand.has_bought(&mut sql, buyer).await? {
            return Ok(Outcome::Duplicate);
        }
        drop(sql);

        stand.interleave("the stock is read").await; // somebody else reads the same number
        EarlyBird::lets_the_first_go(&self.early_bird).await;

        let sale = stand.in_transaction(async |tx| {
            const TAKE: &str = "UPDATE lab.stock SET remaining = remaining - 1
                                 WHERE arena = $1 AND item = 'thing' AND remaining = $2";
            //= CURE no row has this stock any more if somebody has bought since
            //= FLAW a number may come back: one sale and one cancellation, and nothing is noticed
            if tx.run(TAKE, (stand.arena(), remaining)).await? == 0 {
                return Ok(Outcome::Contended);
            }
            stand.crash_point("the stock is written").await;
            stand.write_order(tx, buyer).await
        });
        let outcome = sale.await;
        EarlyBird::cancels(&self.early_bird, stand).await?;
        outcome
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "cas-stock",
    family: Family::Database,
    promise: Promise::everywhere(Harms { oversells: Never, ..Harms::POSSIBLE }),
    options: &[retries(10_000), choice("aba", &["off", "on"])],
    crash_points: &["the stock is written"],
    demonstrations: &[
        show("aba", Duplicates, DOUBLE_CLICK.options(&[("aba", "on")])),
        show("without-aba", Holds, DOUBLE_CLICK),
        show("no-retries", Undersells, SMALL.buyers(6).options(&[("retries", "0")])),
    ],
    ..Strategy::PLAIN
};
