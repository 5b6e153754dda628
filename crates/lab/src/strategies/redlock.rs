//! `redlock`: a lock on a majority of three independent Redis servers.

use crate::prelude::*;
use locks::Redlock;

struct Node {
    lock: Redlock,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let lock = Redlock::new(stand.lines(3).await?, stand.millis("lease_ms"));
        Ok(Node { lock, stand })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        //= FLAW two of three that forget the lock are a second majority
        let sale = stand.under_lock(&self.lock, "lock", async |_| {
            stand.lose_redis().await?;
            let sale = stand.in_transaction(async |tx| read_check_write(stand, tx, buyer).await);
            let outcome = sale.await;
            stand.crash_point("committed").await; // the lock stays until its lease is over
            outcome
        });
        sale.await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "redlock",
    family: Family::DistributedLock,
    promise: Promise::everywhere(Harms::POSSIBLE),
    needs: &[Need::RedisNodes(3)],
    options: &[lease_ms(2_000), wait_ms(5_000), redis_node_loss(3), redis_nodes_down(2)],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        demonstration("one-down", Harm::Holds, Scenario::ONE_UNIT.options(&[(DOWN, "1")])),
        demonstration("one-forgets", Harm::Holds, Scenario::ONE_UNIT.options(&[(LOST, "1")])),
        demonstration("two-forget", Harm::Oversells, Scenario::ONE_UNIT.options(&[(LOST, "2")])),
        demonstration(
            "two-down",
            Harm::Fails,
            Scenario::ONE_UNIT.options(&[(DOWN, "2"), ("wait_ms", "50")]),
        ),
        demonstration("double-click", Harm::Duplicates, Scenario::DOUBLE_CLICK.options(PAUSED)),
        demonstration("impatient", Harm::Undersells, Scenario::IMPATIENT),
    ],
    locks: &["redlock"],
    ..Strategy::PLAIN
};

const PAUSED: &[(&str, &str)] = &[("lease_ms", "100"), ("pause_ms", "500")];
const LOST: &str = "redis_node_loss";
const DOWN: &str = "redis_nodes_down";
