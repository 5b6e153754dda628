//! What clients did and were told. `Unknown`: it may have happened, may still, or never will.

use super::random::Random;
use flash_sale::domain::{OrderStatus, UserId};
use std::fmt;
use uuid::Uuid;

/// Microseconds since the history began, by the monotonic clock.
pub type Micros = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Buy,
    Read,
    Pry,
    Pay,
    Cancel,
    Pause,
    Resume,
    AddStock(i16),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    Accepted,
    Replayed,
    AlreadyOrdered,
    SoldOut,
    NotOpen,
    Paused,
    Ended,
    Order(OrderStatus),
    OrderNotFound,
    Conflict,
    Done,
    RateLimited,
    /// 503. Nothing is promised, and nothing excluded: it may have been accepted all the same.
    Unavailable,
    NeverSent,
    HungUp,
    Unknown,
    Undocumented(u16),
}

impl Answer {
    /// Whether a purchase with this answer may nevertheless have become an order.
    pub fn leaves_open_whether(self) -> bool {
        matches!(self, Self::Unknown | Self::HungUp | Self::Unavailable | Self::Undocumented(_))
    }

    pub fn is_accepted(self) -> bool {
        matches!(self, Self::Accepted | Self::Replayed)
    }

    pub fn is_refused(self) -> bool {
        use Answer::{AlreadyOrdered, Ended, NotOpen, Paused, SoldOut};
        matches!(self, AlreadyOrdered | SoldOut | NotOpen | Paused | Ended)
    }
}

pub const NO_KEY: u32 = 0;
pub const NO_ORDER: i64 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    pub invoked: Micros,
    pub completed: Micros,
    /// The order that was asked about, or that the answer names; [`NO_ORDER`] otherwise.
    pub order: i64,
    pub user: u32,
    /// Number of the idempotency key; [`NO_KEY`] for none. A retry repeats it.
    pub key: u32,
    pub client: u16,
    pub instance: u8,
    pub sale: u8,
    pub kind: Kind,
    pub answer: Answer,
}

impl Operation {
    /// Whether this was over before the other began: only then their order is certain.
    pub fn is_before(&self, other: &Self) -> bool {
        self.completed < other.invoked
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { order, user, key, client, instance, sale, kind, answer, .. } = self;
        let [from, to] = [self.invoked, self.completed].map(|at| at as f64 / 1e6);
        write!(
            f,
            "[{from:.3} s..{to:.3} s] {kind:?} -> {answer:?}, order {order} (user {user}, key \
             {key}, sale {sale}, instance {instance}, client {client})"
        )
    }
}

pub fn user_id(seed: u64, user: u32) -> UserId {
    let mut random = Random::of(seed, "user", u64::from(user));
    UserId::from_bytes(*Uuid::from_u64_pair(random.next(), random.next()).as_bytes())
}

#[derive(Debug, Clone, Default)]
pub struct History {
    pub seed: u64,
    pub began_at: i64,
    pub operations: Vec<Operation>,
}

impl History {
    pub fn count(&self, wanted: impl Fn(&Operation) -> bool) -> usize {
        self.operations.iter().filter(|one| wanted(one)).count()
    }

    pub fn wall_clock(&self, at: Micros) -> i64 {
        self.began_at + i64::try_from(at).unwrap_or(i64::MAX)
    }

    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Operation> {
        self.operations.iter().filter(move |one| one.kind == kind)
    }
}
