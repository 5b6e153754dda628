//! What must be true in every state, and the corners that a check must have visited.

use crate::{protocol::Protocol, state::*};
use stateright::Property;
use std::collections::BTreeSet;

pub const NO_OVERSELL: &str = "I1: live orders never exceed the stock";
pub const ONE_PER_USER: &str = "I2: a user has at most one live order";
pub const NOTHING_VANISHES: &str = "I3: an answered order is lost only as documented";
pub const REJECTED_AFTER_LOSS: &str = "I3: only orders whose log entry was lost are rejected";
pub const CONSERVED: &str = "I4: at rest, what remains and the live orders are the stock";
pub const SAME_BUYERS: &str = "I4: at rest, Redis' buyers are Postgres' live orders";
pub const RECORDS_ADD_UP: &str = "I7: in Redis, what remains and the buyers' records are the stock";
pub const IDS_DIFFER: &str = "I6: no id is given out twice";

pub const READMITTED: &str = "an order is readmitted";
pub const REJECTED: &str = "an order is rejected";
pub const OVERTAKEN: &str = "a rebuild is overtaken by another one";
pub const OWN_RETRY: &str = "an attempt is recognised as its own retry";
pub const LOST: &str = "an order is lost as documented";
pub const REOPENED: &str = "a sale rests in a later epoch, with orders of an earlier one";

pub fn always() -> [Property<Protocol>; 8] {
    [
        Property::always(NO_OVERSELL, |model: &Protocol, state: &State| {
            let live = state.postgres.live().count();
            live == usize::from(state.postgres.taken) && state.postgres.taken <= model.stock
        }),
        Property::always(ONE_PER_USER, |_, state: &State| {
            let mut users = BTreeSet::new();
            state.postgres.live().all(|order| users.insert(order.user))
        }),
        Property::always(NOTHING_VANISHES, |_, state: &State| {
            state.wrong.is_none_or(|(broken, _)| broken != NOTHING_VANISHES)
        }),
        Property::always(REJECTED_AFTER_LOSS, |_, state: &State| {
            let mut rejected = state.postgres.orders(Status::Rejected);
            rejected.all(|order| state.lost_in_log.contains(&order.id))
        }),
        Property::always(IDS_DIFFER, |_, state: &State| {
            state.wrong.is_none_or(|(broken, _)| broken != IDS_DIFFER)
        }),
        Property::always(CONSERVED, |model: &Protocol, state: &State| {
            let adds_up = |live: Selling| live.remaining + state.postgres.taken == model.stock;
            !state.is_quiescent() || state.redis.selling.is_none_or(adds_up)
        }),
        Property::always(SAME_BUYERS, |_, state: &State| {
            let buyers = || state.redis.buyers_of(state.postgres.epoch);
            !state.is_quiescent() || buyers().into_iter().eq(state.postgres.live())
        }),
        Property::always(RECORDS_ADD_UP, |model: &Protocol, state: &State| {
            let held = |epoch| state.redis.buyers_of(epoch).len();
            let sum = |live: Selling| usize::from(live.remaining) + held(live.epoch);
            let adds_up = |live| sum(live) == usize::from(model.stock);
            state.rebuild_needed().is_some() || state.redis.selling.is_none_or(adds_up)
        }),
    ]
}

pub fn sometimes() -> [Property<Protocol>; 6] {
    [
        Property::sometimes(READMITTED, |_, state: &State| {
            let mut work = state.processes.iter().flat_map(Process::work);
            work.any(|work| work.readmitted_as.is_some())
        }),
        Property::sometimes(REJECTED, |_, state: &State| {
            state.postgres.orders(Status::Rejected).next().is_some()
        }),
        Property::sometimes(OVERTAKEN, |_, state: &State| {
            let mut rebuilds = state.processes.iter().flat_map(|process| &process.rebuild);
            rebuilds.any(|rebuild| rebuild.epoch < state.postgres.epoch)
        }),
        Property::sometimes(OWN_RETRY, |_, state: &State| {
            let mut attempts = state.processes.iter().flat_map(|process| process.attempt);
            attempts.any(|attempt| attempt.reply == Some(Verdict::AcceptedBefore))
        }),
        Property::sometimes(LOST, |_, state: &State| !state.lost_as_documented.is_empty()),
        Property::sometimes(REOPENED, |_, state: &State| {
            let some_live = state.postgres.live().next().is_some();
            state.is_quiescent() && state.postgres.epoch > 1 && some_live
        }),
    ]
}
