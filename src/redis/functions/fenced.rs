//! Refusals of the function library.

use redis::{ErrorKind, RedisError};

pub fn unexpected(what: &'static str, got: &str) -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, what, got.to_owned()))
}

/// Why a function refused to act: the Redis state of the sale is not as the caller expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fenced {
    /// No state: never activated, fenced for a rebuild, or lost.
    Absent,
    /// Another epoch is live.
    Epoch,
    /// The sale was not installed in this process of Redis: it was restarted or promoted since.
    NotApproved,
    /// A key of the sale has a type or a value that the program never writes.
    Corrupt,
}

impl Fenced {
    pub(in crate::redis) fn parse(outcome: &str) -> Result<Self, RedisError> {
        match outcome {
            "absent" => Ok(Self::Absent),
            "epoch" => Ok(Self::Epoch),
            "not_approved" => Ok(Self::NotApproved),
            "corrupt" => Ok(Self::Corrupt),
            other => Err(unexpected("outcome of a function", other)),
        }
    }
}
