//! `session-advisory-lock`: the advisory lock that a pool of connections makes leak.

use crate::prelude::*;
use crate::servers::OwnPool;
use locks::{Acquired, Guard, Lock, Released, SessionAdvisoryLock};
use std::time::Duration;
use tokio::sync::OnceCell;

/// Longer than the first holder waits to be met: on one node nobody is turned away.
const ACQUIRE_TIMEOUT: Duration = Duration::from_millis(2_500);

struct Node {
    stand: Stand,
    /// Of this node alone, as a server of its own would have.
    own: OwnPool,
    warm: OnceCell<()>,
    lock: SessionAdvisoryLock,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let own = stand.own_pool(2)?;
        let lock = SessionAdvisoryLock::new(stand.wire_to(own.pool.clone()));
        let warm = OnceCell::new();
        Ok(Node { stand, own, warm, lock })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        self.warm_up().await?;
        let Acquired::Held(guard) =
            self.lock.acquire(&self.stand.key("stock"), ACQUIRE_TIMEOUT).await?
        else {
            return Ok(Outcome::Contended);
        };
        let mut transaction = self.stand.begin().await?;
        let outcome = self.sell(&mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        if guard.release().await? == Released::NotHeld {
            self.stand.note(LEAKED);
        }
        outcome
    }

    async fn close(&self) {
        self.own.pool.close().await; // and with the sessions whatever they still hold
    }
}

impl Node {
    /// Both connections of the pool are there, as in any server that has run for a while.
    async fn warm_up(&self) -> Result<(), Trouble> {
        // By one buyer, before any other is let in: two of them, each with one connection in hand,
        // would wait for each other.
        let both = async || {
            tokio::try_join!(self.own.pool.acquire(), self.own.pool.acquire())?;
            Ok(())
        };
        self.warm.get_or_try_init(both).await.map(|_| ())
    }

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

        stand.meet("the stock is read").await; // with the holder of "the same session"
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
    id: "session-advisory-lock",
    family: Family::Database,
    promise: Promise {
        one_node: Harms { oversells: Possible, undersells: Never, duplicates: Possible },
        across_nodes: Harms { oversells: Possible, undersells: Possible, duplicates: Possible },
    },
    crash_points: &["the stock is written"],
    demonstrations: &[
        Demonstration {
            id: "notes",
            shows: Harm::Notes(LEAKED),
            scenario: Scenario { concurrency: 1, ..Scenario::SMALL },
        },
        Demonstration { id: "oversells", shows: Harm::Oversells, scenario: Scenario::SMALL },
        Demonstration {
            id: "duplicates",
            shows: Harm::Duplicates,
            scenario: Scenario::DOUBLE_CLICK,
        },
        Demonstration {
            id: "undersells",
            shows: Harm::Undersells,
            scenario: Scenario { nodes: 2, stock: 6, buyers: 6, concurrency: 1, ..Scenario::SMALL },
        },
    ],
    ..Strategy::PLAIN
};

const LEAKED: &str = "the unlock reached another session";
