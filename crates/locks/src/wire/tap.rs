//! Watching and counting requests.

use futures_util::future::BoxFuture;
use std::{
    collections::HashSet,
    fmt,
    panic::Location,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

// --- watching

/// A request, as it is about to be sent.
#[derive(Debug, Clone)]
pub struct Sent {
    /// Different for every request of this process.
    pub id: u64,
    /// The client, as named by `Line::of` and its likes.
    pub client: Arc<str>,
    /// The server: "redis", "redis-2", "postgres", "zookeeper".
    pub node: Arc<str>,
    /// As typed: `SET lock:phone 7f3a NX PX 200`. A script has its name instead of its hash.
    pub text: String,
    pub script: Option<&'static str>,
    /// The calling line of source.
    pub file: &'static str,
    pub line: u32,
}

/// The result of a request. Texts are as `redis-cli` shows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Answer(String),
    /// An error of the server or the network.
    Error(String),
    /// A watcher's [`Verdict::Fail`]: the server never saw it.
    NotSent,
    /// A watcher's [`Verdict::LoseReply`]: the server did it, with this reply.
    Lost(String),
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer(text) => f.write_str(text),
            Self::Error(text) => write!(f, "(error) {text}"),
            Self::NotSent => f.write_str("(not sent)"),
            Self::Lost(text) => write!(f, "(reply lost: {text})"),
        }
    }
}

/// A watcher's decision on a request.
pub enum Verdict {
    Go,
    /// Not sent; the caller gets an I/O error.
    Fail,
    /// Executed, but its reply is dropped; the caller gets an I/O error.
    LoseReply,
    /// Executed; the caller gets the reply after this future, as after a pause of its process.
    GoThenWait(BoxFuture<'static, ()>),
}

/// Observes and controls the requests of a client.
pub trait Watcher: Send + Sync + 'static {
    /// The client waits before this request until this returns.
    fn before<'a>(&'a self, sent: &'a Sent) -> BoxFuture<'a, Verdict>;

    fn after(&self, _sent: &Sent, _reply: &Reply) {}

    /// A message of a subscription arrived.
    fn heard(&self, _client: &str, _node: &str, _channel: &str, _message: &str) {}
}

/// Errors that a watcher can cause.
pub trait Broken: fmt::Display {
    fn broken(what: &'static str) -> Self;
}

impl Broken for ::redis::RedisError {
    fn broken(what: &'static str) -> Self {
        std::io::Error::new(std::io::ErrorKind::ConnectionReset, what).into()
    }
}

impl Broken for sqlx::Error {
    fn broken(what: &'static str) -> Self {
        Self::Io(std::io::Error::new(std::io::ErrorKind::ConnectionReset, what))
    }
}

impl Broken for crate::zookeeper_client::Error {
    fn broken(_: &'static str) -> Self {
        Self::ConnectionLoss
    }
}

// --- counting

/// Counts round trips. Clones count together.
///
/// A request with its reply is one, a script too. Connecting is not counted, nor preparing a
/// statement, once a connection.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    redis: AtomicU64,
    postgres: AtomicU64,
    zookeeper: AtomicU64,
    /// The lines of source that have sent something.
    lines: Mutex<HashSet<(&'static str, u32)>>,
}

/// The counts of a [`Meter`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundTrips {
    pub redis: u64,
    pub postgres: u64,
    pub zookeeper: u64,
}

impl RoundTrips {
    pub fn total(self) -> u64 {
        self.redis + self.postgres + self.zookeeper
    }
}

impl std::ops::Sub for RoundTrips {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            redis: self.redis.saturating_sub(before.redis),
            postgres: self.postgres.saturating_sub(before.postgres),
            zookeeper: self.zookeeper.saturating_sub(before.zookeeper),
        }
    }
}

impl Meter {
    pub fn round_trips(&self) -> RoundTrips {
        RoundTrips {
            redis: self.0.redis.load(Relaxed),
            postgres: self.0.postgres.load(Relaxed),
            zookeeper: self.0.zookeeper.load(Relaxed),
        }
    }

    /// Notes that this line was executed.
    pub fn passed(&self, at: &'static Location<'static>) {
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.insert((at.file(), at.line()));
    }

    /// File and line of every call that has sent something.
    pub fn lines(&self) -> HashSet<(&'static str, u32)> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn count(&self, server: Server, at: &'static Location<'static>) {
        self.passed(at);
        let counter = match server {
            Server::Redis => &self.0.redis,
            Server::Postgres => &self.0.postgres,
            Server::ZooKeeper => &self.0.zookeeper,
        };
        counter.fetch_add(1, Relaxed);
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Server {
    Redis,
    Postgres,
    ZooKeeper,
}

/// Counts and watches the requests of a connection.
#[derive(Clone)]
pub(crate) struct Tap {
    server: Server,
    pub client: Arc<str>,
    pub node: Arc<str>,
    pub meter: Meter,
    pub watcher: Option<Arc<dyn Watcher>>,
}

impl Tap {
    pub fn new(server: Server) -> Self {
        let node = match server {
            Server::Redis => "redis",
            Server::Postgres => "postgres",
            Server::ZooKeeper => "zookeeper",
        };
        Self {
            server,
            client: "client".into(),
            node: node.into(),
            meter: Meter::default(),
            watcher: None,
        }
    }

    /// Passes a request on. `text` and `show` run only for a watcher.
    pub async fn pass<T, E: Broken>(
        &self,
        at: &'static Location<'static>,
        text: impl FnOnce() -> (String, Option<&'static str>) + Send,
        show: impl FnOnce(&T) -> String + Send,
        request: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        let Some(watcher) = &self.watcher else {
            self.meter.count(self.server, at);
            return request.await;
        };
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let (text, script) = text();
        let sent = Sent {
            id: NUMBER.fetch_add(1, Relaxed),
            client: self.client.clone(),
            node: self.node.clone(),
            text,
            script,
            file: at.file(),
            line: at.line(),
        };
        let verdict = watcher.before(&sent).await;
        if matches!(verdict, Verdict::Fail) {
            watcher.after(&sent, &Reply::NotSent);
            return Err(E::broken("the connection broke before the request was sent"));
        }
        self.meter.count(self.server, at);
        let result = request.await;
        let shown = match &result {
            Ok(answer) => show(answer),
            Err(error) => error.to_string(),
        };
        match verdict {
            Verdict::LoseReply => {
                watcher.after(&sent, &Reply::Lost(shown));
                return Err(E::broken("the connection broke before the reply came"));
            }
            Verdict::GoThenWait(pause) => pause.await,
            Verdict::Go | Verdict::Fail => {}
        }
        let reply = match &result {
            Ok(_) => Reply::Answer(shown),
            Err(_) => Reply::Error(shown),
        };
        watcher.after(&sent, &reply);
        result
    }
}

// --- time

/// A client's clock: the real one with an offset, set by tests and lessons. Clones are the same
/// clock.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<AtomicI64>);

impl Clock {
    /// Puts the clock this many milliseconds ahead of the real time (behind, if negative).
    pub fn set_offset_ms(&self, offset: i64) {
        self.0.store(offset, Relaxed);
    }

    /// Jumps, like a clock that is set.
    pub fn jump_ms(&self, by: i64) {
        self.0.fetch_add(by, Relaxed);
    }

    /// Milliseconds since 1970, as this client sees them.
    pub fn now_ms(&self) -> i64 {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        i64::try_from(real.as_millis()).unwrap_or(i64::MAX).saturating_add(self.0.load(Relaxed))
    }
}

/// Whole milliseconds for PX and its likes, at least one: zero is an error there.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}
