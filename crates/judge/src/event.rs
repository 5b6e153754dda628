//! The events of a run, for its observers.

use crate::history::{Counts, Request};
use serde::Serialize;
use std::sync::Arc;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event<'a> {
    /// Nobody answers at its address yet.
    Absent,
    /// So many of all buyers have been prepared.
    Prepared(usize, usize),
    /// The storm begins, with so many requests if nobody has to ask again.
    Storm(usize),
    /// One more request is over; so many had each meaning.
    Answered(&'a Request, &'a Counts),
    Killed,
    Started,
    /// Buyers without an order are asked again: so many units are left.
    Again(usize),
    /// So many orders are stored; waiting for them to come to rest.
    Settling(usize),
}

pub type Progress = Arc<dyn Fn(Event<'_>) + Send + Sync>;
