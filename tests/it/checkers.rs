//! Each checker finds its violation in a small hand-made history, and lets a sound one pass.

use crate::support::checkers::money::{Charge, LedgerRow, Money, Told};
use crate::support::{checkers::*, history::*, prelude::*};
use Answer::{Accepted, AlreadyOrdered, Conflict, Done, NeverSent, Order as Is, OrderNotFound};
use Answer::{Replayed, SoldOut, Unavailable, Undocumented, Unknown};
use Checker::*;
use Kind::{AddStock, Pause, Pry, Read, Resume};
use flash_sale::domain::OrderStatus::{Cancelled, Expired, Paid, PendingPayment, Rejected};

const SEED: u64 = 7;
const SALE: i64 = 11;
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
    Operation { user, ..operation(at, Kind::Buy, answer, order) }
}

fn keyed(key: u32, buy: Operation) -> Operation {
    Operation { key, ..buy }
}

fn row(id: i64, user: u32, status: OrderStatus) -> Row {
    Row {
        id,
        sale: SALE,
        user: user_id(SEED, user),
        status,
        created_at: BEGAN + 1_000,
        has_payment: status == Paid,
    }
}

fn told() -> Vec<Operation> {
    let by = |user, one| Operation { user, ..one };
    let paid = |at, user, order| by(user, operation(at, Kind::Pay, Is(Paid), order));
    vec![
        keyed(5, buy(10, 1, Accepted, 101)),
        buy(10, 2, Accepted, 102),
        keyed(5, buy(20, 1, Replayed, 101)),
        operation(22, Read, Is(OrderStatus::Queued), 101),
        operation(24, Read, Is(PendingPayment), 101),
        paid(30, 1, 101),
        by(2, operation(30, Kind::Cancel, Is(Cancelled), 102)),
        operation(32, Read, Is(Paid), 101),
        by(2, operation(33, Pry, OrderNotFound, 101)),
        operation(40, Pause, Done, NO_ORDER),
        buy(42, 3, Answer::Paused, NO_ORDER),
        operation(44, Resume, Done, NO_ORDER),
        // The answer to this one was lost; only the database knows its order.
        buy(50, 3, Unknown, NO_ORDER),
        buy(52, 3, AlreadyOrdered, 103),
        paid(54, 3, 103),
        buy(60, 4, SoldOut, NO_ORDER),
    ]
}

/// Stock 2: user 1 paid 101, user 2 cancelled 102, user 3 bought and paid that, user 4 came late.
fn sound() -> Evidence {
    let rows = vec![row(101, 1, Paid), row(102, 2, Cancelled), row(103, 3, Paid)];
    let live = rows.iter().filter(|row| row.is_live());
    let seen = Snapshot { at: 25_000, sale: SALE, stock: 2, live: 2, users_over_limit: 0 };
    Evidence {
        history: History { seed: SEED, began_at: BEGAN, operations: told() },
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
            live: live.map(|row| (row.user, row.id)).collect(),
            ..RedisSale::default()
        }],
        rows,
        snapshots: vec![seen],
        audits: vec![json!({"ok": true, "conserved": true})],
        settled: Settled { after: Some(Duration::from_secs(1)), ..Settled::default() },
        late_effects: Duration::from_secs(1),
        money: money(),
        ..Evidence::default()
    }
}

/// Order 1 was paid, 2 was cancelled too late, and 3 was refunded by an operator.
fn money() -> Money {
    let charge = |order, refunds: &[i64]| Charge { order, cents: 100, refunds: refunds.to_vec() };
    let charges = [("a", charge(1, &[])), ("b", charge(2, &[100])), ("c", charge(3, &[100]))];
    let charges = charges.map(|(id, charge)| (id.to_owned(), charge));
    let ledger = charges.iter().zip(["captured", "refunded", "refunded"]);
    let ledger = ledger.map(|((id, charge), state)| LedgerRow {
        order: charge.order,
        cents: charge.cents,
        state: state.to_owned(),
        charge: Some(id.clone()),
    });
    let paid = Told { paid: true, ..Told::default() };
    let cancelled = Told { cancelled: true, ..Told::default() };
    let refunded = Told { may_be_refunded: true, ..paid };
    let side = json!({"captured_cents": 300, "refunded_cents": 200});
    Money {
        ledger: ledger.collect(),
        orders: [(1, (Paid, 100)), (2, (Cancelled, 100)), (3, (Paid, 100))].into(),
        told: [(1, paid), (2, cancelled), (3, refunded)].into(),
        books: vec![json!({"ok": true, "quiescent": true, "paid_cents": 100, "provider": side})],
        charges: charges.into(),
    }
}

fn charge<'a>(run: &'a mut Evidence, id: &str) -> &'a mut Charge {
    run.money.charges.get_mut(id).expect("a charge")
}

fn did(run: &mut Evidence, operation: Operation) {
    run.history.operations.push(operation);
}

fn did_after_loss(run: &mut Evidence, operation: Operation) {
    run.redis_lost_data = true;
    did(run, operation);
}

fn has(run: &mut Evidence, id: i64, user: u32, status: OrderStatus) {
    run.rows.push(row(id, user, status));
}

fn bought(run: &mut Evidence, buy: Operation, end: OrderStatus) {
    has(run, buy.order, buy.user, end);
    did(run, buy);
}

/// Twenty more purchases are accepted; so many of them have no row.
fn lose(run: &mut Evidence, lost: i64) {
    for order in 0..20 {
        let user = 50 + u32::try_from(order).expect("small");
        did(run, buy(70, user, Accepted, 200 + order));
        if order >= lost {
            has(run, 200 + order, user, Expired);
        }
    }
}

fn lose_as_documented(run: &mut Evidence, lost: i64) {
    run.may_lose_accepted = true;
    lose(run, lost);
}

fn lose_unheard(run: &mut Evidence, first: Answer) {
    did_after_loss(run, buy(60, 9, first, NO_ORDER));
    did(run, buy(90, 9, AlreadyOrdered, 300));
    lose(run, 0);
}

fn change_stock(run: &mut Evidence, add: i16, answer: Answer) {
    did(run, operation(70, AddStock(add), answer, NO_ORDER));
}

fn leave_one(run: &mut Evidence) {
    run.rows[2] = row(103, 3, Expired);
    run.history.operations.retain(|one| one.order != 103);
    run.sales[0].taken = 1;
    run.redis[0].live.pop();
    run.redis[0].remaining = 1;
}

fn read(at: u64, answer: Answer) -> Operation {
    operation(at, Read, answer, 101)
}

fn pry(answer: Answer) -> Operation {
    Operation { user: 2, ..operation(80, Pry, answer, 101) }
}

fn accepted_between(run: &mut Evidence, invoked: u64, completed: u64) {
    bought(run, Operation { invoked, completed, ..buy(42, 5, Accepted, 104) }, Expired);
}

fn give_way(run: &mut Evidence, end: OrderStatus) {
    run.redis_lost_data = true;
    bought(run, keyed(5, buy(70, 1, Accepted, 105)), end);
}

/// Its unit went to somebody else, and the retry is told so.
fn refuse_again(run: &mut Evidence, end: OrderStatus) {
    bought(run, keyed(6, buy(60, 5, Accepted, 105)), end);
    did_after_loss(run, keyed(6, buy(70, 5, SoldOut, NO_ORDER)));
}

type Change = fn(&mut Evidence);

const BREAKS: &[(Checker, Change)] = &[
    (NoOversell, |run| run.snapshots[0].live = 3),
    (NoOversell, |run| run.sales[0].stock = 1),
    (NoDuplicate, |run| run.snapshots[0].users_over_limit = 1),
    (NoDuplicate, |run| run.rows[2].user = run.rows[0].user),
    (AcceptedIsOneRow, |run| run.rows.retain(|row| row.id != 102)),
    (AcceptedIsOneRow, |run| run.rows[1].user = run.rows[0].user),
    // The documented loss is allowed only where it is documented, and only for a few.
    (AcceptedIsOneRow, |run| lose(run, 2)),
    (AcceptedIsOneRow, |run| lose_as_documented(run, 15)),
    // Only a retry named it, but Redis lost nothing, somebody was told 202, or all were answered.
    (AcceptedIsOneRow, |run| {
        lose_unheard(run, Unavailable);
        run.redis_lost_data = false;
    }),
    (AcceptedIsOneRow, |run| {
        did(run, buy(65, 9, Accepted, 300));
        lose_unheard(run, Unavailable);
    }),
    (AcceptedIsOneRow, |run| lose_unheard(run, SoldOut)),
    // Nobody asked; one was refused; one lost answer explains one order; nothing was sent.
    (NoRowWithoutAttempt, |run| has(run, 104, 99, Expired)),
    (NoRowWithoutAttempt, |run| has(run, 104, 4, Expired)),
    (NoRowWithoutAttempt, |run| has(run, 104, 3, Expired)),
    (NoRowWithoutAttempt, |run| {
        did(run, buy(1, 5, NeverSent, NO_ORDER));
        has(run, 104, 5, Expired);
    }),
    (Conservation, |run| run.sales[0].taken = 1),
    (Conservation, |run| run.redis[0].remaining = 1),
    (Conservation, |run| run.redis[0].stock = 3),
    (Conservation, |run| run.redis[0].live[0].1 = 102),
    (Conservation, |run| run.redis.clear()),
    (Conservation, |run| run.audits[0]["ok"] = json!(false)),
    (Conservation, |run| run.audits[0]["conserved"] = Value::Null),
    (Conservation, |run| change_stock(run, 3, Done)),
    (Conservation, |run| change_stock(run, -1, Done)),
    (NoUndersell, leave_one),
    (UniqueIds, |run| did(run, buy(70, 5, Accepted, 101))),
    (UniqueIds, |run| did(run, buy(70, 1, Accepted, 101))),
    (NothingReverts, |run| did(run, read(80, Is(PendingPayment)))),
    (NothingReverts, |run| did(run, read(80, Is(Expired)))),
    (NothingReverts, |run| did(run, read(80, OrderNotFound))),
    (NothingReverts, |run| run.rows[0] = row(101, 1, Expired)),
    (NothingReverts, |run| run.rows[1].has_payment = true),
    // Out of sight is excused only while Redis had lost the order and it was no row.
    (NothingReverts, |run| did(run, read(15, OrderNotFound))),
    (NothingReverts, |run| did_after_loss(run, read(90, OrderNotFound))),
    (SameKeySameOrder, |run| bought(run, keyed(5, buy(70, 1, Accepted, 105)), Expired)),
    (SameKeySameOrder, |run| did(run, keyed(5, buy(70, 1, AlreadyOrdered, 101)))),
    (SameKeySameOrder, |run| give_way(run, Expired)),
    (SameKeySameOrder, |run| refuse_again(run, Expired)),
    (SameKeySameOrder, |run| {
        refuse_again(run, Rejected);
        bought(run, keyed(6, buy(65, 5, Accepted, 106)), Expired);
    }),
    (SameKeySameOrder, |run| {
        refuse_again(run, Rejected);
        run.redis_lost_data = false;
    }),
    (TerminalInTime, |run| run.settled.after = None),
    (TerminalInTime, |run| run.late.push("an instance sold nothing".to_owned())),
    (TerminalInTime, |run| run.outbox = 1),
    (TerminalInTime, |run| run.redis[0].pending = 1),
    (TerminalInTime, |run| run.rows[0].status = PendingPayment),
    (OnlyWhileOpen, |run| run.sales[0].opens_at = BEGAN + 30_000),
    (OnlyWhileOpen, |run| run.sales[0].closes_at = BEGAN + 4_000),
    (OnlyWhileOpen, |run| run.rows[0].created_at = BEGAN - 1),
    (OnlyWhileOpen, |run| accepted_between(run, 42_000, 43_000)),
    (OrdersArePrivate, |run| did(run, pry(Is(Paid)))),
    (OrdersArePrivate, |run| did(run, pry(Conflict))),
    (MoneyHasAnOrder, |run| charge(run, "b").refunds.clear()),
    (MoneyHasAnOrder, |run| charge(run, "a").order = 4),
    (PaidHasMoney, |run| charge(run, "a").cents = 99),
    (PaidHasMoney, |run| charge(run, "a").refunds.push(100)),
    (PaidHasMoney, |run| run.money.told.clear()),
    (RefundedOnce, |run| charge(run, "b").refunds.push(100)),
    (RefundedOnce, |run| charge(run, "b").refunds[0] = 50),
    (MoneyAsTold, |run| run.money.orders.extend([(1, (Expired, 100))])),
    (MoneyAsTold, |run| run.money.orders.extend([(2, (Paid, 100))])),
    (MoneyAsTold, |run| run.money.told.get_mut(&1).expect("told").shows_captured = Some(false)),
    (BooksAgree, |run| run.money.ledger[0].state = "failed".to_owned()),
    (BooksAgree, |run| run.money.ledger[2].charge = None),
    (BooksAgree, |run| run.money.ledger[1].cents = 99),
    (BooksAgree, |run| run.money.books[0]["quiescent"] = json!(false)),
    (BooksAgree, |run| run.money.books[0]["paid_cents"] = json!(200)),
    (DocumentedAnswers, |run| did(run, buy(80, 4, Undocumented(500), NO_ORDER))),
];

const SOUND: &[Change] = &[
    |_| {},
    |run| bought(run, buy(70, 5, Accepted, 104), Rejected),
    |run| lose_as_documented(run, 2),
    |run| lose_unheard(run, Unavailable),
    |run| change_stock(run, 3, Unknown),
    |run| change_stock(run, -1, Unavailable),
    |run| change_stock(run, -1, Conflict),
    |run| {
        leave_one(run);
        run.sales[0].sold_off = false;
    },
    |run| did(run, keyed(5, buy(10, 1, Accepted, 101))),
    // At the same time as the payment, both answers are right.
    |run| did(run, Operation { completed: 31_500, ..read(30, Is(PendingPayment)) }),
    |run| did_after_loss(run, read(15, OrderNotFound)),
    |run| did(run, keyed(6, buy(70, 1, AlreadyOrdered, 101))),
    |run| give_way(run, Rejected),
    |run| refuse_again(run, Rejected),
    // It overlaps the pause, or the resume.
    |run| accepted_between(run, 40_500, 42_000),
    |run| accepted_between(run, 42_000, 44_500),
    |run| did(run, keyed(5, buy(42, 1, Replayed, 101))),
    // A resume that nobody heard of may have come after the pause.
    |run| {
        did(run, operation(30, Resume, Unknown, NO_ORDER));
        accepted_between(run, 42_000, 43_000);
    },
];

#[test]
fn each_checker_cries_when_its_promise_is_broken() {
    for (number, (checker, break_it)) in BREAKS.iter().enumerate() {
        let mut run = sound();
        break_it(&mut run);
        let found = check(&run);
        let cries = found.iter().any(|violation| violation.checker == *checker);
        assert!(cries, "break {number}: {checker:?} says nothing; the others: {found:#?}");
    }
    let is_broken = |checker: &Checker| BREAKS.iter().any(|(broken, _)| broken == checker);
    assert!(Checker::ALL.iter().all(is_broken), "a checker is not proven");
}

#[test]
fn no_checker_cries_at_a_sound_run() {
    for (number, change) in SOUND.iter().enumerate() {
        let mut run = sound();
        change(&mut run);
        let found = check(&run);
        assert!(found.is_empty(), "sound run {number}: {found:#?}");
    }
}

#[test]
fn many_violations_of_a_kind_are_told_by_examples() {
    let mut run = sound();
    for at in 0..100 {
        did(&mut run, buy(80 + at, 4, Undocumented(500), NO_ORDER));
    }
    let found = check(&run);
    assert!(found.len() < 10, "{found:#?}");
    assert!(found.iter().any(|one| one.evidence.contains("96 more")), "{found:#?}");
}
