//! `reentrant-lock`: an owner and a count, woken by a message, renewed by a watchdog.

use crate::prelude::*;
use locks::ReentrantLock;

pub type Node = ReentrantLock;

pub async fn open(bench: &Bench) -> Result<Node> {
    let redis = bench.lock_line().await?;
    Ok(ReentrantLock::new(redis, bench.millis("lease_ms")).renewed())
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let lock = self.another_owner(); // each purchase, as each thread in Redisson

        //= FLAW the lock is in one Redis: when that forgets it, a second buyer comes in
        //= FLAW a buyer who waits in vain for the lock leaves, although there is stock
        bench.under_lock(&lock, async |_| naive_sale(bench, buyer).await).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "reentrant-lock",
    options: &[LEASE_MS, WAIT_MS, redis_node_loss(1)],
    demonstrations: &[
        show("watchdog", Holds, SMALL.stock(2).buyers(4).options(RENEWED)).at(4),
        show("redis-forgets", Oversells, ONE_UNIT.options(FORGOTTEN)).at(1),
        show("double-click", Duplicates, DOUBLE_CLICK.options(FORGOTTEN)).at(1),
        show("impatient", Undersells, IMPATIENT).at(2),
    ],
    locks: &["reentrant-lock"],
    ..LOCK_STRATEGY
};

/// The pause is longer than the lease, and the lease than a busy machine needs to renew it.
const RENEWED: &[(&str, &str)] =
    &[("lease_ms", "4000"), ("pause_ms", "5000"), ("wait_ms", "20000")];
/// The lease is longer than the first holder waits to be met: it was lost, and has not ended.
const FORGOTTEN: &[(&str, &str)] = &[("redis_node_loss", "1"), ("lease_ms", "20000")];
