//! `reentrant-lock`: an owner and a count, woken by a message, renewed by a watchdog.

use crate::prelude::*;
use locks::ReentrantLock;

struct Node {
    lock: ReentrantLock,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let redis = stand.lock_line().await?;
        let lock = ReentrantLock::new(redis, stand.millis("lease_ms")).renewed();
        Ok(Node { lock, stand })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let lock = self.lock.another_owner(); // each purchase, as each thread in Redisson

        //= FLAW the lock is in one Redis: when that forgets it, a second buyer comes in
        let sale = stand.under_lock(&lock, "lock", async |_| {
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
    id: "reentrant-lock",
    family: Family::DistributedLock,
    promise: Promise::everywhere(Harms::POSSIBLE),
    options: &[lease_ms(2_000), wait_ms(5_000), redis_node_loss(1)],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        demonstration(
            "watchdog",
            Harm::Holds,
            Scenario::SMALL
                .stock(2)
                .buyers(4)
                .options(&[("lease_ms", "800"), ("pause_ms", "2000")]),
        ),
        demonstration("redis-forgets", Harm::Oversells, Scenario::ONE_UNIT.options(FORGOTTEN)),
        demonstration("double-click", Harm::Duplicates, Scenario::DOUBLE_CLICK.options(FORGOTTEN)),
        demonstration("impatient", Harm::Undersells, Scenario::IMPATIENT),
    ],
    locks: &["reentrant-lock"],
    ..Strategy::PLAIN
};

const FORGOTTEN: &[(&str, &str)] = &[("redis_node_loss", "1"), ("lease_ms", "800")];
