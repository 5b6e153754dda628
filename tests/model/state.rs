//! The state: one sale, batches of one buyer, and no time: what may take long may take for ever.

use std::collections::BTreeSet;

pub type User = u8;
pub type Epoch = u8;
/// A Redis process, as its `run_id` names it. 0: none known.
pub type RedisProcess = u8;
/// Streams number their entries by time, so no number comes twice, not even after a loss.
pub type EntryId = u8;

/// Floor of the id clock, which does not move within it (the worst case), and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderId(pub u8, pub u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order {
    pub id: OrderId,
    pub user: User,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// `pending_payment` or `paid`.
    Live,
    Cancelled,
    Rejected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub order: Order,
    pub status: Status,
}

/// The truth. Each action that touches it is one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Postgres {
    pub epoch: Epoch,
    pub taken: u8,
    pub rows: Vec<Row>,
    /// Orders whose units Redis takes back, with a number that tells two returns of one apart.
    pub outbox: Vec<(OrderId, u8)>,
    pub next_return: u8,
    pub approved: RedisProcess,
    pub floor: u8,
    pub elected: Option<usize>,
}

impl Postgres {
    pub fn row(&self, id: OrderId) -> Option<&Row> {
        self.rows.iter().find(|row| row.order.id == id)
    }

    pub fn live(&self) -> impl Iterator<Item = Order> {
        self.rows.iter().filter(|row| row.status == Status::Live).map(|row| row.order)
    }

    /// Puts a unit into the outbox, or says that it is due once more.
    pub fn return_unit(&mut self, id: OrderId) {
        self.outbox.retain(|(waiting, _)| *waiting != id);
        self.outbox.push((id, self.next_return));
        self.outbox.sort_unstable();
        self.next_return += 1;
    }

    pub fn insert(&mut self, order: Order, status: Status) {
        self.rows.push(Row { order, status });
        self.rows.sort_unstable_by_key(|row| row.order.id);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Selling {
    pub epoch: Epoch,
    pub remaining: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    pub name: EntryId,
    pub epoch: Epoch,
    pub order: Order,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RedisData {
    pub selling: Option<Selling>,
    /// The epoch for which the sale was sealed last and not installed since; 0: none.
    pub sealed_for: Epoch,
    pub buyers: Vec<(Epoch, Order)>,
    pub log: Vec<Entry>,
    /// 0: lost, or never set.
    pub floor: u8,
    pub next_number: u8,
}

impl RedisData {
    pub fn buyers_of(&self, epoch: Epoch) -> impl Iterator<Item = Order> {
        self.buyers.iter().filter(move |(of, _)| *of == epoch).map(|(_, order)| *order)
    }

    pub fn add_buyer(&mut self, epoch: Epoch, order: Order) {
        // HSET: a user's record is replaced.
        let replaced = (epoch, order.user);
        self.buyers.retain(|(of, held)| (*of, held.user) != replaced);
        self.buyers.push((epoch, order));
        self.buyers.sort_unstable();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Accepted(EntryId),
    AcceptedBefore,
    AlreadyOrdered,
    SoldOut,
    /// There is no state, or one of another epoch.
    Fenced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub order: Order,
    pub epoch: Epoch,
    pub to: RedisProcess,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub request: Request,
    /// The sale was looked up again after a refusal; that is done once.
    pub reloaded: bool,
    /// `None`: the script has not run yet. Otherwise its reply is on the way.
    pub reply: Option<Verdict>,
}

/// An accepted order on its way into Postgres: in a channel, a recovery pass or a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    pub order: Order,
    pub epoch: Epoch,
    /// The log entries to delete in the end: its own, and that of its readmission.
    pub entry: EntryId,
    pub readmitted_as: Option<EntryId>,
    pub step: WorkStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkStep {
    Write,
    Late,
    Readmit(Epoch),
    /// There is none.
    Reject,
    Acknowledge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RebuildStep {
    Elected,
    Sealed,
    Fenced,
    Drained,
    Recomputed(Vec<Order>),
    BuyersWritten { taken: u8 },
    Installed,
    FloorRaised,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rebuild {
    /// The process that it approves; `None`: only a sale was missing from an approved one.
    pub approves: Option<RedisProcess>,
    pub epoch: Epoch,
    pub step: RebuildStep,
    pub draining: Option<Work>,
}

/// One process of the program. All of it is gone when it dies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Process {
    pub believes: Epoch,
    pub approved: RedisProcess,
    pub attempt: Option<Attempt>,
    pub channel: Vec<Work>,
    pub recovery: Option<Work>,
    pub rebuild: Option<Rebuild>,
    /// A unit that Redis has back, whose outbox row is about to be deleted.
    pub released: Option<(OrderId, u8)>,
}

impl Process {
    /// Whether it could still write this order, from memory alone.
    pub fn holds(&self, id: OrderId) -> bool {
        let accepted = |attempt: Attempt| matches!(attempt.reply, Some(Verdict::Accepted(_)));
        let attempts = |attempt: Attempt| attempt.request.order.id == id && accepted(attempt);
        self.attempt.is_some_and(attempts) || self.work().any(|work| work.order.id == id)
    }

    pub fn work(&self) -> impl Iterator<Item = &Work> {
        let draining = self.rebuild.iter().flat_map(|rebuild| &rebuild.draining);
        self.channel.iter().chain(&self.recovery).chain(draining)
    }

    pub fn is_idle(&self) -> bool {
        self.attempt.is_none()
            && self.released.is_none()
            && self.rebuild.is_none()
            && self.work().next().is_none()
    }
}

/// How many faults may still happen: part of the state, so every order of faults is tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    pub flushes: u8,
    pub restarts: u8,
    pub empty_restarts: u8,
    pub rollbacks: u8,
    pub crashes: u8,
    pub lost_replies: u8,
    /// The connection that carries the election lock breaks, unknown to its process.
    pub lost_locks: u8,
    pub failed_steps: u8,
    pub cancels: u8,
}

/// A mistake noted when it happens, because a later state does not show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wrong {
    /// An answered order is gone, although its log entry was not lost or a process had it.
    Vanished(OrderId),
    RepeatedId(OrderId),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub postgres: Postgres,
    pub live_redis: RedisProcess,
    pub redis: RedisData,
    pub backup: Option<Box<RedisData>>,
    pub stray: Vec<Request>,
    pub next_entry: EntryId,
    pub processes: [Process; 2],
    pub attempts: Vec<u8>,
    pub faults: Faults,
    pub answered: BTreeSet<OrderId>,
    /// Orders that a loss took out of the log before they were rows.
    pub lost_in_log: BTreeSet<OrderId>,
    /// Answered orders that were lost in the one way that the README allows.
    pub lost_as_documented: BTreeSet<OrderId>,
    pub wrong: Option<Wrong>,
}

impl State {
    pub fn exists(&self, id: OrderId) -> bool {
        self.postgres.row(id).is_some()
            || self.redis.log.iter().any(|entry| entry.order.id == id)
            || self.processes.iter().any(|process| process.holds(id))
    }

    pub fn admission_is_open(&self) -> bool {
        let live = self.redis.selling.map(|selling| selling.epoch);
        self.postgres.approved == self.live_redis && live == Some(self.postgres.epoch)
    }

    /// Whether Redis and Postgres must agree, because nothing is under way.
    pub fn is_quiescent(&self) -> bool {
        self.admission_is_open()
            && self.redis.log.is_empty()
            && self.postgres.outbox.is_empty()
            && self.stray.is_empty()
            && self.processes.iter().all(Process::is_idle)
    }
}
