//! Locks: ways to let one client in at a time, sound or famous for its failures.
//!
//! A lock is a [`Protocol`]: how it is asked for, renewed and released. One driver does the rest
//! for all of them.
//!
//! ```text
//! acquire ─▶ driver ── one token for all attempts ─▶ Protocol::attempt ─▶ Ours │ Taken │ no answer
//!              │  waits: jitter, or the message of a release, at most the rest of the lease
//!              │  doubts: an attempt without a reply may hold the lock, so giving up undoes it
//!              ▼  counts the lease from before the request, less the clocks' drift
//!            Held ── Watchdog: Protocol::renew, every third of the lease
//!              │
//! release ─▶ the watchdog ends ──▶ Protocol::release, again after a lost reply ─▶ Freed │ NotHeld
//! ```
//!
//! In reading order:
//!
//! | file | the lock | in one line |
//! |---|---|---|
//! | `setnx_expire` | [`SetnxExpire`] | two commands: a crash between them locks for ever |
//! | `setnx_getset` | [`SetnxGetset`] | the clients' clocks are in the value, GETSET decides |
//! | `set_px_no_owner` | [`SetPxNoOwner`] | one command, but any client's DEL frees it |
//! | `token` | [`TokenLock`] | a unique value, compared before it is deleted |
//! | `reentrant` | [`ReentrantLock`] | one owner many times, woken, renewed |
//! | `multi` | [`MultiLock`] | all of several independent Redis nodes |
//! | `redlock` | [`Redlock`] | a majority of them |
//! | `advisory` | [`AdvisoryLock`] | Postgres' own, for a transaction |
//! | `table` | [`TableLock`] | a row in Postgres |
//! | `zookeeper` | [`ZooKeeperLock`] | a queue of ephemeral nodes |
//! | `fencing` | | the resource's side: older numbers are refused |
//! | `driver`, `hold`, `watchdog`, `waiting` | | what all of them share |
//! | `compare` | | what each survives, with its test, and what it costs |
//!
//! `wire` is their transport: counted, and watched if a lesson or a test asks for it. Nothing here
//! knows of sales.
//!
//! Three answers are distinguished everywhere. *Contended*: another client has it ([`Acquired`]).
//! *Unreachable*: nobody knows ([`LockError`]). *Not held*: a release came too late ([`Released`]).
//!
//! The head of each file says what happens after a crash. `//= FLAW` and `//= CURE` (in Lua `--=`)
//! stand above the lines that decide; [`SOURCES`] is what pages quote.

pub mod advisory;
pub mod compare;
mod driver;
pub mod fencing;
mod hold;
pub mod multi;
mod nodes;
pub mod redlock;
pub mod reentrant;
pub mod set_px_no_owner;
pub mod setnx_expire;
pub mod setnx_getset;
mod sources;
pub mod table;
pub mod token;
mod waiting;
mod watchdog;
pub mod wire;
pub mod zookeeper;

use redis::RedisError;
use std::{sync::Arc, time::Duration};
use stores::postgres;

pub use advisory::AdvisoryLock;
pub use driver::{Attempt, Claim, Ending, Held, Lease, Protocol};
pub use hold::{Hold, Lost, Why, drift};
pub use multi::MultiLock;
pub use redlock::Redlock;
pub use reentrant::ReentrantLock;
pub use set_px_no_owner::SetPxNoOwner;
pub use setnx_expire::SetnxExpire;
pub use setnx_getset::SetnxGetset;
pub use sources::{SOURCES, Source};
pub use table::TableLock;
pub use token::TokenLock;
pub use watchdog::Watchdog;
pub use zookeeper::ZooKeeperLock;
/// For tests, which ask the server themselves.
#[cfg(feature = "zookeeper")]
pub use zookeeper_client;

/// The script of this name in the folder `scripts` beside the caller's file.
#[macro_export]
macro_rules! lua {
    ($name:literal) => {
        $crate::wire::LuaScript::new($name, include_str!(concat!("scripts/", $name)))
    };
}

/// What every lock is written with.
mod prelude {
    pub use crate::{
        Answer, Attempt, Claim, Ending, Lease, LockError, Protocol, Released,
        wire::{Line, millis},
    };
    pub use redis::cmd;
    pub use std::{sync::Arc, time::Duration};
    pub use tokio::time::Instant;
}

/// What a lock's server says.
pub type Answer<T> = Result<T, LockError>;

/// A lock.
pub trait Lock: Send + Sync + 'static {
    type Guard: Guard;

    /// Tries until `wait` is over; zero means once. Cancelling it stops any renewal; the lock then
    /// ends with its lease at the latest.
    fn acquire(
        &self,
        name: &str,
        wait: Duration,
    ) -> impl Future<Output = Answer<Acquired<Self::Guard>>> + Send;
}

/// A client's belief to hold a lock.
///
/// Dropping it ends the renewal at once; the lock usually stays until its lease is over, because
/// dropped work may be half done. [`Guard::release`] frees it.
pub trait Guard: Send + Sync + 'static {
    /// A number that grows from holder to holder, for the resource to compare (see [`fencing`]);
    /// `None` if the lock has none.
    fn fencing(&self) -> Option<u64>;

    /// Resolves when the holder can no longer be sure to be alone.
    fn lost(&self) -> Lost;

    /// Ends the renewal, then frees the lock, retrying after a lost reply.
    fn release(self) -> impl Future<Output = Answer<Released>> + Send;
}

/// The result of an attempt.
#[derive(Debug)]
#[must_use]
pub enum Acquired<G> {
    Held(G),
    /// Another client has it; for so much longer, if known, unless it renews.
    Contended {
        remaining: Option<Duration>,
    },
}

impl<G> Acquired<G> {
    pub fn held(self) -> Option<G> {
        match self {
            Self::Held(guard) => Some(guard),
            Self::Contended { .. } => None,
        }
    }
}

/// The result of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Released {
    Freed,
    /// Released once; the owner holds it so many times more.
    StillHeld {
        count: u32,
    },
    /// The lease was over, or another client has the lock: the work may have overlapped with
    /// another holder's.
    NotHeld,
}

impl Released {
    fn freed(freed: bool) -> Self {
        if freed { Self::Freed } else { Self::NotHeld }
    }
}

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
    ZooKeeper(#[from] wire::ZooError),
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
