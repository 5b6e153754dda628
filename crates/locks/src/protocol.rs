//! One kind of lock, as the driver drives it.

use crate::outcome::{Acquired, Released};
use crate::{asking::Asking, error::LockError, hold::Hold, wire::Line};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// One kind of lock: how it is asked for, kept, and given back.
pub trait Protocol: Clone + Send + Sync + 'static {
    /// What an acquisition keeps besides its name and token.
    type Own: Default + Clone + Send + Sync + 'static;

    /// The pause between two attempts.
    const PAUSE: Duration = Duration::from_millis(10);
    /// How often a release without an answer is asked for.
    const RELEASES: u32 = 3;
    /// Whether a dropped guard gives the lock back, which has no lease to end it.
    const ENDS_WITH_GUARD: bool = false;

    /// A value that no other acquisition has.
    fn token(&self) -> String {
        uuid::Uuid::new_v4().simple().to_string()
    }

    /// How long the lock lasts; `None`: its holder cannot tell.
    fn lease(&self) -> Option<Lease> {
        None
    }

    /// Asks for the lock, once. Only a lock whose server keeps a queue waits here, to the deadline.
    fn attempt(
        &self,
        claim: &Claim<Self::Own>,
        deadline: Instant,
    ) -> impl Asking<Attempt, LockError>;

    /// Lets the lease begin anew; false: it is not ours any more.
    fn renew(&self, _: &Claim<Self::Own>) -> impl Asking<bool, LockError> {
        async { Ok(true) }
    }

    /// Gives the lock back. `again`: an earlier request for this had no answer.
    fn release(
        &self,
        claim: &Claim<Self::Own>,
        hold: &Hold,
        again: bool,
    ) -> impl Asking<Released, LockError>;

    /// Gives back what an abandoned acquire may have taken, or a dropped guard has (see
    /// [`Protocol::ENDS_WITH_GUARD`]). If that fails, the lease or the session ends it.
    fn undo(&self, _: &Claim<Self::Own>) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// After an attempt without success: whether the lock may be, or become, ours all the same.
    fn settle(&self, _claim: &Claim<Self::Own>, doubt: bool) -> impl Future<Output = bool> + Send {
        async move { doubt }
    }

    /// Where a release is announced, if it is.
    fn channel(&self, _name: &str) -> Option<(&Line, String)> {
        None
    }

    /// What runs beside the holder, besides the renewal.
    fn keep(&self, _: &Claim<Self::Own>, _: &Hold) -> Option<AbortOnDropHandle<()>> {
        None
    }
}

/// What stays the same through all attempts of one acquisition.
#[derive(Debug, Clone)]
pub struct Claim<Own = ()> {
    pub name: Arc<str>,
    pub token: Arc<str>,
    pub own: Own,
}

#[derive(Debug, Clone, Copy)]
pub struct Lease {
    pub time: Duration,
    /// A task renews it for as long as the guard lives.
    pub renewed: bool,
}

/// The answer to one request for a lock.
pub type Attempt = Acquired<Ours>;

/// What the server has granted.
#[derive(Debug, Default)]
pub struct Ours {
    pub fencing: Option<u64>,
    /// An attempt before this one took it, and its lease has run since then.
    pub earlier: bool,
}

impl Attempt {
    /// Of a lock that knows no more than this.
    pub fn ours(ours: bool) -> Self {
        if ours { Self::Held(Ours::default()) } else { Self::Contended { remaining: None } }
    }

    /// As a script or a row answers: 1 and its number if it is ours now, 2 if it was before; 0 and
    /// the milliseconds that are left to another.
    pub(crate) fn numbered(outcome: u8, number: i64) -> Self {
        // Negative: a key without a lease is not of this kind.
        let number = u64::try_from(number).ok();
        match outcome {
            0 => Self::Contended { remaining: number.map(Duration::from_millis) },
            outcome => Self::Held(Ours { fencing: number, earlier: outcome == 2 }),
        }
    }
}
