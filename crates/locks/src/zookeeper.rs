//! A queue of ephemeral nodes: the first holds the lock, each other watches its predecessor.
//!
//! Source: ZooKeeper's recipe for locks, with Curator's protection (a GUID in the name); named as
//! the first of 《分布式锁的三种实现》.
//!
//! ```text
//! /locks/NAME/                              a container: goes when it is empty
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

use crate::{
    driver::Held,
    hold::{Hold, Why},
    prelude::*,
    watchdog::Watchdog,
};
use std::sync::{
    Mutex, OnceLock, PoisonError,
    atomic::{AtomicI64, AtomicU32, Ordering::Relaxed},
};
use tokio::time::{sleep, timeout_at};

pub use super::wire::{Zoo, ZooError, ZooSession, ZooWatch};

/// Above the folders of all locks.
pub const ROOT: &str = "/locks";
const PAUSE: Duration = Duration::from_millis(20);

/// See the head of this file.
#[derive(Clone)]
pub struct ZooKeeperLock {
    zoo: Zoo,
}

/// A held [`ZooKeeperLock`]. Dropping it removes its node in the background, since the session
/// lives on.
pub type ZooKeeperGuard = Held<ZooKeeperLock>;

impl ZooKeeperGuard {
    /// The holder's node.
    pub fn path(&self) -> &str {
        self.undo.claim.own.turn.get().map_or("", |turn| &turn.path)
    }
}

/// What an acquisition knows of its node.
#[derive(Default)]
pub struct Own {
    /// How often it was created: twice, after a lost reply, and there may be two of it.
    creates: AtomicU32,
    /// The session of the last one.
    session: AtomicI64,
    turn: OnceLock<Turn>,
}

struct Turn {
    session: ZooSession,
    path: String,
    gone: Mutex<Option<ZooWatch>>,
}

impl ZooKeeperLock {
    pub fn new(zoo: Zoo) -> Self {
        Self { zoo }
    }
}

impl Protocol for ZooKeeperLock {
    type Own = Arc<Own>;
    const PAUSE: Duration = PAUSE;
    const RELEASES: u32 = 1;
    const ENDS_WITH_GUARD: bool = true;

    async fn attempt(&self, claim: &Claim<Arc<Own>>, deadline: Instant) -> Answer<Attempt> {
        let session = self.zoo.session(deadline).await?;
        let place = Place::new(&session, claim);
        place.enter(&claim.own).await?;
        let Some((path, czxid, gone)) = place.queue(deadline).await? else {
            place.leave().await?;
            return Ok(Attempt::Taken { remaining: None });
        };
        if !session.is_connected() {
            return Err(ZooError::InDoubt("the connection is gone".to_owned()).into());
        }
        let _first = claim.own.turn.set(Turn { session, path, gone: Mutex::new(Some(gone)) });
        //= CURE the czxid of the holder's node grows from holder to holder: a fencing token
        Ok(Attempt::Ours { fencing: Some(czxid), earlier: false })
    }

    async fn release(&self, claim: &Claim<Arc<Own>>, ending: Ending<'_>) -> Answer<Released> {
        let Some(Turn { session, path, .. }) = claim.own.turn.get() else {
            return Ok(Released::NotHeld);
        };
        let place = Place::new(session, claim);
        let was_sure = !ending.hold.is_lost();
        let removed = match session.delete(path).await {
            Ok(()) if claim.own.creates.load(Relaxed) > 1 => place.leave().await.map(|_| true),
            Ok(()) => Ok(true),
            Err(ZooError::NoNode) => Ok(false),
            Err(error) if error.is_final() => Err(error),
            // The reply was lost: the node may still exist.
            Err(error) => {
                let in_doubt = was_sure && matches!(error, ZooError::InDoubt(_));
                place.leave().await.map(|removed| removed || in_doubt)
            }
        };
        match removed {
            // The end of the session removes the node.
            Err(ZooError::SessionOver(_)) => Ok(Released::NotHeld),
            removed => Ok(Released::freed(removed?)),
        }
    }

    async fn undo(&self, claim: &Claim<Arc<Own>>) {
        if claim.own.creates.load(Relaxed) == 0 {
            return;
        }
        if let Some(session) = self.zoo.current().await {
            let _ = Place::new(&session, claim).leave().await;
        }
    }

    /// Tells the holder that it can no longer be sure.
    fn keep(&self, claim: &Claim<Arc<Own>>, hold: &Hold) -> Option<Watchdog> {
        let turn = claim.own.turn.get()?;
        let gone = turn.gone.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let (session, path, hold) = (turn.session.unwatched(), turn.path.clone(), hold.clone());
        Some(Watchdog::start(async move {
            let why = tokio::select! {
                why = until_gone(&session, &path, gone) => why,
                () = session.is_in_danger() => Why::SessionGone,
            };
            hold.lose(why);
        }))
    }
}

async fn until_gone(session: &ZooSession, path: &str, mut gone: ZooWatch) -> Why {
    while !gone.removed().await {
        // It was written to, which nobody does, or the connection broke.
        gone = loop {
            match session.watch(path).await {
                Ok((Some(_), again)) => break again,
                Ok((None, _)) => return Why::NotOurs,
                Err(error) if error.is_final() => return Why::SessionGone,
                Err(_) => sleep(PAUSE).await,
            }
        };
    }
    Why::NotOurs
}

/// A place in a queue, within a session.
struct Place<'a> {
    session: &'a ZooSession,
    folder: String,
    /// What the name of the node begins with.
    name: String,
}

impl<'a> Place<'a> {
    fn new(session: &'a ZooSession, claim: &Claim<Arc<Own>>) -> Self {
        let folder = format!("{ROOT}/{}", claim.name.replace('/', "_"));
        Self { session, folder, name: format!("_c_{}-lock-", claim.token) }
    }

    fn path(&self, child: &str) -> String {
        format!("{}/{child}", self.folder)
    }

    /// Makes our node, or finds the one of an earlier attempt in this session. That of another
    /// session goes when that one ends, whoever holds the lock then.
    async fn enter(&self, own: &Own) -> Result<(), ZooError> {
        let session = self.session.id();
        if own.creates.load(Relaxed) > 0 {
            if own.session.load(Relaxed) != session {
                self.leave().await?;
            } else if self.find().await?.is_some() {
                return Ok(());
            }
        }
        own.session.store(session, Relaxed);
        own.creates.fetch_add(1, Relaxed);
        let prefix = self.path(&self.name);
        loop {
            //= CURE ephemeral: the node goes with its holder's session
            match self.session.create_ephemeral(&prefix).await {
                Err(ZooError::NoNode) => self.session.make_folders(ROOT, &self.folder).await?,
                created => return created.map(drop),
            }
        }
    }

    /// Our node. Asked for when in doubt, so it syncs first: an old list would not do.
    async fn find(&self) -> Result<Option<String>, ZooError> {
        self.session.sync(&self.folder).await?;
        //= CURE found by its GUID: a create whose reply was lost leaves no orphan
        let mut children = match self.session.children(&self.folder).await {
            Err(ZooError::NoNode) => return Ok(None),
            children => children?.into_iter(),
        };
        let ours = children.find(|child| child.starts_with(&self.name));
        Ok(ours.map(|child| self.path(&child)))
    }

    /// Waits for our turn, or the deadline: answers the node, its number, and a watch that fires if
    /// somebody removes it. Of two nodes of ours it is the one with the turn.
    async fn queue(&self, deadline: Instant) -> Result<Option<(String, u64, ZooWatch)>, ZooError> {
        // The number that the server appended; other names are not in the queue.
        let number = |child: &str| child.rsplit_once("lock-")?.1.parse::<i64>().ok();
        loop {
            let children = self.session.children(&self.folder).await?.into_iter();
            let mut queue: Vec<(i64, String)> =
                children.filter_map(|child| Some((number(&child)?, child))).collect();
            queue.sort_unstable();
            // Without ours it was removed, or the session is over.
            let ours = queue.iter().position(|(_, child)| child.starts_with(&self.name));
            let turn = ours.ok_or(ZooError::NoNode)?;
            if turn == 0 {
                let path = self.path(&queue[0].1);
                let (czxid, gone) = self.session.watch(&path).await?;
                return Ok(Some((path, czxid.ok_or(ZooError::NoNode)?, gone)));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            let before = self.path(&queue[turn - 1].1);
            //= CURE each watches its predecessor only: a release wakes one, not the herd
            if let (Some(_), changed) = self.session.watch(&before).await? {
                let _ = timeout_at(deadline, changed.removed()).await;
            }
            // The predecessor has gone, which need not make us first.
        }
    }

    /// Removes all our nodes; gives up only when the session has ended, which removes them too.
    /// Answers whether there was one.
    async fn leave(&self) -> Result<bool, ZooError> {
        let mut any = false;
        loop {
            let removing = async {
                match self.find().await? {
                    None => Ok(false),
                    Some(path) => self.session.delete(&path).await.map(|()| true),
                }
            };
            match removing.await {
                Ok(true) => any = true,
                Ok(false) => return Ok(any),
                Err(ZooError::NoNode) => {}
                Err(error) if error.is_final() => return Err(error),
                Err(error) if self.session.is_over() => {
                    return Err(ZooError::SessionOver(error.to_string()));
                }
                // Transient: in doubt, throttled, moved.
                Err(_) => sleep(PAUSE).await,
            }
        }
    }
}
