//! `zookeeper-lock`: a queue of nodes that live as long as their sessions.

use crate::prelude::*;
use locks::ZooKeeperLock;

struct Node {
    lock: ZooKeeperLock,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let lock = ZooKeeperLock::new(stand.zoo().await?);
        Ok(Node { lock, stand })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        //= FLAW a session is a lease, too: it ends while its holder stands still
        let sale = stand.under_lock(&self.lock, "lock", async |guard| {
            stand.lose_session(guard.path()).await?;
            let sale = stand.in_transaction(async |tx| read_check_write(stand, tx, buyer).await);
            let outcome = sale.await;
            stand.crash_point("committed").await; // the guard is dropped, its node removed
            outcome
        });
        sale.await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "zookeeper-lock",
    family: Family::DistributedLock,
    promise: Promise::everywhere(Harms::POSSIBLE),
    needs: &[Need::ZooKeeper],
    options: &[wait_ms(5_000), choice("session_loss", &["off", "on"])],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        demonstration("session-over", Harm::Oversells, Scenario::ONE_UNIT.options(LAPSED)),
        demonstration("double-click", Harm::Duplicates, Scenario::DOUBLE_CLICK.options(LAPSED)),
        demonstration("impatient", Harm::Undersells, Scenario::IMPATIENT),
    ],
    locks: &["zookeeper-lock"],
    ..Strategy::PLAIN
};

const LAPSED: &[(&str, &str)] = &[("session_loss", "on")];
