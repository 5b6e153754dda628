//! One client's connection to one Redis.
//!
//! A multiplexed connection, made on first use, and again after any I/O error or timeout: nobody
//! knows what a silent connection will still deliver.

use super::script::{LuaScript, Request, text, words};
use super::tap::{Tap, Tapped};
use super::wakeups::{Channels, Wakeups, listening};
use crate::{asking::Asking, error::LockError};
use futures_util::TryFutureExt;
use redis::ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, NoScript, TryAgain};
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult};
use redis::{Value, cmd};
use std::sync::{Arc, Weak};
use std::{io, time::Duration};
use tokio::{sync::Mutex, time::timeout};

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
    /// Connects to nothing yet. A request waits at most so long for a connection, and then for its
    /// reply.
    pub fn with_timeout(url: &str, limit: Duration) -> RedisResult<Self> {
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
    pub fn send<T: FromRedisValue>(&self, request: &impl Request) -> impl Asking<T, RedisError> {
        let (command, script) = request.parts();
        script.iter().for_each(|script| self.tap.meter.ran(script.name));
        let answer = self.connection.answer(command, script);
        let passed = Tap::pass(&self.tap, move || text(command, script), show, answer);
        async move { Ok(redis::from_redis_value(passed.await?)?) }
    }

    /// [`Line::send`], with the errors of a lock.
    #[track_caller]
    pub fn ask<T: FromRedisValue>(&self, request: &impl Request) -> impl Asking<T, LockError> {
        self.send(request).map_err(|error| self.lock_error(error))
    }

    /// Subscribes, or joins those who have, on a connection of its own for each channel. Redis has
    /// confirmed it when this returns: later messages arrive while the connection lives.
    #[track_caller]
    pub fn subscribe(&self, channel: &str) -> impl Asking<Wakeups, RedisError> {
        let wire = &self.connection;
        let text = move || format!("SUBSCRIBE {channel}");
        let subscribed = |_: &PubSub| "subscribed".to_owned();
        let subscribing = Tap::pass(&self.tap, text, subscribed, wire.subscribed(channel));
        async move {
            let mut channels = wire.channels.lock().await;
            let known = channels.get(channel).and_then(Weak::upgrade);
            if let Some(alive) = known.filter(|known| !known.permits.is_closed()) {
                return Ok(Wakeups { channel: alive, woken: None });
            }
            let new = Arc::new(listening(subscribing.await?, self.tap.clone()));
            channels.retain(|_, channel| channel.strong_count() > 0);
            channels.insert(channel.to_owned(), Arc::downgrade(&new));
            Ok(Wakeups { channel: new, woken: None })
        }
    }

    /// Classifies an error for a lock.
    pub fn lock_error(&self, source: RedisError) -> LockError {
        let node = self.tap.node.clone();
        // A Redis that loads or has lost its primary answers later.
        let later = [BusyLoading, MasterDown, TryAgain, ClusterDown].map(ErrorKind::Server);
        if later.contains(&source.kind()) || is_broken(&source) {
            LockError::Unreachable { node, source }
        } else {
            LockError::Refused { node, source }
        }
    }
}

fn is_broken(error: &RedisError) -> bool {
    error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error()
}

impl Wire {
    fn new(client: redis::Client, limit: Duration) -> Arc<Self> {
        Arc::new(Self { client, limit, connection: Mutex::default(), channels: Mutex::default() })
    }

    /// A Redis that does not know a script is sent all of it, and knows it from then on.
    async fn answer(&self, command: &Cmd, script: Option<&LuaScript>) -> RedisResult<Value> {
        let answer = self.query(command).await;
        match (&answer, script) {
            (Err(error), Some(script)) if error.kind() == ErrorKind::Server(NoScript) => {
                // Behind the command's name and the hash.
                let keys_and_arguments: Vec<_> = words(command).skip(2).collect();
                self.query(cmd("EVAL").arg(script.source).arg(keys_and_arguments)).await
            }
            _ => answer,
        }
    }

    async fn query(&self, command: &Cmd) -> RedisResult<Value> {
        let mut connection = self.connected().await?;
        let answer = command.query_async(&mut connection).await;
        if answer.as_ref().is_err_and(is_broken) {
            // The next request reconnects; requests on the old connection go on.
            *self.connection.lock().await = None;
        }
        answer
    }

    async fn connected(&self) -> RedisResult<MultiplexedConnection> {
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

    /// A connection of its own, subscribed.
    async fn subscribed(&self, channel: &str) -> RedisResult<PubSub> {
        let connecting = async {
            let mut connection = self.client.get_async_pubsub().await?;
            connection.subscribe(channel).await?;
            Ok(connection)
        };
        let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
        timeout(self.limit, connecting).await.map_err(timed_out)?
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
