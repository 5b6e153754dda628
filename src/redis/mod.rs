//! Redis: the connections, the keys, and the scripts with their typed wrappers.
//!
//! Two ways to talk to it. Ordinary work borrows from the deadpool-redis pool, which pings at every
//! checkout. The purchase path holds one long-lived multiplexed connection taken out of the pool
//! ([`Redis::hot`]): no ping, no waiting for a free one, and batches travel on one socket in order.
//!
//! **Incarnations.** Every connection is tied to the Redis process that it reached, by that
//! process' `run_id`, read when the connection is made: a process cannot be replaced under a live
//! connection. The hot connection is handed out only while its incarnation is the one that Postgres
//! has approved ([`Redis::approve`]); after a restart or a failover the gate is therefore shut until
//! a rebuild has looked at what survived. A primary that was a replica for a while came back with
//! somebody else's data under its old `run_id`, so where replication says that it was promoted, that
//! belongs to its name (see `incarnation`).

pub mod keys;
pub mod loans;
#[cfg(test)]
pub mod parrot;
pub mod scripts;

use arc_swap::ArcSwapOption;
use deadpool_redis::{Manager, Pool, PoolConfig, Runtime, Timeouts};
use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use std::{sync::Arc, time::Duration};
use tokio::sync::Mutex;

pub use keys::Keys;

/// How long one command on the hot connection or from the pool may take. A waiting buyer's answer is
/// bounded by this.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_millis(1_000);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_000);

/// Why no hot connection could be had.
#[derive(Debug, thiserror::Error)]
pub enum HotError {
    /// The live Redis process is not (yet) the one that Postgres has approved.
    #[error("redis {run_id} is not approved yet")]
    NotApproved { run_id: String },
    #[error("redis pool: {0}")]
    Pool(#[from] deadpool_redis::PoolError),
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
}

/// A long-lived connection, and the process it leads to.
#[derive(Clone)]
struct Hot {
    connection: MultiplexedConnection,
    run_id: String,
}

/// All connections to one Redis.
pub struct Redis {
    url: String,
    pool: Pool,
    client: redis::Client,
    pub keys: Keys,
    hot: ArcSwapOption<Hot>,
    /// One reconnect at a time; the others wait for its result.
    reconnecting: Mutex<()>,
    approved: ArcSwapOption<String>,
}

impl Redis {
    /// Prepares the pool; connects to nothing yet.
    pub fn new(url: &str, prefix: &str) -> Result<Self, redis::RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(RESPONSE_TIMEOUT))
            .set_connection_timeout(Some(CONNECT_TIMEOUT));
        let client = redis::Client::open(url)?;
        let manager = Manager::new_with_config(url, config)?;
        let mut limits = PoolConfig::new(16);
        limits.timeouts = Timeouts {
            wait: Some(Duration::from_secs(2)),
            create: Some(CONNECT_TIMEOUT),
            recycle: Some(RESPONSE_TIMEOUT),
        };
        let pool = Pool::builder(manager)
            .config(limits)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| redis::RedisError::from(std::io::Error::other(error)))?;
        Ok(Self {
            url: url.to_owned(),
            pool,
            client,
            keys: Keys::new(prefix),
            hot: ArcSwapOption::empty(),
            reconnecting: Mutex::new(()),
            approved: ArcSwapOption::empty(),
        })
    }

    /// Where it is; it may hold a password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A pooled connection for ordinary work.
    pub async fn pooled(&self) -> Result<deadpool_redis::Connection, redis::RedisError> {
        self.pool.get().await.map_err(pool_error)
    }

    pub fn pool_status(&self) -> deadpool_redis::Status {
        self.pool.status()
    }

    /// A connection of its own that receives what is published on the channel of changes.
    pub async fn subscribe(&self) -> Result<redis::aio::PubSub, redis::RedisError> {
        let mut subscriber = tokio::time::timeout(CONNECT_TIMEOUT, self.client.get_async_pubsub())
            .await
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
        subscriber.subscribe(self.keys.changes()).await?;
        Ok(subscriber)
    }

    /// The shared hot connection, reconnecting if there is none. Only to an approved process.
    pub async fn hot(&self) -> Result<MultiplexedConnection, HotError> {
        if let Some(connection) = self.approved_hot() {
            return Ok(connection);
        }
        let _one_at_a_time = self.reconnecting.lock().await;
        if let Some(connection) = self.approved_hot() {
            return Ok(connection); // somebody else has just reconnected
        }
        // None, or one to a process that is not (or no longer) approved: only a new connection tells
        // which process there is now.
        let mut connection = deadpool_redis::Connection::take(self.pool.get().await?);
        let run_id = run_id(&mut connection).await?;
        self.hot.store(Some(Arc::new(Hot {
            connection,
            run_id: run_id.clone(),
        })));
        self.approved_hot().ok_or(HotError::NotApproved { run_id })
    }

    /// What [`Redis::hot`] would cost if every use borrowed from the pool, which pings; only to be measured
    /// ([`crate::tricks`]). While the gate is shut this is shut too.
    pub async fn hot_from_pool(&self) -> Result<MultiplexedConnection, HotError> {
        self.hot().await?;
        // A clone that outlives the loan: the connection is multiplexed, and nothing is left on it.
        Ok(MultiplexedConnection::clone(&*self.pool.get().await?))
    }

    fn approved_hot(&self) -> Option<MultiplexedConnection> {
        let hot = self.hot.load();
        let hot = hot.as_ref()?;
        let approved = self.approved.load();
        (**approved.as_ref()? == hot.run_id).then(|| hot.connection.clone())
    }

    /// Whether purchases can be judged at this moment, as far as is known without asking.
    pub fn gate_is_open(&self) -> bool {
        self.approved_hot().is_some()
    }

    /// Lets go of the hot connection after an error on it; the next use reconnects.
    pub fn drop_hot(&self) {
        self.hot.store(None);
    }

    /// Opens the gate to the Redis process with this `run_id`; Postgres has approved it.
    pub fn approve(&self, run_id: &str) {
        if self.approved.load().as_deref().map(String::as_str) != Some(run_id) {
            self.approved.store(Some(Arc::new(run_id.to_owned())));
        }
    }

    /// Shuts the gate until the next [`Redis::approve`].
    pub fn disapprove(&self) {
        self.approved.store(None);
    }

    pub fn approved_run_id(&self) -> Option<Arc<String>> {
        self.approved.load_full()
    }

    /// The `run_id` of the process that a fresh checkout reaches.
    pub async fn live_run_id(&self) -> Result<String, redis::RedisError> {
        let mut connection = self.pooled().await?;
        run_id(&mut connection).await
    }

    /// Tells every instance that a sale changed. Best effort: they also poll.
    pub async fn announce(&self, sale: crate::domain::SaleId) {
        let announced = async {
            let mut connection = self.pooled().await?;
            redis::cmd("PUBLISH")
                .arg(self.keys.changes())
                .arg(sale.get())
                .exec_async(&mut *connection)
                .await
        };
        if let Err(error) = announced.await {
            tracing::debug!(%error, %sale, "could not announce a change");
        }
    }
}

/// Whether a command or a script met a key of another type than the program ever writes there.
pub fn is_wrong_type(error: &redis::RedisError) -> bool {
    error.code() == Some("WRONGTYPE")
}

fn pool_error(error: deadpool_redis::PoolError) -> redis::RedisError {
    match error {
        deadpool_redis::PoolError::Backend(error) => error,
        other => std::io::Error::new(std::io::ErrorKind::TimedOut, other.to_string()).into(),
    }
}

async fn run_id(connection: &mut MultiplexedConnection) -> Result<String, redis::RedisError> {
    // Two commands, because Redis takes several sections in one only from version 7 on.
    let (server, replication): (String, String) = redis::pipe()
        .cmd("INFO")
        .arg("server")
        .cmd("INFO")
        .arg("replication")
        .query_async(connection)
        .await?;
    incarnation(&server, &replication).ok_or_else(|| {
        redis::RedisError::from((
            redis::ErrorKind::UnexpectedReturnType,
            "INFO without run_id",
        ))
    })
}

/// A name for this process and what it holds: its `run_id`, and where it was promoted from a replica,
/// the offset up to which it follows its former primary's history.
fn incarnation(server: &str, replication: &str) -> Option<String> {
    let field = |info: &str, name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(|value| value.trim().to_owned())
    };
    let run_id = field(server, "run_id").filter(|id| !id.is_empty())?;
    match field(replication, "second_repl_offset") {
        Some(offset) if offset != "-1" => Some(format!("{run_id}+{offset}")),
        _ => Some(run_id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_incarnation_is_found_among_anything(before in "([a-z_]{0,9}:.{0,9}\r\n){0,4}", id in "[0-9a-f]{40}", after in ".{0,40}") {
            prop_assume!(!before.contains("run_id:"));
            let info = format!("{before}run_id:{id}\r\n{after}");
            let found = incarnation(&info, &after).expect("a run_id");
            prop_assert_eq!(&found[..40], &*id);
            incarnation(&after, &info);
        }
    }
}
