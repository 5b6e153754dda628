//! `row-lock`: lock the row while deciding.

use crate::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Node {
    stand: Stand,
    buyers: AtomicU64,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand, buyers: AtomicU64::new(0) })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let rows: &[&str] =
            match (self.stand.choice("lock_order"), self.buyers.fetch_add(1, Relaxed) % 2) {
                ("opposite", 1) => &["gift", "thing"],
                ("opposite" | "same", _) => &["thing", "gift"],
                _ => &["thing"],
            };
        let mut tries_left = self.stand.whole("retries");
        loop {
            let mut transaction = self.stand.begin().await?;
            let outcome = self.sell(&mut transaction, buyer, rows).await;
            let outcome = transaction.end(outcome).await;
            match &outcome {
                Err(trouble) if trouble.sqlstate().as_deref() == Some("40P01") => {
                    self.stand.note(DEADLOCK)
                }
                _ => {
                    self.stand.crash_point("committed").await;
                    return outcome;
                }
            }
            if tries_left == 0 {
                return outcome;
            }
            tries_left -= 1;
        }
    }
}

impl Node {
    async fn sell(
        &self,
        transaction: &mut Sql,
        buyer: &Buyer,
        rows: &[&str],
    ) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let mut remaining = i32::MAX;
        for row in rows {
            let left: i32 = sqlx::query_scalar(
                "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = $2 FOR UPDATE",
            )
            .bind(stand.arena())
            .bind(*row)
            .fetch_one(transaction.send())
            .await?;
            remaining = remaining.min(left);
            stand.meet("a row is locked").await; // nobody else has the same one
        }
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }
        // Under the lock: its last holder has committed.
        if stand.has_bought(transaction, buyer).await? {
            return Ok(Outcome::Duplicate);
        }

        stand.pause().await;
        stand.work().await;

        sqlx::query("UPDATE lab.stock SET remaining = $3 WHERE arena = $1 AND item = ANY($2)")
            .bind(stand.arena())
            .bind(rows)
            .bind(remaining - 1)
            .execute(transaction.send())
            .await?;
        stand.crash_point("the stock is written").await;
        stand.write_order(transaction, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "row-lock",
    family: Family::Database,
    promise: Promise::SOUND,
    options: &[
        OptionSpec {
            name: "lock_order",
            kind: crate::strategy::OptionKind::Choice(&["one-row", "same", "opposite"]),
        },
        retries(3),
    ],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            id: "notes",
            shows: Harm::Notes(DEADLOCK),
            scenario: Scenario {
                buyers: 2,
                concurrency: 2,
                options: &[("lock_order", "opposite")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "fails",
            shows: Harm::Fails,
            scenario: Scenario {
                buyers: 2,
                concurrency: 2,
                options: &[("lock_order", "opposite"), ("retries", "0")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "holds",
            shows: Harm::Holds,
            scenario: Scenario { options: &[("lock_order", "same")], ..Scenario::SMALL },
        },
    ],
    ..Strategy::PLAIN
};

const DEADLOCK: &str = "40P01 deadlock detected";
