//! Failures of a lock's server.

use crate::wire::zoo::ZooError;
use redis::RedisError;
use std::sync::Arc;
use stores::postgres;

/// What a lock's server says.
pub type Answer<T> = Result<T, LockError>;

/// Failures. Contention is none: see [`Acquired`].
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// No answer came: the request may have been executed.
    #[error("{node} did not answer")]
    Unreachable { node: Arc<str>, source: RedisError },
    /// Redis answered with an error, such as a key of another type.
    #[error("{node} refused")]
    Refused { node: Arc<str>, source: RedisError },
    #[error("{got} nodes answered, {needed} are needed")]
    NoQuorum { got: usize, needed: usize },
    #[error("postgres")]
    Postgres(#[from] sqlx::Error),
    #[error("zookeeper")]
    ZooKeeper(#[from] ZooError),
}

impl LockError {
    /// Whether a retry may help: an error *answer* would be repeated.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NoQuorum { .. } => true,
            Self::Refused { .. } => false,
            Self::Postgres(error) => postgres::is_unreachable(error),
            Self::ZooKeeper(error) => error.is_unreachable(),
        }
    }
}
