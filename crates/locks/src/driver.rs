//! The driver of all locks: it owns waiting, doubt, undoing, the lease and the release's retries.

use super::{
    Acquired, Answer, Guard, Hold, Lock, Lost, Released, Watchdog, Why,
    hold::later,
    waiting::{Waiting, jitter},
    wire::Line,
};
use std::{fmt, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

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
    ) -> impl Future<Output = Answer<Attempt>> + Send;

    /// Lets the lease begin anew; false: it is not ours any more.
    fn renew(&self, _: &Claim<Self::Own>) -> impl Future<Output = Answer<bool>> + Send {
        async { Ok(true) }
    }

    /// Gives the lock back.
    fn release(
        &self,
        claim: &Claim<Self::Own>,
        ending: Ending<'_>,
    ) -> impl Future<Output = Answer<Released>> + Send;

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

    /// What runs beside the holder: the renewal, if it is asked for.
    fn keep(&self, claim: &Claim<Self::Own>, hold: &Hold) -> Option<Watchdog> {
        let lease = self.lease().filter(|lease| lease.renewed)?;
        Some(Watchdog::renewing(self.clone(), claim.clone(), hold.clone(), lease.time))
    }
}

/// What stays the same through all attempts of one acquisition.
#[derive(Debug, Clone)]
pub struct Claim<Own = ()> {
    pub name: Arc<str>,
    pub token: Arc<str>,
    pub own: Own,
}

/// What is known when a lock is given back.
#[derive(Clone, Copy)]
pub struct Ending<'a> {
    pub hold: &'a Hold,
    /// An earlier request for this had no answer.
    pub again: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Lease {
    pub time: Duration,
    /// A task renews it for as long as the guard lives.
    pub renewed: bool,
}

/// The answer to one request for a lock.
pub enum Attempt {
    /// `earlier`: an attempt before this one took it, and its lease has run since then.
    Ours {
        fencing: Option<u64>,
        earlier: bool,
    },
    Taken {
        remaining: Option<Duration>,
    },
}

impl Attempt {
    /// Of a lock that knows no more than this.
    pub fn ours(ours: bool) -> Self {
        if ours {
            Self::Ours { fencing: None, earlier: false }
        } else {
            Self::Taken { remaining: None }
        }
    }
}

impl<P: Protocol> Lock for P {
    type Guard = Held<P>;

    async fn acquire(&self, name: &str, wait: Duration) -> Answer<Acquired<Held<P>>> {
        let own = P::Own::default();
        let claim = Claim { name: name.into(), token: self.token().into(), own };
        let deadline = later(wait);
        let mut waiting = Waiting::default();
        let mut undo = Undo { protocol: self.clone(), claim, is_armed: false };
        // When the first request was sent that may have taken the lock without our knowing.
        let mut doubt: Option<Instant> = None;
        loop {
            let sent = Instant::now();
            undo.is_armed = true;
            let outcome = match self.attempt(&undo.claim, deadline).await {
                Ok(Attempt::Ours { fencing, earlier }) => {
                    waiting.used();
                    let since = if earlier { doubt.unwrap_or(sent) } else { sent };
                    //= CURE the lease counts from before the request, less the clocks' drift
                    let hold = Hold::since(since, self.lease().map(|lease| lease.time));
                    if !hold.is_lost() {
                        undo.is_armed = P::ENDS_WITH_GUARD;
                        let watchdog = self.keep(&undo.claim, &hold);
                        return Ok(Acquired::Held(Held { undo, fencing, hold, watchdog }));
                    }
                    // The answer took longer than the lease: the lock may be gone.
                    doubt.get_or_insert(since);
                    Ok(Acquired::Contended { remaining: Some(Duration::ZERO) })
                }
                Ok(Attempt::Taken { remaining }) => {
                    waiting.used();
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
            waiting.pass_on();
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
            watchdog.stop().await;
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
