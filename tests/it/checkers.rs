//! Each checker finds its violation in a small hand-made history, and lets a sound one pass.

use crate::support::{
    checkers::{
        AuditSaid, Checker, Evidence, RedisSale, Row, SaleFacts, Settled, Snapshot, Violation,
        check,
    },
    history::{Answer, History, Kind, NO_KEY, NO_ORDER, Operation, user_id},
};
use flash_sale::domain::OrderStatus;
use std::time::Duration;

const SEED: u64 = 7;
const SALE: i64 = 11;
/// The wall clock at the beginning of the history, in microseconds.
const BEGAN: i64 = 1_000_000_000;

/// An operation from `at` to `at + 1` milliseconds, of user 1 in the only sale.
fn operation(at: u64, kind: Kind, answer: Answer, order: i64) -> Operation {
    Operation {
        invoked: at * 1_000,
        completed: at * 1_000 + 1_000,
        order,
        user: 1,
        key: NO_KEY,
        client: 0,
        instance: 0,
        sale: 0,
        kind,
        answer,
    }
}

fn buy(at: u64, user: u32, answer: Answer, order: i64) -> Operation {
    Operation {
        user,
        ..operation(at, Kind::Buy, answer, order)
    }
}

fn keyed(key: u32, buy: Operation) -> Operation {
    Operation { key, ..buy }
}

fn row(id: i64, user: u32, status: OrderStatus) -> Row {
    Row {
        id,
        sale: SALE,
        user: user_id(SEED, user).uuid().as_u128(),
        status,
        created_at: BEGAN + 1_000,
        has_payment: status == OrderStatus::Paid,
    }
}

/// A run in which all went well: a stock of 2; user 1 paid order 101, user 2 cancelled 102, user 3
/// bought the unit that came back and paid, and user 4 came too late.
fn sound() -> Evidence {
    let done = Answer::Order(OrderStatus::Paid);
    let paid = |at, user, order| Operation {
        user,
        ..operation(at, Kind::Pay, done, order)
    };
    let cancelled = Answer::Order(OrderStatus::Cancelled);
    let operations = vec![
        keyed(5, buy(10, 1, Answer::Accepted, 101)),
        buy(10, 2, Answer::Accepted, 102),
        keyed(5, buy(20, 1, Answer::Replayed, 101)),
        operation(22, Kind::Read, Answer::Order(OrderStatus::Queued), 101),
        operation(
            24,
            Kind::Read,
            Answer::Order(OrderStatus::PendingPayment),
            101,
        ),
        paid(30, 1, 101),
        Operation {
            user: 2,
            ..operation(30, Kind::Cancel, cancelled, 102)
        },
        operation(32, Kind::Read, done, 101),
        Operation {
            user: 2,
            ..operation(33, Kind::Pry, Answer::OrderNotFound, 101)
        },
        operation(40, Kind::Pause, Answer::Done, NO_ORDER),
        buy(42, 3, Answer::Paused, NO_ORDER),
        operation(44, Kind::Resume, Answer::Done, NO_ORDER),
        // Nobody knows what became of this one; the database does.
        buy(50, 3, Answer::Unknown, NO_ORDER),
        buy(52, 3, Answer::AlreadyOrdered, 103),
        paid(54, 3, 103),
        buy(60, 4, Answer::SoldOut, NO_ORDER),
    ];
    let rows = vec![
        row(101, 1, OrderStatus::Paid),
        row(102, 2, OrderStatus::Cancelled),
        row(103, 3, OrderStatus::Paid),
    ];
    let live = rows.iter().filter(|row| row.is_live());
    Evidence {
        history: History {
            seed: SEED,
            began_at: BEGAN,
            operations,
        },
        sales: vec![SaleFacts {
            name: "test",
            id: SALE,
            first_stock: 2,
            stock: 2,
            taken: 2,
            per_user_limit: 1,
            opens_at: BEGAN,
            closes_at: BEGAN + 1_000_000,
            sold_off: true,
        }],
        redis: vec![RedisSale {
            sale: SALE,
            stock: 2,
            remaining: 0,
            pending: 0,
            log_entries: 0,
            live: live.map(|row| (row.user, row.id)).collect(),
        }],
        rows,
        snapshots: vec![Snapshot {
            at: 25_000,
            sale: SALE,
            stock: 2,
            taken: 2,
            live: 2,
            users_over_limit: 0,
        }],
        audits: vec![AuditSaid {
            sale: SALE,
            ok: true,
            conserved: Some(true),
            problems: "[]".to_owned(),
        }],
        settled: Settled {
            after: Some(Duration::from_secs(1)),
            limit: Duration::from_secs(5),
            still: String::new(),
        },
        outbox: 0,
        late_effects: Duration::from_secs(1),
        redis_lost_data: false,
        may_lose_accepted: false,
        may_panic: false,
    }
}

fn did(run: &mut Evidence, operation: Operation) {
    run.history.operations.push(operation);
}

/// Breaks the sound run, and expects this checker to be among those that cry.
#[track_caller]
fn expect(checker: Checker, break_it: impl FnOnce(&mut Evidence)) {
    let mut evidence = sound();
    break_it(&mut evidence);
    let found = check(&evidence);
    let cries = found.iter().any(|violation| violation.checker == checker);
    assert!(cries, "{checker:?} says nothing; the others: {found:#?}");
}

#[track_caller]
fn expect_clean(change: impl FnOnce(&mut Evidence)) {
    let mut evidence = sound();
    change(&mut evidence);
    let found: Vec<Violation> = check(&evidence);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_sound_run_is_clean() {
    expect_clean(|_| {});
}

#[test]
fn overselling_is_seen_in_a_snapshot_and_in_the_end() {
    expect(Checker::NoOversell, |run| run.snapshots[0].live = 3);
    expect(Checker::NoOversell, |run| run.sales[0].stock = 1);
}

#[test]
fn a_user_with_too_many_orders_is_seen() {
    expect(Checker::NoDuplicate, |run| {
        run.snapshots[0].users_over_limit = 1
    });
    expect(Checker::NoDuplicate, |run| {
        run.rows[2].user = run.rows[0].user
    });
}

#[test]
fn an_accepted_purchase_without_a_row_is_seen() {
    expect(Checker::AcceptedIsOneRow, |run| {
        run.rows.remove(1);
    });
    // The row is there, but somebody else's.
    expect(Checker::AcceptedIsOneRow, |run| {
        run.rows[1].user = run.rows[0].user
    });
    // An explicit rejection is a row.
    expect_clean(|run| {
        run.rows.push(row(104, 5, OrderStatus::Rejected));
        did(run, buy(70, 5, Answer::Accepted, 104));
    });
}

#[test]
fn the_documented_loss_is_allowed_only_where_it_is_documented_and_only_for_a_few() {
    let lose = |run: &mut Evidence, orders: i64| {
        for order in 0..20 {
            let user = 50 + u32::try_from(order).expect("small");
            did(run, buy(70, user, Answer::Accepted, 200 + order));
            if order >= orders {
                run.rows.push(row(200 + order, user, OrderStatus::Expired));
            }
        }
    };
    expect(Checker::AcceptedIsOneRow, |run| lose(run, 2));
    expect_clean(|run| {
        run.may_lose_accepted = true;
        lose(run, 2);
    });
    expect(Checker::AcceptedIsOneRow, |run| {
        run.may_lose_accepted = true;
        lose(run, 15);
    });
}

#[test]
fn a_row_that_nobody_asked_for_is_seen() {
    expect(Checker::NoRowWithoutAttempt, |run| {
        run.rows.push(row(104, 99, OrderStatus::Expired));
    });
    // User 4 asked, and was refused.
    expect(Checker::NoRowWithoutAttempt, |run| {
        run.rows.push(row(104, 4, OrderStatus::Expired));
    });
    // User 3 has one attempt without an answer, which explains one order and not two.
    expect(Checker::NoRowWithoutAttempt, |run| {
        run.rows.push(row(104, 3, OrderStatus::Expired));
    });
    expect(Checker::NoRowWithoutAttempt, |run| {
        did(run, buy(1, 5, Answer::NeverSent, NO_ORDER));
        run.rows.push(row(104, 5, OrderStatus::Expired));
    });
}

#[test]
fn units_that_went_astray_are_seen() {
    expect(Checker::Conservation, |run| run.sales[0].taken = 1);
    expect(Checker::Conservation, |run| run.redis[0].remaining = 1);
    expect(Checker::Conservation, |run| run.redis[0].stock = 3);
    expect(Checker::Conservation, |run| run.redis[0].live[0].1 = 102);
    expect(Checker::Conservation, |run| run.redis.clear());
    expect(Checker::Conservation, |run| run.audits[0].ok = false);
    expect(Checker::Conservation, |run| run.audits[0].conserved = None);
}

#[test]
fn a_stock_that_is_not_what_the_operator_was_told_is_seen() {
    let change = |add, answer| operation(70, Kind::AddStock(add), answer, NO_ORDER);
    for (add, answer) in [(3, Answer::Done), (-1, Answer::Done)] {
        expect(Checker::Conservation, |run| {
            did(run, change(add, answer));
        });
    }
    for (add, answer) in [
        (3, Answer::Unknown),
        (-1, Answer::Unavailable),
        (-1, Answer::Conflict),
    ] {
        expect_clean(|run| did(run, change(add, answer)));
    }
}

#[test]
fn units_left_over_are_seen() {
    let leave_one = |run: &mut Evidence| {
        run.rows[2].status = OrderStatus::Expired;
        run.rows[2].has_payment = false;
        run.history.operations.retain(|one| one.order != 103);
        run.sales[0].taken = 1;
        run.redis[0].live.pop();
        run.redis[0].remaining = 1;
    };
    expect(Checker::NoUndersell, leave_one);
    // Without enough demand nothing is promised.
    expect_clean(|run| {
        leave_one(run);
        run.sales[0].sold_off = false;
    });
}

#[test]
fn an_id_given_twice_is_seen() {
    expect(Checker::UniqueIds, |run| {
        did(run, buy(70, 5, Answer::Accepted, 101));
    });
    // The same user without a key: two purchases.
    expect(Checker::UniqueIds, |run| {
        did(run, buy(70, 1, Answer::Accepted, 101));
    });
    // The same key: one purchase, asked for twice.
    expect_clean(|run| {
        did(run, keyed(5, buy(10, 1, Answer::Accepted, 101)));
    });
}

#[test]
fn an_answer_that_reverts_is_seen() {
    let read = |status| operation(80, Kind::Read, Answer::Order(status), 101);
    expect(Checker::NothingReverts, |run| {
        did(run, read(OrderStatus::PendingPayment));
    });
    expect(Checker::NothingReverts, |run| {
        did(run, read(OrderStatus::Expired));
    });
    expect(Checker::NothingReverts, |run| {
        did(run, operation(80, Kind::Read, Answer::OrderNotFound, 101));
    });
    // Told that it is paid; the database says otherwise.
    expect(Checker::NothingReverts, |run| {
        run.rows[0].status = OrderStatus::Expired;
        run.rows[0].has_payment = false;
    });
    expect(Checker::NothingReverts, |run| {
        run.rows[1].has_payment = true
    });
    // At the same time as the payment, both answers are right.
    expect_clean(|run| {
        let mut overlapping = operation(
            30,
            Kind::Read,
            Answer::Order(OrderStatus::PendingPayment),
            101,
        );
        overlapping.completed = 31_500;
        did(run, overlapping);
    });
}

#[test]
fn an_order_out_of_sight_is_excused_only_while_redis_had_lost_it_and_it_was_no_row() {
    let unseen = operation(15, Kind::Read, Answer::OrderNotFound, 101);
    expect(Checker::NothingReverts, |run| did(run, unseen));
    expect_clean(|run| {
        run.redis_lost_data = true;
        did(run, unseen);
    });
    expect(Checker::NothingReverts, |run| {
        run.redis_lost_data = true;
        let late = operation(90, Kind::Read, Answer::OrderNotFound, 101);
        did(run, late);
    });
}

#[test]
fn another_order_for_the_same_key_is_seen() {
    expect(Checker::SameKeySameOrder, |run| {
        run.rows.push(row(105, 1, OrderStatus::Expired));
        did(run, keyed(5, buy(70, 1, Answer::Accepted, 105)));
    });
    expect(Checker::SameKeySameOrder, |run| {
        did(run, keyed(5, buy(70, 1, Answer::AlreadyOrdered, 101)));
    });
    // Another key is another purchase, and hears of the first.
    expect_clean(|run| {
        did(run, keyed(6, buy(70, 1, Answer::AlreadyOrdered, 101)));
    });
    // After a loss of data the first order may have given way to the second, but then it is rejected.
    let give_way = |run: &mut Evidence, end: OrderStatus| {
        run.redis_lost_data = true;
        run.rows.push(row(105, 1, end));
        did(run, keyed(5, buy(70, 1, Answer::Accepted, 105)));
    };
    expect_clean(|run| give_way(run, OrderStatus::Rejected));
    expect(Checker::SameKeySameOrder, |run| {
        give_way(run, OrderStatus::Expired);
    });
}

#[test]
fn what_never_ends_is_seen() {
    expect(Checker::TerminalInTime, |run| run.settled.after = None);
    expect(Checker::TerminalInTime, |run| run.outbox = 1);
    expect(Checker::TerminalInTime, |run| run.redis[0].pending = 1);
    expect(Checker::TerminalInTime, |run| {
        run.rows[0].status = OrderStatus::PendingPayment;
    });
}

#[test]
fn a_purchase_outside_the_window_is_seen() {
    expect(Checker::OnlyWhileOpen, |run| {
        run.sales[0].opens_at = BEGAN + 30_000
    });
    expect(Checker::OnlyWhileOpen, |run| {
        run.sales[0].closes_at = BEGAN + 4_000
    });
    expect(Checker::OnlyWhileOpen, |run| {
        run.rows[0].created_at = BEGAN - 1
    });
}

#[test]
fn a_purchase_while_paused_is_seen_but_only_if_it_certainly_was() {
    let accepted = buy(42, 5, Answer::Accepted, 104);
    let with_order = |run: &mut Evidence, one: Operation| {
        run.rows.push(row(104, 5, OrderStatus::Expired));
        did(run, one);
    };
    expect(Checker::OnlyWhileOpen, |run| with_order(run, accepted));
    // It overlaps the pause, or the resume.
    for (invoked, completed) in [(40_500, 42_000), (42_000, 44_500)] {
        expect_clean(|run| {
            let overlapping = Operation {
                invoked,
                completed,
                ..accepted
            };
            with_order(run, overlapping);
        });
    }
    // A replay was accepted before.
    expect_clean(|run| {
        did(run, keyed(5, buy(42, 1, Answer::Replayed, 101)));
    });
    // A resume that nobody heard of may have come after the pause.
    expect_clean(|run| {
        did(run, operation(30, Kind::Resume, Answer::Unknown, NO_ORDER));
        with_order(run, accepted);
    });
}

#[test]
fn prying_that_succeeds_is_seen() {
    for answer in [Answer::Order(OrderStatus::Paid), Answer::Conflict] {
        expect(Checker::OrdersArePrivate, |run| {
            let mut pry = operation(80, Kind::Pry, answer, 101);
            pry.user = 2;
            did(run, pry);
        });
    }
}

#[test]
fn an_answer_that_the_contract_does_not_know_is_seen() {
    expect(Checker::DocumentedAnswers, |run| {
        let internal = Answer::Undocumented(500);
        did(run, buy(80, 4, internal, NO_ORDER));
    });
}

#[test]
fn many_violations_of_a_kind_are_told_by_examples() {
    let mut run = sound();
    for at in 0..100 {
        let internal = Answer::Undocumented(500);
        did(&mut run, buy(80 + at, 4, internal, NO_ORDER));
    }
    let found = check(&run);
    assert!(found.len() < 10, "{found:#?}");
    assert!(
        found.iter().any(|one| one.evidence.contains("96 more")),
        "{found:#?}"
    );
}
