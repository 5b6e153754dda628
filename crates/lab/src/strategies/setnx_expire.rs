//! `setnx-expire`: a lock of two commands, SETNX and PEXPIRE.

use crate::{lessons::b01_crash_between::AnyRepair, prelude::*};
use locks::setnx_expire::Repair;

pub type Node = AnyRepair;

pub async fn open(bench: &Bench) -> Result<Node> {
    let crash = ("PEXPIRE", "between SETNX and EXPIRE");
    let redis = bench.line_between(crash, ("PTTL", "the key has no expiry"));
    let repair = match bench.choice("repair") {
        "delete-and-take" => None,
        "never" => Some(Repair::Never),
        "only-expire" => Some(Repair::OnlyExpire),
        _ => Some(Repair::TakeOver),
    };
    Ok(AnyRepair::new(redis, bench.millis("lease_ms"), repair))
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW the write never asks whether the lock is still held: the lease may be over
        bench.under_lock(self, async |_| naive_sale(bench, buyer).await).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "setnx-expire",
    options: &[LEASE_MS, WAIT_MS, choice("repair", REPAIRS)],
    crash_points: &["between SETNX and EXPIRE", "the stock is written", "committed"],
    demonstrations: &[
        show("crash", Undersells, CRASHED.stock(5).options(&[CRASH, UP, NEVER, SOON])).at(4),
        show("take-over", Oversells, CRASHED.options(&[CRASH, UP, SOON])).at(3),
        show("only-expire", Holds, CRASHED.options(ONLY_EXPIRE)).at(2),
        show("double-click", Duplicates, DOUBLE_CLICK.options(PAUSED)).at(1),
    ],
    locks: &["setnx-expire"],
    variants: &[("b01", "del-and-setnx", DELETE_AND_TAKE)],
    ..LOCK_STRATEGY
};

/// Twelve want one thing; the first dies with the lock.
const CRASHED: Scenario = SMALL.stock(1).buyers(12).concurrency(4);
const CRASH: (&str, &str) = ("crash_at", "between SETNX and EXPIRE");
const UP: (&str, &str) = ("restart_ms", "0");
const NEVER: (&str, &str) = ("repair", "never");
const SOON: (&str, &str) = ("wait_ms", "50");
/// The lease is longer than the first holder waits to be met.
const ONLY_EXPIRE: &[(&str, &str)] =
    &[CRASH, UP, ("repair", "only-expire"), ("wait_ms", "20000"), ("lease_ms", "5000")];
const REPAIRS: &[&str] = &["take-over", "never", "delete-and-take", "only-expire"];
const DELETE_AND_TAKE: Source = Source {
    file: "crates/lab/src/lessons/b01_crash_between.rs",
    text: include_str!("../lessons/b01_crash_between.rs"),
};
