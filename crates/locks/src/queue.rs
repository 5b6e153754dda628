//! A place in the queue of a [`ZooKeeperLock`](super::ZooKeeperLock), within a session.

use super::prelude::*;
use super::wire::{ZooError, ZooSession};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};
use tokio::time::{sleep, timeout_at};

/// Above the folders of all locks.
pub const ROOT: &str = "/locks";
pub const PAUSE: Duration = Duration::from_millis(10);

/// What an acquisition knows of its node.
#[derive(Default)]
pub struct Own {
    /// How often it was created: twice, after a lost reply, and there may be two of it.
    pub creates: AtomicU32,
    /// The session of the last one.
    session: AtomicI64,
    /// The node that has the lock, and its session.
    pub turn: OnceLock<(ZooSession, String)>,
}

/// See the head of this file.
pub struct Place<'a> {
    session: &'a ZooSession,
    folder: String,
    /// What the name of the node begins with.
    name: String,
}

impl<'a> Place<'a> {
    pub fn new(session: &'a ZooSession, claim: &Claim<Arc<Own>>) -> Self {
        let folder = format!("{ROOT}/{}", claim.name.replace('/', "_"));
        Self { session, folder, name: format!("_c_{}-lock-", claim.token) }
    }

    fn path(&self, child: &str) -> String {
        format!("{}/{child}", self.folder)
    }

    /// Makes our node, or finds the one of an earlier attempt in this session. That of another
    /// session goes when that one ends, whoever holds the lock then.
    pub async fn enter(&self, own: &Own) -> Result<(), ZooError> {
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
                Err(ZooError::NoNode) => self.session.make_folders(&self.folder).await?,
                created => return created.map(drop),
            }
        }
    }

    /// Our node. Asked for when in doubt, so it syncs first: an old list would not do.
    async fn find(&self) -> Result<Option<String>, ZooError> {
        self.session.sync(&self.folder).await?;
        let mut children = match self.session.children(&self.folder).await {
            Err(ZooError::NoNode) => return Ok(None),
            children => children?.into_iter(),
        };
        trace!(name = &*self.name, "our own?");
        //= CURE found by its GUID: a create whose reply was lost leaves no orphan
        let ours = children.find(|child| child.starts_with(&self.name));
        Ok(ours.map(|child| self.path(&child)))
    }

    /// Waits for our turn, or the deadline: answers the node and its number. Of two nodes of ours
    /// it is the one with the turn.
    pub async fn queue(&self, deadline: Instant) -> Result<Option<(String, u64)>, ZooError> {
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
                let czxid = self.session.stat(&path).await?.ok_or(ZooError::NoNode)?;
                return Ok(Some((path, czxid)));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            let before = self.path(&queue[turn - 1].1);
            //= CURE each watches its predecessor only: a release wakes one, not the herd
            if let (Some(_), changed) = self.session.watch(&before).await? {
                let _ = timeout_at(deadline, changed).await;
            }
            // The predecessor has gone, which need not make us first.
        }
    }

    /// Removes all our nodes; gives up only when the session has ended, which removes them too.
    /// Answers whether there was one.
    pub async fn leave(&self) -> Result<bool, ZooError> {
        let mut any = false;
        loop {
            let removed = match self.find().await {
                Ok(None) => return Ok(any),
                Ok(Some(path)) => self.session.delete(&path).await,
                Err(error) => Err(error),
            };
            match removed {
                Ok(()) => any = true,
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
