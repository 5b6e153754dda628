//! SETNX, then EXPIRE: two commands, and a crash between them.
//!
//! Source: 《使用Redis实现分布式锁》. Right about it: a waiting time (zero tries once), an expiry that must
//! be positive, short random pauses.
//!
//! ```text
//! NAME  string "locked"; expires, if its maker lived long enough to say so
//! ```
//!
//! Crashes: between the two commands, the lock stays for ever. The article's repair: a client that
//! waited in vain and finds no expiry takes the lock over. That is the second flaw.

use super::{
    Acquired, Guard, Lock, LockError, Lost, Released, Retry,
    wire::{Line, millis},
};
use redis::{RedisError, cmd};
use std::time::Duration;

/// In the article: 3 ms and a random time.
const PAUSE: Duration = Duration::from_millis(5);

/// What to do about a lock without an expiry, once the waiting time is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Repair {
    Never,
    /// The article's: SETNX and EXPIRE again, whatever SETNX answers.
    #[default]
    TakeOver,
    /// A common variant: DEL, then SETNX.
    DeleteAndTake,
    /// The correct one: set an expiry, and let the next client take it fairly.
    OnlyExpire,
}

/// See the head of this file.
#[derive(Clone)]
pub struct SetnxExpire {
    line: Line,
    lease: Duration,
    repair: Repair,
}

impl SetnxExpire {
    /// The article's lock, with PEXPIRE instead of EXPIRE for milliseconds.
    pub fn new(line: Line, lease: Duration) -> Self {
        Self { line, lease, repair: Repair::default() }
    }

    pub fn repaired_by(mut self, repair: Repair) -> Self {
        self.repair = repair;
        self
    }

    async fn setnx(&self, name: &str) -> Result<bool, RedisError> {
        self.line.send(cmd("SETNX").arg(name).arg("locked")).await
    }

    async fn expire(&self, name: &str) -> Result<(), RedisError> {
        let mut expire = cmd("PEXPIRE");
        self.line.send(expire.arg(name).arg(millis(self.lease))).await
    }

    /// Whether it is ours.
    async fn attempt(&self, name: &str) -> Result<bool, RedisError> {
        if !self.setnx(name).await? {
            return Ok(false);
        }
        // THE FLAW: a client that dies here leaves a lock without an end.
        self.expire(name).await?;
        Ok(true)
    }

    /// The waiting time is over. Whether the lock is ours after all.
    async fn repair(&self, name: &str) -> Result<bool, RedisError> {
        if self.repair == Repair::Never {
            return Ok(false);
        }
        let ttl: i64 = self.line.send(cmd("PTTL").arg(name)).await?;
        const NO_EXPIRY: i64 = -1;
        if ttl != NO_EXPIRY {
            return Ok(false);
        }
        match self.repair {
            Repair::Never => Ok(false),
            Repair::TakeOver => {
                // THE SECOND FLAW: the answer is ignored. Two repairers both have the lock, as does
                // a holder that is merely slow.
                let _ = self.setnx(name).await?;
                self.expire(name).await?;
                Ok(true)
            }
            Repair::DeleteAndTake => {
                // THE SAME FLAW: this may delete what another repairer has just taken.
                let _: u32 = self.line.send(cmd("DEL").arg(name)).await?;
                self.attempt(name).await
            }
            Repair::OnlyExpire => {
                self.expire(name).await?;
                Ok(false)
            }
        }
    }

    fn guard(&self, name: &str) -> SetnxExpireGuard {
        SetnxExpireGuard { line: self.line.clone(), name: name.to_owned() }
    }
}

impl Lock for SetnxExpire {
    type Guard = SetnxExpireGuard;

    async fn acquire(
        &self,
        name: &str,
        wait: Duration,
    ) -> Result<Acquired<SetnxExpireGuard>, LockError> {
        let retry = Retry::new(wait, PAUSE);
        loop {
            let outcome = match self.attempt(name).await {
                Ok(true) => Ok(Acquired::Held(self.guard(name))),
                Ok(false) => Ok(Acquired::Contended { remaining: None }),
                Err(error) => Err(self.line.lock_error(error)),
            };
            if retry.allows_another(&outcome).await {
                continue;
            }
            return match outcome {
                Ok(Acquired::Contended { .. }) => match self.repair(name).await {
                    Ok(true) => Ok(Acquired::Held(self.guard(name))),
                    Ok(false) => outcome,
                    Err(error) => Err(self.line.lock_error(error)),
                },
                other => other,
            };
        }
    }
}

/// A held [`SetnxExpire`].
#[derive(Debug)]
pub struct SetnxExpireGuard {
    line: Line,
    name: String,
}

impl SetnxExpireGuard {
    /// The article's way for long work: EXPIRE again.
    pub async fn extend(&self, lease: Duration) -> Result<(), LockError> {
        let mut expire = cmd("PEXPIRE");
        let extended: Result<(), _> =
            self.line.send(expire.arg(&self.name).arg(millis(lease))).await;
        extended.map_err(|error| self.line.lock_error(error))
    }
}

impl Guard for SetnxExpireGuard {
    fn fencing(&self) -> Option<u64> {
        None
    }

    fn lost(&self) -> Lost {
        Lost::never()
    }

    async fn release(self) -> Result<Released, LockError> {
        // THE THIRD FLAW: the lock may be another client's by now.
        let deleted: Result<u32, _> = self.line.send(cmd("DEL").arg(&self.name)).await;
        match deleted {
            Ok(1) => Ok(Released::Freed),
            Ok(_) => Ok(Released::NotHeld),
            Err(error) => Err(self.line.lock_error(error)),
        }
    }
}
