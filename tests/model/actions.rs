//! What can happen next: a step of a process, or a fault.

use crate::properties::{always, sometimes};
use crate::protocol::{Index, Protocol};
use crate::state::*;
use stateright::{Model, Property};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    // The admission queue
    Ask(Index, User),
    RunScript(Index),
    TakeReply(Index),
    ConnectionBroke(Index),
    // News from Postgres
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
    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Ask(p, user) => self.ask(state, p, user),
            Action::RunScript(p) => self.run_script(state, p),
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
                let work = entry.map(|entry| self.accepted(entry.order, entry.epoch, name));
                state.processes[p].recovery = work;
            }
            Action::RecoverySteps(p) => {
                if let Some(work) = state.processes[p].recovery.take() {
                    state.processes[p].recovery = self.work_on(state, work);
                }
            }
            Action::Elect(p) => self.elect(state, p),
            Action::RebuildSteps(p) => self.rebuild_steps(state, p),
            Action::Release(p, id) => self.return_unit(state, p, id),
            Action::ForgetReleased(p) => self.forget_released(state, p),
            fault => self.apply_fault(state, fault),
        }
    }

    fn apply_fault(&self, state: &mut State, fault: Action) {
        let left = &mut state.faults;
        match fault {
            Action::Cancel(id) => {
                left.cancels -= 1;
                self.cancel(state, id);
            }
            Action::ReplyLostAskAgain(p) => {
                left.lost_replies -= 1;
                Self::lose_reply(state, p);
                self.ask_again(state, p);
            }
            Action::ReplyLostGiveUp(p) => {
                left.lost_replies -= 1;
                Self::lose_reply(state, p);
                state.processes[p].attempt = None;
            }
            Action::StrayRuns(at) => {
                let Request { order, epoch, .. } = state.stray.remove(at);
                self.admit(state, order, epoch);
            }
            Action::StrayIsDropped(at) => {
                state.stray.remove(at);
            }
            Action::Crash(p) => {
                left.crashes -= 1;
                Self::lose_reply(state, p);
                Self::release_election(state, p);
                // It starts by reading the catalogue; it asks later which Redis is approved.
                state.processes[p] =
                    Process { believes: state.postgres.epoch, ..Process::default() };
            }
            Action::LockLost(_) => {
                left.lost_locks -= 1;
                state.postgres.elected = None;
            }
            Action::RebuildStepFails(p) => {
                left.failed_steps -= 1;
                self.rebuild_fails(state, p);
            }
            Action::Flush => {
                left.flushes -= 1;
                Self::lose_down_to(state, RedisData::default());
            }
            Action::RestartWithData => {
                left.restarts -= 1;
                let data = state.redis.clone();
                Self::restart(state, data);
            }
            Action::RestartEmpty => {
                left.empty_restarts -= 1;
                Self::restart(state, RedisData::default());
            }
            Action::Backup => state.backup = Some(Box::new(state.redis.clone())),
            Action::RestartFromBackup => {
                left.rollbacks -= 1;
                if let Some(data) = state.backup.take() {
                    Self::restart(state, *data);
                }
            }
            _ => unreachable!("{fault:?} is no fault"),
        }
    }

    fn lose_reply(state: &mut State, p: Index) {
        if let Some(attempt) = state.processes[p].attempt
            && attempt.reply.is_none()
            && attempt.request.to == state.live_redis
        {
            state.stray.push(attempt.request);
        }
    }

    /// Redis' data becomes `data`. Notes which orders that takes out of the log.
    fn lose_down_to(state: &mut State, data: RedisData) {
        let before = std::mem::replace(&mut state.redis, data);
        for entry in before.log {
            let kept = state.redis.log.iter().any(|kept| kept.name == entry.name);
            if !kept && state.postgres.row(entry.order.id).is_none() {
                state.lost_in_log.insert(entry.order.id);
            }
        }
    }

    fn restart(state: &mut State, data: RedisData) {
        Self::lose_down_to(state, data);
        state.live_redis += 1;
        state.backup = None;
        state.stray.clear(); // their connections are gone
    }

    /// Only a fault may take an answered order, out of the log and the memory of no living process.
    pub fn note_if_gone(state: &mut State, id: OrderId, by_a_fault: bool) {
        if !state.answered.contains(&id)
            || state.exists(id)
            || state.lost_as_documented.contains(&id)
        {
            return;
        }
        if by_a_fault && state.lost_in_log.contains(&id) {
            state.lost_as_documented.insert(id);
        } else {
            state.wrong = Some(Wrong::Vanished(id));
        }
    }

    fn attempts_of(&self, state: &State, p: Index, actions: &mut Vec<Action>) {
        let process = &state.processes[p];
        if let Some(attempt) = process.attempt {
            actions.push(match attempt.reply {
                Some(_) => Action::TakeReply(p),
                None if attempt.request.to == state.live_redis => Action::RunScript(p),
                None => Action::ConnectionBroke(p),
            });
            if state.faults.lost_replies > 0 {
                actions.extend([Action::ReplyLostAskAgain(p), Action::ReplyLostGiveUp(p)]);
            }
        } else if self.sells[p] && process.approved == state.live_redis && process.believes > 0 {
            for (user, left) in state.attempts.iter().enumerate() {
                // Users differ in nothing but their names: a later one comes after an earlier one.
                let is_next = user == 0 || state.attempts[user - 1] < self.attempts[user - 1];
                if *left > 0 && is_next {
                    actions.push(Action::Ask(p, user as User));
                }
            }
        }
    }

    fn actions_of(&self, state: &State, p: Index, actions: &mut Vec<Action>) {
        let (process, postgres) = (&state.processes[p], &state.postgres);
        let mut may = |condition: bool, action| actions.extend(condition.then_some(action));
        may(process.believes != postgres.epoch, Action::HearEpoch(p));
        let is_news = process.approved != postgres.approved;
        let approved = postgres.approved == state.live_redis;
        may(is_news && approved, Action::HearApproval(p));
        may(!process.channel.is_empty(), Action::WriterSteps(p));
        may(process.recovery.is_some(), Action::RecoverySteps(p));
        if let Some(_rebuild) = &process.rebuild {
            may(true, Action::RebuildSteps(p));
            may(postgres.elected == Some(p) && state.faults.lost_locks > 0, Action::LockLost(p));
            may(state.faults.failed_steps > 0, Action::RebuildStepFails(p));
        } else if self.rebuilds[p] && postgres.elected.is_none() {
            may(Self::rebuild_needed(state).is_some(), Action::Elect(p));
        }
        may(process.released.is_some(), Action::ForgetReleased(p));
        may(state.faults.crashes > 0, Action::Crash(p));
        if process.recovery.is_none() && self.recovers[p] {
            let entries = state.redis.log.iter();
            actions.extend(entries.map(|entry| Action::RecoveryTakes(p, entry.name)));
        }
        if process.released.is_none() && state.redis.selling.is_some() {
            actions.extend(postgres.outbox.iter().map(|(id, _)| Action::Release(p, *id)));
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
            self.attempts_of(state, p, actions);
            self.actions_of(state, p, actions);
        }
        for at in 0..state.stray.len() {
            actions.extend([Action::StrayRuns(at), Action::StrayIsDropped(at)]);
        }
        let left = &state.faults;
        if left.cancels > 0 {
            actions.extend(state.postgres.live().map(|order| Action::Cancel(order.id)));
        }
        let mut may = |left: u8, action| actions.extend((left > 0).then_some(action));
        may(left.flushes, Action::Flush);
        may(left.restarts, Action::RestartWithData);
        may(left.empty_restarts, Action::RestartEmpty);
        let rollback = match state.backup {
            Some(_) => Action::RestartFromBackup,
            None => Action::Backup,
        };
        may(left.rollbacks, rollback);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.apply(&mut next, action);
        let by_a_fault = matches!(
            action,
            Action::Crash(_) | Action::Flush | Action::RestartEmpty | Action::RestartFromBackup
        );
        for id in &state.answered {
            Self::note_if_gone(&mut next, *id, by_a_fault);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        always().into_iter().chain(sometimes()).collect()
    }
}
