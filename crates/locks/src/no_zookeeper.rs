//! The used part of `zookeeper_client`, for builds without the feature `zookeeper`: connecting is
//! an error.

use std::{fmt, future, time::Duration};

#[derive(Debug, Clone, thiserror::Error)]
#[error("this program was built without ZooKeeper's client (cargo build --features zookeeper)")]
pub struct NotBuilt;

#[derive(Debug, Clone, thiserror::Error)]
#[error("{self:?}")]
pub enum Error {
    NoHosts,
    Timeout,
    BadArguments(&'static &'static str),
    NoNode,
    NoAuth,
    NodeExists,
    SessionExpired,
    AuthFailed,
    ConnectionLoss,
    ClientClosed,
    Custom(NotBuilt),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    SyncConnected,
    ConnectedReadOnly,
    Closed,
}

impl SessionState {
    pub const fn is_terminated(self) -> bool {
        matches!(self, Self::Closed)
    }
}

pub enum EventType {
    NodeDeleted,
    Session,
    Other,
}

pub struct WatchedEvent {
    pub event_type: EventType,
}

#[derive(Debug, Clone, Copy)]
pub struct Stat {
    pub czxid: i64,
}

pub struct Acls;

impl Acls {
    pub const fn anyone_all() -> Self {
        Self
    }
}

pub struct CreateOptions;

pub enum CreateMode {
    Persistent,
    Container,
    EphemeralSequential,
}

impl CreateMode {
    pub fn with_acls(self, _: Acls) -> CreateOptions {
        CreateOptions
    }
}

pub struct Connector;

impl Connector {
    pub fn with_session_timeout(self, _: Duration) -> Self {
        self
    }

    pub async fn connect(self, _: &str) -> Result<Client, Error> {
        Err(Error::Custom(NotBuilt))
    }
}

#[derive(Debug, Clone)]
pub struct Client(());
pub struct OneshotWatcher(());
pub struct StateWatcher(());
pub struct CreateSequence(());

impl fmt::Display for CreateSequence {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl OneshotWatcher {
    pub async fn changed(self) -> WatchedEvent {
        future::pending().await
    }
}

impl StateWatcher {
    pub async fn changed(&mut self) -> SessionState {
        future::pending().await
    }
}

impl Client {
    pub const fn connector() -> Connector {
        Connector
    }

    pub async fn connect(cluster: &str) -> Result<Self, Error> {
        Self::connector().connect(cluster).await
    }

    pub fn state(&self) -> SessionState {
        SessionState::Closed
    }

    pub fn state_watcher(&self) -> StateWatcher {
        StateWatcher(())
    }

    pub fn session_timeout(&self) -> Duration {
        Duration::ZERO
    }

    pub async fn create(
        &self,
        _: &str,
        _: &[u8],
        _: &CreateOptions,
    ) -> Result<(Stat, CreateSequence), Error> {
        Err(Error::ClientClosed)
    }

    pub async fn delete(&self, _: &str, _: Option<i32>) -> Result<(), Error> {
        Err(Error::ClientClosed)
    }

    pub async fn list_children(&self, _: &str) -> Result<Vec<String>, Error> {
        Err(Error::ClientClosed)
    }

    pub async fn sync(&self, _: &str) -> Result<(), Error> {
        Err(Error::ClientClosed)
    }

    pub async fn get_data(&self, _: &str) -> Result<(Vec<u8>, Stat), Error> {
        Err(Error::ClientClosed)
    }

    pub async fn check_and_watch_stat(
        &self,
        _: &str,
    ) -> Result<(Option<Stat>, OneshotWatcher), Error> {
        Err(Error::ClientClosed)
    }
}
