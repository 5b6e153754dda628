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
//! Crashes: the timestamp expires by the others' clocks, and the next client takes over.
//!
//! All clocks must agree: a fast one steals a valid lock, a slow one keeps a dead one.

use super::{prelude::*, wire::Clock};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// See the head of this file.
#[derive(Clone)]
pub struct SetnxGetset {
    line: Line,
    lease: Duration,
    clock: Clock,
}

impl SetnxGetset {
    /// `clock` is this client's own, which is the point of the lesson.
    pub fn new(line: Line, lease: Duration, clock: Clock) -> Self {
        Self { line, lease, clock }
    }
}

impl Protocol for SetnxGetset {
    /// Our timestamp.
    type Own = Arc<AtomicI64>;
    const PAUSE: Duration = Duration::from_millis(5);
    const RELEASES: u32 = 1;

    async fn attempt(&self, claim: &Claim<Self::Own>, _: Instant) -> Answer<Attempt> {
        let name = &*claim.name;
        let lease = i64::try_from(millis(self.lease)).unwrap_or(i64::MAX);
        let stamp = self.clock.now_ms().saturating_add(lease).saturating_add(1);
        claim.own.store(stamp, Relaxed);
        if self.line.ask(cmd("SETNX").arg(name).arg(stamp)).await? {
            return Ok(Attempt::ours(true));
        }
        let seen: Option<i64> = self.line.ask(cmd("GET").arg(name)).await?;
        //= FLAW another client's timestamp against our own clock: a fast clock steals a valid lock
        if seen.is_some_and(|seen| seen > self.clock.now_ms()) {
            return Ok(Attempt::ours(false));
        }
        //= FLAW the loser overwrites the winner's timestamp: the key no longer says when it expires
        let old: Option<i64> = self.line.ask(cmd("GETSET").arg(name).arg(stamp)).await?;
        trace!(?old, ?seen, "replaced");
        //= CURE the lock goes to the client that replaced the expired timestamp
        Ok(Attempt::ours(old.is_none() || old == seen))
    }

    async fn release(&self, claim: &Claim<Self::Own>, _: &Hold, _: bool) -> Answer<Released> {
        if self.clock.now_ms() >= claim.own.load(Relaxed) {
            return Ok(Released::NotHeld);
        }
        //= FLAW check, then delete: in between another client may have taken the lock
        Ok(Released::freed(self.line.ask(cmd("DEL").arg(&*claim.name)).await?))
    }
}
