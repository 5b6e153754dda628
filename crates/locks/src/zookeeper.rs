//! A queue of ephemeral nodes: the first holds the lock, each other watches its predecessor.
//!
//! Source: ZooKeeper's recipe for locks, with Curator's protection (a GUID in the name); named as
//! the first of 《分布式锁的三种实现》.
//!
//! ```text
//! /locks/NAME/                              both are containers: they go when empty
//!   _c_GUID-lock-0000000007      ephemeral: goes with its session; the lowest number holds
//!   _c_GUID-lock-0000000008                 watches ...07, and nobody else: no herd
//! ```
//!
//! Crashes. Of the holder: its session ends after its timeout, its node goes, and the next one's
//! watch fires. Of a client during its create: the node may exist with an unknown number; it is
//! found by its GUID, and removed if the acquire is given up. Of a minority of servers: sessions
//! move.
//!
//! Not given: a holder that pauses for longer than its session may overlap with the next one. The
//! node's `czxid`, the id of its creating transaction, grows from holder to holder and is the
//! fencing token. A client sees its session end later than the servers do, so it counts the lock as
//! lost as soon as the connection is gone for longer than is safe.

use super::prelude::*;
use super::queue::{Own, PAUSE, Place};
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::sleep;

pub use super::queue::ROOT;
pub use super::wire::{Zoo, ZooError, ZooSession, ZooWatch};

/// See the head of this file.
#[derive(Clone)]
pub struct ZooKeeperLock(pub Zoo);

/// Dropping it removes its node in the background, since the session lives on.
impl Held<ZooKeeperLock> {
    /// The holder's node.
    pub fn path(&self) -> &str {
        self.claim.own.turn.get().map_or("", |(_, path)| path)
    }
}

impl Protocol for ZooKeeperLock {
    type Own = Arc<Own>;
    const RELEASES: u32 = 1;
    const ENDS_WITH_GUARD: bool = true;

    async fn attempt(&self, claim: &Claim<Arc<Own>>, deadline: Instant) -> Answer<Attempt> {
        let session = self.0.session(deadline).await?;
        let place = Place::new(&session, claim);
        place.enter(&claim.own).await?;
        let Some((path, czxid)) = place.queue(deadline).await? else {
            place.leave().await?;
            return Ok(Attempt::ours(false));
        };
        if !session.is_connected() {
            return Err(ZooError::InDoubt("the connection is gone".to_owned()).into());
        }
        let _first = claim.own.turn.set((session, path));
        trace!(czxid, "first in the queue");
        //= CURE the czxid of the holder's node grows from holder to holder: a fencing token
        Ok(Attempt::Held(Ours { fencing: Some(czxid), earlier: false }))
    }

    async fn release(&self, claim: &Claim<Arc<Own>>, hold: &Hold, _: bool) -> Answer<Released> {
        let Some((session, path)) = claim.own.turn.get() else {
            return Ok(Released::NotHeld);
        };
        let deleted = session.delete(path).await;
        let removed = match &deleted {
            Ok(()) if claim.own.creates.load(Relaxed) == 1 => Ok(true),
            Err(ZooError::NoNode) => Ok(false),
            // A second node may exist, or, after a lost reply, still the first.
            _ => Place::new(session, claim).leave().await.map(|another| {
                let in_doubt = matches!(deleted, Err(ZooError::InDoubt(_)));
                another || deleted.is_ok() || in_doubt && !hold.is_lost()
            }),
        };
        match removed {
            // The end of the session removes the node.
            Err(ZooError::SessionOver(_)) => Ok(Released::NotHeld),
            removed => Ok(Released::freed(removed?)),
        }
    }

    async fn undo(&self, claim: &Claim<Arc<Own>>) {
        let current = self.0.current().await;
        if let Some(session) = current.filter(|_| claim.own.creates.load(Relaxed) > 0) {
            let _ = Place::new(&session, claim).leave().await;
        }
    }

    /// Tells the holder that it can no longer be sure.
    fn keep(&self, claim: &Claim<Arc<Own>>, hold: &Hold) -> Option<Watchdog> {
        let (session, path) = claim.own.turn.get()?;
        let (session, path, hold) = (session.unwatched(), path.clone(), hold.clone());
        Some(crate::watchdog::start(async move {
            let why = tokio::select! {
                why = until_gone(&session, &path) => why,
                () = session.is_in_danger() => Why::SessionGone,
            };
            hold.lose(why);
        }))
    }
}

async fn until_gone(session: &ZooSession, path: &str) -> Why {
    loop {
        match session.watch(path).await {
            // It fires for a broken connection, too.
            Ok((Some(_), changed)) => changed.await,
            Ok((None, _)) => return Why::NotOurs,
            Err(error) if error.is_final() => return Why::SessionGone,
            Err(_) => sleep(PAUSE).await,
        }
    }
}
