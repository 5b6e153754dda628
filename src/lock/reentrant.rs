//! One owner may take it many times; who waits is woken; a watchdog renews it while the holder lives.
//!
//! Source: Redisson's lock, as the course notes 《秒杀》 show it, without its known bugs.
//!
//! ```text
//! NAME        hash: owner, fencing, and a field holding:REQUEST for each time it is held; expires with the lease
//! NAME:fence  integer: how often the lock changed hands, never expires
//! NAME:freed  sorted set: the requests given back in the last seconds, since a release may be asked for twice
//! NAME:free   channel: one message when the last holding was given back
//! ```
//!
//! What happens on a crash: of the holder: nobody renews, the lease ends. Of Redis: as with
//! [`TokenLock`](super::TokenLock). Of the connection that brings the messages: all who wait try at once
//! and subscribe again. A message that is lost costs waiting, at most for what is left of the lease.
//!
//! The order of waiting is what makes it sound: subscribe, *then* try again, then wait. A lock that is
//! freed between the first try and the subscription is seen by the second try; one that is freed after
//! it, by its message.

use super::{
    Acquired, Guard, Hold, Lock, LockError, Lost, Patience, Released, Undo, Why,
    token::{RELEASE_ATTEMPTS, REMEMBERED, freed},
    watchdog::Watchdog,
    wire::{Line, LuaScript, Wake, Wakeups, millis},
};
use redis::RedisError;
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

static ACQUIRE: LuaScript = LuaScript::new(
    "reentrant_acquire.lua",
    include_str!("scripts/reentrant_acquire.lua"),
);
static RELEASE: LuaScript = LuaScript::new(
    "reentrant_release.lua",
    include_str!("scripts/reentrant_release.lua"),
);
static RENEW: LuaScript = LuaScript::new(
    "reentrant_renew.lua",
    include_str!("scripts/reentrant_renew.lua"),
);

/// Between two attempts of which the first had no answer.
const PAUSE: Duration = Duration::from_millis(10);

/// One owner's way to the lock. Clones are the same owner; another owner is
/// [`ReentrantLock::another_owner`] or another `new`.
#[derive(Clone)]
pub struct ReentrantLock {
    line: Line,
    lease: Duration,
    owner: Arc<str>,
    renewed: bool,
}

impl ReentrantLock {
    /// A lock for fixed leases: what is not given back ends then.
    pub fn new(line: Line, lease: Duration) -> Self {
        Self {
            owner: line.unique_token().into(),
            line,
            lease,
            renewed: false,
        }
    }

    /// Renews the lease every third of it for as long as a guard lives.
    pub fn renewed(mut self) -> Self {
        self.renewed = true;
        self
    }

    pub fn another_owner(&self) -> Self {
        Self {
            owner: self.line.unique_token().into(),
            ..self.clone()
        }
    }

    /// The same owner, for another lease.
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    pub fn owner(&self) -> &str {
        &self.owner
    }

    async fn attempt(&self, name: &str, request: &str) -> Result<Attempt, RedisError> {
        let fence = format!("{name}:fence");
        let call = ACQUIRE
            .on(&[name, &fence])
            .arg(&*self.owner)
            .arg(request)
            .arg(millis(self.lease));
        let (ours, number, count): (bool, i64, u32) = self.line.run(&call).await?;
        Ok(if ours {
            Attempt::Ours {
                fencing: u64::try_from(number).ok(),
                count,
            }
        } else {
            Attempt::Taken {
                remaining: u64::try_from(number).ok().map(Duration::from_millis),
            }
        })
    }

    fn guard(&self, name: &str, held: Holding, hold: Hold) -> ReentrantGuard {
        let watchdog = self.renewed.then(|| {
            let call = RENEW
                .on(&[name])
                .arg(&*self.owner)
                .arg(&held.request)
                .arg(millis(self.lease));
            Watchdog::of_one(hold.clone(), self.lease, self.line.clone(), call)
        });
        ReentrantGuard {
            line: self.line.clone(),
            name: name.to_owned(),
            owner: self.owner.clone(),
            held,
            hold,
            watchdog,
        }
    }
}

enum Attempt {
    Ours { fencing: Option<u64>, count: u32 },
    Taken { remaining: Option<Duration> },
}

#[derive(Debug)]
struct Holding {
    request: String,
    fencing: Option<u64>,
    count: u32,
}

fn channel(name: &str) -> String {
    format!("{name}:free")
}

impl Lock for ReentrantLock {
    type Guard = ReentrantGuard;

    async fn acquire(
        &self,
        name: &str,
        wait: Duration,
    ) -> Result<Acquired<ReentrantGuard>, LockError> {
        let channel = channel(name);
        let request = uuid::Uuid::new_v4().simple().to_string();
        let patience = Patience::new(wait, PAUSE);
        let mut undo = Undo::with({
            let call = RELEASE
                .on(&[name, &freed(name)])
                .arg(&*self.owner)
                .arg(&request)
                .arg(&channel)
                .arg(0);
            let line = self.line.clone();
            || async move {
                let _: Result<(u32, u32), RedisError> = line.run(&call).await;
            }
        });
        let mut wakeups: Option<Wakeups> = None;
        let mut woken: Option<Wake> = None;
        // An attempt had no reply: it may be on its way still, and take the lock after a later answer.
        let mut doubt = false;
        loop {
            let sent = Instant::now();
            undo.arm(true);
            let outcome = match self.attempt(name, &request).await {
                Ok(Attempt::Ours { fencing, count }) => {
                    if let Some(wake) = woken.take() {
                        wake.used();
                    }
                    let hold = Hold::lease(sent, self.lease);
                    if !hold.is_lost() {
                        undo.arm(false);
                        let held = Holding {
                            request,
                            fencing,
                            count,
                        };
                        return Ok(Acquired::Held(self.guard(name, held, hold)));
                    }
                    // The answer took longer than the lease. The next attempt lets it begin anew.
                    Ok(Acquired::Contended {
                        remaining: Some(Duration::ZERO),
                    })
                }
                Ok(Attempt::Taken { remaining }) => {
                    if let Some(wake) = woken.take() {
                        wake.used();
                    }
                    undo.arm(doubt);
                    Ok(Acquired::Contended { remaining })
                }
                Err(error) => {
                    doubt = true;
                    Err(self.line.lock_error(error))
                }
            };
            // One that was woken and got no answer leaves the wake-up to somebody else.
            drop(woken.take());
            if patience.is_over() {
                return outcome;
            }
            let remaining = match outcome {
                Ok(Acquired::Contended { remaining }) => remaining,
                Err(error) if error.is_unreachable() => {
                    patience.sleeps(PAUSE).await;
                    continue;
                }
                other => return other,
            };
            let Some(waiting) = &wakeups else {
                let subscribing = self.line.subscribe(&channel);
                match timeout_at(patience.deadline(), subscribing).await {
                    // Not yet: it may have been freed before anybody listened.
                    Ok(Ok(subscribed)) => wakeups = Some(subscribed),
                    // The time is over: once more, for the last time.
                    Err(_) => {}
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "no wake-ups; asking again instead");
                        patience.sleeps(PAUSE).await;
                    }
                }
                continue;
            };
            // A lock without an expiry is none of ours, and nobody will announce its end.
            let remaining = remaining.unwrap_or(Duration::from_secs(1));
            let mut deaf = false;
            tokio::select! {
                (wake, alive) = waiting.next() => {
                    woken = Some(wake);
                    deaf = !alive;
                }
                () = sleep(remaining + Duration::from_millis(1)) => {}
                () = sleep_until(patience.deadline()) => {}
            }
            if deaf {
                wakeups = None;
            }
        }
    }
}

/// One holding of a [`ReentrantLock`].
#[derive(Debug)]
pub struct ReentrantGuard {
    line: Line,
    name: String,
    owner: Arc<str>,
    held: Holding,
    hold: Hold,
    watchdog: Option<Watchdog>,
}

impl ReentrantGuard {
    /// How often the owner had it when this was taken, this one included.
    pub fn count(&self) -> u32 {
        self.held.count
    }
}

impl Guard for ReentrantGuard {
    fn fencing(&self) -> Option<u64> {
        self.held.fencing
    }

    fn lost(&self) -> Lost {
        self.hold.lost()
    }

    async fn release(mut self) -> Result<Released, LockError> {
        // First of all: should giving back fail, nothing may keep the lock alive.
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.stop().await;
        }
        let call = RELEASE
            .on(&[&self.name, &freed(&self.name)])
            .arg(&*self.owner)
            .arg(&self.held.request)
            .arg(channel(&self.name))
            .arg(millis(REMEMBERED));
        for attempts_left in (0..RELEASE_ATTEMPTS).rev() {
            let (given_back, left): (bool, u32) = match self.line.run(&call).await {
                Ok(answer) => answer,
                Err(error) => {
                    let error = self.line.lock_error(error);
                    if attempts_left == 0 || !error.is_unreachable() {
                        return Err(error);
                    }
                    sleep(PAUSE).await;
                    continue;
                }
            };
            // An attempt whose reply was lost is remembered; a Redis that has forgotten the lock says no.
            return Ok(match (given_back, left) {
                (false, _) => Released::NotHeld,
                (true, 0) => Released::Freed,
                (true, count) => Released::StillHeld { count },
            });
        }
        Ok(Released::NotHeld)
    }
}

impl Drop for ReentrantGuard {
    fn drop(&mut self) {
        self.hold.lose(Why::Released);
    }
}
