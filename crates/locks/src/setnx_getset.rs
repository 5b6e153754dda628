//! The value is the end of the lock, and GETSET decides which client takes an ended one.
//!
//! Source: 《详解使用Redis SETNX 命令实现分布式锁》 (and the page of the SETNX command before it). Right about
//! it: with DEL and SETNX two clients that both saw the lock end would both get in; GETSET gives
//! the old value to exactly one of them.
//!
//! ```text
//! NAME  string: the holder's clock + lease + 1, in ms; no expiry of its own
//! ```
//!
//! Crashes: the stamp ends by the others' clocks, and the next client takes over.
//!
//! All clocks must agree: a fast one steals a living lock, a slow one keeps a dead one.

use super::{
    Acquired, Guard, Lock, LockError, Lost, Released, Retry,
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
    /// `clock` is this client's own, which is the point of the lesson.
    pub fn new(line: Line, lease: Duration, clock: Clock) -> Self {
        Self { line, lease, clock, takeover: Takeover::default() }
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
            // THE FLAW that the article warns of: of two clients that saw the end, the second
            // deletes what the first has just taken.
            let _: u32 = self.line.send(cmd("DEL").arg(name)).await?;
            let ours: bool = self.line.send(cmd("SETNX").arg(name).arg(stamp)).await?;
            return Ok(ours.then_some(stamp));
        }
        let old: Option<i64> = self.line.send(cmd("GETSET").arg(name).arg(stamp)).await?;
        // Ours, if we replaced the stamp that we saw end (or nothing).
        if old.is_none() || old == seen {
            return Ok(Some(stamp));
        }
        // THE FLAW: another client was faster, and we have overwritten its stamp. "Harmless", says
        // the article; but the holder's record of its end no longer matches the key.
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
        let retry = Retry::new(wait, PAUSE);
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
            if !retry.allows_another(&outcome).await {
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
    /// The end by the holder's clock, as the holder wrote it.
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
        // THE FLAW: check, then delete. In between another client may have taken the lock.
        let deleted: Result<u32, _> = self.line.send(cmd("DEL").arg(&self.name)).await;
        match deleted {
            Ok(1) => Ok(Released::Freed),
            Ok(_) => Ok(Released::NotHeld),
            Err(error) => Err(self.line.lock_error(error)),
        }
    }
}
