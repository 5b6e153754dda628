//! What must be true in every state, and which corners a check must have visited to mean anything.

use crate::{protocol::Protocol, state::*};
use stateright::Property;

pub const NO_OVERSELL: &str = "I1: live orders never exceed the stock";
pub const ONE_PER_USER: &str = "I2: a user has at most one live order";
pub const NOTHING_VANISHES: &str = "I3: an answered order is lost only as documented";
pub const REJECTED_AFTER_LOSS: &str = "I3: only orders whose log entry was lost are rejected";
pub const CONSERVED: &str = "I4: at rest, what remains and the live orders are the stock";
pub const SAME_BUYERS: &str = "I4: at rest, Redis' buyers are Postgres' live orders";
pub const RECORDS_ADD_UP: &str = "I7: in Redis, what remains and the buyers' records are the stock";
pub const IDS_DIFFER: &str = "I6: no id is given out twice";

pub const ALWAYS: [&str; 8] = [
    NO_OVERSELL,
    ONE_PER_USER,
    NOTHING_VANISHES,
    REJECTED_AFTER_LOSS,
    CONSERVED,
    SAME_BUYERS,
    RECORDS_ADD_UP,
    IDS_DIFFER,
];

pub const READMITTED: &str = "an order is readmitted";
pub const REJECTED: &str = "an order is rejected";
pub const OVERTAKEN: &str = "a rebuild is overtaken by another one";
pub const OWN_RETRY: &str = "an attempt is recognised as its own retry";
pub const LOST: &str = "an order is lost as documented";
pub const REOPENED: &str = "a sale rests in a later epoch, with orders of an earlier one";

pub fn all() -> Vec<Property<Protocol>> {
    let mut properties = always();
    properties.extend(sometimes());
    properties
}

fn always() -> Vec<Property<Protocol>> {
    vec![
        Property::always(NO_OVERSELL, |model: &Protocol, state: &State| {
            let live = state.postgres.live().count();
            live == usize::from(state.postgres.taken) && state.postgres.taken <= model.stock
        }),
        Property::always(ONE_PER_USER, |_, state: &State| {
            let mut users: Vec<User> = state.postgres.live().map(|order| order.user).collect();
            users.sort_unstable();
            users.windows(2).all(|pair| pair[0] != pair[1])
        }),
        Property::always(NOTHING_VANISHES, |_, state: &State| {
            !matches!(state.wrong, Some(Wrong::Vanished(_)))
        }),
        Property::always(REJECTED_AFTER_LOSS, |_, state: &State| {
            let mut rows = state.postgres.rows.iter();
            rows.all(|row| row.status != Status::Rejected || state.lost_in_log.has(row.order.id))
        }),
        Property::always(IDS_DIFFER, |_, state: &State| {
            !matches!(state.wrong, Some(Wrong::RepeatedId(_)))
        }),
        Property::always(CONSERVED, |model: &Protocol, state: &State| {
            let Some(selling) = state.redis.selling else {
                return true;
            };
            !state.is_quiescent() || selling.remaining + state.postgres.taken == model.stock
        }),
        Property::always(SAME_BUYERS, |_, state: &State| {
            let mut buyers: Vec<Order> = state.redis.buyers_of(state.postgres.epoch).collect();
            buyers.sort_unstable();
            !state.is_quiescent() || buyers.into_iter().eq(state.postgres.live())
        }),
        Property::always(RECORDS_ADD_UP, |model: &Protocol, state: &State| {
            let Some(selling) = state.redis.selling else {
                return true;
            };
            let held = state.redis.buyers_of(selling.epoch).count();
            !state.gate_is_open()
                || usize::from(selling.remaining) + held == usize::from(model.stock)
        }),
    ]
}

fn sometimes() -> Vec<Property<Protocol>> {
    vec![
        Property::sometimes(READMITTED, |_, state: &State| {
            let mut work = state.processes.iter().flat_map(Process::work);
            work.any(|work| work.readmitted_as.is_some())
        }),
        Property::sometimes(REJECTED, |_, state: &State| {
            let mut rows = state.postgres.rows.iter();
            rows.any(|row| row.status == Status::Rejected)
        }),
        Property::sometimes(OVERTAKEN, |_, state: &State| {
            let mut rebuilds = state.processes.iter().flat_map(|process| &process.rebuild);
            rebuilds.any(|rebuild| rebuild.epoch < state.postgres.epoch)
        }),
        Property::sometimes(OWN_RETRY, |_, state: &State| {
            let mut gates = state.processes.iter().flat_map(|process| process.gate);
            gates.any(|attempt| attempt.reply == Some(Verdict::AcceptedBefore))
        }),
        Property::sometimes(LOST, |_, state: &State| {
            !state.lost_as_documented.is_empty()
        }),
        Property::sometimes(REOPENED, |_, state: &State| {
            state.is_quiescent()
                && state.postgres.epoch > 1
                && state.postgres.live().next().is_some()
        }),
    ]
}
