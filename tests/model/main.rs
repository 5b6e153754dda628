//! A model of the protocol between Redis, Postgres and the processes, checked in every state within
//! small bounds; and the hand-over from buyers to the writer under many schedules ([`handoff`]).
//! See `docs/model.md`.
//!
//! **The rules of the protocol**, and where the program keeps them:
//!
//! 1. *Admission is one atomic step*: unit, buyer and log together, or nothing (`admit.lua`).
//! 2. *A process sells only from a Redis process that it knows to be approved*, and under the epoch
//!    that it believes in; the function refuses every other one (`admit.lua`).
//! 3. *A batch without a reply is sent again under the same ids* (`src/admission/retry.rs`).
//! 4. *Only orders of the sale's epoch are written*, in one transaction with the counter that keeps
//!    them within the stock (`src/orders/insert.rs`).
//! 5. *A log entry is deleted after its orders are committed* (`src/orders/writer.rs`).
//! 6. *An order of an ended epoch that is no row asks for a place in the live one, under its own
//!    id*, or becomes `rejected` (`src/orders/readmission.rs`).
//! 7. *A unit is returned by the order's own record*, once; the outbox row goes after Redis has it
//!    (`release` in `orders.lua`; `src/orders/outbox.rs`).
//! 8. *A rebuild fences Redis before it reads* (`fence` in `sale.lua`). Then it raises the epoch in
//!    Postgres, writes what the log holds, and recomputes from one snapshot (`src/rebuild/`).
//! 9. *Activating is refused* if a newer epoch is live or the log holds anything (`activate`).
//! 10. *A Redis process is approved last*, after every sale was fenced and the floor of the ids
//!     raised (`src/rebuild/run.rs`; `src/admission/ids.rs`).
//! 11. *The fence leaves a mark of its epoch, which activating needs*: it stops a rebuild that was
//!     overtaken, or whose buyers were flushed meanwhile.
//! 12. *A writer whose order is closed by then returns its unit once more*, and a release deletes
//!     only the outbox row that it has read (`release_closed`; `src/orders/outbox.rs`).
//!
//! **Not in the model**, but in other tests: batches of several buyers, limits above one, keys,
//! windows, the high-water mark, the operator's changes, payment, expiry, leases of several ids.

mod actions;
mod handoff;
mod payments;
mod properties;
mod protocol;
mod state;

use properties::*;
use protocol::{Protocol, Rule};
use state::Faults;
use stateright::{Checker, HasDiscoveries, Model};
use std::{collections::BTreeSet, time::Instant};

const NEITHER: [bool; 2] = [false, false];
const SECOND: [bool; 2] = [false, true];
const BOTH: [bool; 2] = [true, true];

/// One unit, two users with an attempt each; process 0 sells, these recover and rebuild.
fn protocol(recovers: [bool; 2], rebuilds: [bool; 2], allow: fn(&mut Faults)) -> Protocol {
    let mut faults = Faults::default();
    allow(&mut faults);
    Protocol {
        without: &[],
        stock: 1,
        attempts: vec![1, 1],
        faults,
        sells: [true, false],
        recovers,
        rebuilds,
    }
}

impl Protocol {
    fn two_units(self) -> Self {
        Self { stock: 2, attempts: vec![1, 1, 1], ..self }
    }

    fn one_user(self) -> Self {
        Self { attempts: vec![1], ..self }
    }
}

/// Visits every state: all properties must hold in each, and these corners must be among them.
fn holds(name: &str, model: Protocol, corners: &[&'static str]) {
    let began = Instant::now();
    let checker = model.checker().spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    let took = began.elapsed();
    println!("{name}: {states} states, up to {depth} steps deep, {took:?}");
    for property in always().map(|property| property.name) {
        if let Some(path) = checker.discovery(property) {
            let path = path.into_actions();
            panic!("{name}: not always: {property}\n{path:#?}");
        }
    }
    for corner in corners {
        assert!(checker.discovery(corner).is_some(), "{name}: no state in which {corner}");
    }
}

fn breaks(name: &str, without: &'static [Rule], model: Protocol, property: &'static str) {
    let began = Instant::now();
    let checker = Protocol { without, ..model }
        .checker()
        .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([property])))
        .target_state_count(4_000_000) // without the rule there may be no end
        .spawn_bfs()
        .join();
    let steps = checker.discovery(property).map(|path| path.into_actions());
    let (states, took) = (checker.unique_state_count(), began.elapsed());
    println!("{name}: {states} states, {took:?}, not always: {property}\n    {steps:?}");
    assert!(steps.is_some(), "{name}: the model does not miss the rule");
}

macro_rules! holds {
    ($($name:ident: $model:expr, $corners:expr;)*) => {$(
        #[test]
        fn $name() {
            holds(stringify!($name), $model, &$corners);
        }
    )*};
}

holds! {
    selling_and_cancelling:
        Protocol { sells: BOTH, ..protocol(SECOND, NEITHER, |left| left.cancels = 1).two_units() },
        [];
    replies_are_lost:
        a_reply_and_a_cancellation(),
        [OWN_RETRY];
    a_reply_is_lost_and_then_the_data:
        protocol(SECOND, SECOND, |left| (left.lost_replies, left.flushes) = (1, 1)),
        [OWN_RETRY, READMITTED, REJECTED, LOST, REOPENED];
    redis_is_flushed_and_a_process_dies:
        protocol(SECOND, BOTH, |left| (left.flushes, left.crashes) = (1, 1)),
        [READMITTED, REJECTED, LOST, REOPENED];
    redis_is_flushed_with_two_units_on_sale:
        protocol(SECOND, SECOND, |left| left.flushes = 1).two_units(),
        [READMITTED, REJECTED, REOPENED];
    redis_is_flushed_twice:
        protocol(NEITHER, SECOND, |left| left.flushes = 2),
        [READMITTED, REJECTED, REOPENED];
    redis_is_flushed_twice_and_an_order_is_cancelled:
        flushed_twice_with_a_cancellation(),
        [READMITTED, REOPENED];
    a_rebuild_loses_its_lock:
        lost_lock(),
        [READMITTED, REJECTED, OVERTAKEN, REOPENED];
    a_rebuild_loses_its_lock_and_an_order_is_cancelled:
        lost_lock_with_a_cancellation(),
        [READMITTED, OVERTAKEN, REOPENED];
    redis_restarts_with_its_data_and_a_rebuild_loses_its_lock:
        protocol(NEITHER, BOTH, |left| (left.restarts, left.lost_locks) = (1, 1)),
        [OVERTAKEN, REOPENED];
    redis_restarts_with_its_data_and_without:
        protocol(NEITHER, SECOND, |left| (left.restarts, left.empty_restarts) = (1, 1)),
        [READMITTED, REJECTED, REOPENED];
    redis_restarts_with_the_data_of_an_earlier_moment:
        Protocol { recovers: SECOND, sells: BOTH, ..rolled_back() },
        [READMITTED, REJECTED, REOPENED];
    redis_restarts_with_the_data_of_an_earlier_moment_and_a_rebuild_fails:
        rolled_back_with_a_failed_step(),
        [REOPENED];
}

fn a_reply_and_a_cancellation() -> Protocol {
    protocol(SECOND, NEITHER, |left| (left.lost_replies, left.cancels) = (1, 1))
}

fn flushed_twice_with_a_cancellation() -> Protocol {
    protocol(SECOND, SECOND, |left| (left.flushes, left.cancels) = (2, 1)).one_user()
}

fn flushed_once() -> Protocol {
    protocol(NEITHER, SECOND, |left| (left.flushes, left.cancels) = (1, 1))
}

fn lost_lock() -> Protocol {
    protocol(NEITHER, BOTH, |left| (left.flushes, left.lost_locks) = (1, 1))
}

fn lost_lock_with_a_cancellation() -> Protocol {
    let all = |left: &mut Faults| (left.flushes, left.lost_locks, left.cancels) = (1, 1, 1);
    protocol(NEITHER, BOTH, all).one_user()
}

fn rolled_back() -> Protocol {
    protocol(NEITHER, SECOND, |left| left.rollbacks = 1)
}

fn rolled_back_with_a_failed_step() -> Protocol {
    protocol(NEITHER, SECOND, |left| (left.rollbacks, left.failed_steps) = (1, 1))
}

macro_rules! breaks {
    ($($name:ident: [$($rule:ident),*], $model:expr, $property:expr;)*) => {$(
        #[test]
        fn $name() {
            breaks(stringify!($name), &[$(Rule::$rule),*], $model, $property);
        }
    )*};
}

breaks! {
    rule_4_writers_are_fenced: [WritersAreFenced], flushed_once(), CONSERVED;
    rule_5_acknowledging_after_the_commit: [AcknowledgeAfterCommit],
        protocol(NEITHER, BOTH, |left| (left.crashes, left.flushes) = (1, 1)), NOTHING_VANISHES;
    rule_6_the_same_id: [ReadmitUnderSameId], flushed_once(), NOTHING_VANISHES;
    rule_7_a_unit_is_returned_once: [ReleaseIsIdempotent], flushed_once(), RECORDS_ADD_UP;
    // Without the seal there is no mark to ask for either.
    rule_8_the_seal: [Seal, SealLeavesMark],
        protocol(NEITHER, SECOND, |left| (left.restarts, left.cancels) = (1, 1)), CONSERVED;
    // The mark of rule 11 is the first line of defence, so both are taken away.
    rule_9_the_log_is_empty: [SealLeavesMark, InstallNeedsEmptyLog],
        lost_lock(), REJECTED_AFTER_LOSS;
    rule_10_approving_last: [ApproveLast], rolled_back(), IDS_DIFFER;
    rule_10_approving_only_what_is_fenced: [ApproveOnlyFenced],
        rolled_back_with_a_failed_step(), CONSERVED;
    rule_10_the_floor_of_the_ids: [RaiseIdFloor], rolled_back(), IDS_DIFFER;
    rule_11_flushed_between_buyers_and_install: [SealLeavesMark],
        flushed_twice_with_a_cancellation(), SAME_BUYERS;
    rule_11_installed_by_a_rebuild_that_was_overtaken: [SealLeavesMark],
        lost_lock_with_a_cancellation(), CONSERVED;
    rule_12_an_order_that_is_admitted_after_it_was_closed: [ReleaseClosedOrderAgain],
        a_reply_and_a_cancellation().one_user(), CONSERVED;
}
