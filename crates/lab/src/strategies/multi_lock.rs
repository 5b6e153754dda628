//! `multi-lock`: a lock on all of three independent Redis servers.

use crate::prelude::*;
use locks::MultiLock;

pub type Node = MultiLock;

pub async fn open(bench: &Bench) -> Result<Node> {
    Ok(MultiLock::new(bench.lines(3).await?, bench.millis("lease_ms")))
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW a server that comes back empty has forgotten the lock: if all do, another gets in
        //= FLAW a buyer who waits in vain for the lock leaves, although there is stock
        let sale = bench.under_lock(self, async |_| {
            //= FLAW the write never asks whether the lock is still held: the lease may be over
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
        show("two-forget", Holds, ONE_UNIT.options(&[(LOST, "2"), LONG])).at(5),
        show("all-forget", Oversells, ONE_UNIT.options(&[(LOST, "3"), LONG])).at(1),
        show("one-down", Fails, ONE_UNIT.options(&[(DOWN, "1"), ("wait_ms", "50")])).at(4),
        show("double-click", Duplicates, DOUBLE_CLICK.options(PAUSED)).at(3),
        show("impatient", Undersells, IMPATIENT).at(2),
    ],
    locks: &["multi-lock"],
    ..LOCK_STRATEGY
};
