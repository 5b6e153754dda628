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

    async fn setnx(&self, name: &str) -> Answer<bool> {
        self.line.ask(cmd("SETNX").arg(name).arg("locked")).await
    }

    async fn expire(&self, name: &str) -> Answer<()> {
        self.line.ask(cmd("PEXPIRE").arg(name).arg(millis(self.lease))).await
    }

    /// Whether it is ours.
    async fn take(&self, name: &str) -> Answer<bool> {
        if !self.setnx(name).await? {
            return Ok(false);
        }
        //= FLAW a client that dies here leaves a lock without an end
        self.expire(name).await?;
        Ok(true)
    }

    /// Nobody will end this lock. Whether it is ours after all.
    async fn repair(&self, name: &str) -> Answer<bool> {
        match self.repair {
            Repair::Never => Ok(false),
            Repair::TakeOver => {
                //= FLAW the answer is ignored: two repairers both have it, as does a slow holder
                let _ = self.setnx(name).await?;
                self.expire(name).await?;
                Ok(true)
            }
            Repair::DeleteAndTake => {
                //= FLAW this may delete what another repairer has just taken
                let _: u32 = self.line.ask(cmd("DEL").arg(name)).await?;
                self.take(name).await
            }
            Repair::OnlyExpire => {
                //= CURE an end for the dead lock, and nothing else: nobody has won anything
                self.expire(name).await?;
                Ok(false)
            }
        }
    }
}

impl Protocol for SetnxExpire {
    type Own = ();
    /// In the article: 3 ms and a random time.
    const PAUSE: Duration = Duration::from_millis(5);
    const RELEASES: u32 = 1;

    /// Stays unused.
    fn token(&self) -> String {
        "locked".to_owned()
    }

    async fn attempt(&self, claim: &Claim, deadline: Instant) -> Answer<Attempt> {
        const NO_EXPIRY: i64 = -1;
        let mut ours = self.take(&claim.name).await?;
        let waited_in_vain = !ours && Instant::now() >= deadline;
        if waited_in_vain && self.repair != Repair::Never {
            let ttl: i64 = self.line.ask(cmd("PTTL").arg(&*claim.name)).await?;
            ours = ttl == NO_EXPIRY && self.repair(&claim.name).await?;
        }
        Ok(Attempt::ours(ours))
    }

    async fn release(&self, claim: &Claim, _: Ending<'_>) -> Answer<Released> {
        //= FLAW the lock may be another client's by now
        let deleted: bool = self.line.ask(cmd("DEL").arg(&*claim.name)).await?;
        Ok(Released::freed(deleted))
    }
}
