//! One client's connection to one Redis.
//!
//! A multiplexed connection, made on first use, and again after any I/O error or timeout: nobody
//! knows what a silent connection will still deliver.

use super::{
    tap::{Meter, Server, Tap, Watcher},
    wakeups::Hub,
};
use crate::LockError;
use redis::{
    Arg, AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, RedisError, Script,
    ServerErrorKind, ToRedisArgs, Value, aio::MultiplexedConnection, cmd,
};
use std::{
    panic::Location,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// One client's connection to one Redis. Clones share it.
#[derive(Clone)]
pub struct Line {
    pub(super) wire: Arc<Wire>,
    pub(super) tap: Tap,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Line({} to {})", self.tap.client, self.tap.node)
    }
}

/// The connection itself.
pub(super) struct Wire {
    pub client: redis::Client,
    connect_timeout: Duration,
    response_timeout: Duration,
    connection: Mutex<Option<MultiplexedConnection>>,
    /// One task connects; the others wait for it.
    connecting: tokio::sync::Mutex<()>,
    pub hub: Hub,
}

impl Line {
    /// Connects to nothing yet.
    pub fn new(url: &str) -> Result<Self, RedisError> {
        Self::with_timeouts(url, CONNECT_TIMEOUT, RESPONSE_TIMEOUT)
    }

    /// A request waits at most `connect` for a connection and `response` for its reply.
    pub fn with_timeouts(
        url: &str,
        connect: Duration,
        response: Duration,
    ) -> Result<Self, RedisError> {
        Ok(Self {
            wire: Arc::new(Wire {
                client: redis::Client::open(url)?,
                connect_timeout: connect,
                response_timeout: response,
                connection: Mutex::new(None),
                connecting: tokio::sync::Mutex::new(()),
                hub: Hub::default(),
            }),
            tap: Tap::new(Server::Redis),
        })
    }

    /// Names the client, for watchers and tokens.
    pub fn of(mut self, client: &str) -> Self {
        self.tap.client = client.into();
        self
    }

    /// Names the node; "redis" by default.
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

    pub fn meter(&self) -> &Meter {
        &self.tap.meter
    }

    /// The same with its own connection, like another process.
    pub fn another_connection(&self) -> Self {
        Self {
            wire: Arc::new(Wire {
                client: self.wire.client.clone(),
                connect_timeout: self.wire.connect_timeout,
                response_timeout: self.wire.response_timeout,
                connection: Mutex::new(None),
                connecting: tokio::sync::Mutex::new(()),
                hub: Hub::default(),
            }),
            tap: self.tap.clone(),
        }
    }

    /// A unique value: the client's name and 122 random bits. (Host name and thread id, as one
    /// article has it, repeat after a restart.)
    pub fn unique_token(&self) -> String {
        format!("{}-{}", self.tap.client, uuid::Uuid::new_v4().simple())
    }

    /// Sends one command.
    #[track_caller]
    pub fn send<'a, T: FromRedisValue + Send>(
        &'a self,
        command: &'a Cmd,
    ) -> impl Future<Output = Result<T, RedisError>> + Send + 'a {
        let at = Location::caller();
        async move {
            let value = self
                .tap
                .pass(at, || (text_of(command), None), show, self.wire.query(command))
                .await;
            self.parse(value)
        }
    }

    /// Runs a script by its hash, or its source where Redis does not know it.
    #[track_caller]
    pub fn run<'a, T: FromRedisValue + Send>(
        &'a self,
        call: &'a ScriptCall,
    ) -> impl Future<Output = Result<T, RedisError>> + Send + 'a {
        let at = Location::caller();
        let request = async {
            match self.wire.query(&call.evalsha).await {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    self.tap.meter.count(Server::Redis, at);
                    self.wire.query(&call.eval()).await
                }
                other => other,
            }
        };
        async move {
            let text = || (call.text(), Some(call.script.name));
            let value = self.tap.pass(at, text, show, request).await;
            self.parse(value)
        }
    }

    fn parse<T: FromRedisValue>(&self, value: Result<Value, RedisError>) -> Result<T, RedisError> {
        match value {
            Ok(value) => Ok(redis::from_redis_value::<T>(value)?),
            Err(error) => {
                if is_broken(&error) {
                    self.wire.hang_up();
                }
                Err(error)
            }
        }
    }

    /// Classifies an error for a lock.
    pub fn lock_error(&self, source: RedisError) -> LockError {
        let node = self.tap.node.clone();
        // A Redis that loads or has lost its primary answers later.
        let not_now = matches!(
            source.kind(),
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::TryAgain
                    | ServerErrorKind::ClusterDown
            )
        );
        if is_broken(&source) || not_now {
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
    async fn query(&self, command: &Cmd) -> Result<Value, RedisError> {
        let mut connection = self.connected().await?;
        command.query_async(&mut connection).await
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<MultiplexedConnection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connected(&self) -> Result<MultiplexedConnection, RedisError> {
        if let Some(connection) = self.current().clone() {
            return Ok(connection);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(connection) = self.current().clone() {
            return Ok(connection); // somebody else has just connected
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout));
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        *self.current() = Some(connection.clone());
        Ok(connection)
    }

    /// The next request reconnects; requests on the old connection go on.
    fn hang_up(&self) {
        *self.current() = None;
    }

    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }
}

/// A Lua script: a file's name and its text.
pub struct LuaScript {
    pub name: &'static str,
    pub source: &'static str,
    hash: OnceLock<String>,
}

impl LuaScript {
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Self { name, source, hash: OnceLock::new() }
    }

    /// A call with these keys; arguments follow with [`ScriptCall::arg`].
    pub fn on(&'static self, keys: &[&str]) -> ScriptCall {
        let hash = self.hash.get_or_init(|| Script::new(self.source).get_hash().to_owned());
        let mut evalsha = cmd("EVALSHA");
        evalsha.arg(hash).arg(keys.len()).arg(keys);
        ScriptCall { script: self, evalsha }
    }
}

/// A script with its keys and arguments.
pub struct ScriptCall {
    script: &'static LuaScript,
    evalsha: Cmd,
}

impl ScriptCall {
    #[must_use]
    pub fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.evalsha.arg(argument);
        self
    }

    fn eval(&self) -> Cmd {
        let mut eval = cmd("EVAL");
        eval.arg(self.script.source);
        for argument in self.evalsha.args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                eval.arg(bytes);
            }
        }
        eval
    }

    fn text(&self) -> String {
        let mut words: Vec<String> = words_of(&self.evalsha);
        if let Some(hash) = words.get_mut(1) {
            self.script.name.clone_into(hash);
        }
        words.join(" ")
    }
}

fn words_of(command: &Cmd) -> Vec<String> {
    const LONGEST: usize = 80;
    let mut words = Vec::new();
    for argument in command.args_iter() {
        if let Arg::Simple(bytes) = argument {
            let word = String::from_utf8_lossy(bytes);
            words.push(if word.chars().count() > LONGEST {
                word.chars().take(LONGEST).chain(['…']).collect()
            } else {
                word.into_owned()
            });
        }
    }
    words
}

fn text_of(command: &Cmd) -> String {
    words_of(command).join(" ")
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
