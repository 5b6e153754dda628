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

#[macro_use]
mod explorer;
mod actions;
mod handoff;
mod payments;
mod properties;
mod protocol;
mod state;

use explorer::{breaks, visit};
use properties::*;
use protocol::{Protocol, Rule, Rule::*};
use state::Fault::{self, *};
use stateright::{Checker, Model};

const NEITHER: [bool; 2] = [false, false];
const SECOND: [bool; 2] = [false, true];
const BOTH: [bool; 2] = [true, true];

/// One unit, two users with an attempt each; process 0 sells, these recover and rebuild.
fn protocol(recovers: [bool; 2], rebuilds: [bool; 2], faults: &'static [Fault]) -> Protocol {
    Protocol { without: &[], stock: 1, users: 2, faults, sells: [true, false], recovers, rebuilds }
}

impl Protocol {
    fn two_units(self) -> Self {
        Self { stock: 2, users: 3, ..self }
    }

    fn one_user(self) -> Self {
        Self { users: 1, ..self }
    }

    fn without(self, without: &'static [Rule]) -> Self {
        Self { without, ..self }
    }
}

/// Visits every state: all properties must hold in each, and these corners must be among them.
fn holds(name: &str, model: Protocol, corners: &[&'static str]) {
    let checker = visit(name, model.checker());
    for property in always() {
        checker.assert_no_discovery(property.name);
    }
    for corner in corners {
        checker.assert_any_discovery(corner);
    }
}

tests! { holds:
    selling_and_cancelling:
        Protocol { sells: BOTH, ..protocol(SECOND, NEITHER, &[Cancel]).two_units() }, &[];
    replies_are_lost: protocol(SECOND, NEITHER, &[LostReply, Cancel]), &[OWN_RETRY];
    a_reply_is_lost_and_then_the_data:
        protocol(SECOND, SECOND, &[LostReply, Flush]),
        &[OWN_RETRY, READMITTED, REJECTED, LOST, REOPENED];
    redis_is_flushed_and_a_process_dies:
        protocol(SECOND, BOTH, &[Flush, Crash]), &[READMITTED, REJECTED, LOST, REOPENED];
    redis_is_flushed_with_two_units_on_sale:
        protocol(SECOND, SECOND, &[Flush]).two_units(), &[READMITTED, REJECTED, REOPENED];
    redis_is_flushed_twice:
        protocol(NEITHER, SECOND, &[Flush, Flush]), &[READMITTED, REJECTED, REOPENED];
    redis_is_flushed_twice_and_an_order_is_cancelled:
        protocol(SECOND, SECOND, &[Flush, Flush, Cancel]).one_user(), &[READMITTED, REOPENED];
    a_rebuild_loses_its_lock:
        protocol(NEITHER, BOTH, &[Flush, LostLock]),
        &[READMITTED, REJECTED, OVERTAKEN, REOPENED];
    a_rebuild_loses_its_lock_and_an_order_is_cancelled:
        protocol(NEITHER, BOTH, &[Flush, LostLock, Cancel]).one_user(),
        &[READMITTED, OVERTAKEN, REOPENED];
    redis_restarts_with_its_data_and_a_rebuild_loses_its_lock:
        protocol(NEITHER, BOTH, &[Restart, LostLock]), &[OVERTAKEN, REOPENED];
    redis_restarts_with_its_data_and_without:
        protocol(NEITHER, SECOND, &[Restart, EmptyRestart]), &[READMITTED, REJECTED, REOPENED];
    redis_restarts_with_the_data_of_an_earlier_moment:
        Protocol { sells: BOTH, ..protocol(SECOND, SECOND, &[Rollback]) },
        &[READMITTED, REJECTED, REOPENED];
    redis_restarts_with_the_data_of_an_earlier_moment_and_a_rebuild_fails:
        protocol(NEITHER, SECOND, &[Rollback, FailedStep]), &[REOPENED];
}

tests! { breaks:
    rule_4_writers_are_fenced:
        protocol(NEITHER, SECOND, &[Flush, Cancel]).without(&[WritersAreFenced]), CONSERVED;
    rule_5_acknowledging_after_the_commit:
        protocol(NEITHER, BOTH, &[Crash, Flush]).without(&[AcknowledgeAfterCommit]),
        NOTHING_VANISHES;
    rule_6_the_same_id:
        protocol(NEITHER, SECOND, &[Flush, Cancel]).without(&[ReadmitUnderSameId]),
        NOTHING_VANISHES;
    rule_7_a_unit_is_returned_once:
        protocol(NEITHER, SECOND, &[Flush, Cancel]).without(&[ReleaseIsIdempotent]),
        RECORDS_ADD_UP;
    // Without the fence there is no mark to ask for either.
    rule_8_the_fence:
        protocol(NEITHER, SECOND, &[Restart, Cancel]).without(&[Fence, FenceLeavesMark]), CONSERVED;
    // The mark of rule 11 is the first line of defence, so both are taken away.
    rule_9_the_log_is_empty:
        protocol(NEITHER, BOTH, &[Flush, LostLock])
            .without(&[FenceLeavesMark, InstallNeedsEmptyLog]),
        REJECTED_AFTER_LOSS;
    rule_10_approving_last:
        protocol(NEITHER, SECOND, &[Rollback]).without(&[ApproveLast]), IDS_DIFFER;
    rule_10_approving_only_what_is_fenced:
        protocol(NEITHER, SECOND, &[Rollback, FailedStep]).without(&[ApproveOnlyFenced]),
        CONSERVED;
    rule_10_the_floor_of_the_ids:
        protocol(NEITHER, SECOND, &[Rollback]).without(&[RaiseIdFloor]), IDS_DIFFER;
    rule_11_flushed_between_buyers_and_install:
        protocol(SECOND, SECOND, &[Flush, Flush, Cancel]).one_user().without(&[FenceLeavesMark]),
        SAME_BUYERS;
    rule_11_installed_by_a_rebuild_that_was_overtaken:
        protocol(NEITHER, BOTH, &[Flush, LostLock, Cancel]).one_user().without(&[FenceLeavesMark]),
        CONSERVED;
    rule_12_an_order_that_is_admitted_after_it_was_closed:
        protocol(SECOND, NEITHER, &[LostReply, Cancel])
            .one_user()
            .without(&[ReleaseClosedOrderAgain]),
        CONSERVED;
}
