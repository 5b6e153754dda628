//! `conditional-update`: check and write in one statement.

use crate::prelude::*;

struct Node {
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let sale = stand.in_transaction(async |tx| {
            const TAKE: &str = "UPDATE lab.stock SET remaining = remaining - 1
                                 WHERE arena = $1 AND item = 'thing' AND remaining > 0";
            //= CURE checks and writes in one step: nobody can come in between
            if tx.run(TAKE, (stand.arena(),)).await? == 0 {
                return Ok(Outcome::SoldOut);
            }
            stand.crash_point("the stock is written").await;

            stand.meet("the stock is taken").await; // nobody else can take one before the commit
            stand.pause().await;
            stand.work().await;

            // After the update: the row is ours until the commit, so nobody is buying meanwhile.
            if stand.has_bought(tx, buyer).await? {
                return Ok(Outcome::Duplicate); // rolled back, and the unit with it
            }
            stand.write_order(tx, buyer).await
        });
        let outcome = sale.await;
        stand.crash_point("committed").await;
        outcome
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "conditional-update",
    family: Family::Database,
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        demonstration("three-servers", Harm::Holds, Scenario::SMALL.nodes(3)),
        demonstration("double-click", Harm::Holds, Scenario::DOUBLE_CLICK.nodes(2)),
    ],
    ..Strategy::PLAIN
};
