//! The state: one sale, batches of one buyer, and no time: what may take long may take for ever.

use crate::properties::NOTHING_VANISHES;
use std::collections::{BTreeMap, BTreeSet};

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

/// The truth. Each action that touches it is one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Postgres {
    pub epoch: Epoch,
    pub taken: u8,
    pub rows: BTreeMap<Order, Status>,
    /// Orders whose units Redis takes back, with a number that tells two returns of one apart.
    pub outbox: BTreeMap<Order, u8>,
    pub next_return: u8,
    pub approved: RedisProcess,
    pub floor: u8,
    pub elected: Option<usize>,
}

impl Postgres {
    pub fn live(&self) -> impl Iterator<Item = Order> {
        self.orders(Status::Live)
    }

    pub fn orders(&self, wanted: Status) -> impl Iterator<Item = Order> {
        let rows = self.rows.iter().filter(move |(_, status)| **status == wanted);
        rows.map(|(order, _)| *order)
    }

    /// Puts a unit into the outbox, or says that it is due once more.
    pub fn return_unit(&mut self, order: Order) {
        self.outbox.insert(order, self.next_return);
        self.next_return += 1;
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
    /// The epoch for which the sale was fenced last and not installed since; 0: none.
    pub fenced_for: Epoch,
    pub buyers: BTreeMap<(Epoch, User), OrderId>,
    pub log: Vec<Entry>,
    /// 0: lost, or never set.
    pub floor: u8,
    pub next_number: u8,
}

impl RedisData {
    pub fn buyers_of(&self, epoch: Epoch) -> BTreeSet<Order> {
        let of_epoch = self.buyers.iter().filter(|((of, _), _)| *of == epoch);
        of_epoch.map(|((_, user), id)| Order { id: *id, user: *user }).collect()
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
    Fenced,
    EpochRaised,
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
    pub released: Option<(Order, u8)>,
}

impl Process {
    /// Whether it could still write this order, from memory alone.
    pub fn holds(&self, id: OrderId) -> bool {
        let accepted = |attempt: &Attempt| matches!(attempt.reply, Some(Verdict::Accepted(_)));
        let accepted = self.attempt.filter(accepted).map(|attempt| attempt.request.order);
        self.work().map(|work| work.order).chain(accepted).any(|order| order.id == id)
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    Flush,
    Restart,
    EmptyRestart,
    Rollback,
    Crash,
    LostReply,
    /// The connection that carries the election lock breaks, unknown to its process.
    LostLock,
    FailedStep,
    Cancel,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub postgres: Postgres,
    pub live_redis: RedisProcess,
    pub redis: RedisData,
    pub backup: Option<RedisData>,
    pub stray: Vec<Request>,
    pub next_entry: EntryId,
    pub processes: [Process; 2],
    pub next_user: User,
    /// Which may still happen: part of the state, so every order of faults is tried.
    pub faults: Vec<Fault>,
    pub answered: BTreeSet<OrderId>,
    /// Orders that a loss took out of the log before they were rows.
    pub lost_in_log: BTreeSet<OrderId>,
    /// Answered orders that were lost in the one way that the README allows.
    pub lost_as_documented: BTreeSet<OrderId>,
    /// A property that does not hold, noted at once, because a later state does not show it.
    pub wrong: Option<(&'static str, OrderId)>,
}

impl State {
    pub fn exists(&self, id: OrderId) -> bool {
        self.postgres.rows.keys().any(|order| order.id == id)
            || self.redis.log.iter().any(|entry| entry.order.id == id)
            || self.processes.iter().any(|process| process.holds(id))
    }

    /// Only a fault may take an answered order, out of the log and the memory of no living process.
    pub fn note_gone(&mut self, by_a_fault: bool) {
        let is_gone = |id: &OrderId| !self.exists(*id) && !self.lost_as_documented.contains(id);
        for id in self.answered.iter().copied().filter(is_gone).collect::<Vec<_>>() {
            if by_a_fault && self.lost_in_log.contains(&id) {
                self.lost_as_documented.insert(id);
            } else {
                self.wrong = Some((NOTHING_VANISHES, id));
            }
        }
    }

    /// Why a rebuild is needed, if it is: the Redis process to approve, or only a missing sale.
    pub fn rebuild_needed(&self) -> Option<Option<RedisProcess>> {
        if self.postgres.approved != self.live_redis {
            return Some(Some(self.live_redis));
        }
        let live = self.redis.selling.map(|selling| selling.epoch);
        (live != Some(self.postgres.epoch)).then_some(None)
    }

    /// Whether Redis and Postgres must agree, because nothing is under way.
    pub fn is_quiescent(&self) -> bool {
        self.rebuild_needed().is_none()
            && self.redis.log.is_empty()
            && self.postgres.outbox.is_empty()
            && self.stray.is_empty()
            && self.processes.iter().all(Process::is_idle)
    }
}
