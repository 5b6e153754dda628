//! The used part of `zookeeper_client`, for builds without the feature `zookeeper`: connecting is
//! an error, so nothing else can be called.

use std::{convert::Infallible, fmt, future, time::Duration};

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
}

impl SessionState {
    pub const fn is_terminated(self) -> bool {
        false
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
pub struct CreateOptions;
pub struct Connector;
#[derive(Debug, Clone)]
pub struct Client(Infallible);
pub struct OneshotWatcher(Infallible);
pub struct StateWatcher(Infallible);
pub struct CreateSequence(Infallible);

pub enum CreateMode {
    Persistent,
    Container,
    EphemeralSequential,
}

impl Acls {
    pub const fn anyone_all() -> Self {
        Self
    }
}

impl CreateMode {
    pub fn with_acls(self, _: Acls) -> CreateOptions {
        CreateOptions
    }
}

impl Connector {
    pub fn with_session_timeout(self, _: Duration) -> Self {
        self
    }

    pub fn connect(self, _: &str) -> impl Future<Output = Result<Client, Error>> {
        future::ready(Err(Error::Custom(NotBuilt)))
    }
}

impl fmt::Display for CreateSequence {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {}
    }
}

macro_rules! never {
    ($($of:ident {
        $(fn $name:ident -> $answer:ty;)*
        $(async $request:ident($($with:ty),*) -> $result:ty;)*
    })*) => {$(
        impl $of {
            $(pub fn $name(&self) -> $answer { match self.0 {} })*
            $(pub async fn $request(&self, $(_: $with),*) -> $result { match self.0 {} })*
        }
    )*};
}

never! {
    OneshotWatcher { async changed() -> WatchedEvent; }
    Client {
        fn state -> SessionState;
        fn state_watcher -> StateWatcher;
        fn session_timeout -> Duration;
        async create(&str, &[u8], &CreateOptions) -> Result<(Stat, CreateSequence), Error>;
        async delete(&str, Option<i32>) -> Result<(), Error>;
        async list_children(&str) -> Result<Vec<String>, Error>;
        async sync(&str) -> Result<(), Error>;
        async get_data(&str) -> Result<(Vec<u8>, Stat), Error>;
        async check_and_watch_stat(&str) -> Result<(Option<Stat>, OneshotWatcher), Error>;
    }
}

impl StateWatcher {
    pub async fn changed(&mut self) -> SessionState {
        match self.0 {}
    }
}

impl Client {
    pub const fn connector() -> Connector {
        Connector
    }

    pub async fn connect(cluster: &str) -> Result<Self, Error> {
        Self::connector().connect(cluster).await
    }
}
