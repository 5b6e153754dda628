//! A lock and its guard, as its users see them.

use crate::{error::Answer, hold::Lost};
use std::time::Duration;

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
    /// A number that grows from holder to holder, for the resource to compare
    /// (see [`fencing`](crate::fencing)); `None` if the lock has none.
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
    pub(crate) fn freed(freed: bool) -> Self {
        if freed { Self::Freed } else { Self::NotHeld }
    }
}
