//! `db-lock-table`: a lock as a row, with owner, expiry and version.

use crate::prelude::*;
use locks::{Acquired, Guard, Lock, TableLock};
use std::time::Duration;

/// Longer than a purchase may take: who waits that long has no answer, and must not be told that
/// trying again is all there is to it. "Contended" would be an answer, and nobody undersells here.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(60);

struct Node {
    stand: Stand,
    lock: TableLock,
}

pub fn open(stand: Stand) -> Opening {
    let lock = TableLock::new(stand.wire_to_postgres(), stand.millis("lease_ms"));
    ready(Node { stand, lock })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let name = self.stand.key("stock");
        loop {
            let Acquired::Held(guard) = self.lock.acquire(&name, ACQUIRE_TIMEOUT).await? else {
                return Ok(Outcome::Contended);
            };
            let mut transaction = self.stand.begin().await?;
            let outcome = self.sell(&mut transaction, buyer, &name, guard.fencing()).await;
            let outcome = transaction.end(outcome).await;
            self.stand.crash_point("committed").await;
            let _freed_or_lost = guard.release().await?;
            match outcome? {
                Outcome::Contended => self.stand.note(LOST), // and again
                outcome => return Ok(outcome),
            }
        }
    }
}

impl Node {
    async fn sell(
        &self,
        transaction: &mut Sql,
        buyer: &Buyer,
        lock: &str,
        version: Option<u64>,
    ) -> Result<Outcome, Trouble> {
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

        stand.meet("the stock is read").await; // only the client that took the lock over comes here
        stand.pause().await;
        stand.work().await;

        // Still ours? FOR SHARE keeps it so until the commit: nobody can take the row over
        // meanwhile.
        let ours = sqlx::query(
            "SELECT FROM lab.locks WHERE name = $1 AND version = $2 AND expires_at > \
             clock_timestamp() FOR SHARE",
        )
        .bind(lock)
        .bind(i64::try_from(version.unwrap_or(0)).unwrap_or(i64::MAX))
        .fetch_optional(transaction.send())
        .await?;
        if ours.is_none() {
            return Ok(Outcome::Contended);
        }
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
    id: "db-lock-table",
    family: Family::Database,
    promise: Promise::SOUND,
    options: &[OptionSpec {
        name: "lease_ms",
        kind: crate::strategy::OptionKind::Whole { default: 2_000, min: 20, max: 30_000 },
    }],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            id: "notes",
            shows: Harm::Notes(LOST),
            scenario: Scenario {
                options: &[("lease_ms", "50"), ("pause_ms", "200")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "holds",
            shows: Harm::Holds,
            scenario: Scenario {
                nodes: 3,
                options: &[("lease_ms", "50"), ("pause_ms", "200")],
                ..Scenario::SMALL
            },
        },
    ],
    ..Strategy::PLAIN
};

const LOST: &str = "the lease was over before the write";
