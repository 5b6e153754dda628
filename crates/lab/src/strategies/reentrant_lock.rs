//! `reentrant-lock`: one owner many times, woken by a message, renewed while it lives.

use crate::prelude::*;
use locks::{Lock, ReentrantLock};

struct Node {
    lock: ReentrantLock,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let lock = ReentrantLock::new(stand.line().clone(), stand.millis("lease_ms")).renewed();
    ready(Node { lock, name: stand.key("lock"), stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let wait = stand.millis("wait_ms");
        // Every purchase is an owner of its own, as every thread is in Redisson.
        let lock = self.lock.another_owner();
        let acquired = lock.acquire(&self.name, wait).await?;
        let Some(guard) = acquired.held() else {
            return Ok(Outcome::Contended);
        };
        let mut transaction = stand.begin().await?;
        let outcome = self.sell(&mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        stand.crash_point("committed").await; // the lock is not given back: its lease has to end it
        stand.release(guard).await;
        outcome
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

        stand.meet("the stock is read").await; // only if the lock lets two in
        stand.redis_node_loss(std::slice::from_ref(stand.line()), &self.name).await;
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
    id: "reentrant-lock",
    family: Family::DistributedLock,
    promise: Promise::everywhere(HARMS),
    options: &[lease_ms(2_000), wait_ms(5_000), redis_node_loss(1)],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            id: "holds",
            shows: Harm::Holds,
            scenario: Scenario {
                stock: 2,
                buyers: 4,
                concurrency: 4,
                options: &[("lease_ms", "800"), ("pause_ms", "2000")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "oversells",
            shows: Harm::Oversells,
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("redis_node_loss", "1"), ("pause_ms", "600"), ("lease_ms", "200")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "duplicates",
            shows: Harm::Duplicates,
            scenario: Scenario {
                options: &[("redis_node_loss", "1"), ("pause_ms", "600"), ("lease_ms", "200")],
                ..Scenario::DOUBLE_CLICK
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

const HARMS: Harms = Harms { oversells: Possible, undersells: Possible, duplicates: Possible };
