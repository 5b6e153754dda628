//! The time at which the lock ends is its value, and GETSET decides who takes an ended one.
//!
//! Source: 《详解使用Redis SETNX 命令实现分布式锁》 (and the page of the SETNX command before it). What it
//! gets right: an ended lock must not be taken with DEL and SETNX, because two who both saw it ended
//! both get in; GETSET hands the old value to exactly one of them.
//!
//! ```text
//! NAME  string: the holder's clock + lease + 1, in ms; no expiry of its own
//! ```
//!
//! What happens on a crash: the stamp ends by the others' clocks, and the next one takes over.
//!
//! Beside the flaws named below: clocks must agree. One that is fast steals a living lock, one that is slow
//! keeps a dead one.

use super::{
    Acquired, Guard, Lock, LockError, Lost, Patience, Released,
    wire::{Clock, Line, millis},
};
use redis::{RedisError, cmd};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(5);

/// How an ended lock is taken over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Takeover {
    #[default]
    Getset,
    /// What the article warns of.
    DeleteAndSetnx,
}

/// See the head of this file.
#[derive(Clone)]
pub struct SetnxGetset {
    line: Line,
    lease: Duration,
    clock: Clock,
    takeover: Takeover,
}

impl SetnxGetset {
    /// `clock` is this client's; each has its own, and that is the point.
    pub fn new(line: Line, lease: Duration, clock: Clock) -> Self {
        Self {
            line,
            lease,
            clock,
            takeover: Takeover::default(),
        }
    }

    pub fn taken_over_by(mut self, takeover: Takeover) -> Self {
        self.takeover = takeover;
        self
    }

    /// Our stamp, if the lock is ours.
    async fn attempt(&self, name: &str) -> Result<Option<i64>, RedisError> {
        let lease = i64::try_from(millis(self.lease)).unwrap_or(i64::MAX);
        let stamp = self.clock.now_ms().saturating_add(lease).saturating_add(1);
        if self.line.send(cmd("SETNX").arg(name).arg(stamp)).await? {
            return Ok(Some(stamp));
        }
        let seen: Option<i64> = self.line.send(cmd("GET").arg(name)).await?;
        if seen.is_some_and(|seen| seen > self.clock.now_ms()) {
            return Ok(None);
        }
        if self.takeover == Takeover::DeleteAndSetnx {
            // THE FLAW that the article warns of: of two who saw the ended stamp, the second deletes
            // what the first has just taken.
            let _: u32 = self.line.send(cmd("DEL").arg(name)).await?;
            let ours: bool = self.line.send(cmd("SETNX").arg(name).arg(stamp)).await?;
            return Ok(ours.then_some(stamp));
        }
        let old: Option<i64> = self.line.send(cmd("GETSET").arg(name).arg(stamp)).await?;
        // Ours, if what we have replaced is the stamp that we saw end (or nothing).
        if old.is_none() || old == seen {
            return Ok(Some(stamp));
        }
        // THE FLAW: somebody was faster, and we have just overwritten their stamp with ours. Harmless, says
        // the article; but the holder's own record of its end is no longer what is in the key.
        Ok(None)
    }
}

impl Lock for SetnxGetset {
    type Guard = SetnxGetsetGuard;

    async fn acquire(
        &self,
        name: &str,
        wait: Duration,
    ) -> Result<Acquired<SetnxGetsetGuard>, LockError> {
        let patience = Patience::new(wait, PAUSE);
        loop {
            let outcome = match self.attempt(name).await {
                Ok(Some(stamp)) => Ok(Acquired::Held(SetnxGetsetGuard {
                    line: self.line.clone(),
                    name: name.to_owned(),
                    clock: self.clock.clone(),
                    stamp,
                })),
                Ok(None) => Ok(Acquired::Contended { remaining: None }),
                Err(error) => Err(self.line.lock_error(error)),
            };
            if !patience.allows_another(&outcome).await {
                return outcome;
            }
        }
    }
}

/// A held [`SetnxGetset`].
#[derive(Debug)]
pub struct SetnxGetsetGuard {
    line: Line,
    name: String,
    clock: Clock,
    stamp: i64,
}

impl SetnxGetsetGuard {
    /// When it ends, by the holder's clock: what the holder wrote, not what the key says by now.
    pub fn stamp(&self) -> i64 {
        self.stamp
    }
}

impl Guard for SetnxGetsetGuard {
    fn fencing(&self) -> Option<u64> {
        None
    }

    fn lost(&self) -> Lost {
        Lost::never()
    }

    async fn release(self) -> Result<Released, LockError> {
        if self.clock.now_ms() >= self.stamp {
            return Ok(Released::NotHeld);
        }
        // THE FLAW: check, then delete. What happens in between belongs to somebody else.
        let deleted: Result<u32, _> = self.line.send(cmd("DEL").arg(&self.name)).await;
        match deleted {
            Ok(1) => Ok(Released::Freed),
            Ok(_) => Ok(Released::NotHeld),
            Err(error) => Err(self.line.lock_error(error)),
        }
    }
}
