//! The driver of all locks: it owns waiting, doubt, undoing, the lease and the release's retries.

use crate::asking::Asking;
use crate::error::{Answer, LockError};
use crate::hold::{Hold, Why, later};
use crate::outcome::{Acquired, Released};
use crate::protocol::{Claim, Ours, Protocol};
use crate::waiting::{Waiting, jitter};
use crate::watchdog::{self, Watchdog};
use std::{fmt, time::Duration};
use tokio::time::{Instant, sleep};
use tracing::trace;

/// A lock, as its users see it: any [`Protocol`].
pub trait Lock: Protocol {
    /// Tries until `wait` is over; zero means once. Cancelling it stops any renewal; the lock then
    /// ends with its lease at the latest.
    fn acquire(&self, name: &str, wait: Duration) -> impl Asking<Acquired<Held<Self>>, LockError>;
}

impl<P: Protocol> Lock for P {
    async fn acquire(&self, name: &str, wait: Duration) -> Answer<Acquired<Held<P>>> {
        let claim =
            Claim { name: name.into(), token: self.token().into(), own: Default::default() };
        let deadline = later(wait);
        let mut waiting = Waiting::default();
        let mut held = Held::asked_for(self.clone(), claim);
        // When the first request was sent that may have taken the lock without our knowing.
        let mut doubt: Option<Instant> = None;
        loop {
            let sent = Instant::now();
            held.is_armed = true;
            let answer = self.attempt(&held.claim, deadline).await;
            waiting.asked(answer.is_ok());
            let outcome = match answer {
                Ok(Acquired::Held(Ours { fencing, earlier })) => {
                    let since = if earlier { doubt.unwrap_or(sent) } else { sent };
                    //= CURE the lease counts from before the request, less the clocks' drift
                    let hold = Hold::since(since, self.lease().map(|lease| lease.time));
                    if !hold.is_lost() {
                        return Ok(Acquired::Held(held.granted(hold, fencing)));
                    }
                    trace!(name, "the answer took longer than the lease: it may be gone");
                    doubt.get_or_insert(since);
                    Ok(Acquired::Contended { remaining: Some(Duration::ZERO) })
                }
                Ok(Acquired::Contended { remaining }) => {
                    // Earlier attempts are over, but a request without a reply may still take the
                    // lock, after this one was sent.
                    doubt = doubt.map(|_| sent);
                    Ok(Acquired::Contended { remaining })
                }
                Err(error) => {
                    doubt.get_or_insert(sent);
                    Err(error)
                }
            };
            held.is_armed = self.settle(&held.claim, doubt.is_some()).await;
            doubt = held.is_armed.then(|| doubt.unwrap_or(sent));
            let left = deadline.saturating_duration_since(Instant::now());
            match (&outcome, self.channel(name)) {
                _ if left.is_zero() => return outcome,
                (Err(error), _) if !error.is_unreachable() => return outcome,
                (Ok(Acquired::Contended { remaining }), Some((line, channel))) => {
                    waiting.wait(line, &channel, deadline, *remaining, P::PAUSE).await;
                }
                _ => sleep(jitter(P::PAUSE).min(left)).await,
            }
        }
    }
}

/// A client's belief to hold a lock; during an acquire, a lock that may be held.
///
/// Dropping it ends the renewal at once, and starts the undoing of an abandoned acquire and of a
/// lock without a lease. Else the lock usually stays until its lease is over, because dropped work
/// may be half done. [`Held::release`] frees it.
pub struct Held<P: Protocol> {
    protocol: P,
    pub(crate) claim: Claim<P::Own>,
    /// Whether it has to be undone when this is dropped.
    is_armed: bool,
    fencing: Option<u64>,
    pub(crate) hold: Hold,
    watchdog: Option<Watchdog>,
}

impl<P: Protocol> Held<P> {
    fn asked_for(protocol: P, claim: Claim<P::Own>) -> Self {
        let hold = Hold::since(Instant::now(), None);
        Self { protocol, claim, is_armed: false, fencing: None, hold, watchdog: None }
    }

    fn granted(mut self, hold: Hold, fencing: Option<u64>) -> Self {
        (self.hold, self.fencing) = (hold, fencing);
        self.is_armed = P::ENDS_WITH_GUARD;
        self.watchdog = self.protocol.keep(&self.claim, &self.hold).or_else(|| self.renewal());
        self
    }

    fn renewal(&self) -> Option<Watchdog> {
        let lease = self.protocol.lease().filter(|lease| lease.renewed)?;
        let (protocol, claim) = (self.protocol.clone(), self.claim.clone());
        Some(watchdog::start(watchdog::renew(protocol, claim, self.hold.clone(), lease.time)))
    }

    pub fn token(&self) -> &str {
        &self.claim.token
    }

    /// A number that grows from holder to holder, for the resource to compare
    /// (see [`fencing`](crate::fencing)); `None` if the lock has none.
    pub fn fencing(&self) -> Option<u64> {
        self.fencing
    }

    /// Resolves when the holder can no longer be sure to be alone.
    pub fn lost(&self) -> Hold {
        self.hold.clone()
    }

    /// Ends the renewal, then frees the lock, retrying after a lost reply.
    pub async fn release(mut self) -> Answer<Released> {
        //= CURE the watchdog ends first: a failed unlock leaves nothing that renews
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.abort();
            let _ = watchdog.await;
            trace!(name = &*self.claim.name, "no renewal follows");
        }
        let mut asked = 0;
        loop {
            let released = self.protocol.release(&self.claim, &self.hold, asked > 0).await;
            asked += 1;
            match released {
                Err(error) if error.is_unreachable() && asked < P::RELEASES => {
                    sleep(P::PAUSE).await;
                }
                answer => {
                    self.is_armed &= answer.is_err();
                    return answer;
                }
            }
        }
    }
}

impl<P: Protocol> fmt::Debug for Held<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({} by {})", self.claim.name, self.claim.token)
    }
}

impl<P: Protocol> Drop for Held<P> {
    fn drop(&mut self) {
        self.hold.lose(Why::Released);
        if let (true, Ok(runtime)) = (self.is_armed, tokio::runtime::Handle::try_current()) {
            let (protocol, claim) = (self.protocol.clone(), self.claim.clone());
            runtime.spawn(async move { protocol.undo(&claim).await });
        }
    }
}
