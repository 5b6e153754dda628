//! A key with a unique value: only who knows the value may delete it.
//!
//! ```text
//! NAME        string: the holder's token, expires with the lease
//! NAME:fence  integer: how often the lock was taken (only with `fenced`), never expires
//! NAME:freed  sorted set: the tokens given back in the last seconds, since a release may be asked for twice
//! ```
//!
//! What happens on a crash: of the holder: the lease ends it. Of Redis, with its data: nothing. Without:
//! the lock is forgotten, and a second holder comes in while the first believes to be alone; the
//! fencing counter is forgotten too. Of the client while its request is on the way: nobody knows whether
//! it has the lock; the next attempt of the same acquisition comes with the same token and is told.
//!
//! What it does not give: a holder that stands still for longer than its lease has company when it goes
//! on. A watchdog (`renewed`) makes that rarer, fencing makes it harmless.

use super::{
    Acquired, Guard, Hold, Lock, LockError, Lost, Patience, Released, Undo, Why,
    watchdog::Watchdog,
    wire::{Line, LuaScript, ScriptCall, millis},
};
use redis::{RedisError, cmd};
use std::time::Duration;
use tokio::time::Instant;

static ACQUIRE: LuaScript = LuaScript::new(
    "token_acquire.lua",
    include_str!("scripts/token_acquire.lua"),
);
static RELEASE: LuaScript = LuaScript::new(
    "token_release.lua",
    include_str!("scripts/token_release.lua"),
);
pub(super) static RENEW: LuaScript =
    LuaScript::new("token_renew.lua", include_str!("scripts/token_renew.lua"));

/// How long to wait between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
/// How often a release is asked for whose reply does not come.
pub(super) const RELEASE_ATTEMPTS: u32 = 3;
/// For how long Redis remembers a release, so that who asks again can tell "freed, and the reply was lost" from
/// "it was forgotten, or is somebody else's". Longer than all attempts take; after that the answer is the
/// careful one.
pub(super) const REMEMBERED: Duration = Duration::from_secs(10);

/// Where it remembers them.
pub(super) fn freed(name: &str) -> String {
    format!("{name}:freed")
}

/// A release that may be asked for again.
pub(super) fn release(name: &str, token: &str) -> ScriptCall {
    RELEASE
        .on(&[name, &freed(name)])
        .arg(token)
        .arg(millis(REMEMBERED))
}

/// A release that need not be remembered.
pub(crate) fn undo(name: &str, token: &str) -> ScriptCall {
    RELEASE.on(&[name, &freed(name)]).arg(token).arg(0)
}

/// How a lock is given back.
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
        Self {
            line,
            lease,
            fenced: false,
            renewed: false,
            release: Release::CompareAndDelete,
        }
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
            let call = ACQUIRE
                .on(&[name, &fence])
                .arg(token)
                .arg(millis(self.lease));
            let (outcome, number): (u8, i64) = self.line.run(&call).await?;
            return Ok(match outcome {
                0 => Attempt::Taken {
                    // Negative: a key without a lease, which is none of ours.
                    remaining: u64::try_from(number).ok().map(Duration::from_millis),
                },
                outcome => Attempt::Ours {
                    fencing: u64::try_from(number).ok(),
                    earlier: outcome == 2,
                },
            });
        }
        // GET (with NX since Redis 7.0) answers what was there before: nothing, if the key was set now; our
        // own token, if an earlier attempt of ours had come through and only its reply was lost.
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
            before => Attempt::Ours {
                fencing: None,
                earlier: before.is_some(),
            },
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
        // One token for all attempts: a second one recognises what the first has done.
        let token = self.line.unique_token();
        let patience = Patience::new(wait, PAUSE);
        let mut undo = Undo::with({
            let (line, call) = (self.line.clone(), undo(name, &token));
            || async move {
                let _: Result<u32, RedisError> = line.run(&call).await;
            }
        });
        // When the first attempt was sent of which nobody knows whether it came through.
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
                    // The answer took longer than the lease: this would be a lock in name only.
                    doubt.get_or_insert(since);
                    Ok(Acquired::Contended { remaining: None })
                }
                Ok(Attempt::Taken { remaining }) => {
                    // Whatever came through before is over. But a request without a reply may be on its way
                    // still, and take the lock after this answer: not before this one was sent.
                    doubt = doubt.map(|_| sent);
                    undo.arm(doubt.is_some());
                    Ok(Acquired::Contended { remaining })
                }
                Err(error) => {
                    doubt.get_or_insert(sent);
                    Err(self.line.lock_error(error))
                }
            };
            if !patience.allows_another(&outcome).await {
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
        // THE FLAW of two calls: here the lease may end and somebody else come in, whom this deletes.
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
        // First of all: should giving back fail, nothing may keep the lock alive.
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.stop().await;
        }
        for attempts_left in (0..RELEASE_ATTEMPTS).rev() {
            match self.give_back().await {
                Ok(true) => return Ok(Released::Freed),
                // Also after an attempt without a reply: that one would be remembered. A Redis that has
                // forgotten the lock may have given it to somebody else.
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
