//! `setnx-expire`: a lock of two commands, SETNX and PEXPIRE.

use crate::prelude::*;
use locks::{SetnxExpire, setnx_expire::Repair};

struct Node {
    lock: SetnxExpire,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let crash = ("PEXPIRE", "between SETNX and EXPIRE");
    let redis = stand.line_between(crash, ("PTTL", "the key has no expiry"));
    let repair = match stand.choice("repair") {
        "never" => Repair::Never,
        "delete-and-take" => Repair::DeleteAndTake,
        "only-expire" => Repair::OnlyExpire,
        _ => Repair::TakeOver,
    };
    let lock = SetnxExpire::new(redis, stand.millis("lease_ms")).repaired_by(repair);
    ready(Node { lock, stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        //= FLAW two commands take the lock: a crash between them leaves it for ever
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
    id: "setnx-expire",
    family: Family::DistributedLock,
    promise: Promise::everywhere(Harms::POSSIBLE),
    options: &[lease_ms(2_000), wait_ms(5_000), choice("repair", REPAIRS)],
    crash_points: &["between SETNX and EXPIRE", "the stock is written", "committed"],
    demonstrations: &[
        demonstration(
            "crash",
            Harm::Undersells,
            CRASHED.stock(5).options(&[CRASH, UP, NEVER, SOON]),
        ),
        demonstration("take-over", Harm::Oversells, CRASHED.options(&[CRASH, UP, SOON])),
        // The lease is longer than the first holder waits to be met.
        demonstration(
            "only-expire",
            Harm::Holds,
            CRASHED.options(&[
                CRASH,
                UP,
                ("repair", "only-expire"),
                ("wait_ms", "3400"),
                ("lease_ms", "1600"),
            ]),
        ),
        demonstration("double-click", Harm::Duplicates, Scenario::DOUBLE_CLICK.options(PAUSED)),
    ],
    locks: &["setnx-expire"],
    ..Strategy::PLAIN
};

/// Twelve want one thing; the first dies with the lock.
const CRASHED: Scenario = Scenario::SMALL.stock(1).buyers(12).concurrency(4);
const CRASH: (&str, &str) = ("crash_at", "between SETNX and EXPIRE");
const UP: (&str, &str) = ("restart_ms", "0");
const NEVER: (&str, &str) = ("repair", "never");
const SOON: (&str, &str) = ("wait_ms", "50");
const PAUSED: &[(&str, &str)] = &[("lease_ms", "100"), ("pause_ms", "500")];
const REPAIRS: &[&str] = &["take-over", "never", "delete-and-take", "only-expire"];
