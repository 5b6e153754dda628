//! What the model remembers, as small as it can be: one sale, orders of one unit, batches of one
//! buyer. Times do not exist: whatever may take long may take for ever.

use std::fmt;

pub type User = u8;
pub type Epoch = u8;

/// Names a Redis process, as its `run_id` does. 0: none known.
pub type Incarnation = u8;

/// Names a log entry. Streams number by time, so no number comes twice, not even after a loss.
pub type EntryId = u8;

/// An order id: the id clock's floor, then a number from Redis' counter. Within a floor the model's clock
/// does not move on, which is the worst case for uniqueness.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderId(pub u8);

impl OrderId {
    const NUMBERS: u8 = 16;

    pub fn new(floor: u8, number: u8) -> Self {
        assert!(
            number < Self::NUMBERS && floor < 128 / Self::NUMBERS,
            "more ids than the model has room for"
        );
        Self(floor * Self::NUMBERS + number)
    }
}

impl fmt::Debug for OrderId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "#{}.{}",
            self.0 / Self::NUMBERS,
            self.0 % Self::NUMBERS
        )
    }
}

/// A set of order ids.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct OrderSet(u128);

impl OrderSet {
    pub fn add(&mut self, id: OrderId) {
        self.0 |= 1 << id.0;
    }

    pub fn has(self, id: OrderId) -> bool {
        self.0 & (1 << id.0) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = OrderId> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let lowest = rest.trailing_zeros() as u8;
            rest &= rest.wrapping_sub(1);
            (lowest < 128).then_some(OrderId(lowest))
        })
    }
}

impl fmt::Debug for OrderSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter()).finish()
    }
}

/// An order and whose it is.
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Postgres {
    pub epoch: Epoch,
    pub taken: u8,
    /// By id.
    pub rows: Vec<Row>,
    /// Orders whose units Redis is to take back, and a number that tells two returns of one order apart
    /// (`releases.created_at`).
    pub outbox: Vec<(OrderId, u8)>,
    pub next_return: u8,
    pub approved: Incarnation,
    /// The last floor that was given out for the id clock.
    pub floor: u8,
    /// Which process holds the election lock.
    pub elected: Option<usize>,
}

impl Postgres {
    pub fn row(&self, id: OrderId) -> Option<&Row> {
        self.rows.iter().find(|row| row.order.id == id)
    }

    pub fn live(&self) -> impl Iterator<Item = Order> {
        self.rows
            .iter()
            .filter(|row| row.status == Status::Live)
            .map(|row| row.order)
    }

    /// Puts a unit into the outbox, or says that it is due once more.
    pub fn return_unit(&mut self, id: OrderId) {
        self.outbox.retain(|(waiting, _)| *waiting != id);
        self.outbox.push((id, self.next_return));
        self.outbox.sort_unstable();
        self.next_return += 1;
    }

    pub fn insert(&mut self, row: Row) {
        self.rows.push(row);
        self.rows.sort_unstable_by_key(|row| row.order.id);
    }
}

/// The state hash of the sale while an epoch is live.
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

/// What a loss takes or turns back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RedisData {
    pub selling: Option<Selling>,
    /// The epoch for which the sale was sealed last and not installed since; 0: none.
    pub sealed_for: Epoch,
    /// The live orders of each epoch's buyers. Sorted.
    pub buyers: Vec<(Epoch, Order)>,
    /// In the order of admission.
    pub log: Vec<Entry>,
    /// 0: lost, or never set.
    pub floor: u8,
    pub next_number: u8,
}

impl RedisData {
    pub fn buyers_of(&self, epoch: Epoch) -> impl Iterator<Item = Order> {
        self.buyers
            .iter()
            .filter(move |(held_in, _)| *held_in == epoch)
            .map(|(_, order)| *order)
    }

    pub fn add_buyer(&mut self, epoch: Epoch, order: Order) {
        // HSET: a user's record is replaced.
        self.buyers
            .retain(|(held_in, held)| (*held_in, held.user) != (epoch, order.user));
        self.buyers.push((epoch, order));
        self.buyers.sort_unstable();
    }
}

/// The script's word on a buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Accepted(EntryId),
    /// This very attempt had been accepted before.
    AcceptedBefore,
    AlreadyOrdered,
    SoldOut,
    /// There is no state, or one of another epoch.
    Fenced,
}

/// A request of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub order: Order,
    /// The epoch that the process believes in.
    pub epoch: Epoch,
    /// To which Redis process its connection leads.
    pub to: Incarnation,
}

/// A batch of one buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub request: Request,
    /// The sale was looked up again after a refusal; that is done once.
    pub reloaded: bool,
    /// `None`: the script has not run yet. Otherwise its reply is on the way.
    pub reply: Option<Verdict>,
}

/// An accepted order on its way into Postgres: in a channel, in a writer, a recovery pass or a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    pub order: Order,
    pub epoch: Epoch,
    /// The log entries to acknowledge in the end: its own, and that of its readmission.
    pub entry: EntryId,
    pub readmitted_as: Option<EntryId>,
    pub step: WorkStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkStep {
    /// The transaction is yet to come.
    Write,
    /// Its epoch is over: is it a row?
    Late,
    /// It is not: it asks for a place in this epoch.
    Readmit(Epoch),
    /// There is none.
    Reject,
    /// Settled in Postgres; the entries are to be deleted.
    Acknowledge,
}

/// The steps of a rebuild, named by what was done last.
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
    /// The Redis process that was live when it began, which it approves in the end. `None`: only this sale
    /// was missing from an approved process.
    pub approves: Option<Incarnation>,
    /// The epoch that it opens.
    pub epoch: Epoch,
    pub step: RebuildStep,
    /// The entry that is being drained.
    pub draining: Option<Work>,
}

/// One process of the program. All of it is gone when it dies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Process {
    /// The sale's epoch as last heard; 0: never.
    pub believes: Epoch,
    /// The Redis process that it may sell from, as last heard.
    pub approved: Incarnation,
    pub gate: Option<Attempt>,
    /// The writer works on the first of it.
    pub channel: Vec<Work>,
    pub recovery: Option<Work>,
    pub rebuild: Option<Rebuild>,
    /// A unit that Redis has back, whose outbox row is about to be deleted.
    pub released: Option<(OrderId, u8)>,
}

impl Process {
    /// Whether it could still write this order, from memory alone.
    pub fn holds(&self, id: OrderId) -> bool {
        let accepted = self.gate.is_some_and(|attempt| {
            attempt.request.order.id == id && matches!(attempt.reply, Some(Verdict::Accepted(_)))
        });
        accepted || self.work().any(|work| work.order.id == id)
    }

    pub fn work(&self) -> impl Iterator<Item = &Work> {
        let draining = self.rebuild.iter().flat_map(|rebuild| &rebuild.draining);
        self.channel.iter().chain(&self.recovery).chain(draining)
    }

    pub fn is_idle(&self) -> bool {
        self.gate.is_none()
            && self.released.is_none()
            && self.rebuild.is_none()
            && self.work().next().is_none()
    }
}

/// How many faults may still happen. Part of the state, so that every order of faults is tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// FLUSHALL: the same process, without its data.
    pub flushes: u8,
    /// Redis restarts with all of its data.
    pub restarts: u8,
    /// Redis restarts without data.
    pub empty_restarts: u8,
    /// Redis restarts with the data of some earlier moment.
    pub rollbacks: u8,
    pub crashes: u8,
    pub lost_replies: u8,
    /// The connection that carries the election lock breaks, and its process does not know.
    pub lost_locks: u8,
    /// A step of a rebuild fails (a timeout, a server that says no), and nothing of it was done.
    pub failed_steps: u8,
    pub cancels: u8,
}

/// What went wrong at the moment when it did; a state cannot tell by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wrong {
    /// An order that was answered 202 is gone, and it was not both lost with the log and out of every
    /// process' memory.
    Vanished(OrderId),
    /// An id was given out that an order has already.
    RepeatedId(OrderId),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub postgres: Postgres,
    /// The live Redis process.
    pub incarnation: Incarnation,
    pub redis: RedisData,
    /// What a rollback would bring back.
    pub backup: Option<Box<RedisData>>,
    /// Requests whose sender has given up waiting; they may still run.
    pub stray: Vec<Request>,
    pub next_entry: EntryId,
    pub processes: [Process; 2],
    /// Purchases that each user may still attempt.
    pub attempts: Vec<u8>,
    pub faults: Faults,
    /// Orders that were answered 202.
    pub answered: OrderSet,
    /// Orders that a loss took out of the log before they were rows.
    pub lost_in_log: OrderSet,
    /// Answered orders that are gone in the way that the README says they may.
    pub lost_as_documented: OrderSet,
    pub wrong: Option<Wrong>,
}

impl State {
    /// Whether the order is a row, in the log, or held by a living process.
    pub fn exists(&self, id: OrderId) -> bool {
        self.postgres.row(id).is_some()
            || self.redis.log.iter().any(|entry| entry.order.id == id)
            || self.processes.iter().any(|process| process.holds(id))
    }

    /// Whether purchases are judged as soon as a process has heard of it.
    pub fn gate_is_open(&self) -> bool {
        self.postgres.approved == self.incarnation
            && self
                .redis
                .selling
                .is_some_and(|selling| selling.epoch == self.postgres.epoch)
    }

    /// Whether nothing is under way, so that Redis and Postgres must agree.
    pub fn is_quiescent(&self) -> bool {
        self.gate_is_open()
            && self.redis.log.is_empty()
            && self.postgres.outbox.is_empty()
            && self.stray.is_empty()
            && self.processes.iter().all(Process::is_idle)
    }
}
