//! What can happen next. An action is one thing that is atomic in the real system: a script, a
//! transaction, a message. Between any two anything else may happen, as when a process is paused.

use crate::state::*;
use stateright::{Model, Property};

/// The rules of the protocol. A mutation switches one off.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Writers insert only orders of the epoch that the sale's row has.
    pub writers_are_fenced: bool,
    /// A rebuild deletes the live state before it reads anything.
    pub seals: bool,
    /// The seal stays in Redis as a mark of its epoch, and only the epoch whose mark it finds installs.
    pub seal_leaves_mark: bool,
    pub install_looks_at_log: bool,
    pub acknowledges_after_commit: bool,
    pub readmits_under_same_id: bool,
    pub approves_last: bool,
    /// A rebuild that failed before its fence approves nothing.
    pub approves_only_what_is_fenced: bool,
    pub raises_id_floor: bool,
    pub release_is_idempotent: bool,
    /// A writer that finds its order closed already sends the unit back once more.
    pub closed_order_is_released_again: bool,
}

impl Rules {
    pub const ALL: Self = Self {
        writers_are_fenced: true,
        seals: true,
        seal_leaves_mark: true,
        install_looks_at_log: true,
        acknowledges_after_commit: true,
        readmits_under_same_id: true,
        approves_last: true,
        approves_only_what_is_fenced: true,
        raises_id_floor: true,
        release_is_idempotent: true,
        closed_order_is_released_again: true,
    };
}

/// The model with its bounds.
#[derive(Clone, Debug)]
pub struct Protocol {
    pub rules: Rules,
    pub stock: u8,
    /// For each user, how many purchases they attempt.
    pub attempts: Vec<u8>,
    pub faults: Faults,
    /// Which processes sell.
    pub gates: [bool; 2],
    /// Which processes run a recovery pass.
    pub recovers: [bool; 2],
    /// Which processes run rebuilds.
    pub rebuilds: [bool; 2],
}

/// An index into [`State::processes`].
pub type Index = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    // The gate
    Ask(Index, User),
    RunScript(Index),
    TakeReply(Index),
    ConnectionBroke(Index),
    // What a process hears
    HearEpoch(Index),
    HearApproval(Index),
    // Writing
    WriterSteps(Index),
    RecoveryTakes(Index, EntryId),
    RecoverySteps(Index),
    // Rebuilding
    Elect(Index),
    RebuildSteps(Index),
    // Returning units
    Cancel(OrderId),
    Release(Index, OrderId),
    ForgetReleased(Index),
    // Faults
    ReplyLostAskAgain(Index),
    ReplyLostGiveUp(Index),
    StrayRuns(usize),
    StrayIsDropped(usize),
    Crash(Index),
    LockLost(Index),
    RebuildStepFails(Index),
    Flush,
    RestartWithData,
    RestartEmpty,
    Backup,
    RestartFromBackup,
}

impl Protocol {
    fn initial(&self) -> State {
        let process = || Process {
            believes: 1,
            approved: 1,
            ..Process::default()
        };
        State {
            postgres: Postgres {
                epoch: 1,
                taken: 0,
                rows: Vec::new(),
                outbox: Vec::new(),
                next_return: 0,
                approved: 1,
                floor: 1,
                elected: None,
            },
            incarnation: 1,
            redis: RedisData {
                selling: Some(Selling {
                    epoch: 1,
                    remaining: self.stock,
                }),
                floor: 1,
                ..RedisData::default()
            },
            backup: None,
            stray: Vec::new(),
            next_entry: 1,
            processes: [process(), process()],
            attempts: self.attempts.clone(),
            faults: self.faults,
            answered: OrderSet::default(),
            lost_in_log: OrderSet::default(),
            lost_as_documented: OrderSet::default(),
            wrong: None,
        }
    }

    // ── Redis: the scripts ──────────────────────────────────────────────────────────────────────

    /// `admit.lua`
    fn admit(&self, state: &mut State, order: Order, epoch: Epoch) -> Verdict {
        let Some(mut selling) = state.redis.selling else {
            return Verdict::Fenced;
        };
        if selling.epoch != epoch {
            return Verdict::Fenced;
        }
        let held = state
            .redis
            .buyers_of(epoch)
            .find(|held| held.user == order.user);
        match held {
            Some(held) if held.id == order.id => return Verdict::AcceptedBefore,
            Some(_) => return Verdict::AlreadyOrdered,
            None if selling.remaining == 0 => return Verdict::SoldOut,
            None => {}
        }
        selling.remaining -= 1;
        state.redis.selling = Some(selling);
        state.redis.add_buyer(epoch, order);
        let name = state.next_entry;
        state.next_entry += 1;
        state.redis.log.push(Entry { name, epoch, order });
        Verdict::Accepted(name)
    }

    /// `ack.lua`
    fn acknowledge(state: &mut State, name: EntryId) {
        state.redis.log.retain(|entry| entry.name != name);
    }

    /// `release` in `orders.lua`; whether Redis has dealt with it.
    fn release(&self, state: &mut State, order: Order, epoch: Epoch) -> bool {
        let Some(mut selling) = state.redis.selling else {
            return false;
        };
        if selling.epoch != epoch {
            return false;
        }
        let held = (epoch, order);
        if state.redis.buyers.contains(&held) || !self.rules.release_is_idempotent {
            state.redis.buyers.retain(|buyer| *buyer != held);
            selling.remaining += 1;
            state.redis.selling = Some(selling);
        }
        true
    }

    /// `seal` in `sale.lua`; whether the rebuild goes on.
    fn seal(&self, state: &mut State, epoch: Epoch) -> bool {
        let live = state.redis.selling.map_or(0, |selling| selling.epoch);
        let overtaken = self.rules.seal_leaves_mark && state.redis.sealed_for > epoch;
        if live >= epoch || overtaken {
            return false;
        }
        state.redis.selling = None;
        if self.rules.seal_leaves_mark {
            state.redis.sealed_for = epoch;
        }
        true
    }

    /// `install` in `sale.lua`; whether the epoch is open.
    fn install(&self, state: &mut State, epoch: Epoch, taken: u8) -> bool {
        let live = state.redis.selling.map_or(0, |selling| selling.epoch);
        if live >= epoch {
            return false;
        }
        if self.rules.seal_leaves_mark && state.redis.sealed_for != epoch {
            return false;
        }
        if self.rules.install_looks_at_log && !state.redis.log.is_empty() {
            return false;
        }
        state.redis.sealed_for = 0;
        state.redis.selling = Some(Selling {
            epoch,
            remaining: self.stock.saturating_sub(taken),
        });
        // `remove_old_buyers` in rebuild/restore.rs: nobody reads them any more.
        state.redis.buyers.retain(|(held_in, _)| *held_in >= epoch);
        true
    }

    /// `lease_ids.lua` and, where the floor is missing, `floor_ids.lua`.
    fn lease(state: &mut State) -> OrderId {
        if state.redis.floor == 0 {
            state.postgres.floor += 1;
            state.redis.floor = state.postgres.floor;
            state.redis.next_number = 0;
        }
        let id = OrderId::new(state.redis.floor, state.redis.next_number);
        state.redis.next_number += 1;
        id
    }

    // ── The gate (src/sale/gate.rs) ─────────────────────────────────────────────────────────────

    fn ask(&self, state: &mut State, process: Index, user: User) {
        let order = Order {
            id: Self::lease(state),
            user,
        };
        if state.exists(order.id) {
            state.wrong = Some(Wrong::RepeatedId(order.id));
        }
        state.attempts[usize::from(user)] -= 1;
        let request = Request {
            order,
            epoch: state.processes[process].believes,
            to: state.incarnation,
        };
        state.processes[process].gate = Some(Attempt {
            request,
            reloaded: false,
            reply: None,
        });
    }

    /// Sends a batch again: the same ids, a new connection, the epoch as it is known by now. Only to a
    /// Redis process that this one knows to be approved; otherwise everybody hears 503.
    fn ask_again(&self, state: &mut State, process: Index) {
        let Some(mut attempt) = state.processes[process].gate else {
            return;
        };
        if state.processes[process].approved != state.incarnation {
            state.processes[process].gate = None;
            return;
        }
        attempt.request.epoch = state.processes[process].believes;
        attempt.request.to = state.incarnation;
        attempt.reply = None;
        state.processes[process].gate = Some(attempt);
    }

    fn take_reply(&self, state: &mut State, process: Index) {
        let Some(attempt) = state.processes[process].gate.take() else {
            return;
        };
        let Request { order, epoch, .. } = attempt.request;
        match attempt.reply {
            Some(Verdict::Accepted(entry)) => {
                state.processes[process].channel.push(Work {
                    order,
                    epoch,
                    entry,
                    readmitted_as: None,
                    step: self.first_step(),
                });
                state.answered.add(order.id);
            }
            // The writer is not told: the log has it, and a recovery pass writes it. If the log was lost
            // meanwhile, it is an order that was lost before it was answered.
            Some(Verdict::AcceptedBefore) => {
                state.answered.add(order.id);
                Self::note_if_gone(state, order.id, true);
            }
            Some(Verdict::Fenced) if !attempt.reloaded => {
                state.processes[process].believes = state.postgres.epoch;
                state.processes[process].gate = Some(Attempt {
                    reloaded: true,
                    ..attempt
                });
                self.ask_again(state, process);
            }
            // 503, sold out, or the name of the order that stands in the way.
            _ => {}
        }
    }

    // ── Writing (src/worker/writer.rs, src/sale/orders.rs) ──────────────────────────────────────

    fn first_step(&self) -> WorkStep {
        if self.rules.acknowledges_after_commit {
            WorkStep::Write
        } else {
            WorkStep::Acknowledge
        }
    }

    /// One step with an accepted order; `None` when it is settled. The same for the writer, a recovery
    /// pass and a drain.
    fn work_on(&self, state: &mut State, mut work: Work) -> Option<Work> {
        match work.step {
            WorkStep::Write => work.step = self.write(state, work),
            WorkStep::Late => {
                // `by_ids`, then `refresh`.
                work.step = if state.postgres.row(work.order.id).is_some() {
                    WorkStep::Acknowledge
                } else {
                    WorkStep::Readmit(state.postgres.epoch)
                };
            }
            WorkStep::Readmit(epoch) => {
                let mut order = work.order;
                let is_live = state.redis.selling.is_some_and(|live| live.epoch == epoch);
                if is_live && !self.rules.readmits_under_same_id {
                    order.id = Self::lease(state);
                }
                match self.admit(state, order, epoch) {
                    Verdict::Accepted(entry) => {
                        work.order = order;
                        work.epoch = epoch;
                        work.readmitted_as = Some(entry);
                        work.step = WorkStep::Write;
                    }
                    Verdict::AcceptedBefore => work.step = WorkStep::Acknowledge,
                    Verdict::Fenced => work.step = WorkStep::Late,
                    Verdict::SoldOut | Verdict::AlreadyOrdered => work.step = WorkStep::Reject,
                }
            }
            WorkStep::Reject => {
                if state.postgres.row(work.order.id).is_none() {
                    state.postgres.insert(Row {
                        order: work.order,
                        status: Status::Rejected,
                    });
                    state.postgres.return_unit(work.order.id);
                }
                work.step = WorkStep::Acknowledge;
            }
            WorkStep::Acknowledge => {
                if let Some(entry) = work.readmitted_as.take() {
                    Self::acknowledge(state, entry);
                    return Some(work);
                }
                Self::acknowledge(state, work.entry);
                if self.rules.acknowledges_after_commit {
                    return None;
                }
                let settled = state.postgres.row(work.order.id).is_some();
                work.step = WorkStep::Write;
                return (!settled).then_some(work);
            }
        }
        Some(work)
    }

    /// `write_accepted`: the transaction, and what follows from its outcome.
    fn write(&self, state: &mut State, work: Work) -> WorkStep {
        let stale = work.epoch != state.postgres.epoch;
        if stale && self.rules.writers_are_fenced {
            return WorkStep::Late;
        }
        if let Some(row) = state.postgres.row(work.order.id) {
            let closed = row.status != Status::Live;
            if closed && self.rules.closed_order_is_released_again {
                state.postgres.return_unit(work.order.id);
            }
            return WorkStep::Acknowledge;
        }
        let has_one = state
            .postgres
            .live()
            .any(|live| live.user == work.order.user);
        if has_one || state.postgres.taken >= self.stock {
            // `orders_one_live_per_user_slot`, `sales_taken_within_stock`
            return WorkStep::Reject;
        }
        state.postgres.insert(Row {
            order: work.order,
            status: Status::Live,
        });
        state.postgres.taken += 1;
        WorkStep::Acknowledge
    }

    // ── Rebuilding (src/worker/rebuild/) ─────────────────────────────────────────────────────────

    /// Why a rebuild is needed, if it is: the Redis process to approve, or only a missing sale.
    fn rebuild_needed(state: &State) -> Option<Option<Incarnation>> {
        if state.postgres.approved != state.incarnation {
            return Some(Some(state.incarnation));
        }
        let live = state.redis.selling.map(|selling| selling.epoch);
        (live != Some(state.postgres.epoch)).then_some(None)
    }

    fn rebuild_steps(&self, state: &mut State, process: Index) {
        let Some(mut rebuild) = state.processes[process].rebuild.take() else {
            return;
        };
        // See `rebuild_fails`; from where this is used the fence is behind.
        let give_up = if rebuild.approves.is_some() {
            Some(RebuildStep::Installed)
        } else {
            None
        };
        let next = match &rebuild.step {
            RebuildStep::Elected => {
                if !self.rules.approves_last
                    && let Some(incarnation) = rebuild.approves
                {
                    Self::approve(state, process, incarnation);
                }
                let goes_on = !self.rules.seals || self.seal(state, rebuild.epoch);
                goes_on.then_some(RebuildStep::Sealed)
            }
            RebuildStep::Sealed => Self::fence(state, rebuild.epoch),
            RebuildStep::Fenced => self.drain(state, &mut rebuild).unwrap_or(give_up),
            RebuildStep::Drained => Some(RebuildStep::Recomputed(state.postgres.live().collect())),
            RebuildStep::Recomputed(live) => {
                for order in live {
                    state.redis.add_buyer(rebuild.epoch, *order);
                }
                Some(RebuildStep::BuyersWritten {
                    taken: live.len() as u8,
                })
            }
            RebuildStep::BuyersWritten { taken } => {
                if self.install(state, rebuild.epoch, *taken) {
                    rebuild.approves.map(|_| RebuildStep::Installed)
                } else {
                    give_up
                }
            }
            RebuildStep::Installed => {
                if self.rules.raises_id_floor {
                    state.postgres.floor += 1;
                    if state.redis.floor < state.postgres.floor {
                        state.redis.floor = state.postgres.floor;
                    }
                }
                Some(RebuildStep::FloorRaised)
            }
            RebuildStep::FloorRaised => {
                if let Some(incarnation) = rebuild.approves {
                    Self::approve(state, process, incarnation);
                }
                None
            }
        };
        match next {
            Some(step) => {
                rebuild.step = step;
                state.processes[process].rebuild = Some(rebuild);
            }
            None if state.postgres.elected == Some(process) => state.postgres.elected = None,
            None => {}
        }
    }

    /// The sale is given up for now. The process is approved all the same, since others sell from it; but
    /// only behind the fence, which keeps this one shut.
    fn rebuild_fails(&self, state: &mut State, process: Index) {
        let Some(mut rebuild) = state.processes[process].rebuild.take() else {
            return;
        };
        let is_fenced = !matches!(rebuild.step, RebuildStep::Elected | RebuildStep::Sealed);
        let goes_on = is_fenced || !self.rules.approves_only_what_is_fenced;
        if rebuild.approves.is_some() && goes_on && rebuild.step != RebuildStep::FloorRaised {
            rebuild.step = RebuildStep::Installed;
            rebuild.draining = None;
            state.processes[process].rebuild = Some(rebuild);
        } else if state.postgres.elected == Some(process) {
            state.postgres.elected = None;
        }
    }

    /// Raises the sale's epoch, unless another rebuild has done so since this one began.
    fn fence(state: &mut State, epoch: Epoch) -> Option<RebuildStep> {
        if state.postgres.epoch + 1 != epoch {
            return None;
        }
        state.postgres.epoch = epoch;
        Some(RebuildStep::Fenced)
    }

    /// One step of writing what the log holds, as orders of the new epoch. `None`: it cannot go on.
    fn drain(&self, state: &mut State, rebuild: &mut Rebuild) -> Option<Option<RebuildStep>> {
        let still_draining = Some(Some(RebuildStep::Fenced));
        if let Some(work) = rebuild.draining.take() {
            let was_refused = matches!(work.step, WorkStep::Readmit(_));
            rebuild.draining = self.work_on(state, work);
            let refused_again = rebuild
                .draining
                .is_some_and(|work| work.step == WorkStep::Late);
            if was_refused && refused_again {
                rebuild.draining = None; // overtaken; the log still has it
                return None;
            }
            return still_draining;
        }
        let Some(entry) = state.redis.log.first() else {
            return Some(Some(RebuildStep::Drained));
        };
        rebuild.draining = Some(Work {
            order: entry.order,
            epoch: rebuild.epoch,
            entry: entry.name,
            readmitted_as: None,
            step: self.first_step(),
        });
        still_draining
    }

    fn approve(state: &mut State, process: Index, incarnation: Incarnation) {
        state.postgres.approved = incarnation;
        state.processes[process].approved = incarnation;
        state.processes[process].believes = state.postgres.epoch;
    }

    // ── Faults ──────────────────────────────────────────────────────────────────────────────────

    /// Redis' data becomes `data`. Notes which orders that takes out of the log.
    fn lose_down_to(state: &mut State, data: RedisData) {
        let before = std::mem::replace(&mut state.redis, data);
        for entry in before.log {
            let kept = state.redis.log.iter().any(|kept| kept.name == entry.name);
            if !kept && state.postgres.row(entry.order.id).is_none() {
                state.lost_in_log.add(entry.order.id);
            }
        }
    }

    fn restart(state: &mut State, data: RedisData) {
        Self::lose_down_to(state, data);
        state.incarnation += 1;
        state.backup = None;
        state.stray.clear(); // their connections are gone
    }

    /// Takes note of an answered order that is nowhere any more. It may only go with the log's data or with
    /// a process, and only after both: in the words of the README, if it "existed only in the lost part of
    /// the log" and is "in the memory of no living process".
    fn note_if_gone(state: &mut State, id: OrderId, by_a_fault: bool) {
        if !state.answered.has(id) || state.exists(id) || state.lost_as_documented.has(id) {
            return;
        }
        if by_a_fault && state.lost_in_log.has(id) {
            state.lost_as_documented.add(id);
        } else {
            state.wrong = Some(Wrong::Vanished(id));
        }
    }

    fn crash(state: &mut State, process: Index) {
        let died = std::mem::take(&mut state.processes[process]);
        if let Some(attempt) = died.gate
            && attempt.reply.is_none()
            && attempt.request.to == state.incarnation
        {
            state.stray.push(attempt.request);
        }
        if state.postgres.elected == Some(process) {
            state.postgres.elected = None;
        }
        // It starts again by reading the catalogue; which Redis is approved it asks with its next step.
        state.processes[process].believes = state.postgres.epoch;
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Ask(p, user) => self.ask(state, p, user),
            Action::RunScript(p) => {
                if let Some(mut attempt) = state.processes[p].gate {
                    let Request { order, epoch, .. } = attempt.request;
                    let verdict = self.admit(state, order, epoch);
                    attempt.reply = Some(verdict);
                    // Of a refusal nothing follows, so it is taken to arrive at once.
                    let refused = matches!(verdict, Verdict::SoldOut | Verdict::AlreadyOrdered);
                    state.processes[p].gate = (!refused).then_some(attempt);
                }
            }
            Action::TakeReply(p) => self.take_reply(state, p),
            Action::ConnectionBroke(p) => self.ask_again(state, p),
            Action::HearEpoch(p) => state.processes[p].believes = state.postgres.epoch,
            Action::HearApproval(p) => {
                state.processes[p].approved = state.postgres.approved;
                state.processes[p].believes = state.postgres.epoch;
            }
            Action::WriterSteps(p) => {
                let first = state.processes[p].channel.remove(0);
                if let Some(work) = self.work_on(state, first) {
                    state.processes[p].channel.insert(0, work);
                }
            }
            Action::RecoveryTakes(p, name) => {
                let entry = state.redis.log.iter().find(|entry| entry.name == name);
                state.processes[p].recovery = entry.map(|entry| Work {
                    order: entry.order,
                    epoch: entry.epoch,
                    entry: entry.name,
                    readmitted_as: None,
                    step: self.first_step(),
                });
            }
            Action::RecoverySteps(p) => {
                if let Some(work) = state.processes[p].recovery.take() {
                    state.processes[p].recovery = self.work_on(state, work);
                }
            }
            Action::Elect(p) => {
                state.postgres.elected = Some(p);
                state.processes[p].rebuild = Self::rebuild_needed(state).map(|approves| Rebuild {
                    approves,
                    epoch: state.postgres.epoch + 1,
                    step: RebuildStep::Elected,
                    draining: None,
                });
            }
            Action::RebuildSteps(p) => self.rebuild_steps(state, p),
            Action::Cancel(id) => {
                for row in &mut state.postgres.rows {
                    if row.order.id == id {
                        row.status = Status::Cancelled;
                    }
                }
                state.postgres.taken -= 1;
                state.postgres.return_unit(id);
                state.faults.cancels -= 1;
            }
            Action::Release(p, id) => {
                // `return_units` looks the sale up again if it is fenced, and tries once more.
                let Some(order) = state.postgres.row(id).map(|row| row.order) else {
                    return;
                };
                let mut done = self.release(state, order, state.processes[p].believes);
                if !done {
                    state.processes[p].believes = state.postgres.epoch;
                    done = self.release(state, order, state.postgres.epoch);
                }
                let due = state.postgres.outbox.iter().find(|(due, _)| *due == id);
                state.processes[p].released = due.copied().filter(|_| done);
            }
            Action::ForgetReleased(p) => {
                let done = state.processes[p].released.take();
                state.postgres.outbox.retain(|due| match done {
                    Some(_) if self.rules.closed_order_is_released_again => Some(*due) != done,
                    Some((id, _)) => due.0 != id,
                    None => true,
                });
            }
            Action::ReplyLostAskAgain(p) | Action::ReplyLostGiveUp(p) => {
                state.faults.lost_replies -= 1;
                if let Some(attempt) = state.processes[p].gate
                    && attempt.reply.is_none()
                    && attempt.request.to == state.incarnation
                {
                    state.stray.push(attempt.request);
                }
                if matches!(action, Action::ReplyLostAskAgain(_)) {
                    self.ask_again(state, p);
                } else {
                    state.processes[p].gate = None;
                }
            }
            Action::StrayRuns(at) => {
                let Request { order, epoch, .. } = state.stray.remove(at);
                self.admit(state, order, epoch);
            }
            Action::StrayIsDropped(at) => {
                state.stray.remove(at);
            }
            Action::Crash(p) => {
                state.faults.crashes -= 1;
                Self::crash(state, p);
            }
            Action::LockLost(_) => {
                state.faults.lost_locks -= 1;
                state.postgres.elected = None;
            }
            Action::RebuildStepFails(p) => {
                state.faults.failed_steps -= 1;
                self.rebuild_fails(state, p);
            }
            Action::Flush => {
                state.faults.flushes -= 1;
                Self::lose_down_to(state, RedisData::default());
            }
            Action::RestartWithData => {
                state.faults.restarts -= 1;
                let data = state.redis.clone();
                Self::restart(state, data);
            }
            Action::RestartEmpty => {
                state.faults.empty_restarts -= 1;
                Self::restart(state, RedisData::default());
            }
            Action::Backup => {
                state.backup = Some(Box::new(state.redis.clone()));
            }
            Action::RestartFromBackup => {
                state.faults.rollbacks -= 1;
                if let Some(data) = state.backup.take() {
                    Self::restart(state, *data);
                }
            }
        }
    }

    fn actions_of(&self, state: &State, p: Index, actions: &mut Vec<Action>) {
        let process = &state.processes[p];
        match process.gate {
            None if self.gates[p]
                && process.approved == state.incarnation
                && process.believes > 0 =>
            {
                for (user, left) in state.attempts.iter().enumerate() {
                    // Users differ in nothing but their names: a later one comes after an earlier one.
                    let is_next = user == 0 || state.attempts[user - 1] < self.attempts[user - 1];
                    if *left > 0 && is_next {
                        actions.push(Action::Ask(p, user as User));
                    }
                }
            }
            None => {}
            Some(attempt) => {
                if attempt.reply.is_some() {
                    actions.push(Action::TakeReply(p));
                } else if attempt.request.to == state.incarnation {
                    actions.push(Action::RunScript(p));
                } else {
                    actions.push(Action::ConnectionBroke(p));
                }
                if state.faults.lost_replies > 0 {
                    actions.push(Action::ReplyLostAskAgain(p));
                    actions.push(Action::ReplyLostGiveUp(p));
                }
            }
        }
        if process.believes != state.postgres.epoch {
            actions.push(Action::HearEpoch(p));
        }
        if process.approved != state.postgres.approved
            && state.postgres.approved == state.incarnation
        {
            actions.push(Action::HearApproval(p));
        }
        if !process.channel.is_empty() {
            actions.push(Action::WriterSteps(p));
        }
        if process.recovery.is_some() {
            actions.push(Action::RecoverySteps(p));
        } else if self.recovers[p] {
            for entry in &state.redis.log {
                actions.push(Action::RecoveryTakes(p, entry.name));
            }
        }
        if process.rebuild.is_some() {
            actions.push(Action::RebuildSteps(p));
            if state.postgres.elected == Some(p) && state.faults.lost_locks > 0 {
                actions.push(Action::LockLost(p));
            }
            if state.faults.failed_steps > 0 {
                actions.push(Action::RebuildStepFails(p));
            }
        } else if self.rebuilds[p]
            && state.postgres.elected.is_none()
            && Self::rebuild_needed(state).is_some()
        {
            actions.push(Action::Elect(p));
        }
        if process.released.is_some() {
            actions.push(Action::ForgetReleased(p));
        } else if state.redis.selling.is_some() {
            for (id, _) in &state.postgres.outbox {
                actions.push(Action::Release(p, *id));
            }
        }
        if state.faults.crashes > 0 {
            actions.push(Action::Crash(p));
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_some() {
            return; // one is enough
        }
        for p in 0..state.processes.len() {
            self.actions_of(state, p, actions);
        }
        for at in 0..state.stray.len() {
            actions.push(Action::StrayRuns(at));
            actions.push(Action::StrayIsDropped(at));
        }
        if state.faults.cancels > 0 {
            actions.extend(state.postgres.live().map(|order| Action::Cancel(order.id)));
        }
        if state.faults.flushes > 0 {
            actions.push(Action::Flush);
        }
        if state.faults.restarts > 0 {
            actions.push(Action::RestartWithData);
        }
        if state.faults.empty_restarts > 0 {
            actions.push(Action::RestartEmpty);
        }
        if state.faults.rollbacks > 0 {
            actions.push(if state.backup.is_some() {
                Action::RestartFromBackup
            } else {
                Action::Backup
            });
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.apply(&mut next, action);
        let by_a_fault = matches!(
            action,
            Action::Crash(_) | Action::Flush | Action::RestartEmpty | Action::RestartFromBackup
        );
        for id in state.answered.iter() {
            Self::note_if_gone(&mut next, id, by_a_fault);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        crate::properties::all()
    }
}
