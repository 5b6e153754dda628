//! Redis: connections, keys, and the function library with its typed wrappers.
//!
//! `REDIS_URL` names one server, the nodes of a Redis Cluster (a comma-separated list), or
//! Sentinels (`redis-sentinel://host,host/name`). The client library finds the server of a key and
//! the primary, and follows redirections. Ordinary work borrows from the pool, which pings at every
//! checkout; purchases share one multiplexed connection, on which batches travel in order.
//!
//! The function library itself decides whether a process may sell: `library/prelude.lua`.

mod connection;
pub mod functions;
pub mod keys;
pub mod library;
#[cfg(test)]
pub mod stub;

use arc_swap::ArcSwapOption;
use connection::Servers;
use library::LIBRARY;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

pub use connection::{Connection, PoolSize, RESPONSE_TIMEOUT};
pub use keys::Keys;

/// All connections to Redis, one server or many.
pub struct Redis {
    url: String,
    servers: Servers,
    /// And when it was made.
    shared: ArcSwapOption<(Connection, Instant)>,
    /// One reconnect at a time; the others wait for its result.
    connecting: Mutex<()>,
    pub keys: Keys,
}

impl Redis {
    /// Prepares the pool; connects to nothing yet.
    pub fn new(url: &str, prefix: &str) -> Result<Self, RedisError> {
        Self::with_timeout(url, prefix, RESPONSE_TIMEOUT)
    }

    /// [`Redis::new`] for work that may wait this long for an answer of a single server.
    pub fn with_timeout(url: &str, prefix: &str, response: Duration) -> Result<Self, RedisError> {
        Ok(Self {
            url: url.to_owned(),
            servers: Servers::new(url, response)?,
            shared: ArcSwapOption::empty(),
            connecting: Mutex::new(()),
            keys: Keys::new(prefix),
        })
    }

    /// The address, which may hold a password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether this is one server, at an address that the `redis` crate takes.
    pub fn is_one_server(&self) -> bool {
        matches!(self.servers, Servers::One { .. })
    }

    /// Whether keys are spread over several servers.
    pub fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster { .. })
    }

    /// A pooled connection. In a cluster, the keys of a command or pipeline need one hash tag.
    pub async fn pooled(&self) -> Result<Connection, RedisError> {
        // Boxed: the future that connects is large, and every caller would carry it.
        Box::pin(self.servers.pooled()).await
    }

    /// Connections in the pool.
    pub fn pool_size(&self) -> PoolSize {
        self.servers.pool_size()
    }

    /// The shared connection, reconnecting if there is none.
    pub async fn shared(&self) -> Result<Connection, RedisError> {
        if let Some((connection, _)) = self.shared.load().as_deref() {
            return Ok(connection.another());
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some((connection, _)) = self.shared.load().as_deref() {
            return Ok(connection.another());
        }
        let connection = Box::pin(self.servers.shared()).await?;
        let another = connection.another();
        self.shared.store(Some(Arc::new((connection, Instant::now()))));
        Ok(another)
    }

    /// Drops the shared connection after an error; the next use reconnects.
    pub fn drop_shared(&self) {
        self.shared.store(None);
    }

    /// The same unless the connection is new: requests that fail together reconnect once.
    pub fn suspect_shared(&self) {
        let shared = self.shared.load();
        if shared.as_deref().is_some_and(|(_, since)| since.elapsed() > RESPONSE_TIMEOUT) {
            self.drop_shared();
        }
    }

    /// Runs independent commands: pipelined on one server, concurrently in a cluster. The outer
    /// error means that no server answered; the inner ones belong to single commands.
    pub async fn query_all(
        &self,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
        if commands.is_empty() {
            return Ok(Vec::new()); // an empty pipeline is an error
        }
        let mut connection = self.pooled().await?;
        let mut answers = if self.is_cluster() {
            side_by_side(&connection, &commands).await?
        } else {
            let mut pipeline = redis::Pipeline::with_capacity(commands.len());
            pipeline.ignore_errors(); // a key of the wrong type fails one command only
            for command in &commands {
                pipeline.add_command(command.clone());
            }
            let answers: Vec<Value> = pipeline.query_async(&mut connection).await?;
            answers.into_iter().map(Value::extract_error).collect()
        };
        for (answer, command) in answers.iter_mut().zip(&commands) {
            if answer.as_ref().is_err_and(library::is_unknown_function) {
                *answer = LIBRARY.run(command, &mut connection).await;
            }
        }
        Ok(answers)
    }

    /// The approval tokens of the server, or of all primaries of the cluster.
    pub async fn processes(&self) -> Result<Vec<String>, RedisError> {
        let call = LIBRARY.call_read_only("process", 0);
        let mut connection = self.pooled().await?;
        if !self.is_cluster() {
            return Ok(vec![LIBRARY.run(&call, &mut connection).await?]);
        }
        let answered = connection.ask_primaries(&call).await;
        let answered = match answered {
            Err(error) if library::is_unknown_function(&error) => {
                LIBRARY.load(&mut connection).await?;
                connection.ask_primaries(&call).await
            }
            answered => answered,
        };
        let by_node: HashMap<String, String> = redis::from_redis_value(answered?)?;
        Ok(by_node.into_values().collect())
    }

    /// How many primaries there should be.
    pub async fn primaries(&self) -> Result<usize, RedisError> {
        self.pooled().await?.primaries().await
    }

    /// A connection of its own, subscribed to the channel of changes. Every node of a cluster
    /// forwards messages.
    pub async fn subscribe(&self) -> Result<redis::aio::PubSub, RedisError> {
        let mut subscriber = self.servers.subscriber().await?;
        subscriber.subscribe(self.keys.changes()).await?;
        Ok(subscriber)
    }

    /// Whether any server answers.
    pub async fn ping(&self) -> Result<(), RedisError> {
        redis::cmd("PING").exec_async(&mut self.pooled().await?).await
    }

    /// Whether the server, or every primary of the cluster, keeps its data over a restart.
    pub async fn is_durable(&self) -> Result<bool, RedisError> {
        let mut info = redis::cmd("INFO");
        info.arg("persistence");
        let mut connection = self.pooled().await?;
        let answers: Vec<String> = if self.is_cluster() {
            let by_node = redis::from_redis_value(connection.ask_primaries(&info).await?)?;
            HashMap::<String, String>::into_values(by_node).collect()
        } else {
            vec![info.query_async(&mut connection).await?]
        };
        Ok(!answers.iter().any(|info| info.contains("aof_enabled:0")))
    }

    /// Logs a warning if it does not. A server that does not say counts as durable.
    pub async fn warn_unless_durable(&self) {
        if !self.is_durable().await.unwrap_or(true) {
            tracing::warn!(
                "redis has appendonly off: when it restarts, orders that were accepted and are \
                 not yet in postgres are lost"
            );
        }
    }

    /// Tells every instance that a sale changed. Best effort: they also poll.
    pub async fn announce(&self, sale: crate::domain::SaleId) {
        let announced = async {
            let mut connection = self.pooled().await?;
            redis::cmd("PUBLISH")
                .arg(self.keys.changes())
                .arg(sale.get())
                .exec_async(&mut connection)
                .await
        };
        if let Err(error) = announced.await {
            tracing::debug!(%error, %sale, "could not announce a change");
        }
    }
}

async fn side_by_side(
    connection: &Connection,
    commands: &[Cmd],
) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
    let asked = commands.iter().map(|command| {
        let mut connection = connection.another();
        async move { command.query_async(&mut connection).await }
    });
    let answers = futures_util::future::join_all(asked).await;
    let is_silent = |answer: &Result<Value, RedisError>| {
        answer.as_ref().is_err_and(|error| !matches!(error.kind(), ErrorKind::Server(_)))
    };
    if answers.iter().all(is_silent) {
        return answers.into_iter().map(|answer| answer.map(Ok)).collect();
    }
    Ok(answers)
}

/// Whether a key has another type than the program writes.
pub fn is_wrong_type(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE")
}

/// Whether a command was certainly not run, for a transient reason: its slot is moving, or its
/// server is loading or waits for an election.
pub fn is_passing(error: &RedisError) -> bool {
    let ErrorKind::Server(kind) = error.kind() else {
        return false;
    };
    matches!(
        kind,
        ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::MasterDown
    )
}
