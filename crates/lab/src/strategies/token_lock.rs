//! `token-lock`: SET NX PX with a value that only its maker knows.

use crate::prelude::*;
use locks::TokenLock;

struct Node {
    lock: TokenLock,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let lock = TokenLock::new(stand.line().clone(), stand.millis("lease_ms"));
    ready(Node { lock, stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        //= FLAW nothing tells the holder when the lease is over: it writes beside the next one
        let sale = stand.under_lock(&self.lock, "lock", async |_| {
            let sale = stand.in_transaction(async |tx| read_check_write(stand, tx, buyer).await);
            let outcome = sale.await;
            stand.crash_point("committed").await; // the lock stays until its lease is over
            outcome
        });
        sale.await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "token-lock",
    family: Family::DistributedLock,
    promise: Promise::everywhere(Harms::POSSIBLE),
    options: &[lease_ms(2_000), wait_ms(5_000)],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        demonstration("paused", Harm::Oversells, ONE_UNIT.options(PAUSED)),
        demonstration(
            "told-too-late",
            Harm::Notes("the lock was gone before it was released"),
            ONE_UNIT.options(PAUSED),
        ),
        demonstration("double-click", Harm::Duplicates, Scenario::DOUBLE_CLICK.options(PAUSED)),
        demonstration(
            "impatient",
            Harm::Undersells,
            Scenario::SMALL.buyers(5).options(&[("wait_ms", "0")]),
        ),
    ],
    locks: &["token-lock"],
    ..Strategy::PLAIN
};

const ONE_UNIT: Scenario = Scenario::SMALL.stock(1).buyers(2);
const PAUSED: &[(&str, &str)] = &[("lease_ms", "100"), ("pause_ms", "500")];
