//! Locks: every known way to let one at a time through, sound or famous for how it fails.
//!
//! In reading order:
//!
//! | file | the lock | in one line |
//! |---|---|---|
//! | `setnx_expire` | [`SetnxExpire`] | two commands: a crash between them locks for ever |
//! | `setnx_getset` | [`SetnxGetset`] | the clients' clocks are in the value, GETSET decides |
//! | `set_px_no_owner` | [`SetPxNoOwner`] | one command, but anybody's DEL opens it |
//! | `token` | [`TokenLock`] | a unique value, compared before it is deleted |
//! | `reentrant`, `watchdog` | [`ReentrantLock`] | one owner many times, woken by pub/sub, renewed while it lives |
//! | `multi` | [`MultiLock`] | all of several independent Redis nodes |
//! | `redlock` | [`Redlock`] | a majority of them, with clock drift |
//! | `advisory` | [`AdvisoryLock`], [`SessionAdvisoryLock`] | Postgres' own, for a transaction or (leaking) for a session |
//! | `table` | [`TableLock`] | a row in Postgres |
//! | `zookeeper` | [`ZooKeeperLock`] | a queue of ephemeral nodes |
//! | `fencing` | | the resource's side: who comes with an older number is refused |
//! | `compare` | | all of them side by side, each claim with the test that backs it |
//!
//! `wire` is what they talk through: counted, and watched if somebody wants to. Nothing here knows of
//! sales.
//!
//! Three answers are kept apart everywhere. *Contended*: somebody else has it ([`Acquired`]).
//! *Unreachable*: nobody knows ([`LockError`]). *Not held*: a release came too late ([`Released`]).
//!
//! What happens on a crash stands at the head of each file.

pub mod advisory;
pub mod compare;
pub mod fencing;
pub mod multi;
pub mod redlock;
pub mod reentrant;
pub mod set_px_no_owner;
pub mod setnx_expire;
pub mod setnx_getset;
pub mod table;
pub mod token;
pub mod watchdog;
pub mod wire;
pub mod zookeeper;

use crate::postgres;
use redis::RedisError;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

pub use advisory::{AdvisoryLock, SessionAdvisoryLock};
pub use multi::MultiLock;
pub use redlock::Redlock;
pub use reentrant::ReentrantLock;
pub use set_px_no_owner::SetPxNoOwner;
pub use setnx_expire::SetnxExpire;
pub use setnx_getset::SetnxGetset;
pub use table::TableLock;
pub use token::TokenLock;
pub use zookeeper::ZooKeeperLock;

/// A way to let one at a time through.
pub trait Lock: Send + Sync + 'static {
    type Guard: Guard;

    /// Tries until `wait` is over; zero means once. Dropping the future half-way leaves no renewal
    /// running and no lock held for longer than its lease.
    fn acquire(
        &self,
        name: &str,
        wait: Duration,
    ) -> impl Future<Output = Result<Acquired<Self::Guard>, LockError>> + Send;
}

/// Somebody's belief to hold a lock.
///
/// Dropping it ends its renewal at once; where nothing else is said the lock itself stays until its
/// lease is over, because work that was dropped may be half done. [`Guard::release`] gives it back.
pub trait Guard: Send + Sync + 'static {
    /// A number that is higher for every later holder, for the resource to compare
    /// (see [`fencing`]). `None` where the lock has none.
    fn fencing(&self) -> Option<u64>;

    /// Resolves when the holder can no longer be sure to be alone.
    fn lost(&self) -> Lost;

    /// Ends the renewal first, then gives the lock back, asking again after a lost reply.
    fn release(self) -> impl Future<Output = Result<Released, LockError>> + Send;
}

/// What became of an attempt.
#[derive(Debug)]
#[must_use]
pub enum Acquired<G> {
    Held(G),
    /// Somebody else has it; for so much longer, where that is known, unless they renew.
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

/// What became of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Released {
    Freed,
    /// Given back once; the same owner has it so many times more.
    StillHeld {
        count: u32,
    },
    /// There was nothing to give back: the lease was over, or it is somebody else's by now. Whatever
    /// was done under it may have been done by two.
    NotHeld,
}

/// What went wrong. That somebody else has the lock is not an error: see [`Acquired`].
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Nobody knows whether the lock is held: no answer came, and the request may have been executed.
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
    ZooKeeper(#[from] zookeeper_client::Error),
}

impl LockError {
    /// Whether asking again may help. An error *answer* will be the same the next time.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NoQuorum { .. } => true,
            Self::Refused { .. } => false,
            Self::Postgres(error) => postgres::is_unreachable(error),
            Self::ZooKeeper(error) => {
                zookeeper::in_doubt(error)
                    || matches!(
                        error,
                        zookeeper_client::Error::SessionExpired
                            | zookeeper_client::Error::ClientClosed
                            | zookeeper_client::Error::Timeout
                            | zookeeper_client::Error::NoHosts
                    )
            }
        }
    }
}

// --- how sure a holder can be

/// Why a holder can no longer be sure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The time that was asked for is over, and no renewal came through.
    LeaseOver,
    /// The server says that it is not ours (any more): taken over, deleted, forgotten, or freed by an error of
    /// our own.
    NotOurs,
    /// The connection or session that the lock hangs on has gone.
    SessionGone,
    /// It was given back, or its guard dropped: nobody holds it here.
    Released,
}

#[derive(Debug, Clone, Copy)]
struct Belief {
    /// By our own clock, counted from before the request was sent; `None`: as long as nothing is heard.
    until: Option<Instant>,
    over: Option<Why>,
}

/// The holder's side of [`Lost`]. Once lost stays lost: a renewal that comes through too late must not
/// tell a holder that has stopped that all was well.
#[derive(Debug, Clone)]
pub(crate) struct Hold(Arc<watch::Sender<Belief>>);

impl Hold {
    pub fn until(until: Option<Instant>) -> Self {
        Self(Arc::new(watch::Sender::new(Belief { until, over: None })))
    }

    /// A lease that was asked for at `sent`, less what clocks may drift in that time.
    pub fn lease(sent: Instant, lease: Duration) -> Self {
        Self::until(Some(sent + lease.saturating_sub(drift(lease))))
    }

    /// A renewal that was asked for at `sent` came through. False if it came too late.
    pub fn renewed(&self, sent: Instant, lease: Duration) -> bool {
        let until = sent + lease.saturating_sub(drift(lease));
        let mut in_time = false;
        self.0.send_if_modified(|belief| {
            in_time = belief.why().is_none();
            // A second holding of the same owner may have asked for a longer lease: never shorten.
            if in_time && belief.until.is_some_and(|before| before < until) {
                belief.until = Some(until);
                return true;
            }
            false
        });
        in_time
    }

    pub fn lose(&self, why: Why) {
        self.0.send_if_modified(|belief| {
            let first = belief.over.is_none();
            belief.over = belief.over.or(belief.why()).or(Some(why));
            first
        });
    }

    pub fn why_lost(&self) -> Option<Why> {
        self.0.borrow().why()
    }

    pub fn is_lost(&self) -> bool {
        self.why_lost().is_some()
    }

    pub fn end(&self) -> Option<Instant> {
        self.0.borrow().until
    }

    pub fn lost(&self) -> Lost {
        Lost {
            belief: self.0.subscribe(),
            waiting: None,
        }
    }
}

impl Belief {
    fn why(&self) -> Option<Why> {
        let lease_over = self.until.is_some_and(|until| until <= Instant::now());
        self.over.or(lease_over.then_some(Why::LeaseOver))
    }
}

/// Resolves when the holder can no longer be sure to be alone, with the reason; to be selected on
/// beside the work. Needs no task: the lease is timed by whoever waits for it.
///
/// Sure means: by this process' clock. A process that stands still learns of it when it goes on, and
/// may have written in between: only [`fencing`] helps against that.
pub struct Lost {
    belief: watch::Receiver<Belief>,
    waiting: Option<Pin<Box<dyn Future<Output = Why> + Send + Sync>>>,
}

impl Lost {
    /// For locks that tell their holders nothing.
    pub fn never() -> Self {
        Self {
            belief: watch::Sender::new(Belief {
                until: None,
                over: None,
            })
            .subscribe(),
            waiting: Some(Box::pin(std::future::pending())),
        }
    }

    /// Until when the holder can be sure if nothing more is heard, to be compared with the clock before
    /// each step of the work. `None`: there is no such time.
    pub fn sure_until(&self) -> Option<Instant> {
        self.belief.borrow().until
    }

    /// Whether the holder can no longer be sure now.
    pub fn is_lost(&self) -> bool {
        self.belief.borrow().why().is_some()
    }
}

impl Future for Lost {
    type Output = Why;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Why> {
        let this = &mut *self;
        let belief = &this.belief;
        let waiting = this
            .waiting
            .get_or_insert_with(|| Box::pin(until_lost(belief.clone())));
        waiting.as_mut().poll(context)
    }
}

async fn until_lost(mut belief: watch::Receiver<Belief>) -> Why {
    loop {
        let now = *belief.borrow_and_update();
        if let Some(why) = now.why() {
            return why;
        }
        let lease_over = async {
            match now.until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = lease_over => {}
            changed = belief.changed() => if changed.is_err() {
                return now.why().unwrap_or(Why::Released);
            }
        }
    }
}

/// By how much the clocks of a client and a server may go apart while a lease lasts: a hundredth, and
/// two milliseconds for the precision of Redis' expiry, as the Redlock page has it.
pub fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

// --- trying again

/// The time in which an acquire may try again.
pub(crate) struct Patience {
    deadline: Instant,
    pause: Duration,
}

impl Patience {
    pub fn new(wait: Duration, pause: Duration) -> Self {
        let now = Instant::now();
        Self {
            // A wait beyond what the clock can tell is a wait for ever; a century will do.
            deadline: now
                .checked_add(wait)
                .unwrap_or(now + Duration::from_secs(3_000_000_000)),
            pause,
        }
    }

    pub fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Sleeps before another attempt; false if this one was the last. Sleeps are random, so that
    /// those who failed together do not try together for ever.
    pub async fn allows_another<G>(&self, outcome: &Result<Acquired<G>, LockError>) -> bool {
        match outcome {
            Ok(Acquired::Held(_)) => return false,
            Err(error) if !error.is_unreachable() => return false,
            Ok(Acquired::Contended { .. }) | Err(_) => {}
        }
        self.sleeps(self.pause).await
    }

    /// As [`Patience::allows_another`], for about so long.
    pub async fn sleeps(&self, pause: Duration) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        sleep(jitter(pause).min(left)).await;
        true
    }
}

/// Half to one and a half of it.
pub(crate) fn jitter(pause: Duration) -> Duration {
    let [dice, ..] = *uuid::Uuid::new_v4().as_bytes();
    pause / 2 + pause * u32::from(dice) / 255
}

/// Undoes an acquire that was given up while nobody knows whether it came through: on drop it starts
/// one bounded attempt to give the lock back. Should that fail, the lease ends it.
pub(crate) struct Undo<F: FnOnce() -> U, U: Future<Output = ()> + Send + 'static> {
    undo: Option<F>,
    armed: bool,
}

impl<F: FnOnce() -> U, U: Future<Output = ()> + Send + 'static> Undo<F, U> {
    pub fn with(undo: F) -> Self {
        Self {
            undo: Some(undo),
            armed: false,
        }
    }

    /// Whether, from now on, the lock may be ours without our knowing.
    pub fn arm(&mut self, armed: bool) {
        self.armed = armed;
    }
}

impl<F: FnOnce() -> U, U: Future<Output = ()> + Send + 'static> Drop for Undo<F, U> {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take().filter(|_| self.armed)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(undo());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A majority counted without clock drift: an answer that comes within the lease, but so late that a clock
    /// which runs a little faster has ended it already.
    #[tokio::test]
    async fn a_lease_is_over_a_little_earlier_for_its_holder() {
        let lease = Duration::from_secs(60);
        let now = Instant::now();
        let just_in_time = Hold::lease(now - (lease - 2 * drift(lease)), lease);
        assert!(!just_in_time.is_lost());
        let too_late = Hold::lease(now - (lease - drift(lease) / 2), lease);
        assert_eq!(too_late.why_lost(), Some(Why::LeaseOver));
        // A hundredth and two milliseconds.
        assert_eq!(drift(lease), Duration::from_millis(602));
    }

    #[tokio::test]
    async fn once_lost_stays_lost() {
        let lease = Duration::from_secs(60);
        let hold = Hold::lease(Instant::now(), lease);
        hold.lose(Why::NotOurs);
        assert!(!hold.renewed(Instant::now(), lease));
        hold.lose(Why::Released);
        assert_eq!(hold.lost().await, Why::NotOurs);
    }

    #[tokio::test]
    async fn a_renewal_never_shortens() {
        let hold = Hold::lease(Instant::now(), Duration::from_secs(60));
        let end = hold.end();
        assert!(hold.renewed(Instant::now(), Duration::from_secs(1)));
        assert_eq!(hold.end(), end);
    }
}
