//! `set-px-no-owner`: SET NX PX with the same value for everybody, and a plain DEL.

use crate::prelude::*;
use locks::SetPxNoOwner;

struct Node {
    lock: SetPxNoOwner,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let lock = SetPxNoOwner::new(stand.line().clone(), stand.millis("lease_ms"));
    ready(Node { lock, stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        //= FLAW at its end this deletes the lock, even if it is the next holder's by then
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
    id: "set-px-no-owner",
    family: Family::DistributedLock,
    promise: Promise::everywhere(Harms::POSSIBLE),
    options: &[lease_ms(2_000), wait_ms(5_000)],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        demonstration("paused", Harm::Oversells, Scenario::ONE_UNIT.options(PAUSED)),
        demonstration(
            "slow-work",
            Harm::Oversells,
            Scenario::SMALL.options(&[("lease_ms", "50"), ("work_ms", "120")]),
        ),
        demonstration("double-click", Harm::Duplicates, Scenario::DOUBLE_CLICK.options(PAUSED)),
        demonstration("impatient", Harm::Undersells, Scenario::IMPATIENT),
    ],
    locks: &["set-px-no-owner"],
    ..Strategy::PLAIN
};

const PAUSED: &[(&str, &str)] = &[("lease_ms", "100"), ("pause_ms", "500")];
