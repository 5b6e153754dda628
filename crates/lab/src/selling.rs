//! Buyers, and how a purchase ends.

use locks::LockError;
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Somebody who wants a unit.
#[derive(Debug, Clone)]
pub struct Buyer {
    pub name: String,
}

/// Always the same for the name of a buyer.
pub fn hash_of(name: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(name)
}

/// How a purchase ends. Being refused is an answer, not an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Sold {
        order_id: String,
    },
    SoldOut,
    /// The buyer has as many as allowed.
    Duplicate,
    /// Others were faster at the lock or at the row; trying again may help.
    Contended,
}

pub type Result<T = (), E = PurchaseError> = std::result::Result<T, E>;

/// A future that may end in [`PurchaseError`].
pub trait Trying<T>: Future<Output = Result<T>> {}

impl<T, F: Future<Output = Result<T>>> Trying<T> for F {}

/// Why a purchase came to no answer.
#[derive(Debug, thiserror::Error)]
pub enum PurchaseError {
    #[error("postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("the shop: {0}")]
    Shop(Box<dyn std::error::Error + Send + Sync>),
    #[error("the lock: {0}")]
    Lock(#[from] LockError),
    /// The node has crashed and is not up again.
    #[error("the node is down")]
    NodeIsDown,
    #[error("{0}")]
    Other(String),
}

impl PurchaseError {
    /// Whether Postgres said this, by the five characters that it has for it.
    pub fn is(&self, sqlstate: &str) -> bool {
        match self {
            Self::Postgres(error) | Self::Lock(LockError::Postgres(error)) => {
                error.as_database_error().and_then(|error| error.code()).as_deref()
                    == Some(sqlstate)
            }
            _ => false,
        }
    }
}

impl From<&str> for PurchaseError {
    fn from(why: &str) -> Self {
        Self::Other(why.to_owned())
    }
}
