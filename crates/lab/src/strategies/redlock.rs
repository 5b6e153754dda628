//! `redlock`: a lock on a majority of three independent Redis servers.

use crate::prelude::*;
use locks::Redlock;

pub struct Node {
    lock: Redlock,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    Ok(Node { lock: Redlock::new(bench.lines(3).await?, bench.millis("lease_ms")) })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW two of three that forget the lock are a second majority
        bench.under_lock(&self.lock, async |_| naive_sale(bench, buyer).await).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "redlock",
    needs: &[Need::RedisNodes(3)],
    options: &[LEASE_MS, WAIT_MS, redis_node_loss(3), redis_nodes_down(2)],
    demonstrations: &[
        show("one-down", Holds, ONE_UNIT.options(&[(DOWN, "1"), LONG])),
        show("two-forget", Oversells, ONE_UNIT.options(&[(LOST, "2"), LONG])),
        show("two-down", Fails, ONE_UNIT.options(&[(DOWN, "2"), ("wait_ms", "50")])),
        show("double-click", Duplicates, DOUBLE_CLICK.options(PAUSED)),
        show("impatient", Undersells, IMPATIENT),
    ],
    locks: &["redlock"],
    ..LOCK_STRATEGY
};
