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

use super::prelude::*;

/// What to do about a lock without an expiry, once the waiting time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    Never,
    /// The article's: SETNX and EXPIRE again, whatever SETNX answers.
    TakeOver,
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
        Self { line, lease, repair: Repair::TakeOver }
    }

    pub fn repaired_by(mut self, repair: Repair) -> Self {
        self.repair = repair;
        self
    }

    /// Nobody will end this lock. Whether it is ours after all.
    async fn repair(&self, name: &str) -> Answer<bool> {
        let mut expire = cmd("PEXPIRE");
        expire.arg(name).arg(millis(self.lease));
        if self.repair == Repair::OnlyExpire {
            //= CURE an expiry for the abandoned lock, and nothing else: nobody has taken it
            self.line.ask::<()>(&expire).await?;
            return Ok(false);
        }
        //= FLAW the answer is ignored: two repairers both have it, as does a slow holder
        let _: bool = self.line.ask(cmd("SETNX").arg(name).arg("locked")).await?;
        self.line.ask::<()>(&expire).await?;
        Ok(true)
    }
}

impl Protocol for SetnxExpire {
    type Own = ();
    /// In the article: 3 ms and a random time.
    const PAUSE: Duration = Duration::from_millis(5);
    const RELEASES: u32 = 1;

    async fn attempt(&self, claim: &Claim, deadline: Instant) -> Answer<Attempt> {
        const NO_EXPIRY: i64 = -1;
        let name = &*claim.name;
        let mut ours: bool = self.line.ask(cmd("SETNX").arg(name).arg("locked")).await?;
        if ours {
            trace!(name, "taken, without an expiry");
            //= FLAW a client that dies here leaves a lock without an expiry
            self.line.ask::<()>(cmd("PEXPIRE").arg(name).arg(millis(self.lease))).await?;
        } else if self.repair != Repair::Never && Instant::now() >= deadline {
            let ttl: i64 = self.line.ask(cmd("PTTL").arg(name)).await?;
            ours = ttl == NO_EXPIRY && self.repair(name).await?;
        }
        Ok(Attempt::ours(ours))
    }

    async fn release(&self, claim: &Claim, _: &Hold, _: bool) -> Answer<Released> {
        //= FLAW the lock may be another client's by now
        Ok(Released::freed(self.line.ask(cmd("DEL").arg(&*claim.name)).await?))
    }
}
