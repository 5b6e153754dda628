//! A key with a unique value: only the client that knows it may delete the key.
//!
//! ```text
//! NAME        string: the holder's token, expires with the lease
//! NAME:fence  integer: how often the lock was taken (only with `fenced`), never expires
//! NAME:freed  list: tokens given back lately, since a release may be asked for twice
//! ```
//!
//! Crashes. Of the holder: the lease ends. Of Redis, with its data: nothing. Without its data: lock
//! and fencing counter are forgotten, and a second holder comes in. Of a request in doubt: the next
//! attempt of the same acquisition has the same token and is recognised.
//!
//! Not given: a holder that pauses for longer than its lease may overlap with the next one. A
//! watchdog (`renewed`) makes that rarer, fencing harmless.

use super::prelude::*;

static ACQUIRE: LuaScript = lua!("token_acquire.lua");
static RELEASE: LuaScript = lua!("token_release.lua");
static RENEW: LuaScript = lua!("token_renew.lua");

/// How long Redis remembers a release, so that a retry can tell "freed, reply lost" from "forgotten
/// or taken". Attempts rarely take longer; afterwards the answer is the safe one.
pub(super) const REMEMBERED: Duration = Duration::from_secs(10);

/// The key with the remembered releases.
pub(super) fn freed(name: &str) -> String {
    format!("{name}:freed")
}

/// A release that may be asked for again.
pub(super) fn release(name: &str, token: &str) -> ScriptCall {
    RELEASE.on(&[name, &freed(name)]).arg(token).arg(millis(REMEMBERED))
}

/// A release that need not be remembered.
pub fn undo(name: &str, token: &str) -> ScriptCall {
    RELEASE.on(&[name, &freed(name)]).arg(token).arg(0)
}

pub(super) fn renew(name: &str, token: &str, lease: Duration) -> ScriptCall {
    RENEW.on(&[name]).arg(token).arg(millis(lease))
}

/// See the head of this file.
#[derive(Clone)]
pub struct TokenLock {
    line: Line,
    lease: Lease,
    fenced: bool,
}

impl TokenLock {
    pub fn new(line: Line, lease: Duration) -> Self {
        Self { line, lease: Lease { time: lease, renewed: false }, fenced: false }
    }

    /// Numbers the holders, for the resource to compare (see [`super::fencing`]).
    pub fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// Renews the lease every third of it for as long as the guard lives.
    pub fn renewed(mut self) -> Self {
        self.lease.renewed = true;
        self
    }
}

impl Protocol for TokenLock {
    type Own = ();

    fn token(&self) -> String {
        self.line.unique_token()
    }

    fn lease(&self) -> Option<Lease> {
        Some(self.lease)
    }

    async fn attempt(&self, claim: &Claim, _: Instant) -> Answer<Attempt> {
        let lease = millis(self.lease.time);
        if self.fenced {
            let fence = format!("{}:fence", claim.name);
            let call = ACQUIRE.on(&[&claim.name, &fence]).arg(&*claim.token).arg(lease);
            let (outcome, number) = self.line.ask(&call).await?;
            return Ok(Attempt::numbered(outcome, number));
        }
        let mut set = cmd("SET");
        //= CURE a token that no other acquisition has; one command sets it with its end
        set.arg(&*claim.name).arg(&*claim.token).arg("NX").arg("GET").arg("PX").arg(lease);
        // GET (with NX since Redis 7.0) answers the earlier value: none if the key was set now, our
        // own token if only the reply of an earlier attempt was lost.
        let before: Option<String> = self.line.ask(&set).await?;
        Ok(match before {
            Some(holder) if holder != *claim.token => Attempt::ours(false),
            before => Attempt::Held(Ours { fencing: None, earlier: before.is_some() }),
        })
    }

    async fn renew(&self, claim: &Claim) -> Answer<bool> {
        self.line.ask(&renew(&claim.name, &claim.token, self.lease.time)).await
    }

    async fn release(&self, claim: &Claim, _: &Hold, _: bool) -> Answer<Released> {
        //= CURE one script compares and deletes: a late release touches nobody else's lock
        Ok(Released::freed(self.line.ask(&release(&claim.name, &claim.token)).await?))
    }

    async fn undo(&self, claim: &Claim) {
        let _: Result<bool, _> = self.line.ask(&undo(&claim.name, &claim.token)).await;
    }
}
