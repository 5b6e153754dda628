//! `conditional-update`: one statement checks and writes.

use crate::prelude::*;

struct Node {
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let mut transaction = self.stand.begin().await?;
        let outcome = self.sell(&mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        self.stand.crash_point("committed").await;
        outcome
    }
}

impl Node {
    async fn sell(&self, transaction: &mut Sql, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let taken = sqlx::query(
            "UPDATE lab.stock SET remaining = remaining - 1 WHERE arena = $1 AND item = 'thing' \
             AND remaining > 0",
        )
        .bind(stand.arena())
        .execute(transaction.send())
        .await?;
        if taken.rows_affected() == 0 {
            return Ok(Outcome::SoldOut);
        }
        stand.crash_point("the stock is written").await;

        stand.meet("the stock is taken").await; // nobody else can take one before the commit
        stand.pause().await;
        stand.work().await;

        // After the update: the row is ours until the commit, so nobody is buying meanwhile.
        if stand.has_bought(transaction, buyer).await? {
            return Ok(Outcome::Duplicate); // rolled back, and the unit with it
        }
        stand.write_order(transaction, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "conditional-update",
    family: Family::Database,
    promise: Promise::SOUND,
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            id: "holds",
            shows: Harm::Holds,
            scenario: Scenario { nodes: 3, ..Scenario::SMALL },
        },
        Demonstration {
            id: "holds-2",
            shows: Harm::Holds,
            scenario: Scenario { nodes: 2, ..Scenario::DOUBLE_CLICK },
        },
    ],
    ..Strategy::PLAIN
};
