//! `zookeeper-lock`: a queue of nodes that live as long as their sessions.

use crate::prelude::*;
use locks::ZooKeeperLock;

pub type Node = ZooKeeperLock;

pub async fn open(bench: &Bench) -> Result<Node> {
    Ok(ZooKeeperLock(bench.zoo().await?))
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW a buyer who waits in vain for the lock leaves, although there is stock
        let sale = bench.under_lock(self, async |guard| {
            bench.lose_session(guard.path()).await?;
            //= FLAW a session is a lease, too: the write never asks whether it is over
            naive_sale(bench, buyer).await
        });
        sale.await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "zookeeper-lock",
    needs: &[Need::ZooKeeper],
    options: &[WAIT_MS, choice("session_loss", &["off", "on"])],
    demonstrations: &[
        show("session-over", Oversells, ONE_UNIT.options(LAPSED)).at(2),
        show("double-click", Duplicates, DOUBLE_CLICK.options(LAPSED)).at(2),
        show("impatient", Undersells, IMPATIENT).at(1),
    ],
    locks: &["zookeeper-lock"],
    ..LOCK_STRATEGY
};

/// Time for the second buyer's node to notice on a busy machine, and to open a new session.
const LAPSED: &[(&str, &str)] = &[("session_loss", "on"), ("wait_ms", "20000")];
