//! `version-column`: write only if nobody has written since.

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
        for _ in 0..=stand.whole("retries") {
            let mut sql = stand.sql().await?;
            let (remaining, version): (i32, i64) = sqlx::query_as(
                "SELECT remaining, version FROM lab.stock WHERE arena = $1 AND item = 'thing'",
            )
            .bind(stand.arena())
            .fetch_one(sql.send())
            .await?;
            if remaining < 1 {
                return Ok(Outcome::SoldOut);
            }
            // After the version: an order that is written from here on changes it.
            if stand.has_bought(&mut sql, buyer).await? {
                return Ok(Outcome::Duplicate);
            }
            drop(sql);

            stand.meet("the version is read").await; // somebody else reads the same one
            stand.pause().await;
            stand.work().await;

            let mut transaction = stand.begin().await?;
            let outcome = self.sell(&mut transaction, buyer, version).await;
            let outcome = transaction.end(outcome).await?;
            stand.crash_point("committed").await;
            if outcome != Outcome::Contended {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Contended)
    }
}

impl Node {
    async fn sell(
        &self,
        transaction: &mut Sql,
        buyer: &Buyer,
        version: i64,
    ) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let taken = sqlx::query(
            "UPDATE lab.stock SET remaining = remaining - 1, version = version + 1
             WHERE arena = $1 AND item = 'thing' AND version = $2",
        )
        .bind(stand.arena())
        .bind(version)
        .execute(transaction.send())
        .await?;
        if taken.rows_affected() == 0 {
            return Ok(Outcome::Contended);
        }
        stand.crash_point("the stock is written").await;
        stand.write_order(transaction, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "version-column",
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
            id: "contends",
            shows: Harm::Contends,
            scenario: Scenario { options: &[("retries", "0")], ..Scenario::SMALL },
        },
        Demonstration {
            id: "holds",
            shows: Harm::Holds,
            scenario: Scenario { buyers: 6, concurrency: 6, ..Scenario::SMALL },
        },
    ],
    ..Strategy::PLAIN
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };
