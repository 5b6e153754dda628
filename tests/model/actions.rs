//! What can happen next: a step of a process, or a fault.

use crate::properties::{NOTHING_VANISHES, always, sometimes};
use crate::protocol::{Index, Protocol};
use crate::state::*;
use stateright::{Model, Property};

/// What happens, where (a process, or a place in a list), and what comes of it.
pub type Action = (&'static str, Index, State);

/// What happens, whether it may take answered orders away, and how many are left.
type Fault = (&'static str, bool, fn(&mut Faults) -> &mut u8);
const LOSE_REPLY: Fault = ("lose the reply, ask again", false, |left| &mut left.lost_replies);
const GIVE_UP: Fault = ("lose the reply, give up", false, |left| &mut left.lost_replies);
const FAIL: Fault = ("fail in a rebuild", false, |left| &mut left.failed_steps);
const LOSE_LOCK: Fault = ("lose the lock", false, |left| &mut left.lost_locks);
const CRASH: Fault = ("crash", true, |left| &mut left.crashes);
const CANCEL: Fault = ("cancel", false, |left| &mut left.cancels);
const FLUSH: Fault = ("flush", true, |left| &mut left.flushes);
const RESTART: Fault = ("restart with data", false, |left| &mut left.restarts);
const RESTART_EMPTY: Fault = ("restart empty", true, |left| &mut left.empty_restarts);
const ROLL_BACK: Fault = ("restart from the backup", true, |left| &mut left.rollbacks);

struct Next<'a> {
    before: &'a State,
    actions: &'a mut Vec<Action>,
}

impl Next<'_> {
    fn step(&mut self, what: &'static str, at: Index, act: impl FnOnce(&mut State)) {
        self.add(false, what, at, act);
    }

    fn fault(&mut self, (what, loses, left): Fault, at: Index, act: impl FnOnce(&mut State)) {
        if *left(&mut self.before.faults.clone()) > 0 {
            self.add(loses, what, at, |state| {
                *left(&mut state.faults) -= 1;
                act(state);
            });
        }
    }

    fn add(&mut self, loses: bool, what: &'static str, at: Index, act: impl FnOnce(&mut State)) {
        let mut next = self.before.clone();
        act(&mut next);
        for id in &self.before.answered {
            Protocol::note_if_gone(&mut next, *id, loses);
        }
        self.actions.push((what, at, next));
    }
}

impl Protocol {
    fn attempts_of(&self, p: Index, next: &mut Next<'_>) {
        let State { processes, attempts, live_redis, .. } = next.before;
        let process = &processes[p];
        if let Some(attempt) = process.attempt {
            match attempt.reply {
                Some(_) => next.step("take the reply", p, |state| self.take_reply(state, p)),
                None if attempt.to == *live_redis => {
                    next.step("run the script", p, |state| self.run_script(state, p));
                }
                None => next.step("the connection broke", p, |state| self.ask_again(state, p)),
            }
            next.fault(LOSE_REPLY, p, |state| {
                Self::lose_reply(state, p);
                self.ask_again(state, p);
            });
            next.fault(GIVE_UP, p, |state| {
                Self::lose_reply(state, p);
                state.processes[p].attempt = None;
            });
        } else if self.sells[p] && process.approved == *live_redis && process.believes > 0 {
            for (user, left) in attempts.iter().enumerate() {
                // Users differ in nothing but their names: a later one comes after an earlier one.
                let is_next = user == 0 || attempts[user - 1] < self.attempts[user - 1];
                if *left > 0 && is_next {
                    next.step("ask", p, |state| self.ask(state, p, user as User));
                }
            }
        }
    }

    fn steps_of(&self, p: Index, next: &mut Next<'_>) {
        let State { processes, postgres, redis, live_redis, .. } = next.before;
        let process = &processes[p];
        if process.believes != postgres.epoch {
            next.step("hear of the epoch", p, |state| state.processes[p].believes = postgres.epoch);
        }
        if process.approved != postgres.approved && postgres.approved == *live_redis {
            next.step("hear of the approval", p, |state| {
                state.processes[p].approved = postgres.approved;
                state.processes[p].believes = postgres.epoch;
            });
        }
        if let Some(first) = process.channel.first() {
            next.step("write", p, |state| match self.work_on(state, *first) {
                Some(work) => state.processes[p].channel[0] = work,
                None => drop(state.processes[p].channel.remove(0)),
            });
        }
        if let Some(work) = process.recovery {
            next.step("recover", p, |state| {
                state.processes[p].recovery = self.work_on(state, work);
            });
        } else if self.recovers[p] {
            for entry in &redis.log {
                let work = self.accepted(entry.order, entry.epoch, entry.name);
                next.step("find", p, |state| state.processes[p].recovery = Some(work));
            }
        }
        if process.rebuild.is_some() {
            next.step("rebuild", p, |state| self.rebuild_steps(state, p));
            next.fault(FAIL, p, |state| self.rebuild_fails(state, p));
            if postgres.elected == Some(p) {
                next.fault(LOSE_LOCK, p, |state| state.postgres.elected = None);
            }
        } else if self.rebuilds[p]
            && postgres.elected.is_none()
            && Self::rebuild_needed(next.before).is_some()
        {
            next.step("be elected", p, |state| self.elect(state, p));
        }
        if process.released.is_some() {
            next.step("forget what is returned", p, |state| self.forget_released(state, p));
        } else if redis.selling.is_some() {
            for id in postgres.outbox.keys() {
                next.step("return a unit", p, |state| self.return_unit(state, p, *id));
            }
        }
        next.fault(CRASH, p, |state| {
            Self::lose_reply(state, p);
            Self::release_election(state, p);
            // It starts by reading the catalogue; it asks later which Redis is approved.
            state.processes[p] = Process { believes: postgres.epoch, ..Process::default() };
        });
    }

    fn stores(&self, next: &mut Next<'_>) {
        let State { stray, postgres, redis, backup, .. } = next.before;
        for (at, (order, epoch)) in stray.iter().enumerate() {
            next.step("a stray request runs", at, |state| {
                state.stray.remove(at);
                self.admit(state, *order, *epoch);
            });
            next.step("a stray request is dropped", at, |state| {
                state.stray.remove(at);
            });
        }
        for order in postgres.live() {
            next.fault(CANCEL, order.user.into(), |state| self.cancel(state, order.id));
        }
        next.fault(FLUSH, 0, |state| Self::lose_down_to(state, RedisData::default()));
        next.fault(RESTART, 0, |state| Self::restart(state, redis.clone()));
        next.fault(RESTART_EMPTY, 0, |state| Self::restart(state, RedisData::default()));
        if let Some(data) = backup {
            next.fault(ROLL_BACK, 0, |state| Self::restart(state, (**data).clone()));
        } else if next.before.faults.rollbacks > 0 {
            next.step("back up", 0, |state| state.backup = Some(Box::new(redis.clone())));
        }
    }

    fn lose_reply(state: &mut State, p: Index) {
        if let Some(attempt) = state.processes[p].attempt
            && attempt.reply.is_none()
            && attempt.to == state.live_redis
        {
            state.stray.push((attempt.order, attempt.epoch));
        }
    }

    /// Redis' data becomes `data`. Notes which orders that takes out of the log.
    fn lose_down_to(state: &mut State, data: RedisData) {
        let before = std::mem::replace(&mut state.redis, data);
        for entry in before.log {
            let kept = state.redis.log.iter().any(|kept| kept.name == entry.name);
            if !kept && !state.postgres.rows.contains_key(&entry.order.id) {
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
        let is_known = state.exists(id) || state.lost_as_documented.contains(&id);
        if is_known || !state.answered.contains(&id) {
            return;
        }
        if by_a_fault && state.lost_in_log.contains(&id) {
            state.lost_as_documented.insert(id);
        } else {
            state.wrong = Some(NOTHING_VANISHES);
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial()]
    }

    fn actions(&self, before: &State, actions: &mut Vec<Action>) {
        if before.wrong.is_some() {
            return; // one is enough
        }
        let next = &mut Next { before, actions };
        for p in 0..before.processes.len() {
            self.attempts_of(p, next);
            self.steps_of(p, next);
        }
        self.stores(next);
    }

    fn next_state(&self, _: &State, (.., next): Action) -> Option<State> {
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        always().into_iter().chain(sometimes()).collect()
    }
}
