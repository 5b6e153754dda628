//! Each guards one promise. What had no answer is never held against the program.

mod answers;
pub mod money;
mod orders;
mod stock;
mod window;

use super::history::*;
use crate::support::prelude::*;
use std::fmt;

macro_rules! checkers {
    ($($(#[$promise:meta])* $checker:ident $look:path;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Checker { $($(#[$promise])* $checker),* }

        impl Checker {
            pub const ALL: &[Self] = &[$(Self::$checker),*];

            fn look(self, case: &Case, found: &mut Found) {
                match self { $(Self::$checker => $look(case, found)),* }
            }
        }
    };
}

checkers! {
    /// I1: live orders never exceed the stock, in any snapshot.
    NoOversell stock::no_oversell;
    /// I2: nobody holds more live orders than the sale allows.
    NoDuplicate stock::no_duplicate;
    /// I3: every 202 is one row of that user and sale (an explicit `rejected` is one).
    AcceptedIsOneRow orders::accepted_is_one_row;
    /// I3, the other way: no row without an attempt of that user.
    NoRowWithoutAttempt orders::no_row_without_attempt;
    /// I4: stock = remaining + held + paid in both stores, which know the same orders.
    Conservation stock::conservation;
    /// I5: if enough people want it, all of it sells.
    NoUndersell stock::no_undersell;
    /// I6: no two attempts get the same id.
    UniqueIds orders::unique_ids;
    /// I7 and I9: what was confirmed stays, and an order has one end.
    NothingReverts answers::nothing_reverts;
    /// I8: the same Idempotency-Key, the same order.
    SameKeySameOrder answers::same_key_same_order;
    /// I10: everything is terminal within the stated time after healing.
    TerminalInTime stock::terminal_in_time;
    /// I11: nothing is accepted outside the window or while paused.
    OnlyWhileOpen window::only_while_open;
    /// I12: nobody sees another user's order.
    OrdersArePrivate answers::orders_are_private;
    /// I13: money that is kept has an order that is paid.
    MoneyHasAnOrder money::has_an_order;
    /// I13: a paid order has its price, once, or an operator returned it.
    PaidHasMoney money::is_there;
    /// I13: what is refunded is refunded whole, and once.
    RefundedOnce money::goes_back_once;
    /// I13: everyone told that an order is paid, cancelled or refunded was told the truth.
    MoneyAsTold money::was_told;
    /// I13: the ledger and the program's books say what the provider's list says.
    BooksAgree money::is_booked;
    /// Only answers that are documented.
    DocumentedAnswers answers::documented_answers;
}

#[derive(Debug, Clone)]
pub struct Violation {
    pub checker: Checker,
    pub evidence: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.checker, self.evidence)
    }
}

#[derive(Debug, Clone)]
pub struct SaleFacts {
    pub name: &'static str,
    pub id: i64,
    pub first_stock: i64,
    pub stock: i64,
    pub taken: i64,
    pub per_user_limit: i64,
    /// Microseconds since 1970.
    pub opens_at: i64,
    pub closes_at: i64,
    /// After healing buyers came until they heard "sold out", and everybody paid.
    pub sold_off: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub id: i64,
    pub sale: i64,
    pub user: UserId,
    pub status: OrderStatus,
    /// When Redis admitted it, in microseconds since 1970.
    pub created_at: i64,
    pub has_payment: bool,
}

impl Row {
    pub fn is_live(&self) -> bool {
        matches!(self.status, OrderStatus::PendingPayment | OrderStatus::Paid)
    }
}

#[derive(Debug, Clone, Default)]
pub struct RedisSale {
    pub sale: i64,
    pub stock: i64,
    pub remaining: i64,
    pub pending: i64,
    pub log_entries: i64,
    pub live: Vec<(UserId, i64)>,
}

#[derive(Debug, Clone, Copy)]
pub struct Snapshot {
    pub at: Micros,
    pub sale: i64,
    pub stock: i64,
    pub live: i64,
    pub users_over_limit: i64,
}

#[derive(Debug, Clone, Default)]
pub struct Settled {
    /// `None`: it did not happen within the limit.
    pub after: Option<Duration>,
    pub limit: Duration,
    pub still: String,
}

#[derive(Debug, Clone, Default)]
pub struct Evidence {
    pub history: History,
    pub sales: Vec<SaleFacts>,
    pub rows: Vec<Row>,
    pub redis: Vec<RedisSale>,
    pub snapshots: Vec<Snapshot>,
    pub audits: Vec<Value>,
    pub settled: Settled,
    /// What else took too long, or ended where it should have served, in words.
    pub late: Vec<String>,
    pub outbox: i64,
    /// With a payment provider.
    pub money: money::Money,
    /// How long a request without an answer may still take effect.
    pub late_effects: Duration,
    /// An accepted order may not have been readable until it was written.
    pub redis_lost_data: bool,
    /// The documented loss: with Redis went the processes that could have repaired it.
    pub may_lose_accepted: bool,
}

struct Case<'a> {
    evidence: &'a Evidence,
    users: HashMap<UserId, u32>,
    rows: HashMap<i64, &'a Row>,
    sales: HashMap<i64, u8>,
}

impl Case<'_> {
    fn operations(&self) -> &[Operation] {
        &self.evidence.history.operations
    }

    fn sale(&self, index: u8) -> Option<&SaleFacts> {
        self.evidence.sales.get(usize::from(index))
    }

    fn sale_of(&self, row: &Row) -> Option<&SaleFacts> {
        self.sale(*self.sales.get(&row.sale)?)
    }

    fn user_of(&self, row: &Row) -> Option<u32> {
        self.users.get(&row.user).copied()
    }

    fn belongs_to(&self, row: &Row, one: &Operation) -> bool {
        self.user_of(row) == Some(one.user) && self.sales.get(&row.sale) == Some(&one.sale)
    }

    fn live(&self, sale: i64) -> impl Iterator<Item = &Row> {
        self.evidence.rows.iter().filter(move |row| row.sale == sale && row.is_live())
    }

    /// Whether the order that this operation names may be gone for good: a documented loss.
    fn may_be_gone(&self, one: &Operation) -> bool {
        let evidence = self.evidence;
        evidence.may_lose_accepted || evidence.redis_lost_data && self.only_a_retry_names(one)
    }

    /// Its first answer got lost, so no process has a copy of the order.
    fn only_a_retry_names(&self, one: &Operation) -> bool {
        let (mut unanswered, mut accepted) = (false, false);
        let is_theirs = |other: &&Operation| (other.user, other.sale) == (one.user, one.sale);
        for other in self.evidence.history.of_kind(Kind::Buy).filter(is_theirs) {
            unanswered |= other.answer.leaves_open_whether() && other.is_before(one);
            accepted |= (other.answer, other.order) == (Answer::Accepted, one.order);
        }
        unanswered && !accepted
    }
}

type Found = Vec<String>;

/// One broken promise often shows a thousand times; a few examples are enough.
const EXAMPLES: usize = 4;

pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let History { seed, operations, .. } = &evidence.history;
    let numbers: HashSet<u32> = operations.iter().map(|one| one.user).collect();
    let case = Case {
        evidence,
        users: numbers.into_iter().map(|user| (user_id(*seed, user), user)).collect(),
        rows: evidence.rows.iter().map(|row| (row.id, row)).collect(),
        sales: evidence.sales.iter().map(|sale| sale.id).zip(0..).collect(),
    };
    let mut violations = Vec::new();
    for &checker in Checker::ALL {
        let mut found = Found::new();
        checker.look(&case, &mut found);
        let more = found.split_off(found.len().min(EXAMPLES)).len();
        found.extend((more > 0).then(|| format!("and {more} more like these")));
        violations.extend(found.into_iter().map(|evidence| Violation { checker, evidence }));
    }
    violations
}
