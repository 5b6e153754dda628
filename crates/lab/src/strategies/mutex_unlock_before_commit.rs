//! `mutex-unlock-before-commit`: the mutex inside the transaction.

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
        let mut transaction = self.stand.begin().await?;
        let one_at_a_time = self.mutex.lock().await;
        let outcome = self.sell(&mut transaction, buyer).await;
        drop(one_at_a_time); // too early: nobody else can see the order yet
        self.stand.crash_point("unlocked").await;
        if matches!(outcome, Ok(Outcome::Sold { .. })) {
            self.stand.meet("unlocked and not committed").await;
        }
        transaction.end(outcome).await
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

        stand.come_by("unlocked and not committed"); // has read what the one before has sold
        stand.pause().await;
        stand.work().await;

        sqlx::query("UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'")
            .bind(stand.arena())
            .bind(remaining - 1)
            .execute(transaction.send())
            .await?;
        stand.write_order(transaction, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "mutex-unlock-before-commit",
    family: Family::InProcess,
    promise: Promise::everywhere(HARMS),
    crash_points: &["unlocked"],
    demonstrations: &[Demonstration {
        id: "duplicates",
        shows: Harm::Duplicates,
        scenario: Scenario::DOUBLE_CLICK,
    }],
    ..Strategy::PLAIN
};

const HARMS: Harms = Harms { oversells: Expected, undersells: Never, duplicates: Possible };
