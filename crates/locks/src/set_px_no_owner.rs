//! SET NX PX, and a plain DEL: taken by one command, freed by any client's.
//!
//! Source: 《突击Redis重大事故现场，又是“分布式锁”惹的祸》, the lock before the incident.
//!
//! ```text
//! NAME  string "locked", expires with the lease
//! ```
//!
//! Crashes: the lease ends the lock. That much is right.

use super::prelude::*;

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

impl Protocol for SetPxNoOwner {
    type Own = ();
    const RELEASES: u32 = 1;

    async fn attempt(&self, claim: &Claim, _: Instant) -> Answer<Attempt> {
        let mut set = cmd("SET");
        //= FLAW the same value for everybody: nobody can tell whose lock it is
        set.arg(&*claim.name).arg("locked");
        //= CURE value and expiry in one command: no crash comes in between
        let taken = self.line.ask(set.arg("NX").arg("PX").arg(millis(self.lease)));
        Ok(Attempt::ours(taken.await?))
    }

    async fn release(&self, claim: &Claim, _: &Hold, _: bool) -> Answer<Released> {
        //= FLAW after the end of our lease this deletes the next holder's lock, and says it worked
        Ok(Released::freed(self.line.ask(cmd("DEL").arg(&*claim.name)).await?))
    }
}
