//! One client's session with ZooKeeper. Only this file knows the client library: without the
//! feature `zookeeper` connecting is an error, so that nothing else is ever called.
#![cfg_attr(not(feature = "zookeeper"), allow(unused))]

use super::tap::{Tap, Tapped};
use crate::asking::Asking;
use futures_util::{FutureExt, future::BoxFuture};
use std::{io, sync::Arc, time::Duration};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};
#[cfg(feature = "zookeeper")]
use zookeeper_client::SessionState::{ConnectedReadOnly, SyncConnected};
#[cfg(feature = "zookeeper")]
use zookeeper_client::{Acls, Client, CreateMode, Error};

/// Without the client there is none.
#[cfg(not(feature = "zookeeper"))]
#[derive(Clone)]
pub enum Client {}

/// A request, or, in a program that has no client, nothing: there can be no session.
macro_rules! of {
    ($client:expr, $request:expr) => {{
        #[cfg(feature = "zookeeper")]
        {
            $request
        }
        #[cfg(not(feature = "zookeeper"))]
        match $client {}
    }};
}

/// Failures, by what helps against them.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ZooError {
    #[error("node not exists")]
    NoNode,
    /// The request may have been executed.
    #[error("{0}")]
    InDoubt(String),
    /// It was not, and another time it may be.
    #[error("{0}")]
    Away(String),
    /// The session has ended, and its nodes with it.
    #[error("{0}")]
    SessionOver(String),
    /// The server refuses for ever.
    #[error("{0}")]
    Refused(String),
}

impl ZooError {
    /// Whether another attempt may help: with a new session, or after our node was removed, too.
    pub fn is_unreachable(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }

    /// Whether a retry in this session cannot help.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::SessionOver(_) | Self::Refused(_))
    }
}

impl From<io::Error> for ZooError {
    fn from(error: io::Error) -> Self {
        Self::InDoubt(error.to_string())
    }
}

#[cfg(feature = "zookeeper")]
impl From<Error> for ZooError {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::NoNode => Self::NoNode,
            // The library reports `ConnectionLoss` for requests it gives up; resets, failed writes
            // and silent servers come as `Custom`.
            Error::ConnectionLoss
            | Error::Custom(_)
            | Error::UnexpectedError(_)
            | Error::UnmarshalError { .. } => Self::InDoubt(text),
            Error::Timeout
            | Error::NoHosts
            | Error::Throttled
            | Error::SessionMoved
            | Error::UnexpectedErrorCode(_) => Self::Away(text),
            Error::SessionExpired | Error::ClientClosed => Self::SessionOver(text),
            _ => Self::Refused(text),
        }
    }
}

/// One client's way to ZooKeeper. Clones share its session.
pub type Zoo = Tapped<Arc<Way>>;

pub struct Way {
    cluster: String,
    timeout: Duration,
    client: Mutex<Option<Client>>,
}

impl Zoo {
    /// `cluster` like `127.0.0.1:2181,…`. Connects on first use, and again after the session's end.
    pub fn new(cluster: &str, timeout: Duration) -> Self {
        let way = Way { cluster: cluster.to_owned(), timeout, client: Mutex::default() };
        Self::around(Arc::new(way), |trips| &mut trips.zookeeper, "zookeeper")
    }

    /// The current session, or a new one.
    pub async fn session(&self, deadline: Instant) -> Result<ZooSession, ZooError> {
        let Way { cluster, timeout, client } = &*self.connection;
        let mut current = client.lock().await;
        if let Some(session) = self.living(&current) {
            return Ok(session);
        }
        // A caller that does not wait still gets one real attempt.
        let connect_by = deadline.max(Instant::now() + *timeout);
        let timed_out = |_| ZooError::Away("timeout".to_owned());
        let connecting = timeout_at(connect_by, connect(cluster, *timeout)).await;
        let client = current.insert(connecting.map_err(timed_out)??);
        Ok(Tapped { connection: client.clone(), tap: self.tap.clone() })
    }

    /// The session, if there is one that has not ended.
    pub(crate) async fn current(&self) -> Option<ZooSession> {
        self.living(&*self.connection.client.lock().await)
    }

    fn living(&self, client: &Option<Client>) -> Option<ZooSession> {
        let session = Tapped { connection: client.clone()?, tap: self.tap.clone() };
        Some(session).filter(|session| !session.is_over())
    }

    /// Ends the session, and with it its nodes.
    pub async fn close(&self) {
        *self.connection.client.lock().await = None;
    }
}

async fn connect(cluster: &str, timeout: Duration) -> Result<Client, ZooError> {
    #[cfg(feature = "zookeeper")]
    return Ok(Client::connector().with_session_timeout(timeout).connect(cluster).await?);
    #[cfg(not(feature = "zookeeper"))]
    Err(ZooError::Refused(
        "this program was built without ZooKeeper's client (cargo build --features zookeeper)"
            .to_owned(),
    ))
}

/// A session. Its requests are sent when they are first polled: a watcher may delay them.
pub type ZooSession = Tapped<Client>;

/// Ends once its node changes or the session ends.
pub type ZooWatch = BoxFuture<'static, ()>;

impl ZooSession {
    /// The same, neither counted nor watched.
    pub fn unwatched(&self) -> Self {
        Self::around(self.connection.clone(), |trips| &mut trips.zookeeper, "zookeeper")
    }

    pub(crate) fn id(&self) -> i64 {
        of!(self.connection, self.connection.session_id().0)
    }

    pub fn is_over(&self) -> bool {
        of!(self.connection, self.connection.state().is_terminated())
    }

    pub(crate) fn is_connected(&self) -> bool {
        of!(self.connection, matches!(self.connection.state(), SyncConnected | ConnectedReadOnly))
    }

    /// Waits until nobody can be sure any more that the session lives.
    ///
    /// The server counts the session's end from the last request that reached it. The client
    /// notices silence after two fifths of the timeout, and its last answer may have been on its
    /// way as long; an eighth is safely left then. A connection that is back by then costs nothing.
    pub(crate) async fn is_in_danger(&self) {
        of!(self.connection, {
            let mut states = self.connection.state_watcher();
            let grace = self.connection.session_timeout() / 8;
            while !self.is_over() {
                let longest = if self.is_connected() { Duration::MAX } else { grace };
                if timeout(longest, states.changed()).await.is_err() {
                    return;
                }
            }
        });
    }

    /// Makes the folders of a lock. Making them twice is harmless.
    pub async fn make_folders(&self, folder: &str) -> Result<(), ZooError> {
        of!(self.connection, {
            let options = CreateMode::Container.with_acls(Acls::anyone_all());
            Ok(self.connection.mkdir(folder, &options).await?)
        })
    }
}

macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident($path:ident: $text:literal, $show:expr) -> $answer:ty
        = |$client:ident| $request:expr;)*) => {
        impl ZooSession {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(&self, $path: &str) -> impl Asking<$answer, ZooError> {
                let $client = &self.connection;
                let request = async move { of!(*$client, $request) };
                Tap::pass(&self.tap, move || format!($text), $show, request)
            })*
        }
    };
}

requests! {
    /// Makes a node that ends with this session; answers its path, with the number that the server
    /// appends.
    create_ephemeral(prefix: "create -e -s {prefix}", String::clone) -> String = |client| {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (_, number) = client.create(prefix, b"", &options).await?;
        Ok(format!("{prefix}{number}"))
    };
    delete(path: "delete {path}", |()| "deleted".to_owned()) -> ()
        = |client| Ok(client.delete(path, None).await?);
    /// The names of the nodes in a folder.
    children(path: "ls {path}", |children: &Vec<String>| children.join(" ")) -> Vec<String>
        = |client| Ok(client.list_children(path).await?);
    /// Lets the server catch up with its leader.
    sync(path: "sync {path}", |()| "synced".to_owned()) -> ()
        = |client| Ok(client.sync(path).await?);
    /// The number of the transaction that made a node, if it is there.
    stat(path: "stat {path}", |czxid| shown(*czxid)) -> Option<u64>
        = |client| Ok(client.check_stat(path).await?.map(|stat| stat.czxid.unsigned_abs()));
    /// The same, and a watch on it.
    watch(path: "stat -w {path}", |(czxid, _)| shown(*czxid)) -> (Option<u64>, ZooWatch)
        = |client| {
            let (stat, watch) = client.check_and_watch_stat(path).await?;
            let changed = watch.changed().map(drop).boxed();
            Ok((stat.map(|stat| stat.czxid.unsigned_abs()), changed))
        };
}

fn shown(czxid: Option<u64>) -> String {
    czxid.map_or("no node".to_owned(), |czxid| format!("czxid {czxid:#x}"))
}
