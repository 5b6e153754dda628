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

use super::{Held, Hold, Watchdog, Why, hold::later, prelude::*};
use crate::zookeeper_client::{
    Acls, Client, CreateMode, Error, EventType, OneshotWatcher, SessionState, Stat,
};
use std::sync::{
    Mutex, OnceLock, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use tokio::time::{sleep, sleep_until};

pub use super::wire::Zoo;

const ROOT: &str = "/locks";
const PAUSE: Duration = Duration::from_millis(20);

/// Whether the request may have been executed. The client library reports `ConnectionLoss` for
/// requests it gives up; resets, failed writes and silent servers come as `Custom`.
fn in_doubt(error: &Error) -> bool {
    matches!(error, Error::ConnectionLoss | Error::Custom(_))
}

/// Whether another attempt may help: with a new session, or after our node was removed, too.
pub(super) fn is_unreachable(error: &Error) -> bool {
    use Error::{ClientClosed, NoHosts, NoNode, SessionExpired, Timeout};
    in_doubt(error) || matches!(error, SessionExpired | ClientClosed | Timeout | NoHosts | NoNode)
}

/// Whether a retry in this session cannot help: it is over, or the server refuses for ever.
fn is_final(error: &Error) -> bool {
    use Error::{AuthFailed, BadArguments, ClientClosed, NoAuth, SessionExpired};
    matches!(error, SessionExpired | ClientClosed | AuthFailed | NoAuth | BadArguments(_))
}

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
        self.claim.own.get().map_or("", |turn| &turn.path)
    }
}

/// A holder's turn.
pub struct Turn {
    spot: Spot,
    path: String,
    gone: Mutex<Option<OneshotWatcher>>,
}

impl ZooKeeperLock {
    pub fn new(zoo: Zoo) -> Self {
        Self { zoo }
    }
}

impl Protocol for ZooKeeperLock {
    type Own = Arc<OnceLock<Turn>>;
    const PAUSE: Duration = PAUSE;
    const RELEASES: u32 = 1;

    /// Stays unused: each attempt has a GUID of its own, since a session may be over.
    fn token(&self) -> String {
        self.zoo.unique_token()
    }

    async fn attempt(&self, claim: &Claim<Self::Own>, deadline: Instant) -> Answer<Attempt> {
        let client = self.zoo.client(deadline).await?;
        let spot = Spot::new(self.zoo.clone(), client, &claim.name);
        let place = &spot.place;
        place.enter(deadline).await?;
        let Some((path, stat, gone)) = place.queue(deadline).await? else {
            spot.leave().await?;
            return Ok(Attempt::Taken { remaining: None });
        };
        if !is_connected(place.client.state()) {
            return Err(Error::ConnectionLoss.into());
        }
        let (czxid, gone) = (stat.czxid, Mutex::new(Some(gone)));
        let _first = claim.own.set(Turn { spot, path, gone });
        //= CURE the czxid of the holder's node grows from holder to holder: a fencing token
        Ok(Attempt::Ours { fencing: u64::try_from(czxid).ok(), earlier: false })
    }

    async fn release(&self, claim: &Claim<Self::Own>, ending: Ending<'_>) -> Answer<Released> {
        let Some(Turn { spot, path, .. }) = claim.own.get() else {
            return Ok(Released::NotHeld);
        };
        let was_sure = !ending.hold.is_lost();
        let removed = match spot.place.delete(path).await {
            Ok(()) if spot.place.maybe_two.load(Relaxed) => spot.leave().await.map(|_| true),
            Ok(()) => Ok(true),
            Err(Error::NoNode) => Ok(false),
            Err(error) if is_final(&error) => Err(error),
            // The reply was lost: the node may still exist.
            Err(error) => {
                spot.leave().await.map(|removed| removed || (was_sure && in_doubt(&error)))
            }
        };
        // The end of the session removes the rest.
        let gone = matches!(removed, Ok(_) | Err(Error::SessionExpired | Error::ClientClosed));
        spot.left.store(gone, Relaxed);
        match removed {
            Err(error) if !gone => Err(error.into()),
            removed => Ok(Released::freed(removed.unwrap_or(false))),
        }
    }

    fn keep(&self, claim: &Claim<Self::Own>, hold: &Hold) -> Option<Watchdog> {
        let turn = claim.own.get()?;
        let gone = turn.gone.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let client = turn.spot.place.client.clone();
        Some(Watchdog::start(watch_over(hold.clone(), client, turn.path.clone(), gone)))
    }
}

/// A place in the queue. Dropping it leaves the queue in the background.
struct Spot {
    place: Arc<Place>,
    left: AtomicBool,
}

impl Spot {
    fn new(zoo: Zoo, client: Client, name: &str) -> Self {
        let parent = format!("{ROOT}/{}", name.replace('/', "_"));
        let guid = uuid::Uuid::new_v4().simple().to_string();
        let place = Place { zoo, client, parent, guid, maybe_two: AtomicBool::new(false) };
        Self { place: Arc::new(place), left: AtomicBool::new(false) }
    }

    async fn leave(&self) -> Result<bool, Error> {
        let removed = self.place.leave().await?;
        self.left.store(true, Relaxed);
        Ok(removed)
    }
}

impl Drop for Spot {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::try_current();
        if let (false, Ok(runtime)) = (self.left.load(Relaxed), runtime) {
            let place = self.place.clone();
            runtime.spawn(async move { place.leave().await });
        }
    }
}

struct Place {
    zoo: Zoo,
    client: Client,
    parent: String,
    guid: String,
    /// A create was retried: two nodes may have the GUID.
    maybe_two: AtomicBool,
}

impl Place {
    fn is_ours(&self, child: &str) -> bool {
        child.strip_prefix("_c_").is_some_and(|rest| rest.starts_with(&self.guid))
    }

    async fn create(&self) -> Result<(), Error> {
        let prefix = format!("{}/_c_{}-lock-", self.parent, self.guid);
        let request = async {
            //= CURE ephemeral: the node goes with its holder's session
            let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
            let (_, number) = self.client.create(&prefix, b"", &options).await?;
            Ok(format!("{prefix}{number}"))
        };
        let text = format!("create -e -s {prefix}");
        self.zoo.ask(text, String::clone, request).await.map(drop)
    }

    async fn delete(&self, path: &str) -> Result<(), Error> {
        let request = async { self.client.delete(path, None).await };
        self.zoo.ask(format!("delete {path}"), |()| "deleted".to_owned(), request).await
    }

    async fn children(&self) -> Result<Vec<String>, Error> {
        let request = async { self.client.list_children(&self.parent).await };
        let show = |children: &Vec<String>| children.join(" ");
        self.zoo.ask(format!("ls {}", self.parent), show, request).await
    }

    async fn watch(&self, path: &str) -> Result<(Option<Stat>, OneshotWatcher), Error> {
        let request = async { self.client.check_and_watch_stat(path).await };
        let show = |(stat, _): &(Option<Stat>, _)| match stat {
            Some(stat) => format!("czxid {:#x}", stat.czxid),
            None => "no node".to_owned(),
        };
        self.zoo.ask(format!("stat -w {path}"), show, request).await
    }

    /// Makes the folders of a lock, once.
    async fn make_parent(&self) -> Result<(), Error> {
        for (path, mode) in [(ROOT, CreateMode::Persistent), (&self.parent, CreateMode::Container)]
        {
            let options = mode.with_acls(Acls::anyone_all());
            match self.client.create(path, b"", &options).await {
                Ok(_) | Err(Error::NodeExists) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes our node, or finds it after a lost reply.
    async fn enter(&self, deadline: Instant) -> Result<(), Error> {
        let mut doubted = false;
        loop {
            let entering = async {
                if doubted {
                    //= CURE found by its GUID: a create whose reply was lost leaves no orphan
                    if self.find().await?.is_some() {
                        return Ok(());
                    }
                    self.maybe_two.store(true, Relaxed);
                }
                let created = self.create().await;
                if matches!(created, Err(Error::NoNode)) {
                    // Making it twice is harmless.
                    self.make_parent().await?;
                }
                created
            };
            match entering.await {
                Err(Error::NoNode) => {}
                Err(error) if in_doubt(&error) && Instant::now() < deadline => {
                    sleep_until(deadline.min(later(PAUSE))).await;
                    doubted = true;
                }
                other => return other,
            }
        }
    }

    /// Our node. Asked for when in doubt, so it syncs first: an old list would not do.
    async fn find(&self) -> Result<Option<String>, Error> {
        let syncing = async { self.client.sync(&self.parent).await };
        let text = format!("sync {}", self.parent);
        self.zoo.ask(text, |()| "synced".to_owned(), syncing).await?;
        let children = match self.children().await {
            Err(Error::NoNode) => return Ok(None),
            other => other?,
        };
        let ours = children.into_iter().find(|child| self.is_ours(child));
        Ok(ours.map(|child| format!("{}/{child}", self.parent)))
    }

    /// Waits for our turn, or the deadline. If there are two nodes of ours, the one with the turn
    /// is watched, numbered and deleted.
    async fn queue(
        &self,
        deadline: Instant,
    ) -> Result<Option<(String, Stat, OneshotWatcher)>, Error> {
        // The number that the server appended; other names are not in the queue.
        let number = |child: &str| child.rsplit_once("lock-")?.1.parse::<i64>().ok();
        loop {
            let children = self.children().await?.into_iter();
            let mut queue: Vec<(i64, String)> =
                children.filter_map(|child| Some((number(&child)?, child))).collect();
            queue.sort_unstable();
            // Without ours it was removed, or the session is over.
            let ours = queue.iter().position(|(_, child)| self.is_ours(child));
            let turn = ours.ok_or(Error::NoNode)?;
            if turn == 0 {
                // The watch fires if somebody removes the holder's node.
                let path = format!("{}/{}", self.parent, queue[0].1);
                let (stat, gone) = self.watch(&path).await?;
                return Ok(Some((path, stat.ok_or(Error::NoNode)?, gone)));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            //= CURE each watches its predecessor only: a release wakes one, not the herd
            let before = format!("{}/{}", self.parent, queue[turn - 1].1);
            if let (Some(_), changed) = self.watch(&before).await? {
                tokio::select! {
                    _ = changed.changed() => {}
                    () = sleep_until(deadline) => {}
                }
            }
            // The predecessor has gone, which need not make us first.
        }
    }

    /// Removes all our nodes; gives up only when the session has ended, which removes them too.
    /// Answers whether there was one.
    async fn leave(&self) -> Result<bool, Error> {
        let mut any = false;
        loop {
            let removing = async {
                match self.find().await? {
                    None => Ok(None),
                    Some(path) => self.delete(&path).await.map(Some),
                }
            };
            match removing.await {
                Ok(Some(())) => any = true,
                Ok(None) => return Ok(any),
                Err(Error::NoNode) => {}
                Err(error) if is_final(&error) => return Err(error),
                Err(_) if self.client.state().is_terminated() => {
                    return Err(Error::SessionExpired);
                }
                // Transient: in doubt, throttled, moved.
                Err(_) => sleep(PAUSE).await,
            }
        }
    }
}

fn is_connected(state: SessionState) -> bool {
    matches!(state, SessionState::SyncConnected | SessionState::ConnectedReadOnly)
}

/// Marks the lock as lost when the holder can no longer be sure.
///
/// The server counts the session's end from the last request that reached it. The client notices
/// silence after two fifths of the timeout, and its last answer may have been on its way as long;
/// an eighth is safely left then. A connection that is back by then costs nothing.
async fn watch_over(hold: Hold, client: Client, path: String, gone: OneshotWatcher) {
    let grace = client.session_timeout() / 8;
    let mut states = client.state_watcher();
    let node_gone = async {
        let mut watcher = gone;
        loop {
            match watcher.changed().await.event_type {
                EventType::NodeDeleted => return Why::NotOurs,
                EventType::Session => return Why::SessionGone,
                // A write: the node exists, but the watch is used up.
                _ => {}
            }
            watcher = loop {
                match client.check_and_watch_stat(&path).await {
                    Ok((Some(_), watcher)) => break watcher,
                    Ok((None, _)) => return Why::NotOurs,
                    Err(error) if is_final(&error) => return Why::SessionGone,
                    // The connection is checked below.
                    Err(_) => sleep(PAUSE).await,
                }
            };
        }
    };
    tokio::pin!(node_gone);
    let mut state = client.state();
    loop {
        let too_long = async {
            if is_connected(state) {
                std::future::pending().await
            } else {
                sleep(grace).await;
            }
        };
        tokio::select! {
            why = &mut node_gone => return hold.lose(why),
            () = too_long => return hold.lose(Why::SessionGone),
            new = states.changed() => state = new,
        }
        if state.is_terminated() {
            return hold.lose(Why::SessionGone);
        }
    }
}
