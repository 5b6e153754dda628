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

use super::{
    Acquired, Guard, Hold, Lock, LockError, Lost, Released, Retry, Undo, Why,
    wire::{Meter, Server, Tap, Watcher},
};
use crate::zookeeper_client::{
    Acls, Client, CreateMode, Error, EventType, OneshotWatcher, SessionState, Stat,
};
use std::{
    panic::Location,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::Mutex,
    task::AbortHandle,
    time::{Instant, sleep, sleep_until, timeout_at},
};

const ROOT: &str = "/locks";
const PAUSE: Duration = Duration::from_millis(20);

/// Whether the request may have been executed. The client library reports `ConnectionLoss` for
/// requests it gives up; resets, failed writes and silent servers come as `Custom`.
pub(super) fn in_doubt(error: &Error) -> bool {
    matches!(error, Error::ConnectionLoss | Error::Custom(_))
}

/// Whether a retry in this session cannot help: it is over, or the server refuses for ever.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::SessionExpired
            | Error::ClientClosed
            | Error::AuthFailed
            | Error::NoAuth
            | Error::BadArguments(_)
    )
}

// --- the wire

/// One client's session with ZooKeeper, counted and watched. Clones share it.
#[derive(Clone)]
pub struct Zoo {
    session: Arc<Session>,
    tap: Tap,
}

struct Session {
    cluster: String,
    timeout: Duration,
    client: Mutex<Option<Client>>,
}

impl Zoo {
    /// `cluster` like `127.0.0.1:2181,…`. Connects on first use, and again after the session's end.
    pub fn new(cluster: &str, session_timeout: Duration) -> Self {
        Self {
            session: Arc::new(Session {
                cluster: cluster.to_owned(),
                timeout: session_timeout,
                client: Mutex::new(None),
            }),
            tap: Tap::new(Server::ZooKeeper),
        }
    }

    /// Names the client, for watchers.
    pub fn of(mut self, client: &str) -> Self {
        self.tap.client = client.into();
        self
    }

    pub fn watched_by(mut self, watcher: Arc<dyn Watcher>) -> Self {
        self.tap.watcher = Some(watcher);
        self
    }

    pub fn counted_by(mut self, meter: &Meter) -> Self {
        self.tap.meter = meter.clone();
        self
    }

    pub fn meter(&self) -> &Meter {
        &self.tap.meter
    }

    /// The same with its own session, like another process.
    pub fn another_session(&self) -> Self {
        let mut another = Self::new(&self.session.cluster, self.session.timeout);
        another.tap = self.tap.clone();
        another
    }

    /// The current session, or a new one.
    async fn client(&self, deadline: Instant) -> Result<Client, Error> {
        let mut current = self.session.client.lock().await;
        if let Some(client) = current.as_ref().filter(|client| !client.state().is_terminated()) {
            return Ok(client.clone());
        }
        let connecting = Client::connector()
            .with_session_timeout(self.session.timeout)
            .connect(&self.session.cluster);
        // A caller that does not wait still gets one real attempt.
        let connect_by = deadline.max(Instant::now() + self.session.timeout);
        let client = timeout_at(connect_by, connecting).await.map_err(|_| Error::Timeout)??;
        *current = Some(client.clone());
        Ok(client)
    }

    /// Ends the session, and with it its nodes.
    pub async fn close(&self) {
        *self.session.client.lock().await = None;
    }

    #[track_caller]
    fn create_in_line<'a>(
        &'a self,
        client: &'a Client,
        prefix: &'a str,
    ) -> impl Future<Output = Result<String, Error>> + Send + 'a {
        let at = Location::caller();
        let request = async move {
            let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
            let (_, number) = client.create(prefix, b"", &options).await?;
            Ok(format!("{prefix}{number}"))
        };
        let text = move || (format!("create -e -s {prefix}"), None);
        async move { self.tap.pass(at, text, String::clone, request).await }
    }

    #[track_caller]
    fn delete<'a>(
        &'a self,
        client: &'a Client,
        path: &'a str,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'a {
        let at = Location::caller();
        let text = move || (format!("delete {path}"), None);
        // Lazily: the library sends at the call, which a watcher may delay.
        let request = async move { client.delete(path, None).await };
        async move { self.tap.pass(at, text, |()| "deleted".to_owned(), request).await }
    }

    #[track_caller]
    fn children<'a>(
        &'a self,
        client: &'a Client,
        path: &'a str,
    ) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'a {
        let at = Location::caller();
        let text = move || (format!("ls {path}"), None);
        let show = |children: &Vec<String>| children.join(" ");
        let request = async move { client.list_children(path).await };
        async move { self.tap.pass(at, text, show, request).await }
    }

    /// Lets the session's server catch up with the leader, so that it lists nodes made through
    /// other servers.
    #[track_caller]
    fn sync<'a>(
        &'a self,
        client: &'a Client,
        path: &'a str,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'a {
        let at = Location::caller();
        let text = move || (format!("sync {path}"), None);
        let request = async move { client.sync(path).await };
        async move { self.tap.pass(at, text, |()| "synced".to_owned(), request).await }
    }

    #[track_caller]
    fn watch<'a>(
        &'a self,
        client: &'a Client,
        path: &'a str,
    ) -> impl Future<Output = Result<(Option<Stat>, OneshotWatcher), Error>> + Send + 'a {
        let at = Location::caller();
        let text = move || (format!("stat -w {path}"), None);
        let show = |(stat, _): &(Option<Stat>, OneshotWatcher)| match stat {
            Some(stat) => format!("czxid {:#x}", stat.czxid),
            None => "no node".to_owned(),
        };
        let request = async move { client.check_and_watch_stat(path).await };
        async move { self.tap.pass(at, text, show, request).await }
    }

    /// Makes the folders of a lock, once.
    async fn make_parent(&self, client: &Client, parent: &str) -> Result<(), Error> {
        let root = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let container = CreateMode::Container.with_acls(Acls::anyone_all());
        for (path, options) in [(ROOT, root), (parent, container)] {
            match client.create(path, b"", &options).await {
                Ok(_) | Err(Error::NodeExists) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

// --- the lock

/// See the head of this file.
#[derive(Clone)]
pub struct ZooKeeperLock {
    zoo: Zoo,
}

/// A place in the queue.
struct Place {
    client: Client,
    parent: String,
    guid: String,
    /// A create was retried: two nodes may have the GUID.
    maybe_two: AtomicBool,
}

impl Place {
    fn prefix(&self) -> String {
        format!("{}/_c_{}-lock-", self.parent, self.guid)
    }

    fn is_ours(&self, child: &str) -> bool {
        child.strip_prefix("_c_").is_some_and(|rest| rest.starts_with(&self.guid))
    }
}

/// The number that the server appended; other names are not in the queue.
fn number(child: &str) -> Option<i64> {
    child.rsplit_once("lock-")?.1.parse().ok()
}

impl ZooKeeperLock {
    pub fn new(zoo: Zoo) -> Self {
        Self { zoo }
    }

    /// Makes our node, or finds it after a lost reply.
    async fn enter(&self, place: &Place, retry: &Retry) -> Result<(), Error> {
        let mut doubted = false;
        loop {
            let entered = async {
                if doubted {
                    if self.find(place).await?.is_some() {
                        return Ok(());
                    }
                    place.maybe_two.store(true, Relaxed);
                }
                let made = self.zoo.create_in_line(&place.client, &place.prefix()).await;
                match made {
                    // Making it twice is harmless.
                    Err(Error::NoNode) => {
                        self.zoo.make_parent(&place.client, &place.parent).await?;
                        Err(Error::NoNode)
                    }
                    other => other.map(drop),
                }
            };
            match entered.await {
                Err(Error::NoNode) => {}
                Err(error) if in_doubt(&error) && retry.sleeps(PAUSE).await => doubted = true,
                other => return other,
            }
        }
    }

    /// Our node. Asked for when in doubt, so it syncs first: an old list would not do.
    async fn find(&self, place: &Place) -> Result<Option<String>, Error> {
        self.zoo.sync(&place.client, &place.parent).await?;
        let children = match self.zoo.children(&place.client, &place.parent).await {
            Err(Error::NoNode) => return Ok(None),
            other => other?,
        };
        let ours = children.into_iter().find(|child| place.is_ours(child));
        Ok(ours.map(|child| format!("{}/{child}", place.parent)))
    }

    /// Waits for our turn, or the deadline. If there are two nodes of ours, the one with the turn
    /// is watched, numbered and deleted.
    async fn queue(
        &self,
        place: &Place,
        retry: &Retry,
    ) -> Result<Option<(String, u64, OneshotWatcher)>, Error> {
        loop {
            let children = self.zoo.children(&place.client, &place.parent).await?;
            let mut queue: Vec<(i64, String)> =
                children.into_iter().filter_map(|child| Some((number(&child)?, child))).collect();
            queue.sort_unstable();
            let Some(turn) = queue.iter().position(|(_, child)| place.is_ours(child)) else {
                // It was removed, or the session is over.
                return Err(Error::NoNode);
            };
            if turn == 0 {
                // The watch fires if somebody removes the holder's node.
                let path = format!("{}/{}", place.parent, queue[turn].1);
                return match self.zoo.watch(&place.client, &path).await? {
                    (Some(stat), gone) => {
                        let number = u64::try_from(stat.czxid).unwrap_or(0);
                        Ok(Some((path, number, gone)))
                    }
                    (None, _) => Err(Error::NoNode),
                };
            }
            if retry.is_over() {
                return Ok(None);
            }
            let before = format!("{}/{}", place.parent, queue[turn - 1].1);
            if let (Some(_), changed) = self.zoo.watch(&place.client, &before).await? {
                tokio::select! {
                    _ = changed.changed() => {}
                    () = sleep_until(retry.deadline()) => {}
                }
            }
            // The predecessor has gone, which need not make us first.
        }
    }

    /// Removes all our nodes; gives up only when the session has ended, which removes them too.
    /// Answers whether there was one.
    async fn leave(zoo: &Zoo, place: &Place) -> Result<bool, Error> {
        let lock = ZooKeeperLock { zoo: zoo.clone() };
        let mut any = false;
        loop {
            let removed = async {
                let Some(path) = lock.find(place).await? else {
                    return Ok(None);
                };
                match zoo.delete(&place.client, &path).await {
                    Ok(()) => Ok(Some(true)),
                    Err(Error::NoNode) => Ok(Some(false)),
                    Err(error) => Err(error),
                }
            };
            match removed.await {
                Ok(Some(removed)) => any |= removed,
                Ok(None) => return Ok(any),
                Err(error) if is_final(&error) => return Err(error),
                Err(_) if place.client.state().is_terminated() => {
                    return Err(Error::SessionExpired);
                }
                // Transient: in doubt, throttled, moved.
                Err(_) => sleep(PAUSE).await,
            }
        }
    }
}

impl Lock for ZooKeeperLock {
    type Guard = ZooKeeperGuard;

    async fn acquire(
        &self,
        name: &str,
        wait: Duration,
    ) -> Result<Acquired<ZooKeeperGuard>, LockError> {
        let retry = Retry::new(wait, PAUSE);
        let parent = format!("{ROOT}/{}", name.replace('/', "_"));
        loop {
            let place = Arc::new(Place {
                client: self.zoo.client(retry.deadline()).await?,
                parent: parent.clone(),
                guid: uuid::Uuid::new_v4().simple().to_string(),
                maybe_two: AtomicBool::new(false),
            });
            let mut undo = Undo::with({
                let (zoo, place) = (self.zoo.clone(), place.clone());
                || async move {
                    let _ = Self::leave(&zoo, &place).await;
                }
            });
            undo.arm(true);
            let turn = async {
                self.enter(&place, &retry).await?;
                self.queue(&place, &retry).await
            };
            match turn.await {
                Ok(Some((path, fencing, gone))) => {
                    let guard = ZooKeeperGuard::new(self.zoo.clone(), place, path, fencing, gone);
                    if !guard.hold.is_lost() {
                        undo.arm(false);
                        return Ok(Acquired::Held(guard));
                    }
                }
                Ok(None) => {
                    Self::leave(&self.zoo, &place).await?;
                    undo.arm(false);
                    return Ok(Acquired::Contended { remaining: None });
                }
                // The session ended, and our place with it.
                Err(Error::SessionExpired | Error::ClientClosed | Error::NoNode)
                    if !retry.is_over() => {}
                Err(error) if in_doubt(&error) => {
                    if !retry.sleeps(PAUSE).await {
                        return Err(error.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A held [`ZooKeeperLock`]. Dropping it removes its node in the background, since the session
/// lives on.
pub struct ZooKeeperGuard {
    zoo: Zoo,
    place: Arc<Place>,
    path: String,
    fencing: u64,
    hold: Hold,
    sentry: AbortHandle,
    released: bool,
}

impl ZooKeeperGuard {
    fn new(zoo: Zoo, place: Arc<Place>, path: String, fencing: u64, gone: OneshotWatcher) -> Self {
        let hold = Hold::until(None);
        if !is_connected(place.client.state()) {
            hold.lose(Why::SessionGone);
        }
        let watching = watch_over(hold.clone(), place.client.clone(), path.clone(), gone);
        let sentry = tokio::spawn(watching);
        Self { zoo, place, path, fencing, hold, sentry: sentry.abort_handle(), released: false }
    }

    /// The holder's node.
    pub fn path(&self) -> &str {
        &self.path
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

impl Guard for ZooKeeperGuard {
    /// The `czxid` of the holder's node.
    fn fencing(&self) -> Option<u64> {
        Some(self.fencing)
    }

    fn lost(&self) -> Lost {
        self.hold.lost()
    }

    async fn release(mut self) -> Result<Released, LockError> {
        self.sentry.abort();
        let was_sure = !self.hold.is_lost();
        let first = self.zoo.delete(&self.place.client, &self.path).await;
        let removed = match first {
            Ok(()) if self.place.maybe_two.load(Relaxed) => {
                ZooKeeperLock::leave(&self.zoo, &self.place).await.map(|_| true)
            }
            Ok(()) => Ok(true),
            Err(Error::NoNode) => Ok(false),
            Err(error) if is_final(&error) => Err(error),
            // The reply was lost: the node may still exist.
            Err(error) => ZooKeeperLock::leave(&self.zoo, &self.place)
                .await
                .map(|removed| removed || (was_sure && in_doubt(&error))),
        };
        // The end of the session removes the rest.
        self.released = matches!(removed, Ok(_) | Err(Error::SessionExpired | Error::ClientClosed));
        match removed {
            Ok(true) => Ok(Released::Freed),
            Ok(false) | Err(Error::SessionExpired | Error::ClientClosed) => Ok(Released::NotHeld),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for ZooKeeperGuard {
    fn drop(&mut self) {
        self.sentry.abort();
        self.hold.lose(Why::Released);
        if self.released {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (zoo, place) = (self.zoo.clone(), self.place.clone());
            runtime.spawn(async move {
                let _ = ZooKeeperLock::leave(&zoo, &place).await;
            });
        }
    }
}
