//! What every lesson's file begins with.

pub use super::error::{LessonError, Result};
pub use super::lesson::{
    ALICE, Actor, BOB, CAROL, LEASE_MS, Lesson, Mark, NODES, PAUSE_MS, Part, REDIS, REDIS_NODE,
    SHOP, SHOPPING, TOKEN_RELEASE, choice, client, cure, failure, flaw_of_the_cure, mark, node,
    whole,
};
pub use super::stage::client::{Client, Doing};
pub use super::stage::{LOCK, LONG, Stage};
pub use crate::strategy::Need;
pub use locks::{Acquired, Held, Lock, Protocol, wire::Line};
pub use std::time::Duration;

pub const ZERO: Duration = Duration::ZERO;
/// The clients of an act with three.
pub const EVERYBODY: [&str; 3] = ["alice", "bob", "carol"];
