//! The steps of the program, each atomic; between any two anything else may happen.

use crate::properties::IDS_DIFFER;
use crate::state::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    WritersAreFenced,
    AcknowledgeAfterCommit,
    ReadmitUnderSameId,
    ReleaseIsIdempotent,
    /// A rebuild deletes the live state before it reads anything.
    Fence,
    InstallNeedsEmptyLog,
    ApproveLast,
    /// A rebuild that failed before its fence approves nothing.
    ApproveOnlyFenced,
    RaiseIdFloor,
    /// The fence leaves a mark of its epoch, and only the epoch whose mark is there installs.
    FenceLeavesMark,
    /// A writer that finds its order closed sends the unit back once more.
    ReleaseClosedOrderAgain,
}

/// The model with its bounds. Arrays have an element for each process.
#[derive(Clone, Debug)]
pub struct Protocol {
    pub without: &'static [Rule],
    pub stock: u8,
    /// Each of them asks once.
    pub users: User,
    pub faults: &'static [Fault],
    pub sells: [bool; 2],
    pub recovers: [bool; 2],
    pub rebuilds: [bool; 2],
}

impl Protocol {
    pub fn keeps(&self, rule: Rule) -> bool {
        !self.without.contains(&rule)
    }

    /// `admit.lua`
    pub fn admit(state: &mut State, order: Order, epoch: Epoch) -> Verdict {
        let RedisData { selling, buyers, log, .. } = &mut state.redis;
        let live = selling.as_mut().filter(|live| live.epoch == epoch);
        let Some(live) = live else { return Verdict::Fenced };
        match buyers.get(&(epoch, order.user)) {
            Some(held) if *held == order.id => return Verdict::AcceptedBefore,
            Some(_) => return Verdict::AlreadyOrdered,
            None if live.remaining == 0 => return Verdict::SoldOut,
            None => {}
        }
        live.remaining -= 1;
        buyers.insert((epoch, order.user), order.id);
        let name = state.next_entry;
        state.next_entry += 1;
        log.push(Entry { name, epoch, order });
        Verdict::Accepted(name)
    }

    /// `release` in `orders.lua`; whether Redis has dealt with it.
    fn release(&self, state: &mut State, order: Order, epoch: Epoch) -> bool {
        let RedisData { selling, buyers, .. } = &mut state.redis;
        let Some(live) = selling.as_mut().filter(|live| live.epoch == epoch) else { return false };
        let held = (epoch, order.user);
        let is_held = buyers.get(&held) == Some(&order.id);
        if is_held {
            buyers.remove(&held);
        }
        if is_held || !self.keeps(Rule::ReleaseIsIdempotent) {
            live.remaining += 1;
        }
        true
    }

    /// `fence` in `sale.lua`; whether the rebuild goes on.
    fn fence(&self, state: &mut State, epoch: Epoch) -> bool {
        let live = state.redis.selling.map_or(0, |selling| selling.epoch);
        let leaves_mark = self.keeps(Rule::FenceLeavesMark);
        if live >= epoch || leaves_mark && state.redis.fenced_for > epoch {
            return false;
        }
        state.redis.selling = None;
        if leaves_mark {
            state.redis.fenced_for = epoch;
        }
        true
    }

    /// `activate` in `sale.lua`, which may refuse.
    fn install(&self, state: &mut State, epoch: Epoch, taken: u8) {
        let redis = &mut state.redis;
        let overtaken = redis.selling.is_some_and(|live| live.epoch >= epoch);
        let unmarked = self.keeps(Rule::FenceLeavesMark) && redis.fenced_for != epoch;
        let undrained = self.keeps(Rule::InstallNeedsEmptyLog) && !redis.log.is_empty();
        if overtaken || unmarked || undrained {
            return;
        }
        let remaining = self.stock.saturating_sub(taken);
        redis.fenced_for = 0;
        redis.selling = Some(Selling { epoch, remaining });
        // Nobody reads the buyers of earlier epochs any more: rebuild/restore.rs unlinks them.
        redis.buyers.retain(|(held_in, _), _| *held_in >= epoch);
    }

    /// `ids.lua`
    fn lease(state: &mut State) -> OrderId {
        if state.redis.floor == 0 {
            state.postgres.floor += 1;
            state.redis.floor = state.postgres.floor;
            state.redis.next_number = 0;
        }
        let id = OrderId(state.redis.floor, state.redis.next_number);
        state.redis.next_number += 1;
        id
    }

    pub fn ask(state: &mut State, process: usize) {
        let id = Self::lease(state);
        if state.exists(id) {
            state.wrong = Some((IDS_DIFFER, id));
        }
        let order = Order { id, user: state.next_user };
        state.next_user += 1;
        let asking = &mut state.processes[process];
        let request = Request { order, epoch: asking.believes, to: state.live_redis };
        asking.attempt = Some(Attempt { request, reloaded: false, reply: None });
    }

    pub fn run_script(&self, state: &mut State, process: usize) {
        let Some(mut attempt) = state.processes[process].attempt else { return };
        let Request { order, epoch, .. } = attempt.request;
        let verdict = Self::admit(state, order, epoch);
        attempt.reply = Some(verdict);
        // Nothing follows from a refusal, so it is taken to arrive at once.
        let refused = matches!(verdict, Verdict::SoldOut | Verdict::AlreadyOrdered);
        state.processes[process].attempt = (!refused).then_some(attempt);
    }

    /// Same ids, the epoch as known by now; only to a Redis process that is known to be approved.
    pub fn ask_again(&self, state: &mut State, process: usize) {
        let asking = &mut state.processes[process];
        if asking.approved != state.live_redis {
            asking.attempt = None;
        } else if let Some(attempt) = &mut asking.attempt {
            attempt.request.epoch = asking.believes;
            attempt.request.to = state.live_redis;
            attempt.reply = None;
        }
    }

    pub fn take_reply(&self, state: &mut State, process: usize) {
        let Some(attempt) = state.processes[process].attempt.take() else { return };
        let Request { order, epoch, .. } = attempt.request;
        match attempt.reply {
            Some(Verdict::Accepted(entry)) => {
                state.processes[process].channel.push(self.accepted(order, epoch, entry));
                state.answered.insert(order.id);
            }
            // The log has it, unless it was lost before the answer; a recovery pass writes it.
            Some(Verdict::AcceptedBefore) => {
                state.answered.insert(order.id);
                state.note_gone(true);
            }
            Some(Verdict::Fenced) if !attempt.reloaded => {
                state.processes[process].believes = state.postgres.epoch;
                state.processes[process].attempt = Some(Attempt { reloaded: true, ..attempt });
                self.ask_again(state, process);
            }
            _ => {}
        }
    }

    pub fn accepted(&self, order: Order, epoch: Epoch, entry: EntryId) -> Work {
        let is_written_first = self.keeps(Rule::AcknowledgeAfterCommit);
        let step = if is_written_first { WorkStep::Write } else { WorkStep::Acknowledge };
        Work { order, epoch, entry, readmitted_as: None, step }
    }

    /// By the writer, a recovery pass or a drain alike; `None` when the order is settled.
    pub fn work_on(&self, state: &mut State, mut work: Work) -> Option<Work> {
        let has_row = state.postgres.rows.contains_key(&work.order);
        work.step = match work.step {
            WorkStep::Write => self.write(state, work),
            WorkStep::Late | WorkStep::Reject if has_row => WorkStep::Acknowledge,
            WorkStep::Late => WorkStep::Readmit(state.postgres.epoch),
            WorkStep::Readmit(epoch) => self.readmit(state, &mut work, epoch),
            WorkStep::Reject => {
                state.postgres.rows.insert(work.order, Status::Rejected);
                state.postgres.return_unit(work.order);
                WorkStep::Acknowledge
            }
            WorkStep::Acknowledge => {
                let entry = work.readmitted_as.take();
                let name = entry.unwrap_or(work.entry);
                state.redis.log.retain(|entry| entry.name != name);
                let settled = has_row || self.keeps(Rule::AcknowledgeAfterCommit);
                match entry {
                    Some(_) => WorkStep::Acknowledge,
                    None if settled => return None,
                    None => WorkStep::Write,
                }
            }
        };
        Some(work)
    }

    fn readmit(&self, state: &mut State, work: &mut Work, epoch: Epoch) -> WorkStep {
        let mut order = work.order;
        let is_live = state.redis.selling.is_some_and(|live| live.epoch == epoch);
        if is_live && !self.keeps(Rule::ReadmitUnderSameId) {
            order.id = Self::lease(state);
        }
        match Self::admit(state, order, epoch) {
            Verdict::Accepted(entry) => {
                (work.order, work.epoch, work.readmitted_as) = (order, epoch, Some(entry));
                WorkStep::Write
            }
            Verdict::AcceptedBefore => WorkStep::Acknowledge,
            Verdict::Fenced => WorkStep::Late,
            Verdict::SoldOut | Verdict::AlreadyOrdered => WorkStep::Reject,
        }
    }

    /// `write_accepted`: the transaction, and what follows from its outcome.
    fn write(&self, state: &mut State, work: Work) -> WorkStep {
        let stale = work.epoch != state.postgres.epoch;
        if stale && self.keeps(Rule::WritersAreFenced) {
            return WorkStep::Late;
        }
        let id = work.order.id;
        if state.postgres.rows.keys().any(|row| row.id == id && *row != work.order) {
            state.wrong = Some((IDS_DIFFER, id)); // `orders_pkey`
        }
        if let Some(status) = state.postgres.rows.get(&work.order) {
            if *status != Status::Live && self.keeps(Rule::ReleaseClosedOrderAgain) {
                state.postgres.return_unit(work.order);
            }
            return WorkStep::Acknowledge;
        }
        // `orders_one_live_per_user_slot`, `sales_taken_within_stock`
        let its_user = |live: Order| live.user == work.order.user;
        if state.postgres.live().any(its_user) || state.postgres.taken >= self.stock {
            return WorkStep::Reject;
        }
        state.postgres.rows.insert(work.order, Status::Live);
        state.postgres.taken += 1;
        WorkStep::Acknowledge
    }

    /// `return_units` looks the sale up again if it is fenced, and tries once more.
    pub fn return_unit(&self, state: &mut State, process: usize, order: Order) {
        let mut done = self.release(state, order, state.processes[process].believes);
        if !done {
            state.processes[process].believes = state.postgres.epoch;
            done = self.release(state, order, state.postgres.epoch);
        }
        let due = state.postgres.outbox.get_key_value(&order).filter(|_| done);
        state.processes[process].released = due.map(|(order, number)| (*order, *number));
    }

    pub fn forget_released(&self, state: &mut State, process: usize) {
        let Some((order, number)) = state.processes[process].released.take() else { return };
        let is_this_return = state.postgres.outbox.get(&order) == Some(&number);
        if is_this_return || !self.keeps(Rule::ReleaseClosedOrderAgain) {
            state.postgres.outbox.remove(&order);
        }
    }

    pub fn elect(state: &mut State, process: usize) {
        state.postgres.elected = Some(process);
        let (epoch, step) = (state.postgres.epoch + 1, RebuildStep::Elected);
        let rebuild = |approves| Rebuild { approves, epoch, step, draining: None };
        state.processes[process].rebuild = state.rebuild_needed().map(rebuild);
    }

    pub fn rebuild_steps(&self, state: &mut State, process: usize) {
        let Some(mut rebuild) = state.processes[process].rebuild.take() else { return };
        // As in `rebuild_fails`; where this is used the fence is behind.
        let give_up = rebuild.approves.map(|_| RebuildStep::Installed);
        let epoch = rebuild.epoch;
        let next = match &rebuild.step {
            RebuildStep::Elected => {
                if !self.keeps(Rule::ApproveLast) {
                    Self::approve(state, process, rebuild.approves);
                }
                let goes_on = !self.keeps(Rule::Fence) || self.fence(state, epoch);
                goes_on.then_some(RebuildStep::Fenced)
            }
            RebuildStep::Fenced => (state.postgres.epoch + 1 == epoch).then(|| {
                // No other rebuild has raised it since this one began.
                state.postgres.epoch = epoch;
                RebuildStep::EpochRaised
            }),
            RebuildStep::EpochRaised => self.drain(state, &mut rebuild).or(give_up),
            RebuildStep::Drained => Some(RebuildStep::Recomputed(state.postgres.live().collect())),
            RebuildStep::Recomputed(live) => {
                let buyers = live.iter().map(|order| ((epoch, order.user), order.id));
                state.redis.buyers.extend(buyers);
                Some(RebuildStep::BuyersWritten { taken: live.len() as u8 })
            }
            RebuildStep::BuyersWritten { taken } => {
                self.install(state, epoch, *taken);
                give_up
            }
            RebuildStep::Installed => {
                if self.keeps(Rule::RaiseIdFloor) {
                    state.postgres.floor += 1;
                    state.redis.floor = state.redis.floor.max(state.postgres.floor);
                }
                Some(RebuildStep::FloorRaised)
            }
            RebuildStep::FloorRaised => {
                Self::approve(state, process, rebuild.approves);
                None
            }
        };
        Self::go_on(state, process, rebuild, next);
    }

    /// Others sell from this Redis, so it is approved, but only behind the fence of this sale.
    pub fn rebuild_fails(&self, state: &mut State, process: usize) {
        let Some(mut rebuild) = state.processes[process].rebuild.take() else { return };
        let is_fenced = !matches!(rebuild.step, RebuildStep::Elected | RebuildStep::Fenced);
        let may_approve = is_fenced || !self.keeps(Rule::ApproveOnlyFenced);
        let goes_on = may_approve && rebuild.step != RebuildStep::FloorRaised;
        let next = rebuild.approves.filter(|_| goes_on).map(|_| RebuildStep::Installed);
        rebuild.draining = None;
        Self::go_on(state, process, rebuild, next);
    }

    fn go_on(state: &mut State, process: usize, rebuild: Rebuild, next: Option<RebuildStep>) {
        match next {
            Some(step) => state.processes[process].rebuild = Some(Rebuild { step, ..rebuild }),
            None => Self::release_election(state, process),
        }
    }

    pub fn release_election(state: &mut State, process: usize) {
        state.postgres.elected = state.postgres.elected.filter(|elected| *elected != process);
    }

    /// One step of writing the log's entries as orders of the new epoch. `None`: it cannot go on.
    fn drain(&self, state: &mut State, rebuild: &mut Rebuild) -> Option<RebuildStep> {
        if let Some(work) = rebuild.draining.take() {
            let asked = matches!(work.step, WorkStep::Readmit(_));
            let next = self.work_on(state, work);
            if asked && next.is_some_and(|work| work.step == WorkStep::Late) {
                return None; // overtaken; the log still has it
            }
            rebuild.draining = next;
        } else if let Some(entry) = state.redis.log.first() {
            rebuild.draining = Some(self.accepted(entry.order, rebuild.epoch, entry.name));
        } else {
            return Some(RebuildStep::Drained);
        }
        Some(RebuildStep::EpochRaised)
    }

    fn approve(state: &mut State, process: usize, redis: Option<RedisProcess>) {
        if let Some(redis) = redis {
            state.postgres.approved = redis;
            state.processes[process].approved = redis;
            state.processes[process].believes = state.postgres.epoch;
        }
    }
}
