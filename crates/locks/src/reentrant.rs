//! A reentrant lock: an owner may take it many times; waiters are woken; a watchdog renews it.
//!
//! Source: Redisson's lock, as the course notes 《秒杀》 show it, without its known bugs.
//!
//! ```text
//! NAME        hash: owner, fencing, a field holding:REQUEST for each hold; expires with the lease
//! NAME:fence  integer: how often the lock changed hands, never expires
//! NAME:freed  sorted set: requests given back lately, since a release may be asked for twice
//! NAME:free   channel: one message when the last holding was given back
//! ```
//!
//! Crashes. Of the holder: nobody renews, and the lease ends. Of Redis: as with
//! [`TokenLock`](super::TokenLock). Of the subscription: all waiters try at once and subscribe
//! again. A lost message costs at most the rest of the lease.
//!
//! The order matters: subscribe, *then* try again, then wait. A release between the first try and
//! the subscription is seen by the second try, a later one by its message.

use super::{
    Acquired, Guard, Hold, Lock, LockError, Lost, Released, Retry, Undo, Why,
    token::{RELEASE_ATTEMPTS, REMEMBERED, freed},
    watchdog::Watchdog,
    wire::{Line, LuaScript, Wake, Wakeups, millis},
};
use redis::RedisError;
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

static ACQUIRE: LuaScript =
    LuaScript::new("reentrant_acquire.lua", include_str!("scripts/reentrant_acquire.lua"));
static RELEASE: LuaScript =
    LuaScript::new("reentrant_release.lua", include_str!("scripts/reentrant_release.lua"));
static RENEW: LuaScript =
    LuaScript::new("reentrant_renew.lua", include_str!("scripts/reentrant_renew.lua"));

/// The pause after an attempt without an answer.
const PAUSE: Duration = Duration::from_millis(10);

/// The lock of one owner. Clones are the same owner; [`ReentrantLock::another_owner`] and `new`
/// make others.
#[derive(Clone)]
pub struct ReentrantLock {
    line: Line,
    lease: Duration,
    owner: Arc<str>,
    renewed: bool,
}

impl ReentrantLock {
    /// A lock with a fixed lease.
    pub fn new(line: Line, lease: Duration) -> Self {
        Self { owner: line.unique_token().into(), line, lease, renewed: false }
    }

    /// Renews the lease every third of it for as long as a guard lives.
    pub fn renewed(mut self) -> Self {
        self.renewed = true;
        self
    }

    pub fn another_owner(&self) -> Self {
        Self { owner: self.line.unique_token().into(), ..self.clone() }
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
        let call =
            ACQUIRE.on(&[name, &fence]).arg(&*self.owner).arg(request).arg(millis(self.lease));
        let (ours, number, count): (bool, i64, u32) = self.line.run(&call).await?;
        Ok(if ours {
            Attempt::Ours { fencing: u64::try_from(number).ok(), count }
        } else {
            Attempt::Taken { remaining: u64::try_from(number).ok().map(Duration::from_millis) }
        })
    }

    fn guard(&self, name: &str, held: Holding, hold: Hold) -> ReentrantGuard {
        let watchdog = self.renewed.then(|| {
            let call =
                RENEW.on(&[name]).arg(&*self.owner).arg(&held.request).arg(millis(self.lease));
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
        let retry = Retry::new(wait, PAUSE);
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
        let mut waiting = Waiting::default();
        // An attempt without a reply may still take the lock after a later answer.
        let mut doubt = false;
        loop {
            let sent = Instant::now();
            undo.arm(true);
            let outcome = match self.attempt(name, &request).await {
                Ok(Attempt::Ours { fencing, count }) => {
                    waiting.used();
                    let hold = Hold::lease(sent, self.lease);
                    if !hold.is_lost() {
                        undo.arm(false);
                        let held = Holding { request, fencing, count };
                        return Ok(Acquired::Held(self.guard(name, held, hold)));
                    }
                    // The answer took longer than the lease; the next attempt renews it.
                    Ok(Acquired::Contended { remaining: Some(Duration::ZERO) })
                }
                Ok(Attempt::Taken { remaining }) => {
                    waiting.used();
                    undo.arm(doubt);
                    Ok(Acquired::Contended { remaining })
                }
                Err(error) => {
                    doubt = true;
                    Err(self.line.lock_error(error))
                }
            };
            // A waiter that was woken and got no answer passes the wake-up on.
            drop(waiting.woken.take());
            if retry.is_over() {
                return outcome;
            }
            match outcome {
                Ok(Acquired::Contended { remaining }) => {
                    waiting.wait(&self.line, &channel, &retry, remaining).await;
                }
                Err(error) if error.is_unreachable() => {
                    retry.sleeps(PAUSE).await;
                }
                other => return other,
            }
        }
    }
}

/// What one acquire waits for.
#[derive(Default)]
struct Waiting {
    /// A wake-up that is to be used or passed on.
    woken: Option<Wake>,
    wakeups: Option<Wakeups>,
}

impl Waiting {
    /// The lock was asked for: no other waiter needs this wake-up.
    fn used(&mut self) {
        if let Some(wake) = self.woken.take() {
            wake.used();
        }
    }

    /// Waits until another attempt may succeed. The first time it only subscribes: the lock may
    /// have been freed before that.
    async fn wait(
        &mut self,
        line: &Line,
        channel: &str,
        retry: &Retry,
        remaining: Option<Duration>,
    ) {
        let Some(wakeups) = &self.wakeups else {
            match timeout_at(retry.deadline(), line.subscribe(channel)).await {
                Ok(Ok(subscribed)) => self.wakeups = Some(subscribed),
                Err(_) => {} // the time is over: one last attempt
                Ok(Err(error)) => {
                    tracing::debug!(%error, "no wake-ups; asking again instead");
                    retry.sleeps(PAUSE).await;
                }
            }
            return;
        };
        // A lock without an expiry is not of this kind: nobody announces its end.
        let remaining = remaining.unwrap_or(Duration::from_secs(1));
        let mut is_connected = true;
        tokio::select! {
            (wake, alive) = wakeups.next() => {
                self.woken = Some(wake);
                is_connected = alive;
            }
            () = sleep(remaining + Duration::from_millis(1)) => {}
            () = sleep_until(retry.deadline()) => {}
        }
        if !is_connected {
            self.wakeups = None;
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
        // First: if the release fails, nothing may keep the lock alive.
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
            // Redis remembers an attempt whose reply was lost; one that lost the lock answers no.
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
