//! What every lesson's file begins with.

pub use super::{
    ALICE, BOB, CAROL, Lesson, REDIS, SHOP, Trouble, client,
    options::{LEASE_MS, PAUSE_MS, choice, whole},
    stage::{Client, Doing, LOCK, LONG, REDIS as REDIS_NODE, Stage},
    timeline::{Act, Actor, Kind, Part, Said},
};
pub use crate::{
    lab::strategy::{Need, Words},
    lock::{Acquired, Guard, Lock, Released, wire::Line},
};
pub use std::time::Duration;

/// English, 中文.
pub const fn w(en: &'static str, zh: &'static str) -> Words {
    Words::new(en, zh)
}

pub const ZERO: Duration = Duration::ZERO;

/// With the play's lease in the gap `{lease}`.
pub fn lease_said(stage: &Stage, words: Words) -> Said {
    Said::from(words).with("lease", stage.lease().as_millis())
}
