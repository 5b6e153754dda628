//! `serializable`: the naive purchase, and the database promises that it went as if alone.

use crate::prelude::*;

struct Node {
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        for _ in 0..=self.stand.whole("retries") {
            let mut transaction =
                self.stand.begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE").await?;
            let outcome = self.sell(&mut transaction, buyer).await;
            let outcome = transaction.end(outcome).await;
            match &outcome {
                // Also at the commit.
                Err(trouble) if trouble.sqlstate().as_deref() == Some("40001") => {
                    self.stand.note(NOT_SERIALIZABLE)
                }
                _ => {
                    self.stand.crash_point("committed").await;
                    return outcome;
                }
            }
        }
        Ok(Outcome::Contended)
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

        stand.meet("the stock is read").await; // somebody else reads the same number
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
    id: "serializable",
    family: Family::Database,
    promise: Promise::everywhere(HARMS),
    options: &[retries(10_000)],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            id: "undersells",
            shows: Harm::Undersells,
            scenario: Scenario {
                buyers: 6,
                concurrency: 6,
                options: &[("retries", "0")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "notes",
            shows: Harm::Notes(NOT_SERIALIZABLE),
            scenario: Scenario::SMALL,
        },
        Demonstration {
            id: "holds",
            shows: Harm::Holds,
            scenario: Scenario { nodes: 2, ..Scenario::DOUBLE_CLICK },
        },
    ],
    ..Strategy::PLAIN
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };
const NOT_SERIALIZABLE: &str = "40001 could not serialize";
