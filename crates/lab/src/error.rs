//! Why the lab cannot do what it is asked to.

use crate::limits::{MOST_ARENAS, MOST_ARENAS_OF_ADDRESS, MOST_PLAYS};
use crate::{lessons::error::LessonError, texts::Words};
use std::borrow::Cow;

pub type Result<T = (), E = LabError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("no such arena")]
    ArenaNotFound,
    #[error("{field}: {why}")]
    Invalid { field: Cow<'static, str>, why: String },
    #[error("there are {MOST_ARENAS} arenas; delete one, or wait until one is too old")]
    TooManyArenas,
    #[error("you have {MOST_ARENAS_OF_ADDRESS} arenas; delete one, or wait until one is too old")]
    TooManyArenasOfAddress,
    #[error("as many storms are going on as the lab allows; try again in a moment")]
    TooManyStorms,
    #[error("{}", .0.en)]
    StrategyUnavailable(Words),
    #[error("a storm is already running in this arena")]
    StormIsRunning,
    #[error("judgement {0} of this server is still running")]
    JudgementIsRunning(String),
    #[error("there is no such lesson")]
    LessonNotFound,
    #[error("{}", .0.en)]
    LessonUnavailable(Words),
    #[error("{MOST_PLAYS} lessons are being played; try again in a moment")]
    TooManyPlays,
    #[error(transparent)]
    Lesson(#[from] LessonError),
    #[error("postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("a text: {0}")]
    Text(#[from] minijinja::Error),
}

impl LabError {
    pub(crate) fn invalid(field: impl Into<Cow<'static, str>>, why: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), why: why.into() }
    }
}

/// From 1 to the most.
pub(crate) fn within<T: TryFrom<i64>>(field: &'static str, value: i64, most: i64) -> Result<T> {
    let value = T::try_from(value).ok().filter(|_| (1..=most).contains(&value));
    value.ok_or_else(|| LabError::invalid(field, format!("must be from 1 to {most}")))
}
