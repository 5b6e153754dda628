//! What can happen next: a step of a process, or a fault.

use crate::explorer::{Next, Step};
use crate::properties::{always, sometimes};
use crate::protocol::Protocol;
use crate::state::*;
use stateright::{Model, Property};
use std::fmt::Display;

impl Next<'_, State> {
    fn fault(&mut self, what: impl Display, fault: Fault, act: impl FnOnce(&mut State)) {
        if let Some(at) = self.before.faults.iter().position(|left| *left == fault) {
            self.may(what, |state| {
                state.faults.remove(at);
                act(state);
            });
        }
    }
}

impl Protocol {
    fn admission(&self, next: &mut Next<'_, State>, p: usize) {
        let (before, process) = (next.before, &next.before.processes[p]);
        if let Some(Attempt { request, reply, .. }) = process.attempt {
            if reply.is_some() {
                next.may(format_args!("{p} takes a reply"), |state| self.take_reply(state, p));
            } else if request.to == before.live_redis {
                next.may(format_args!("{p}'s script runs"), |state| self.run_script(state, p));
            } else {
                next.may(format_args!("{p}'s connection broke"), |state| self.ask_again(state, p));
            }
            for again in [true, false] {
                let what = format_args!("{p}'s reply is lost, asks again: {again}");
                next.fault(what, Fault::LostReply, |state| {
                    Self::lose_reply(state, p);
                    if again {
                        self.ask_again(state, p);
                    } else {
                        state.processes[p].attempt = None;
                    }
                });
            }
        } else if self.sells[p] && process.approved == before.live_redis && process.believes > 0 {
            // Users differ in nothing but their names: a later one comes after an earlier one.
            let user = before.next_user;
            if user < self.users {
                next.may(format_args!("{p} asks for user {user}"), |state| Self::ask(state, p));
            }
        }
    }

    fn news(next: &mut Next<'_, State>, p: usize) {
        let (process, postgres) = (&next.before.processes[p], &next.before.postgres);
        if process.believes != postgres.epoch {
            next.may(format_args!("{p} hears of the epoch"), |state| {
                state.processes[p].believes = postgres.epoch;
            });
        }
        if process.approved != postgres.approved && postgres.approved == next.before.live_redis {
            next.may(format_args!("{p} hears of the approval"), |state| {
                state.processes[p].approved = postgres.approved;
                state.processes[p].believes = postgres.epoch;
            });
        }
    }

    fn writing(&self, next: &mut Next<'_, State>, p: usize) {
        let (before, process) = (next.before, &next.before.processes[p]);
        if let Some(first) = process.channel.first() {
            next.may(format_args!("{p}'s writer steps"), |state| {
                state.processes[p].channel.remove(0);
                if let Some(work) = self.work_on(state, *first) {
                    state.processes[p].channel.insert(0, work);
                }
            });
        }
        if let Some(work) = process.recovery {
            next.may(format_args!("{p}'s recovery steps"), |state| {
                state.processes[p].recovery = self.work_on(state, work);
            });
        } else if self.recovers[p] {
            for Entry { name, epoch, order } in &before.redis.log {
                next.may(format_args!("{p} recovers entry {name}"), |state| {
                    state.processes[p].recovery = Some(self.accepted(*order, *epoch, *name));
                });
            }
        }
        if process.released.is_some() {
            let what = format_args!("{p} deletes what it returned");
            next.may(what, |state| self.forget_released(state, p));
        } else if before.redis.selling.is_some() {
            for order in before.postgres.outbox.keys() {
                let what = format_args!("{p} returns {order:?}");
                next.may(what, |state| self.return_unit(state, p, *order));
            }
        }
    }

    fn rebuilding(&self, next: &mut Next<'_, State>, p: usize) {
        let elected = next.before.postgres.elected;
        if next.before.processes[p].rebuild.is_some() {
            next.may(format_args!("{p}'s rebuild steps"), |state| self.rebuild_steps(state, p));
            let what = format_args!("a step of {p}'s rebuild fails");
            next.fault(what, Fault::FailedStep, |state| self.rebuild_fails(state, p));
            if elected == Some(p) {
                let what = format_args!("{p} loses the lock");
                next.fault(what, Fault::LostLock, |state| state.postgres.elected = None);
            }
        } else if self.rebuilds[p] && elected.is_none() && next.before.rebuild_needed().is_some() {
            next.may(format_args!("{p} is elected"), |state| Self::elect(state, p));
        }
        next.fault(format_args!("{p} dies"), Fault::Crash, |state| {
            Self::lose_reply(state, p);
            Self::release_election(state, p);
            // It starts by reading the catalogue; it asks later which Redis is approved.
            state.processes[p] = Process { believes: state.postgres.epoch, ..Process::default() };
            state.note_gone(true);
        });
    }

    fn lose_reply(state: &mut State, p: usize) {
        if let Some(attempt) = state.processes[p].attempt
            && attempt.reply.is_none()
            && attempt.request.to == state.live_redis
        {
            state.stray.push(attempt.request);
        }
    }

    /// Of requests whose replies are lost, of Redis, and of the users.
    fn elsewhere(next: &mut Next<'_, State>) {
        let before = next.before;
        for (at, Request { order, epoch, .. }) in before.stray.iter().enumerate() {
            for runs in [true, false] {
                next.may(format_args!("stray {order:?} runs: {runs}"), |state| {
                    state.stray.remove(at);
                    if runs {
                        Self::admit(state, *order, *epoch);
                    }
                });
            }
        }
        for order in before.postgres.live() {
            next.fault(format_args!("cancel {order:?}"), Fault::Cancel, |state| {
                state.postgres.rows.insert(order, Status::Cancelled);
                state.postgres.taken -= 1;
                state.postgres.return_unit(order);
            });
        }
        let nothing = RedisData::default;
        next.fault("flush", Fault::Flush, |state| Self::lose_down_to(state, nothing()));
        next.fault("restart", Fault::Restart, |state| Self::restart(state, before.redis.clone()));
        next.fault("empty restart", Fault::EmptyRestart, |state| Self::restart(state, nothing()));
        if let Some(backup) = &before.backup {
            let what = "restart from the backup";
            next.fault(what, Fault::Rollback, |state| Self::restart(state, backup.clone()));
        } else if before.faults.contains(&Fault::Rollback) {
            next.may("backup", |state| state.backup = Some(before.redis.clone()));
        }
    }

    /// Redis' data becomes `data`. Notes which orders that takes out of the log.
    fn lose_down_to(state: &mut State, data: RedisData) {
        let before = std::mem::replace(&mut state.redis, data);
        for entry in before.log {
            let is_kept = state.redis.log.contains(&entry);
            if !is_kept && !state.postgres.rows.contains_key(&entry.order) {
                state.lost_in_log.insert(entry.order.id);
            }
        }
        state.note_gone(true);
    }

    fn restart(state: &mut State, data: RedisData) {
        Self::lose_down_to(state, data);
        state.live_redis += 1;
        state.backup = None;
        state.stray.clear(); // their connections are gone
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Step<State>;

    fn init_states(&self) -> Vec<State> {
        let process = || Process { believes: 1, approved: 1, ..Process::default() };
        let selling = Some(Selling { epoch: 1, remaining: self.stock });
        vec![State {
            postgres: Postgres { epoch: 1, approved: 1, floor: 1, ..Postgres::default() },
            live_redis: 1,
            redis: RedisData { selling, floor: 1, ..RedisData::default() },
            next_entry: 1,
            processes: [process(), process()],
            faults: self.faults.to_vec(),
            ..State::default()
        }]
    }

    fn actions(&self, before: &State, steps: &mut Vec<Self::Action>) {
        if before.wrong.is_some() {
            return; // one is enough
        }
        let mut next = Next { before, steps, finish: |state| state.note_gone(false) };
        for p in 0..before.processes.len() {
            self.admission(&mut next, p);
            Self::news(&mut next, p);
            self.writing(&mut next, p);
            self.rebuilding(&mut next, p);
        }
        Self::elsewhere(&mut next);
    }

    fn next_state(&self, _: &State, step: Self::Action) -> Option<State> {
        Some(step.next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        always().into_iter().chain(sometimes()).collect()
    }
}
