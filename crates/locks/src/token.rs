//! A key with a unique value: only the client that knows it may delete the key.
//!
//! ```text
//! NAME        string: the holder's token, expires with the lease
//! NAME:fence  integer: how often the lock was taken (only with `fenced`), never expires
//! NAME:freed  sorted set: tokens given back lately, since a release may be asked for twice
//! ```
//!
//! Crashes. Of the holder: the lease ends. Of Redis, with its data: nothing. Without its data: lock
//! and fencing counter are forgotten, and a second holder comes in. Of a request in doubt: the next
//! attempt of the same acquisition has the same token and is recognised.
//!
//! Not given: a holder that pauses for longer than its lease may overlap with the next one. A
//! watchdog (`renewed`) makes that rarer, fencing harmless.

use super::{
    Acquired, Guard, Hold, Lock, LockError, Lost, Released, Retry, Undo, Why,
    watchdog::Watchdog,
    wire::{Line, LuaScript, ScriptCall, millis},
};
use redis::{RedisError, cmd};
use std::time::Duration;
use tokio::time::Instant;

static ACQUIRE: LuaScript =
    LuaScript::new("token_acquire.lua", include_str!("scripts/token_acquire.lua"));
static RELEASE: LuaScript =
    LuaScript::new("token_release.lua", include_str!("scripts/token_release.lua"));
pub(super) static RENEW: LuaScript =
    LuaScript::new("token_renew.lua", include_str!("scripts/token_renew.lua"));

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
/// Attempts of a release without a reply.
pub(super) const RELEASE_ATTEMPTS: u32 = 3;
/// How long Redis remembers a release, so that a retry can tell "freed, reply lost" from "forgotten
/// or taken". Longer than all attempts; afterwards the answer is the safe one.
pub(super) const REMEMBERED: Duration = Duration::from_secs(10);

/// The key with the remembered releases.
pub(super) fn freed(name: &str) -> String {
    format!("{name}:freed")
}

/// A release that may be retried.
pub(super) fn release(name: &str, token: &str) -> ScriptCall {
    RELEASE.on(&[name, &freed(name)]).arg(token).arg(millis(REMEMBERED))
}

/// A release that need not be remembered.
pub fn undo(name: &str, token: &str) -> ScriptCall {
    RELEASE.on(&[name, &freed(name)]).arg(token).arg(0)
}

/// How a lock is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Release {
    CompareAndDelete,
    InTwoCalls,
}

/// See the head of this file.
#[derive(Clone)]
pub struct TokenLock {
    line: Line,
    lease: Duration,
    fenced: bool,
    renewed: bool,
    release: Release,
}

impl TokenLock {
    pub fn new(line: Line, lease: Duration) -> Self {
        Self { line, lease, fenced: false, renewed: false, release: Release::CompareAndDelete }
    }

    /// Numbers the holders, for the resource to compare (see [`super::fencing`]).
    pub fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// Renews the lease every third of it for as long as the guard lives.
    pub fn renewed(mut self) -> Self {
        self.renewed = true;
        self
    }

    /// For the lesson only: compares and deletes in two calls.
    pub fn released_in_two_calls(mut self) -> Self {
        self.release = Release::InTwoCalls;
        self
    }

    pub fn lease(&self) -> Duration {
        self.lease
    }

    async fn attempt(&self, name: &str, token: &str) -> Result<Attempt, RedisError> {
        if self.fenced {
            let fence = format!("{name}:fence");
            let call = ACQUIRE.on(&[name, &fence]).arg(token).arg(millis(self.lease));
            let (outcome, number): (u8, i64) = self.line.run(&call).await?;
            return Ok(match outcome {
                0 => Attempt::Taken {
                    // Negative: a key without a lease is not of this kind.
                    remaining: u64::try_from(number).ok().map(Duration::from_millis),
                },
                outcome => {
                    Attempt::Ours { fencing: u64::try_from(number).ok(), earlier: outcome == 2 }
                }
            });
        }
        // GET (with NX since Redis 7.0) answers the earlier value: none if the key was set now, our
        // own token if only the reply of an earlier attempt was lost.
        let before: Option<String> = self
            .line
            .send(
                cmd("SET")
                    .arg(name)
                    .arg(token)
                    .arg("NX")
                    .arg("GET")
                    .arg("PX")
                    .arg(millis(self.lease)),
            )
            .await?;
        Ok(match before {
            Some(holder) if holder != token => Attempt::Taken { remaining: None },
            before => Attempt::Ours { fencing: None, earlier: before.is_some() },
        })
    }

    fn guard(&self, name: &str, token: String, fencing: Option<u64>, hold: Hold) -> TokenGuard {
        let watchdog = self.renewed.then(|| {
            let call = RENEW.on(&[name]).arg(&token).arg(millis(self.lease));
            Watchdog::of_one(hold.clone(), self.lease, self.line.clone(), call)
        });
        TokenGuard {
            line: self.line.clone(),
            name: name.to_owned(),
            token,
            fencing,
            release: self.release,
            hold,
            watchdog,
        }
    }
}

enum Attempt {
    Ours { fencing: Option<u64>, earlier: bool },
    Taken { remaining: Option<Duration> },
}

impl Lock for TokenLock {
    type Guard = TokenGuard;

    async fn acquire(&self, name: &str, wait: Duration) -> Result<Acquired<TokenGuard>, LockError> {
        // One token for all attempts: a retry recognises an earlier one.
        let token = self.line.unique_token();
        let retry = Retry::new(wait, PAUSE);
        let mut undo = Undo::with({
            let (line, call) = (self.line.clone(), undo(name, &token));
            || async move {
                let _: Result<u32, RedisError> = line.run(&call).await;
            }
        });
        // When the first attempt in doubt was sent.
        let mut doubt = None;
        loop {
            let sent = Instant::now();
            undo.arm(true);
            let outcome = match self.attempt(name, &token).await {
                Ok(Attempt::Ours { fencing, earlier }) => {
                    let since = if earlier { doubt.unwrap_or(sent) } else { sent };
                    let hold = Hold::lease(since, self.lease);
                    if !hold.is_lost() {
                        undo.arm(false);
                        return Ok(Acquired::Held(self.guard(name, token, fencing, hold)));
                    }
                    // The answer took longer than the lease: the lock may be gone.
                    doubt.get_or_insert(since);
                    Ok(Acquired::Contended { remaining: None })
                }
                Ok(Attempt::Taken { remaining }) => {
                    // Earlier attempts are over, but a request without a reply may still take the
                    // lock, after this one was sent.
                    doubt = doubt.map(|_| sent);
                    undo.arm(doubt.is_some());
                    Ok(Acquired::Contended { remaining })
                }
                Err(error) => {
                    doubt.get_or_insert(sent);
                    Err(self.line.lock_error(error))
                }
            };
            if !retry.allows_another(&outcome).await {
                return outcome;
            }
        }
    }
}

/// A held [`TokenLock`].
#[derive(Debug)]
pub struct TokenGuard {
    line: Line,
    name: String,
    token: String,
    fencing: Option<u64>,
    release: Release,
    hold: Hold,
    watchdog: Option<Watchdog>,
}

impl TokenGuard {
    pub fn token(&self) -> &str {
        &self.token
    }

    async fn give_back(&self) -> Result<bool, RedisError> {
        if self.release == Release::CompareAndDelete {
            let call = release(&self.name, &self.token);
            return Ok(self.line.run::<u32>(&call).await? == 1);
        }
        let holder: Option<String> = self.line.send(cmd("GET").arg(&self.name)).await?;
        if holder.as_deref() != Some(&self.token) {
            return Ok(false);
        }
        // THE FLAW of two calls: in between the lease may end, and this deletes the next holder's
        // lock.
        let deleted: u32 = self.line.send(cmd("DEL").arg(&self.name)).await?;
        Ok(deleted == 1)
    }
}

impl Guard for TokenGuard {
    fn fencing(&self) -> Option<u64> {
        self.fencing
    }

    fn lost(&self) -> Lost {
        self.hold.lost()
    }

    async fn release(mut self) -> Result<Released, LockError> {
        // First: if the release fails, nothing may keep the lock alive.
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.stop().await;
        }
        for attempts_left in (0..RELEASE_ATTEMPTS).rev() {
            match self.give_back().await {
                Ok(true) => return Ok(Released::Freed),
                // An attempt without a reply would be remembered; a Redis that lost the lock may
                // have given it away.
                Ok(false) => return Ok(Released::NotHeld),
                Err(error) => {
                    let error = self.line.lock_error(error);
                    if attempts_left == 0 || !error.is_unreachable() {
                        return Err(error);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        Ok(Released::NotHeld)
    }
}

impl Drop for TokenGuard {
    fn drop(&mut self) {
        self.hold.lose(Why::Released);
    }
}
