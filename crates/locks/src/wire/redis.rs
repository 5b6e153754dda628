//! One client's connection to one Redis.
//!
//! A multiplexed connection, made on first use, and again after any I/O error or timeout: nobody
//! knows what a silent connection will still deliver.

use super::script::Request;
use super::tap::Tapped;
use super::wakeups::{Channels, Wakeups, listening};
use crate::error::LockError;
use redis::{
    Arg, AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value,
    aio::MultiplexedConnection, cmd,
};
use std::io;
use std::panic::Location;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::{sync::Mutex, time::timeout};

const TIMEOUT: Duration = Duration::from_millis(500);

/// One client's connection to one Redis. Clones share it.
pub type Line = Tapped<Arc<Wire>>;

/// The connection itself.
pub struct Wire {
    client: redis::Client,
    limit: Duration,
    connection: Mutex<Option<MultiplexedConnection>>,
    channels: Channels,
}

impl Line {
    /// Connects to nothing yet.
    pub fn new(url: &str) -> Result<Self, RedisError> {
        Self::with_timeout(url, TIMEOUT)
    }

    /// A request waits at most so long for a connection, and then for its reply.
    pub fn with_timeout(url: &str, limit: Duration) -> Result<Self, RedisError> {
        let wire = Wire::new(redis::Client::open(url)?, limit);
        Ok(Self::around(wire, |trips| &mut trips.redis, "redis"))
    }

    /// The same with its own connection, like another process.
    pub fn another_connection(&self) -> Self {
        let connection = Wire::new(self.connection.client.clone(), self.connection.limit);
        Self { connection, tap: self.tap.clone() }
    }

    /// Sends a command, or runs a script.
    #[track_caller]
    pub fn send<'a, T: FromRedisValue + Send>(
        &'a self,
        request: &'a impl Request,
    ) -> impl Future<Output = Result<T, RedisError>> + Send + 'a {
        let at = Location::caller();
        if let Some(script) = request.script() {
            self.tap.meter.ran(script.name);
        }
        async move {
            let answer = self.connection.answer(request);
            Ok(redis::from_redis_value(self.tap.pass(at, || request.text(), show, answer).await?)?)
        }
    }

    /// Subscribes, or joins those who have, on a connection of its own for each channel. Redis has
    /// confirmed it when this returns: later messages arrive while the connection lives.
    #[track_caller]
    pub fn subscribe<'a>(
        &'a self,
        channel: &'a str,
    ) -> impl Future<Output = Result<Wakeups, RedisError>> + Send + 'a {
        let at = Location::caller();
        let wire = &self.connection;
        async move {
            let mut channels = wire.channels.lock().await;
            let known = channels.get(channel).and_then(Weak::upgrade);
            if let Some(alive) = known.filter(|known| !known.ended.is_cancelled()) {
                return Ok(Wakeups { channel: alive, woken: false });
            }
            let connecting = async {
                let mut connection = wire.client.get_async_pubsub().await?;
                connection.subscribe(channel).await?;
                Ok::<_, RedisError>(connection)
            };
            let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
            let request = async { timeout(wire.limit, connecting).await.map_err(timed_out)? };
            let text = || format!("SUBSCRIBE {channel}");
            let subscribed = self.tap.pass(at, text, |_| "subscribed".to_owned(), request).await?;
            let new = Arc::new(listening(subscribed, self.tap.clone()));
            channels.retain(|_, channel| channel.strong_count() > 0);
            channels.insert(channel.to_owned(), Arc::downgrade(&new));
            Ok(Wakeups { channel: new, woken: false })
        }
    }

    /// [`Line::send`], with the errors of a lock.
    #[track_caller]
    pub fn ask<'a, T: FromRedisValue + Send>(
        &'a self,
        request: &'a impl Request,
    ) -> impl Future<Output = Result<T, LockError>> + Send + 'a {
        let sending = self.send(request);
        async move { sending.await.map_err(|error| self.lock_error(error)) }
    }

    /// Classifies an error for a lock.
    pub fn lock_error(&self, source: RedisError) -> LockError {
        use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, TryAgain};
        let node = self.tap.node.clone();
        match source.kind() {
            // A Redis that loads or has lost its primary answers later.
            ErrorKind::Server(BusyLoading | MasterDown | TryAgain | ClusterDown) => {
                LockError::Unreachable { node, source }
            }
            _ if is_broken(&source) => LockError::Unreachable { node, source },
            _ => LockError::Refused { node, source },
        }
    }
}

fn is_broken(error: &RedisError) -> bool {
    error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error()
}

impl Wire {
    fn new(client: redis::Client, limit: Duration) -> Arc<Self> {
        Arc::new(Self {
            client,
            limit,
            connection: Mutex::default(),
            channels: Channels::default(),
        })
    }

    /// A Redis that does not know a script is sent all of it, and knows it from then on.
    async fn answer(&self, request: &impl Request) -> Result<Value, RedisError> {
        let (answer, unknown) = (self.query(request.command()).await, ServerErrorKind::NoScript);
        match (&answer, request.script()) {
            (Err(error), Some(script)) if error.kind() == ErrorKind::Server(unknown) => {
                let mut eval = cmd("EVAL");
                eval.arg(script.source);
                // Behind the command's name and the hash.
                for argument in request.command().args_iter().skip(2) {
                    if let Arg::Simple(bytes) = argument {
                        eval.arg(bytes);
                    }
                }
                self.query(&eval).await
            }
            _ => answer,
        }
    }

    async fn query(&self, command: &Cmd) -> Result<Value, RedisError> {
        let mut connection = self.connected().await?;
        let answer = command.query_async(&mut connection).await;
        if answer.as_ref().is_err_and(is_broken) {
            // The next request reconnects; requests on the old connection go on.
            *self.connection.lock().await = None;
        }
        answer
    }

    async fn connected(&self) -> Result<MultiplexedConnection, RedisError> {
        // One task connects; the others wait for it.
        let mut current = self.connection.lock().await;
        if let Some(connection) = &*current {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limit))
            .set_response_timeout(Some(self.limit));
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        Ok(current.insert(connecting.await?).clone())
    }
}

/// As `redis-cli` shows it.
fn show(value: &Value) -> String {
    match value {
        Value::Nil => "(nil)".to_owned(),
        Value::Int(number) => format!("(integer) {number}"),
        Value::BulkString(bytes) => format!("\"{}\"", String::from_utf8_lossy(bytes)),
        Value::Array(values) => {
            let shown: Vec<_> = values.iter().map(show).collect();
            format!("[{}]", shown.join(", "))
        }
        Value::SimpleString(text) => text.clone(),
        Value::Okay => "OK".to_owned(),
        other => format!("{other:?}"),
    }
}
