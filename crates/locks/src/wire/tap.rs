//! Connections that are counted and watched.

use super::meter::{Meter, Server};
use futures_util::future::BoxFuture;
use std::panic::Location;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{borrow::Borrow, fmt, io, sync::Arc};

/// A request, as it is about to be sent.
#[derive(Debug, Clone)]
pub struct Sent {
    /// Different for every request of this process.
    pub id: u64,
    /// The server: "redis", "redis-2", "postgres", "zookeeper".
    pub node: Arc<str>,
    /// As typed: `SET lock:phone 7f3a NX PX 200`. A script has its name instead of its hash.
    pub text: String,
    /// The calling line of source.
    pub at: &'static Location<'static>,
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
    fn heard(&self, _channel: &str, _message: &str) {}
}

/// What a request fails with if its connection breaks.
fn reset<E: From<io::Error>>() -> E {
    io::Error::new(io::ErrorKind::ConnectionReset, "the connection broke").into()
}

/// A connection of one client to one server: counted, and watched if somebody asks for it.
#[derive(Clone)]
pub struct Tapped<C> {
    pub(super) connection: C,
    pub(super) tap: Tap,
}

#[derive(Clone)]
pub(super) struct Tap {
    server: Server,
    pub client: Arc<str>,
    pub node: Arc<str>,
    pub meter: Meter,
    pub watcher: Option<Arc<dyn Watcher>>,
}

impl<C> fmt::Debug for Tapped<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.tap.client, self.tap.node)
    }
}

impl<C> Tapped<C> {
    pub(super) fn around(connection: C, server: Server, node: &str) -> Self {
        let (client, node) = ("client".into(), node.into());
        let tap = Tap { server, client, node, meter: Meter::default(), watcher: None };
        Self { connection, tap }
    }

    /// Names the client, for tokens and `Debug`.
    pub fn of(mut self, client: &str) -> Self {
        self.tap.client = client.into();
        self
    }

    /// Names the node.
    pub fn to(mut self, node: &str) -> Self {
        self.tap.node = node.into();
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

    /// A unique value: the client's name and 122 random bits. (Host name and thread id, as one
    /// article has it, repeat after a restart.)
    pub fn unique_token(&self) -> String {
        format!("{}-{}", self.tap.client, uuid::Uuid::new_v4().simple())
    }
}

impl Tap {
    /// Passes a request on. `text` and `show` run only for a watcher.
    #[track_caller]
    pub fn pass<T, E: From<io::Error> + fmt::Display>(
        tap: impl Borrow<Self>,
        text: impl FnOnce() -> String,
        show: impl FnOnce(&T) -> String,
        request: impl Future<Output = Result<T, E>>,
    ) -> impl Future<Output = Result<T, E>> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let at = Location::caller();
        async move {
            let tap = tap.borrow();
            let Some(watcher) = &tap.watcher else {
                tap.meter.count(tap.server, at);
                return request.await;
            };
            let (id, node) = (NUMBER.fetch_add(1, Relaxed), tap.node.clone());
            let sent = Sent { id, node, text: text(), at };
            let verdict = watcher.before(&sent).await;
            if matches!(verdict, Verdict::Fail) {
                watcher.after(&sent, &Reply::NotSent);
                return Err(reset());
            }
            tap.meter.count(tap.server, at);
            let result = request.await;
            let reply = match &result {
                Ok(answer) => Reply::Answer(show(answer)),
                Err(error) => Reply::Error(error.to_string()),
            };
            match verdict {
                Verdict::LoseReply => {
                    watcher.after(&sent, &Reply::Lost(reply.to_string()));
                    return Err(reset());
                }
                Verdict::GoThenWait(pause) => pause.await,
                Verdict::Go | Verdict::Fail => {}
            }
            watcher.after(&sent, &reply);
            result
        }
    }
}

/// A client's clock: the real one with an offset, set by tests and lessons. Clones are the same
/// clock.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<AtomicI64>);

impl Clock {
    /// Puts the clock this many milliseconds ahead of the real time (behind, if negative).
    pub fn set_offset_ms(&self, offset: i64) {
        self.0.store(offset, Relaxed);
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
