//! SET NX PX, and a plain DEL: taken by one command, freed by any client's.
//!
//! Source: 《突击Redis重大事故现场,又是"分布式锁"惹的祸》, the lock before the incident.
//!
//! ```text
//! NAME  string "locked", expires with the lease
//! ```
//!
//! Crashes: the lease ends the lock. That much is right.

use super::{
    Acquired, Guard, Lock, LockError, Lost, Released, Retry,
    wire::{Line, millis},
};
use redis::cmd;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(10);

/// See the head of this file.
#[derive(Clone)]
pub struct SetPxNoOwner {
    line: Line,
    lease: Duration,
}

impl SetPxNoOwner {
    pub fn new(line: Line, lease: Duration) -> Self {
        Self { line, lease }
    }
}

impl Lock for SetPxNoOwner {
    type Guard = SetPxGuard;

    async fn acquire(&self, name: &str, wait: Duration) -> Result<Acquired<SetPxGuard>, LockError> {
        let retry = Retry::new(wait, PAUSE);
        loop {
            let set: Result<Option<String>, _> = self
                .line
                .send(
                    cmd("SET")
                        .arg(name)
                        // THE FLAW begins here: the same value for everybody.
                        .arg("locked")
                        .arg("NX")
                        .arg("PX")
                        .arg(millis(self.lease)),
                )
                .await;
            let outcome = match set {
                Ok(Some(_)) => Ok(Acquired::Held(SetPxGuard {
                    line: self.line.clone(),
                    name: name.to_owned(),
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

/// A held [`SetPxNoOwner`], or what is left of it.
#[derive(Debug)]
pub struct SetPxGuard {
    line: Line,
    name: String,
}

impl Guard for SetPxGuard {
    fn fencing(&self) -> Option<u64> {
        None
    }

    fn lost(&self) -> Lost {
        Lost::never()
    }

    async fn release(self) -> Result<Released, LockError> {
        // THE FLAW: after the end of our lease this deletes the next holder's lock, a third client
        // comes in, and the release counts as a success.
        let deleted: Result<u32, _> = self.line.send(cmd("DEL").arg(&self.name)).await;
        match deleted {
            Ok(1) => Ok(Released::Freed),
            Ok(_) => Ok(Released::NotHeld),
            Err(error) => Err(self.line.lock_error(error)),
        }
    }
}
