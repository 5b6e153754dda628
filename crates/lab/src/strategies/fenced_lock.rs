//! `fenced-lock`: any lock, and the stock refuses late writers.

use crate::prelude::*;
use locks::{Guard, Lock, TokenLock};

struct Node {
    lock: TokenLock,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let lock = TokenLock::new(stand.line().clone(), stand.millis("lease_ms")).fenced();
    ready(Node { lock, name: stand.key("lock"), stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let wait = stand.millis("wait_ms");
        let acquired = self.lock.acquire(&self.name, wait).await?;
        let Some(guard) = acquired.held() else {
            return Ok(Outcome::Contended);
        };
        let token = guard.fencing().and_then(|token| i64::try_from(token).ok());
        let token = token.ok_or_else(|| Trouble::Other("a lock without a number".to_owned()))?;
        let outcome = self.sell(token, buyer).await;
        stand.crash_point("committed").await; // the lock is not given back: its lease has to end it
        stand.release(guard).await;
        outcome
    }
}

impl Node {
    async fn sell(&self, token: i64, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let mut sql = stand.sql().await?;
        // Reading is fenced, too: from here on nobody with an older number can write, so what is
        // read now is true until we write, or until somebody with a newer number comes.
        let remaining: Option<i32> = sqlx::query_scalar(
            "UPDATE lab.stock SET fence = $2 WHERE arena = $1 AND item = 'thing' AND fence < $2
             RETURNING remaining",
        )
        .bind(stand.arena())
        .bind(token)
        .fetch_optional(sql.send())
        .await?;
        let Some(remaining) = remaining else {
            return Ok(self.too_late());
        };
        if stand.has_bought(&mut sql, buyer).await? {
            return Ok(Outcome::Duplicate);
        }
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }
        drop(sql); // held over a pause it would keep others from writing

        stand.meet("the stock is read").await; // only if the lock lets two in
        stand.redis_node_loss(std::slice::from_ref(stand.line()), &self.name).await;
        stand.pause().await;
        stand.work().await;

        let mut transaction = stand.begin().await?;
        let written = sqlx::query(
            "UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing' AND fence = \
             $3",
        )
        .bind(stand.arena())
        .bind(remaining - 1)
        .bind(token)
        .execute(transaction.send())
        .await?;
        if written.rows_affected() == 0 {
            transaction.rollback().await?;
            return Ok(self.too_late());
        }
        stand.crash_point("the stock is written").await;
        let outcome = stand.write_order(&mut transaction, buyer).await;
        transaction.end(outcome).await
    }

    fn too_late(&self) -> Outcome {
        self.stand.note("an older fencing token was refused");
        Outcome::Contended
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "fenced-lock",
    family: Family::DistributedLock,
    promise: Promise::everywhere(HARMS),
    options: &[lease_ms(2_000), wait_ms(5_000), redis_node_loss(1)],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            id: "holds",
            shows: Harm::Holds,
            scenario: Scenario {
                options: &[("lease_ms", "100"), ("pause_ms", "500")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "notes",
            shows: Harm::Notes("an older fencing token was refused"),
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("lease_ms", "100"), ("pause_ms", "500")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "holds-2",
            shows: Harm::Holds,
            scenario: Scenario {
                options: &[("redis_node_loss", "1"), ("pause_ms", "400")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "undersells",
            shows: Harm::Undersells,
            scenario: Scenario {
                stock: 5,
                buyers: 5,
                concurrency: 5,
                options: &[("wait_ms", "0")],
                ..Scenario::SMALL
            },
        },
    ],
    ..Strategy::PLAIN
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };
