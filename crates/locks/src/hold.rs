//! How sure a holder can be, and for how long.

use futures_util::future::BoxFuture;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tracing::trace;

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

impl Belief {
    fn why(&self) -> Option<Why> {
        let lease_over = self.until.is_some_and(|until| until <= Instant::now());
        self.over.or(lease_over.then_some(Why::LeaseOver))
    }
}

/// What a holder knows. Awaited, it tells why the holder can no longer be sure to be alone; to be
/// selected on beside the work. The waiter times the lease, without a task.
///
/// Certainty is by this process' clock: a paused process learns of it late, and only
/// [`fencing`](crate::fencing) helps then. A loss is final: a late renewal must not reassure a
/// holder that has stopped.
#[derive(Debug, Clone)]
pub struct Hold(watch::Sender<Belief>);

impl Hold {
    /// A lease requested at `sent`, less the possible clock drift; without one, no end is known.
    pub(crate) fn since(sent: Instant, lease: Option<Duration>) -> Self {
        let until = lease.map(|lease| sent + lease.saturating_sub(drift(lease)));
        Self(watch::Sender::new(Belief { until, over: None }))
    }

    /// A renewal requested at `sent` came through; false if it was too late.
    pub(crate) fn renewed(&self, sent: Instant, lease: Duration) -> bool {
        let until = sent + lease.saturating_sub(drift(lease));
        self.0.send_if_modified(|belief| {
            let in_time = belief.why().is_none();
            if in_time {
                // Never shortened: another holding of the owner may have a longer lease.
                belief.until = belief.until.map(|before| before.max(until));
            }
            in_time
        })
    }

    pub(crate) fn lose(&self, why: Why) {
        self.0.send_modify(|belief| belief.over = belief.why().or(Some(why)));
    }

    /// Until when the holder is sure without further news; compare it with the clock before each
    /// step. `None`: there is no such time.
    pub fn sure_until(&self) -> Option<Instant> {
        self.0.borrow().until
    }

    /// Whether the holder can no longer be sure now.
    pub fn is_lost(&self) -> bool {
        self.0.borrow().why().is_some()
    }
}

impl IntoFuture for Hold {
    type Output = Why;
    type IntoFuture = BoxFuture<'static, Why>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut belief = self.0.subscribe();
            loop {
                let now = *belief.borrow_and_update();
                //= CURE the holder is told by its own clock: nobody has to answer
                if let Some(why) = now.why() {
                    trace!(?why, "the holder is told");
                    return why;
                }
                // Without a lease this is a century.
                let until = now.until.unwrap_or_else(|| later(Duration::MAX));
                let _ = timeout_at(until, belief.changed()).await;
            }
        })
    }
}

/// After so long; a time beyond the clock's range becomes a century.
pub(crate) fn later(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or(now + Duration::from_secs(3_000_000_000))
}

/// The possible clock drift during a lease: a hundredth, and two milliseconds for the precision of
/// Redis' expiry, as on the Redlock page.
pub fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
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
        let just_in_time = Hold::since(now - (lease - 2 * drift(lease)), Some(lease));
        assert!(!just_in_time.is_lost());
        let too_late = Hold::since(now - (lease - drift(lease) / 2), Some(lease));
        assert_eq!(too_late.await, Why::LeaseOver);
        // A hundredth and two milliseconds.
        assert_eq!(drift(lease), Duration::from_millis(602));
    }

    #[tokio::test]
    async fn once_lost_stays_lost() {
        let lease = Duration::from_secs(60);
        let hold = Hold::since(Instant::now(), Some(lease));
        hold.lose(Why::NotOurs);
        assert!(!hold.renewed(Instant::now(), lease));
        hold.lose(Why::Released);
        assert_eq!(hold.await, Why::NotOurs);
    }

    #[tokio::test]
    async fn a_renewal_never_shortens() {
        let hold = Hold::since(Instant::now(), Some(Duration::from_secs(60)));
        let end = hold.sure_until();
        assert!(hold.renewed(Instant::now(), Duration::from_secs(1)));
        assert_eq!(hold.sure_until(), end);
    }
}
