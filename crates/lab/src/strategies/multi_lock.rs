//! `multi-lock`: a lock on all of three independent Redis servers.

use crate::prelude::*;
use locks::MultiLock;

struct Node {
    lock: MultiLock,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let lock = MultiLock::new(stand.lines(3).await?, stand.millis("lease_ms"));
        Ok(Node { lock, stand })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        //= FLAW all of them have to agree: one server that is down stops the sale
        let sale = stand.under_lock(&self.lock, "lock", async |_| {
            stand.lose_redis().await?;
            //= CURE one server that remembers the lock is enough to keep everybody else out
            let sale = stand.in_transaction(async |tx| read_check_write(stand, tx, buyer).await);
            let outcome = sale.await;
            stand.crash_point("committed").await; // the lock stays until its lease is over
            outcome
        });
        sale.await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "multi-lock",
    family: Family::DistributedLock,
    promise: Promise::everywhere(Harms::POSSIBLE),
    needs: &[Need::RedisNodes(3)],
    options: &[lease_ms(2_000), wait_ms(5_000), redis_node_loss(3), redis_nodes_down(2)],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        demonstration("two-forget", Harm::Holds, Scenario::ONE_UNIT.options(&[(LOST, "2")])),
        demonstration("all-forget", Harm::Oversells, Scenario::ONE_UNIT.options(&[(LOST, "3")])),
        demonstration(
            "one-down",
            Harm::Fails,
            Scenario::ONE_UNIT.options(&[(DOWN, "1"), ("wait_ms", "50")]),
        ),
        demonstration("double-click", Harm::Duplicates, Scenario::DOUBLE_CLICK.options(PAUSED)),
        demonstration("impatient", Harm::Undersells, Scenario::IMPATIENT),
    ],
    locks: &["multi-lock"],
    ..Strategy::PLAIN
};

const PAUSED: &[(&str, &str)] = &[("lease_ms", "100"), ("pause_ms", "500")];
const LOST: &str = "redis_node_loss";
const DOWN: &str = "redis_nodes_down";
