//! `setnx-getset`: the value says when the lock ends, and GETSET decides who takes an ended one.

use crate::prelude::*;
use locks::{SetnxGetset, wire::Clock};

struct Node {
    lock: SetnxGetset,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let clock = Clock::default();
    clock.set_offset_ms(stand.whole("clock_skew_ms") * i64::from(stand.node()));
    let lock = SetnxGetset::new(stand.line().clone(), stand.millis("lease_ms"), clock);
    ready(Node { lock, stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        //= FLAW each node judges by its own clock whether the lock has ended
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
    id: "setnx-getset",
    family: Family::DistributedLock,
    promise: Promise::everywhere(Harms::POSSIBLE),
    options: &[lease_ms(2_000), wait_ms(5_000), whole("clock_skew_ms", (0, 0, 60_000))],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        // Enough units that the fast clock does not sell them all, and time to wait for it.
        demonstration(
            "clock-skew",
            Harm::Oversells,
            Scenario::SMALL
                .nodes(3)
                .stock(8)
                .buyers(32)
                .options(&[("clock_skew_ms", "5000"), ("wait_ms", "10000")]),
        ),
        demonstration("paused", Harm::Oversells, Scenario::ONE_UNIT.options(PAUSED)),
        demonstration("double-click", Harm::Duplicates, Scenario::DOUBLE_CLICK.options(PAUSED)),
        demonstration("impatient", Harm::Undersells, Scenario::IMPATIENT),
    ],
    locks: &["setnx-getset"],
    ..Strategy::PLAIN
};

const PAUSED: &[(&str, &str)] = &[("lease_ms", "100"), ("pause_ms", "500")];
