//! Locks: every known way to let one client in at a time, sound or famous for its failures.
//!
//! In reading order:
//!
//! | file | the lock | in one line |
//! |---|---|---|
//! | `setnx_expire` | [`SetnxExpire`] | two commands: a crash between them locks for ever |
//! | `setnx_getset` | [`SetnxGetset`] | the clients' clocks are in the value, GETSET decides |
//! | `set_px_no_owner` | [`SetPxNoOwner`] | one command, but any client's DEL frees it |
//! | `token` | [`TokenLock`] | a unique value, compared before it is deleted |
//! | `reentrant`, `watchdog` | [`ReentrantLock`] | one owner many times, woken, renewed |
//! | `multi` | [`MultiLock`] | all of several independent Redis nodes |
//! | `redlock` | [`Redlock`] | a majority of them, with clock drift |
//! | `advisory` | [`AdvisoryLock`], [`SessionAdvisoryLock`] | Postgres' own |
//! | `table` | [`TableLock`] | a row in Postgres |
//! | `zookeeper` | [`ZooKeeperLock`] | a queue of ephemeral nodes |
//! | `fencing` | | the resource's side: older numbers are refused |
//! | `compare` | | a comparison, each claim with its test |
//!
//! `wire` is their transport: counted, and watched if a lesson or a test asks for it. Nothing here
//! knows of sales.
//!
//! Three answers are distinguished everywhere. *Contended*: another client has it ([`Acquired`]).
//! *Unreachable*: nobody knows ([`LockError`]). *Not held*: a release came too late ([`Released`]).
//!
//! The head of each file says what happens after a crash.

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
#[cfg(not(feature = "zookeeper"))]
#[path = "no_zookeeper.rs"]
pub mod zookeeper_client;

use redis::RedisError;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use stores::postgres;
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
#[cfg(feature = "zookeeper")]
pub use zookeeper_client;

/// A lock.
pub trait Lock: Send + Sync + 'static {
    type Guard: Guard;

    /// Tries until `wait` is over; zero means once. Cancelling it stops any renewal; the lock then
    /// ends with its lease at the latest.
    fn acquire(
        &self,
        name: &str,
        wait: Duration,
    ) -> impl Future<Output = Result<Acquired<Self::Guard>, LockError>> + Send;
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
    fn release(self) -> impl Future<Output = Result<Released, LockError>> + Send;
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
    ZooKeeper(#[from] zookeeper_client::Error),
}

impl LockError {
    /// Whether a retry may help: an error *answer* would be repeated.
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

/// Why a holder lost its certainty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The lease is over, and no renewal came through.
    LeaseOver,
    /// The server answered that it is not ours: taken over, deleted, forgotten, or freed by our own
    /// error.
    NotOurs,
    /// Its connection or session has gone.
    SessionGone,
    /// It was released, or its guard dropped.
    Released,
}

#[derive(Debug, Clone, Copy)]
struct Belief {
    /// By our clock, from before the request was sent; `None`: no end is known.
    until: Option<Instant>,
    over: Option<Why>,
}

/// The holder's side of [`Lost`]. Lost is final: a late renewal must not reassure a holder that has
/// stopped.
#[derive(Debug, Clone)]
pub(crate) struct Hold(Arc<watch::Sender<Belief>>);

impl Hold {
    pub fn until(until: Option<Instant>) -> Self {
        Self(Arc::new(watch::Sender::new(Belief { until, over: None })))
    }

    /// A lease requested at `sent`, less the possible clock drift.
    pub fn lease(sent: Instant, lease: Duration) -> Self {
        Self::until(Some(sent + lease.saturating_sub(drift(lease))))
    }

    /// A renewal requested at `sent` came through; false if it was too late.
    pub fn renewed(&self, sent: Instant, lease: Duration) -> bool {
        let until = sent + lease.saturating_sub(drift(lease));
        let mut in_time = false;
        self.0.send_if_modified(|belief| {
            in_time = belief.why().is_none();
            // Never shortened: another holding of the owner may have a longer lease.
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
        Lost { belief: self.0.subscribe(), waiting: None }
    }
}

impl Belief {
    fn why(&self) -> Option<Why> {
        let lease_over = self.until.is_some_and(|until| until <= Instant::now());
        self.over.or(lease_over.then_some(Why::LeaseOver))
    }
}

/// Resolves, with the reason, when the holder can no longer be sure to be alone; to be selected on
/// beside the work. The waiter times the lease, without a task.
///
/// Certainty is by this process' clock: a paused process learns of it late, and only [`fencing`]
/// helps then.
pub struct Lost {
    belief: watch::Receiver<Belief>,
    waiting: Option<Pin<Box<dyn Future<Output = Why> + Send + Sync>>>,
}

impl Lost {
    /// For locks that never learn of a loss.
    pub fn never() -> Self {
        Self {
            belief: watch::Sender::new(Belief { until: None, over: None }).subscribe(),
            waiting: Some(Box::pin(std::future::pending())),
        }
    }

    /// Until when the holder is sure without further news; compare it with the clock before each
    /// step. `None`: there is no such time.
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
        let waiting = this.waiting.get_or_insert_with(|| Box::pin(until_lost(belief.clone())));
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

/// The possible clock drift during a lease: a hundredth, and two milliseconds for the precision of
/// Redis' expiry, as on the Redlock page.
pub fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

// --- trying again

/// The deadline and the pause of retries.
pub(crate) struct Retry {
    deadline: Instant,
    pause: Duration,
}

impl Retry {
    pub fn new(wait: Duration, pause: Duration) -> Self {
        let now = Instant::now();
        Self {
            // A wait beyond the clock's range becomes a century.
            deadline: now.checked_add(wait).unwrap_or(now + Duration::from_secs(3_000_000_000)),
            pause,
        }
    }

    pub fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Sleeps before another attempt; false if there is none. Random pauses, so that clients do not
    /// retry in step.
    pub async fn allows_another<G>(&self, outcome: &Result<Acquired<G>, LockError>) -> bool {
        match outcome {
            Ok(Acquired::Held(_)) => return false,
            Err(error) if !error.is_unreachable() => return false,
            Ok(Acquired::Contended { .. }) | Err(_) => {}
        }
        self.sleeps(self.pause).await
    }

    /// The same, with this pause.
    pub async fn sleeps(&self, pause: Duration) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        sleep(jitter(pause).min(left)).await;
        true
    }
}

/// Between half and one and a half of `pause`.
pub(crate) fn jitter(pause: Duration) -> Duration {
    let [dice, ..] = *uuid::Uuid::new_v4().as_bytes();
    pause / 2 + pause * u32::from(dice) / 255
}

/// Undoes an acquire that was cancelled in doubt: on drop it starts one bounded release. If that
/// fails, the lease ends the lock.
pub(crate) struct Undo<F: FnOnce() -> U, U: Future<Output = ()> + Send + 'static> {
    undo: Option<F>,
    armed: bool,
}

impl<F: FnOnce() -> U, U: Future<Output = ()> + Send + 'static> Undo<F, U> {
    pub fn with(undo: F) -> Self {
        Self { undo: Some(undo), armed: false }
    }

    /// Whether the lock may be ours without our knowing.
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

    /// A majority counted without clock drift: an answer that comes within the lease, but so late
    /// that a clock which runs a little faster has ended it already.
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
