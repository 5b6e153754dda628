//! `per-user-mutex`: one mutex for each buyer.

use crate::prelude::*;
use dashmap::DashMap;
use std::sync::{Arc, Weak};
use tokio::sync::Mutex;

struct Node {
    stand: Stand,
    /// Weak: a mutex that nobody holds or waits for is gone.
    mutexes: DashMap<String, Weak<Mutex<()>>>,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand, mutexes: DashMap::new() })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let mutex = self.mutex_of(buyer);
        let one_click_at_a_time = mutex.lock().await;
        let mut transaction = self.stand.begin().await?;
        let outcome = self.sell(&mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        self.stand.crash_point("committed").await;
        drop(one_click_at_a_time); // after the commit
        drop(mutex);
        self.mutexes.remove_if(&buyer.name, |_, mutex| mutex.strong_count() == 0);
        outcome
    }
}

impl Node {
    fn mutex_of(&self, buyer: &Buyer) -> Arc<Mutex<()>> {
        let mut known = self.mutexes.entry(buyer.name.clone()).or_default();
        known.upgrade().unwrap_or_else(|| {
            let mutex = Arc::default();
            *known = Arc::downgrade(&mutex);
            mutex
        })
    }

    async fn sell(&self, transaction: &mut Sql, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        if stand.has_bought(transaction, buyer).await? {
            return Ok(Outcome::Duplicate);
        }

        stand.meet("there is no order yet").await; // the same buyer comes here only by another node
        stand.pause().await;
        stand.work().await;

        // The mutex does not guard the stock: a thousand buyers hold a thousand of them.
        let taken = sqlx::query(
            "UPDATE lab.stock SET remaining = remaining - 1 WHERE arena = $1 AND item = 'thing' \
             AND remaining > 0",
        )
        .bind(stand.arena())
        .execute(transaction.send())
        .await?;
        if taken.rows_affected() == 0 {
            return Ok(Outcome::SoldOut);
        }
        stand.crash_point("the stock is written").await;
        stand.write_order(transaction, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "per-user-mutex",
    family: Family::InProcess,
    promise: Promise {
        one_node: Harms::NONE,
        across_nodes: Harms { oversells: Never, undersells: Never, duplicates: Possible },
    },
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration { id: "holds", shows: Harm::Holds, scenario: Scenario::DOUBLE_CLICK },
        Demonstration {
            id: "duplicates",
            shows: Harm::Duplicates,
            scenario: Scenario { nodes: 2, ..Scenario::DOUBLE_CLICK },
        },
    ],
    ..Strategy::PLAIN
};
