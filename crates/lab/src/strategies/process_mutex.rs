//! `process-mutex`: the same, inside one mutex of the process.

use crate::prelude::*;

struct Node {
    stand: Stand,
    mutex: tokio::sync::Mutex<()>,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand, mutex: tokio::sync::Mutex::new(()) })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let _one_at_a_time = self.mutex.lock().await;
        let mut transaction = self.stand.begin().await?;
        let outcome = self.sell(&mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        self.stand.crash_point("committed").await;
        outcome // the mutex is released here, after the commit
    }
}

impl Node {
    async fn sell(&self, transaction: &mut Sql, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        if stand.has_bought(transaction, buyer).await? {
            return Ok(Outcome::Duplicate);
        }
        let remaining: i32 = sqlx::query_scalar(
            "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'",
        )
        .bind(stand.arena())
        .fetch_one(transaction.send())
        .await?;
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }

        stand.meet("the stock is read").await; // only a buyer with another mutex can come here
        stand.pause().await;
        stand.work().await;

        sqlx::query("UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'")
            .bind(stand.arena())
            .bind(remaining - 1)
            .execute(transaction.send())
            .await?;
        stand.crash_point("the stock is written").await;
        stand.write_order(transaction, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "process-mutex",
    family: Family::InProcess,
    promise: Promise {
        one_node: Harms::NONE,
        across_nodes: Harms { oversells: Expected, undersells: Never, duplicates: Possible },
    },
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration { id: "holds", shows: Harm::Holds, scenario: Scenario::SMALL },
        Demonstration {
            id: "duplicates",
            shows: Harm::Duplicates,
            scenario: Scenario { nodes: 2, ..Scenario::DOUBLE_CLICK },
        },
    ],
    ..Strategy::PLAIN
};
