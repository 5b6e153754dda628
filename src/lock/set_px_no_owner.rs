//! SET NX PX, and a plain DEL: one command to take it, anybody's command to open it.
//!
//! Source: 《突击Redis重大事故现场,又是"分布式锁"惹的祸》, the lock before the incident.
//!
//! ```text
//! NAME  string "locked", expires with the lease
//! ```
//!
//! What happens on a crash: the lease ends it. That much is right.

use super::{
    Acquired, Guard, Lock, LockError, Lost, Patience, Released,
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
        let patience = Patience::new(wait, PAUSE);
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
            if !patience.allows_another(&outcome).await {
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
        // THE FLAW: if our lease is over, this deletes the lock of whoever came after us, and a third
        // comes in beside them. And it calls that a success.
        let deleted: Result<u32, _> = self.line.send(cmd("DEL").arg(&self.name)).await;
        match deleted {
            Ok(1) => Ok(Released::Freed),
            Ok(_) => Ok(Released::NotHeld),
            Err(error) => Err(self.line.lock_error(error)),
        }
    }
}
