//! `multi-lock`: a lock on all of three independent Redis servers.

use crate::prelude::*;
use locks::MultiLock;

pub struct Node {
    lock: MultiLock,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    Ok(Node { lock: MultiLock::new(bench.lines(3).await?, bench.millis("lease_ms")) })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW all of them have to agree: one server that is down stops the sale
        let sale = bench.under_lock(&self.lock, async |_| {
            //= CURE one server that remembers the lock is enough to keep everybody else out
            naive_sale(bench, buyer).await
        });
        sale.await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "multi-lock",
    needs: &[Need::RedisNodes(3)],
    options: &[LEASE_MS, WAIT_MS, redis_node_loss(3), redis_nodes_down(2)],
    demonstrations: &[
        show("two-forget", Holds, ONE_UNIT.options(&[(LOST, "2"), LONG])),
        show("all-forget", Oversells, ONE_UNIT.options(&[(LOST, "3"), LONG])),
        show("one-down", Fails, ONE_UNIT.options(&[(DOWN, "1"), ("wait_ms", "50")])),
        show("double-click", Duplicates, DOUBLE_CLICK.options(PAUSED)),
        show("impatient", Undersells, IMPATIENT),
    ],
    locks: &["multi-lock"],
    ..LOCK_STRATEGY
};
