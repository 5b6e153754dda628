//! The driver of all locks: it owns waiting, doubt, undoing, the lease and the release's retries.

use crate::error::Answer;
use crate::hold::{Hold, Lost, Why, later};
use crate::lock::{Acquired, Guard, Lock, Released};
use crate::protocol::{Attempt, Claim, Ending, Protocol};
use crate::waiting::{Waiting, jitter};
use crate::watchdog::{self, Watchdog};
use std::{fmt, time::Duration};
use tokio::time::{Instant, sleep};
use tracing::trace;

impl<P: Protocol> Lock for P {
    type Guard = Held<P>;

    async fn acquire(&self, name: &str, wait: Duration) -> Answer<Acquired<Held<P>>> {
        let claim =
            Claim { name: name.into(), token: self.token().into(), own: Default::default() };
        let deadline = later(wait);
        let mut waiting = Waiting::default();
        let mut undo = Undo { protocol: self.clone(), claim, is_armed: false };
        // When the first request was sent that may have taken the lock without our knowing.
        let mut doubt: Option<Instant> = None;
        loop {
            let sent = Instant::now();
            undo.is_armed = true;
            let answer = self.attempt(&undo.claim, deadline).await;
            waiting.asked(answer.is_ok());
            let outcome = match answer {
                Ok(Attempt::Ours { fencing, earlier }) => {
                    let since = if earlier { doubt.unwrap_or(sent) } else { sent };
                    //= CURE the lease counts from before the request, less the clocks' drift
                    let hold = Hold::since(since, self.lease().map(|lease| lease.time));
                    if !hold.is_lost() {
                        undo.is_armed = P::ENDS_WITH_GUARD;
                        let watchdog =
                            self.keep(&undo.claim, &hold).or_else(|| undo.renewal(&hold));
                        return Ok(Acquired::Held(Held { undo, fencing, hold, watchdog }));
                    }
                    trace!(name, "the answer took longer than the lease: it may be gone");
                    doubt.get_or_insert(since);
                    Ok(Acquired::Contended { remaining: Some(Duration::ZERO) })
                }
                Ok(Attempt::Taken { remaining }) => {
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
            undo.is_armed = self.settle(&undo.claim, doubt.is_some()).await;
            doubt = undo.is_armed.then(|| doubt.unwrap_or(sent));
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

/// Undoes an acquire that was given up and may have left something: on drop it starts the undoing.
pub(crate) struct Undo<P: Protocol> {
    protocol: P,
    pub claim: Claim<P::Own>,
    /// Whether the lock may be ours without our knowing.
    is_armed: bool,
}

impl<P: Protocol> Undo<P> {
    fn renewal(&self, hold: &Hold) -> Option<Watchdog> {
        let lease = self.protocol.lease().filter(|lease| lease.renewed)?;
        let (protocol, claim) = (self.protocol.clone(), self.claim.clone());
        Some(watchdog::start(watchdog::renew(protocol, claim, hold.clone(), lease.time)))
    }
}

impl<P: Protocol> Drop for Undo<P> {
    fn drop(&mut self) {
        if let (true, Ok(runtime)) = (self.is_armed, tokio::runtime::Handle::try_current()) {
            let (protocol, claim) = (self.protocol.clone(), self.claim.clone());
            runtime.spawn(async move { protocol.undo(&claim).await });
        }
    }
}

/// A held lock, or what is left of it.
pub struct Held<P: Protocol> {
    pub(crate) undo: Undo<P>,
    fencing: Option<u64>,
    pub(crate) hold: Hold,
    watchdog: Option<Watchdog>,
}

impl<P: Protocol> Held<P> {
    pub fn token(&self) -> &str {
        &self.undo.claim.token
    }
}

impl<P: Protocol> fmt::Debug for Held<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({} by {})", self.undo.claim.name, self.undo.claim.token)
    }
}

impl<P: Protocol> Guard for Held<P> {
    fn fencing(&self) -> Option<u64> {
        self.fencing
    }

    fn lost(&self) -> Lost {
        self.hold.lost()
    }

    async fn release(mut self) -> Answer<Released> {
        //= CURE the watchdog ends first: a failed unlock leaves nothing that renews
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.abort();
            let _ = watchdog.await;
            trace!(name = &*self.undo.claim.name, "no renewal follows");
        }
        let mut asked = 0;
        loop {
            let ending = Ending { hold: &self.hold, again: asked > 0 };
            let released = self.undo.protocol.release(&self.undo.claim, ending).await;
            asked += 1;
            match released {
                Err(error) if error.is_unreachable() && asked < P::RELEASES => {
                    sleep(P::PAUSE).await;
                }
                answer => {
                    self.undo.is_armed &= answer.is_err();
                    return answer;
                }
            }
        }
    }
}

impl<P: Protocol> Drop for Held<P> {
    fn drop(&mut self) {
        self.hold.lose(Why::Released);
    }
}
