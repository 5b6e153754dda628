//! What taking a lock, and giving it back, comes to.

use std::time::Duration;

/// The result of an attempt.
#[derive(Debug)]
#[must_use]
pub enum Acquired<G> {
    /// It is ours.
    Held(G),
    /// Another client has it; for so much longer, if known, unless it renews.
    Contended { remaining: Option<Duration> },
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
    /// Nobody has it now.
    Freed,
    /// Released once; the owner holds it so many times more.
    StillHeld { count: u32 },
    /// The lease was over, or another client has the lock: the work may have overlapped with
    /// another holder's.
    NotHeld,
}

impl Released {
    pub(crate) fn freed(freed: bool) -> Self {
        if freed { Self::Freed } else { Self::NotHeld }
    }
}
