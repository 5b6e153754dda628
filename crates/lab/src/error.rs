//! Why the lab cannot do what it is asked to.

use crate::limits::{MOST_ARENAS, MOST_ARENAS_OF_ADDRESS};
use crate::{options, strategy};

#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("no such arena")]
    ArenaNotFound,
    #[error("{field}: {why}")]
    Invalid { field: &'static str, why: String },
    #[error(transparent)]
    BadOption(#[from] options::BadOption),
    #[error("there are {MOST_ARENAS} arenas; delete one, or wait until one is too old")]
    TooManyArenas,
    #[error("you have {MOST_ARENAS_OF_ADDRESS} arenas; delete one, or wait until one is too old")]
    TooManyArenasOfAddress,
    #[error("as many storms are going on as the lab allows; try again in a moment")]
    TooManyStorms,
    #[error("{}", .0.en)]
    StrategyUnavailable(strategy::Words),
    #[error("a storm is already running in this arena")]
    StormIsRunning,
    #[error("judgement {0} of this server is still running")]
    JudgementIsRunning(String),
    #[error("postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("a text: {0}")]
    Text(#[from] minijinja::Error),
}

/// From 1 to the most.
pub(crate) fn within<T: TryFrom<i64>>(
    field: &'static str,
    value: i64,
    most: i64,
) -> Result<T, LabError> {
    let value = T::try_from(value).ok().filter(|_| (1..=most).contains(&value));
    let why = || format!("must be from 1 to {most}");
    value.ok_or_else(|| LabError::Invalid { field, why: why() })
}
