//! One client's connection to one Redis.
//!
//! A multiplexed connection, made on first use, and again after any I/O error or timeout: nobody
//! knows what a silent connection will still deliver.

use super::{
    meter::Server,
    script::{ScriptCall, words_of},
    tap::{Tap, tapped},
    wakeups::{self, Channels, Wakeups},
};
use crate::LockError;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value,
    aio::MultiplexedConnection,
};
use std::{
    fmt,
    panic::Location,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const TIMEOUT: Duration = Duration::from_millis(500);

/// One client's connection to one Redis. Clones share it.
#[derive(Clone)]
pub struct Line {
    pub(super) wire: Arc<Wire>,
    pub(super) tap: Tap,
}

tapped!(Line);

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Line({} to {})", self.tap.client, self.tap.node)
    }
}

/// The connection itself.
pub(super) struct Wire {
    client: redis::Client,
    connect_timeout: Duration,
    response_timeout: Duration,
    connection: Mutex<Option<MultiplexedConnection>>,
    /// One task connects; the others wait for it.
    connecting: tokio::sync::Mutex<()>,
    channels: Channels,
}

impl Line {
    /// Connects to nothing yet.
    pub fn new(url: &str) -> Result<Self, RedisError> {
        Self::with_timeouts(url, TIMEOUT, TIMEOUT)
    }

    /// A request waits at most `connect` for a connection and `response` for its reply.
    pub fn with_timeouts(
        url: &str,
        connect: Duration,
        response: Duration,
    ) -> Result<Self, RedisError> {
        let wire = Wire::new(redis::Client::open(url)?, connect, response);
        Ok(Self { wire, tap: Tap::new(Server::Redis, "redis") })
    }

    /// Names the node; "redis" by default.
    pub fn to(mut self, node: &str) -> Self {
        self.tap.node = node.into();
        self
    }

    /// The same with its own connection, like another process.
    pub fn another_connection(&self) -> Self {
        let Wire { client, connect_timeout, response_timeout, .. } = &*self.wire;
        let wire = Wire::new(client.clone(), *connect_timeout, *response_timeout);
        Self { wire, tap: self.tap.clone() }
    }

    /// Sends one command.
    #[track_caller]
    pub fn send<'a, T: FromRedisValue + Send>(
        &'a self,
        command: &'a Cmd,
    ) -> impl Future<Output = Result<T, RedisError>> + Send + 'a {
        let at = Location::caller();
        let text = || (words_of(command).join(" "), None);
        async move { self.parse(self.tap.pass(at, text, show, self.wire.query(command)).await) }
    }

    /// Runs a script by its hash, or its source where Redis does not know it.
    #[track_caller]
    pub fn run<'a, T: FromRedisValue + Send>(
        &'a self,
        call: &'a ScriptCall,
    ) -> impl Future<Output = Result<T, RedisError>> + Send + 'a {
        let at = Location::caller();
        self.tap.meter.ran(call.script.name);
        let request = async {
            match self.wire.query(&call.evalsha).await {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    self.tap.meter.count(Server::Redis, at);
                    self.wire.query(&call.eval()).await
                }
                other => other,
            }
        };
        let text = || (call.text(), Some(call.script.name));
        async move { self.parse(self.tap.pass(at, text, show, request).await) }
    }

    /// Subscribes, on a connection of its own for each channel.
    #[track_caller]
    pub fn subscribe<'a>(
        &'a self,
        channel: &'a str,
    ) -> impl Future<Output = Result<Wakeups, RedisError>> + Send + 'a {
        let at = Location::caller();
        let Wire { channels, client, connect_timeout, .. } = &*self.wire;
        wakeups::subscribe(channels, &self.tap, at, channel, client, *connect_timeout)
    }

    /// [`Line::send`], with the errors of a lock.
    #[track_caller]
    pub(crate) fn ask<'a, T: FromRedisValue + Send>(
        &'a self,
        command: &'a Cmd,
    ) -> impl Future<Output = Result<T, LockError>> + Send + 'a {
        let sending = self.send(command);
        async move { sending.await.map_err(|error| self.lock_error(error)) }
    }

    /// [`Line::run`], with the errors of a lock.
    #[track_caller]
    pub(crate) fn call<'a, T: FromRedisValue + Send>(
        &'a self,
        call: &'a ScriptCall,
    ) -> impl Future<Output = Result<T, LockError>> + Send + 'a {
        let running = self.run(call);
        async move { running.await.map_err(|error| self.lock_error(error)) }
    }

    fn parse<T: FromRedisValue>(&self, value: Result<Value, RedisError>) -> Result<T, RedisError> {
        if value.as_ref().is_err_and(is_broken) {
            // The next request reconnects; requests on the old connection go on.
            *self.wire.current() = None;
        }
        Ok(redis::from_redis_value::<T>(value?)?)
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
    fn new(client: redis::Client, connect: Duration, response: Duration) -> Arc<Self> {
        Arc::new(Self {
            client,
            connect_timeout: connect,
            response_timeout: response,
            connection: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            channels: Channels::default(),
        })
    }

    async fn query(&self, command: &Cmd) -> Result<Value, RedisError> {
        let mut connection = self.connected().await?;
        command.query_async(&mut connection).await
    }

    fn current(&self) -> MutexGuard<'_, Option<MultiplexedConnection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connected(&self) -> Result<MultiplexedConnection, RedisError> {
        if let Some(connection) = self.current().clone() {
            return Ok(connection);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(connection) = self.current().clone() {
            return Ok(connection); // another task has just connected
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout));
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        *self.current() = Some(connection.clone());
        Ok(connection)
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
