//! `redlock`: a lock on a majority of three independent Redis servers.

use crate::prelude::*;
use locks::Redlock;

pub type Node = Redlock;

pub async fn open(bench: &Bench) -> Result<Node> {
    Ok(Redlock::new(bench.lines(3).await?, bench.millis("lease_ms")))
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW a buyer who waits in vain for the lock leaves, although there is stock
        let sale = bench.under_lock(self, async |_| {
            //= FLAW the write never asks whether the lock is still held: the lease may be over
            naive_sale(bench, buyer).await
        });
        sale.await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "redlock",
    needs: &[Need::RedisNodes(3)],
    options: &[LEASE_MS, WAIT_MS, redis_node_loss(3), redis_nodes_down(2)],
    demonstrations: &[
        show("one-down", Holds, ONE_UNIT.options(&[(DOWN, "1"), LONG])).at(5),
        show("two-forget", Oversells, ONE_UNIT.options(&[(LOST, "2"), LONG])).at(3),
        show("two-down", Fails, ONE_UNIT.options(&[(DOWN, "2"), ("wait_ms", "50")])).at(4),
        show("double-click", Duplicates, DOUBLE_CLICK.options(PAUSED)).at(2),
        show("impatient", Undersells, IMPATIENT).at(1),
    ],
    locks: &["redlock"],
    ..LOCK_STRATEGY
};
