//! `advisory-lock`: a lock that Postgres keeps for a transaction.

use crate::prelude::*;
use locks::{Acquired, AdvisoryLock, Guard, Lock, advisory::AdvisoryGuard};
use std::time::Duration;

/// Longer than a purchase may take: who waits that long has no answer. "Contended" would be one,
/// and nobody undersells here.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(60);

struct Node {
    stand: Stand,
    lock: AdvisoryLock,
}

pub fn open(stand: Stand) -> Opening {
    let lock = AdvisoryLock::new(stand.wire_to_postgres());
    ready(Node { stand, lock })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let Acquired::Held(guard) =
            self.lock.acquire(&self.stand.key("stock"), ACQUIRE_TIMEOUT).await?
        else {
            return Ok(Outcome::Contended);
        };
        let outcome = self.sell(&guard, buyer).await;
        if matches!(outcome, Ok(Outcome::Sold { .. })) {
            let _freed = guard.release().await?; // commits: the sale and the unlock are one step
        } else {
            let _freed = guard.roll_back().await?;
        }
        outcome
    }
}

impl Node {
    async fn sell(&self, guard: &AdvisoryGuard, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let mut transaction = guard.transaction().await?; // the one that has the lock
        let (orders, remaining): (i64, i32) = transaction
            .optional(
                "SELECT (SELECT count(*) FROM lab.orders WHERE arena = $1 AND buyer = $2), remaining
                 FROM lab.stock WHERE arena = $1 AND item = 'thing'",
                |query| query.bind(stand.arena().to_owned()).bind(buyer.name.clone()),
            )
            .await?
            .ok_or_else(|| Trouble::Other("there is no stock".to_owned()))?;
        if orders >= i64::from(stand.per_user_limit()) {
            return Ok(Outcome::Duplicate);
        }
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }

        stand.meet("the stock is read").await; // nobody else has the lock
        stand.pause().await;
        stand.work().await;

        transaction
            .execute(
                "UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'",
                |query| query.bind(stand.arena().to_owned()).bind(remaining - 1),
            )
            .await?;
        let order_id = new_order_id();
        transaction
            .execute("INSERT INTO lab.orders (id, arena, buyer) VALUES ($1, $2, $3)", |query| {
                query.bind(order_id.clone()).bind(stand.arena().to_owned()).bind(buyer.name.clone())
            })
            .await?;
        stand.crash_point("the order is written").await;
        Ok(Outcome::Sold { order_id })
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "advisory-lock",
    family: Family::Database,
    promise: Promise::SOUND,
    crash_points: &["the order is written"],
    demonstrations: &[Demonstration {
        id: "holds",
        shows: Harm::Holds,
        scenario: Scenario {
            nodes: 3,
            options: &[("crash_at", "the order is written"), ("crash_node", "1")],
            ..Scenario::SMALL
        },
    }],
    ..Strategy::PLAIN
};
