//! What every lesson's file begins with.

pub use super::{
    error::Trouble,
    lesson::{ALICE, Act, Actor, BOB, CAROL, Kind, Lesson, Part, REDIS, REDIS_NODE, SHOP, client},
    options::{LEASE_MS, PAUSE_MS, choice, whole},
    stage::{
        LOCK, LONG, Stage,
        client::{Client, Doing},
    },
    timeline::Said,
};
pub use crate::strategy::{Need, Words};
pub use locks::{Acquired, Guard, Lock, Released, wire::Line};
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
