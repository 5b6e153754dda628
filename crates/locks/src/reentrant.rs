//! A reentrant lock: an owner may take it many times; waiters are woken; a watchdog renews it.
//!
//! Source: Redisson's lock, as the course notes 《秒杀》 show it, without its known bugs.
//!
//! ```text
//! NAME        hash: owner, fencing, a field holding:REQUEST for each hold; expires with the lease
//! NAME:fence  integer: how often the lock changed hands, never expires
//! NAME:freed  list: requests given back lately, since a release may be asked for twice
//! NAME:free   channel: one message when the last holding was given back
//! ```
//!
//! Crashes. Of the holder: nobody renews, and the lease ends. Of Redis: as with
//! [`TokenLock`](super::TokenLock). Of the subscription: all waiters try at once and subscribe
//! again.

use super::prelude::*;
use super::token::{REMEMBERED, freed};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

static ACQUIRE: LuaScript = lua!("reentrant_acquire.lua");
static RELEASE: LuaScript = lua!("reentrant_release.lua");
static RENEW: LuaScript = lua!("reentrant_renew.lua");

/// The lock of one owner. Clones are the same owner; [`ReentrantLock::another_owner`] and `new`
/// make others.
#[derive(Clone)]
pub struct ReentrantLock {
    line: Line,
    lease: Lease,
    owner: Arc<str>,
}

impl ReentrantLock {
    /// A lock with a fixed lease.
    pub fn new(line: Line, lease: Duration) -> Self {
        let lease = Lease { time: lease, renewed: false };
        Self { owner: line.unique_token().into(), line, lease }
    }

    /// Renews the lease every third of it for as long as a guard lives.
    pub fn renewed(mut self) -> Self {
        self.lease.renewed = true;
        self
    }

    pub fn another_owner(&self) -> Self {
        Self { owner: self.line.unique_token().into(), ..self.clone() }
    }

    /// The same owner, for another lease.
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease.time = lease;
        self
    }

    fn giving_back(&self, claim: &Claim<Count>, remembered_ms: u64) -> ScriptCall {
        let call = RELEASE.on(&[&claim.name, &freed(&claim.name)]).arg(&*self.owner);
        call.arg(&*claim.token).arg(channel(&claim.name)).arg(remembered_ms)
    }
}

/// How often the owner had it when this was taken, this one included.
type Count = Arc<AtomicU32>;

impl Held<ReentrantLock> {
    /// How often the owner had it when this was taken, this one included.
    pub fn count(&self) -> u32 {
        self.claim.own.load(Relaxed)
    }
}

fn channel(name: &str) -> String {
    format!("{name}:free")
}

impl Protocol for ReentrantLock {
    type Own = Count;

    fn lease(&self) -> Option<Lease> {
        Some(self.lease)
    }

    async fn attempt(&self, claim: &Claim<Count>, _: Instant) -> Answer<Attempt> {
        let call = ACQUIRE.on(&[&claim.name, &format!("{}:fence", claim.name)]).arg(&*self.owner);
        //= CURE every attempt carries the request's token: one that comes twice counts once
        let call = call.arg(&*claim.token).arg(millis(self.lease.time));
        // The script lets the lease begin anew, so it is not an earlier one.
        let (outcome, number, count): (u8, i64, u32) = self.line.ask(&call).await?;
        claim.own.store(count, Relaxed);
        Ok(Attempt::numbered(outcome, number))
    }

    async fn renew(&self, claim: &Claim<Count>) -> Answer<bool> {
        let call = RENEW.on(&[&claim.name]).arg(&*self.owner).arg(&*claim.token);
        //= CURE the lease begins anew, if the lock is still the owner's
        self.line.ask(&call.arg(millis(self.lease.time))).await
    }

    async fn release(&self, claim: &Claim<Count>, _: &Hold, _: bool) -> Answer<Released> {
        let call = self.giving_back(claim, millis(REMEMBERED));
        // Redis remembers a request whose reply was lost; one that lost the lock answers no.
        let (given_back, left): (bool, u32) = self.line.ask(&call).await?;
        Ok(match (given_back, left) {
            (false, _) => Released::NotHeld,
            (true, 0) => Released::Freed,
            (true, count) => Released::StillHeld { count },
        })
    }

    async fn undo(&self, claim: &Claim<Count>) {
        let _: Result<(u32, u32), _> = self.line.ask(&self.giving_back(claim, 0)).await;
    }

    fn channel(&self, name: &str) -> Option<(&Line, String)> {
        Some((&self.line, channel(name)))
    }
}
