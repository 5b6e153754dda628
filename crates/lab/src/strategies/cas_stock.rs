//! `cas-stock`: write only if the stock is still what I saw.

use crate::prelude::*;
use std::{
    sync::atomic::{AtomicBool, Ordering::AcqRel},
    time::Duration,
};
use tokio::sync::Semaphore;

struct Node {
    stand: Stand,
    early_bird: Option<EarlyBird>,
}

pub fn open(stand: Stand) -> Opening {
    opening(async {
        let mut early_bird = None;
        if stand.choice("aba") == "on" {
            EarlyBird::buy(&stand).await?;
            early_bird = Some(EarlyBird {
                sold_first: AtomicBool::new(false),
                has_cancelled: Semaphore::new(0),
            });
        }
        Ok(Node { stand, early_bird })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        for _ in 0..=stand.whole("retries") {
            let mut sql = stand.sql().await?;
            let remaining: i32 = sqlx::query_scalar(
                "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'",
            )
            .bind(stand.arena())
            .fetch_one(sql.send())
            .await?;
            if remaining < 1 {
                return Ok(Outcome::SoldOut);
            }
            if stand.has_bought(&mut sql, buyer).await? {
                return Ok(Outcome::Duplicate);
            }
            drop(sql);

            stand.meet("the stock is read").await; // somebody else reads the same number
            stand.pause().await;
            stand.work().await;
            if let Some(early_bird) = &self.early_bird {
                early_bird.let_the_first_go().await;
            }

            let mut transaction = stand.begin().await?;
            let outcome = self.sell(&mut transaction, buyer, remaining).await;
            let outcome = transaction.end(outcome).await?;
            if let Some(early_bird) = &self.early_bird {
                early_bird.cancel(stand).await?;
            }
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
        seen: i32,
    ) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let taken = sqlx::query(
            "UPDATE lab.stock SET remaining = remaining - 1 WHERE arena = $1 AND item = 'thing' \
             AND remaining = $2",
        )
        .bind(stand.arena())
        .bind(seen)
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
    id: "cas-stock",
    family: Family::Database,
    promise: Promise::everywhere(HARMS),
    options: &[
        retries(10_000),
        OptionSpec { name: "aba", kind: crate::strategy::OptionKind::Choice(&["off", "on"]) },
    ],
    crash_points: &["the stock is written"],
    demonstrations: &[
        Demonstration {
            id: "duplicates",
            shows: Harm::Duplicates,
            scenario: Scenario { options: &[("aba", "on")], ..Scenario::DOUBLE_CLICK },
        },
        Demonstration { id: "holds", shows: Harm::Holds, scenario: Scenario::DOUBLE_CLICK },
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
    ],
    ..Strategy::PLAIN
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Possible };

/// The early buyer of `aba=on`, who cancels after the first sale.
struct EarlyBird {
    sold_first: AtomicBool,
    has_cancelled: Semaphore,
}

const EARLY_BIRD: &str = "early bird";

impl EarlyBird {
    async fn buy(stand: &Stand) -> Result<(), Trouble> {
        let mut transaction = stand.begin().await?;
        // Once in an arena: the first node that opens does it.
        let taken = sqlx::query(
            "UPDATE lab.stock SET remaining = remaining - 1, version = 1
             WHERE arena = $1 AND item = 'thing' AND version = 0",
        )
        .bind(stand.arena())
        .execute(transaction.send())
        .await?;
        if taken.rows_affected() > 0 {
            stand.write_order(&mut transaction, &Buyer { name: EARLY_BIRD.to_owned() }).await?;
        }
        transaction.commit().await
    }

    /// The first buyer goes on; the others wait until the early bird has cancelled.
    async fn let_the_first_go(&self) {
        if self.sold_first.swap(true, AcqRel) {
            let _ =
                tokio::time::timeout(Duration::from_secs(1), self.has_cancelled.acquire()).await;
        }
    }

    async fn cancel(&self, stand: &Stand) -> Result<(), Trouble> {
        let mut sql = stand.sql().await?;
        sqlx::query(
            "WITH gone AS (DELETE FROM lab.orders WHERE arena = $1 AND buyer = $2 RETURNING id)
             UPDATE lab.stock SET remaining = remaining + (SELECT count(*) FROM gone)
             WHERE arena = $1 AND item = 'thing'",
        )
        .bind(stand.arena())
        .bind(EARLY_BIRD)
        .execute(sql.send())
        .await?;
        self.has_cancelled.close();
        Ok(())
    }
}
