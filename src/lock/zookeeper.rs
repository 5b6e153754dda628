//! A queue of ephemeral nodes: the first has the lock, each other watches the one before it.
//!
//! Source: ZooKeeper's recipe for locks, with Curator's protection (a GUID in the name); named as the first of
//! 《分布式锁的三种实现》.
//!
//! ```text
//! /locks/NAME/                              a container: goes when it is empty
//!   _c_GUID-lock-0000000007                 ephemeral: goes with its session; the lowest number holds
//!   _c_GUID-lock-0000000008                 watches ...07, and nobody else: no herd
//! ```
//!
//! What happens on a crash: of the holder: its session ends after its timeout, its node goes, the next one's
//! watch fires. Of the client while its create is on the way: the node may be there without its maker
//! knowing its number; it is looked for by its GUID, and removed should the acquire be given up. Of a
//! minority of the servers: sessions move to another one.
//!
//! What it does not give: a holder that stands still for longer than its session has company. The node's
//! `czxid`, the number of the transaction that made it, grows from holder to holder and is the fencing
//! token. A client counts its own session as over later than the servers do: so it must not wait for
//! that, and is told as soon as the connection has been gone for longer than is safe.

use super::{
    Acquired, Guard, Hold, Lock, LockError, Lost, Patience, Released, Undo, Why,
    wire::{Meter, Server, Tap, Watcher},
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
use zookeeper_client::{
    Acls, Client, CreateMode, Error, EventType, OneshotWatcher, SessionState, Stat,
};

const ROOT: &str = "/locks";
const PAUSE: Duration = Duration::from_millis(20);

/// Whether nobody knows if the request was executed. The client library has `ConnectionLoss` for requests that
/// it gives up itself; a reset, a failed write and a silent server come as `Custom`.
pub(super) fn in_doubt(error: &Error) -> bool {
    matches!(error, Error::ConnectionLoss | Error::Custom(_))
}

/// Whether asking again in this session cannot help: it is over, and its nodes are gone or will be, or the
/// server will refuse for ever.
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
    /// `cluster` as ZooKeeper writes it: `127.0.0.1:2181,…`. Connects when it is first used, and anew when
    /// the session is over.
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

    /// Says whose it is, in the eyes of a watcher.
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

    /// The same with a session of its own, as another process would have.
    pub fn another_session(&self) -> Self {
        let mut another = Self::new(&self.session.cluster, self.session.timeout);
        another.tap = self.tap.clone();
        another
    }

    /// The session as it is; a new one if there is none (any more).
    async fn client(&self, deadline: Instant) -> Result<Client, Error> {
        let mut current = self.session.client.lock().await;
        if let Some(client) = current
            .as_ref()
            .filter(|client| !client.state().is_terminated())
        {
            return Ok(client.clone());
        }
        let connecting = Client::connector()
            .with_session_timeout(self.session.timeout)
            .connect(&self.session.cluster);
        // At least one real chance, also for who does not want to wait.
        let patience = deadline.max(Instant::now() + self.session.timeout);
        let client = timeout_at(patience, connecting)
            .await
            .map_err(|_| Error::Timeout)??;
        *current = Some(client.clone());
        Ok(client)
    }

    /// Ends the session, so that its nodes go at once.
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
        // Lazily: the library sends when it is called, and a watcher may want to hold that back.
        let request = async move { client.delete(path, None).await };
        async move {
            self.tap
                .pass(at, text, |()| "deleted".to_owned(), request)
                .await
        }
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

    /// Lets the server that this session talks to catch up with the leader: a node made through another
    /// server need not be in its listing otherwise.
    #[track_caller]
    fn sync<'a>(
        &'a self,
        client: &'a Client,
        path: &'a str,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'a {
        let at = Location::caller();
        let text = move || (format!("sync {path}"), None);
        let request = async move { client.sync(path).await };
        async move {
            self.tap
                .pass(at, text, |()| "synced".to_owned(), request)
                .await
        }
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

    /// Makes the folders of a lock. Happens once in its life.
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
    /// A create was sent twice, so that two nodes may bear the GUID.
    maybe_two: AtomicBool,
}

impl Place {
    fn prefix(&self) -> String {
        format!("{}/_c_{}-lock-", self.parent, self.guid)
    }

    fn is_ours(&self, child: &str) -> bool {
        child
            .strip_prefix("_c_")
            .is_some_and(|rest| rest.starts_with(&self.guid))
    }
}

/// The number that the server has put behind the name. Names of other shapes are not in the queue.
fn number(child: &str) -> Option<i64> {
    child.rsplit_once("lock-")?.1.parse().ok()
}

impl ZooKeeperLock {
    pub fn new(zoo: Zoo) -> Self {
        Self { zoo }
    }

    /// Makes our node, or finds it again: after a lost reply it may be there already.
    async fn enter(&self, place: &Place, patience: &Patience) -> Result<(), Error> {
        let mut doubted = false;
        loop {
            let entered = async {
                if doubted {
                    if self.find(place).await?.is_some() {
                        return Ok(());
                    }
                    place.maybe_two.store(true, Relaxed);
                }
                let made = self
                    .zoo
                    .create_in_line(&place.client, &place.prefix())
                    .await;
                match made {
                    // Made twice is made once: asked for again, it is there already.
                    Err(Error::NoNode) => {
                        self.zoo.make_parent(&place.client, &place.parent).await?;
                        Err(Error::NoNode)
                    }
                    other => other.map(drop),
                }
            };
            match entered.await {
                Err(Error::NoNode) => {}
                Err(error) if in_doubt(&error) && patience.sleeps(PAUSE).await => doubted = true,
                other => return other,
            }
        }
    }

    /// A node of ours. Only asked for when in doubt, so the listing must not be an old one.
    async fn find(&self, place: &Place) -> Result<Option<String>, Error> {
        self.zoo.sync(&place.client, &place.parent).await?;
        let children = match self.zoo.children(&place.client, &place.parent).await {
            Err(Error::NoNode) => return Ok(None),
            other => other?,
        };
        let ours = children.into_iter().find(|child| place.is_ours(child));
        Ok(ours.map(|child| format!("{}/{child}", place.parent)))
    }

    /// Stands in the queue until it is our turn, or the time is over. The node that has its turn is the one
    /// to be watched, numbered and given back, should there be two of ours.
    async fn queue(
        &self,
        place: &Place,
        patience: &Patience,
    ) -> Result<Option<(String, u64, OneshotWatcher)>, Error> {
        loop {
            let children = self.zoo.children(&place.client, &place.parent).await?;
            let mut queue: Vec<(i64, String)> = children
                .into_iter()
                .filter_map(|child| Some((number(&child)?, child)))
                .collect();
            queue.sort_unstable();
            let Some(turn) = queue.iter().position(|(_, child)| place.is_ours(child)) else {
                // Somebody has removed it, or the session is over.
                return Err(Error::NoNode);
            };
            if turn == 0 {
                // The watch tells, later, if somebody removes the node of the holder.
                let path = format!("{}/{}", place.parent, queue[turn].1);
                return match self.zoo.watch(&place.client, &path).await? {
                    (Some(stat), gone) => {
                        let number = u64::try_from(stat.czxid).unwrap_or(0);
                        Ok(Some((path, number, gone)))
                    }
                    (None, _) => Err(Error::NoNode),
                };
            }
            if patience.is_over() {
                return Ok(None);
            }
            let before = format!("{}/{}", place.parent, queue[turn - 1].1);
            if let (Some(_), changed) = self.zoo.watch(&place.client, &before).await? {
                tokio::select! {
                    _ = changed.changed() => {}
                    () = sleep_until(patience.deadline()) => {}
                }
            }
            // It has gone, which need not mean that it is our turn: look again.
        }
    }

    /// Removes our nodes until there is none, and only gives up when their session has ended, which removes
    /// them too. Whether there was one.
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
                // In doubt, throttled, moved: all of that passes.
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
        let patience = Patience::new(wait, PAUSE);
        let parent = format!("{ROOT}/{}", name.replace('/', "_"));
        loop {
            let place = Arc::new(Place {
                client: self.zoo.client(patience.deadline()).await?,
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
                self.enter(&place, &patience).await?;
                self.queue(&place, &patience).await
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
                // The session ended while we stood in the queue, and our place with it.
                Err(Error::SessionExpired | Error::ClientClosed | Error::NoNode)
                    if !patience.is_over() => {}
                Err(error) if in_doubt(&error) => {
                    if !patience.sleeps(PAUSE).await {
                        return Err(error.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A held [`ZooKeeperLock`]. Dropping it removes its node in the background: its session lives on, and would
/// keep it for ever.
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
        Self {
            zoo,
            place,
            path,
            fencing,
            hold,
            sentry: sentry.abort_handle(),
            released: false,
        }
    }

    /// The holder's node.
    pub fn path(&self) -> &str {
        &self.path
    }
}

fn is_connected(state: SessionState) -> bool {
    matches!(
        state,
        SessionState::SyncConnected | SessionState::ConnectedReadOnly
    )
}

/// Tells the holder when it can no longer be sure.
///
/// The server counts a session's end from the last request that reached it; the client notices silence after
/// two fifths of the timeout, and the last answer it has may have been on its way for just as long. An
/// eighth of the timeout is what is surely left then. A connection that is back by then costs nothing.
async fn watch_over(hold: Hold, client: Client, path: String, gone: OneshotWatcher) {
    let grace = client.session_timeout() / 8;
    let mut states = client.state_watcher();
    let node_gone = async {
        let mut watcher = gone;
        loop {
            match watcher.changed().await.event_type {
                EventType::NodeDeleted => return Why::NotOurs,
                EventType::Session => return Why::SessionGone,
                // Somebody wrote into it: it is there, but its watch is used up.
                _ => {}
            }
            watcher = loop {
                match client.check_and_watch_stat(&path).await {
                    Ok((Some(_), watcher)) => break watcher,
                    Ok((None, _)) => return Why::NotOurs,
                    Err(error) if is_final(&error) => return Why::SessionGone,
                    // The state of the connection is looked after below.
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
                ZooKeeperLock::leave(&self.zoo, &self.place)
                    .await
                    .map(|_| true)
            }
            Ok(()) => Ok(true),
            Err(Error::NoNode) => Ok(false),
            Err(error) if is_final(&error) => Err(error),
            // The reply was lost: the node may be there, or not.
            Err(error) => ZooKeeperLock::leave(&self.zoo, &self.place)
                .await
                .map(|removed| removed || (was_sure && in_doubt(&error))),
        };
        // What is left undone is done by the end of the session, or has been.
        self.released = matches!(
            removed,
            Ok(_) | Err(Error::SessionExpired | Error::ClientClosed)
        );
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
