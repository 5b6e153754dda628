//! Redis: the connections, the keys, and the scripts with their typed wrappers.
//!
//! Two ways to talk to it. Ordinary work borrows from the deadpool-redis pool, which pings at every
//! checkout ([`Redis::pooled`]). The purchase path holds one long-lived multiplexed connection to each
//! server, taken out of its pool ([`Redis::hot_for`]): no ping, no waiting for a free one, and batches travel
//! on one socket in order. It is handed out only to a process that Postgres has approved; see [`node`].
//!
//! `REDIS_URL` may name one server, a Redis Cluster, or Sentinels ([`address`]). Which server has which key
//! is the [`topology`]'s to know, and a [`connection`] goes there by the key of each command. So nobody else
//! has to care, but for what is about servers and not about keys: which of them are approved, and what has
//! to be rebuilt when one is not ([`Redis::primaries`], `worker::rebuild`).

pub mod address;
mod cluster;
pub mod connection;
pub mod keys;
pub mod node;
#[cfg(test)]
pub mod parrot;
pub mod scripts;
mod sentinel;
pub mod slots;
pub mod topology;

use address::Address;
use connection::Lines;
use std::{sync::Arc, time::Duration};

pub use connection::{Connection, is_passing};
pub use keys::Keys;
pub use node::{Kind, Node};
pub use topology::Topology;

/// How long one command on the hot connection or from the pool may take. A waiting buyer's answer is
/// bounded by this.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_millis(1_000);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_000);

/// Why no hot connection could be had.
#[derive(Debug, thiserror::Error)]
pub enum HotError {
    /// The live Redis process is not (yet) one that Postgres has approved.
    #[error("redis {run_id} is not approved yet")]
    NotApproved { run_id: String },
    #[error("redis pool: {0}")]
    Pool(#[from] deadpool_redis::PoolError),
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
}

/// All connections to Redis, be it one server or many.
pub struct Redis {
    url: String,
    topology: Arc<Topology>,
    pub keys: Keys,
}

/// Connections of all pools.
#[derive(Debug, Clone, Copy, Default)]
pub struct PoolSize {
    pub size: usize,
    pub idle: usize,
}

impl Redis {
    /// Prepares the pools; connects to nothing yet.
    pub fn new(url: &str, prefix: &str) -> Result<Self, redis::RedisError> {
        Ok(Self {
            url: url.to_owned(),
            topology: Arc::new(Topology::new(&Address::parse(url)?)?),
            keys: Keys::new(prefix),
        })
    }

    /// Where it is; it may hold a password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether this is one server, at an address that the `redis` crate takes.
    pub fn is_one_server(&self) -> bool {
        self.topology.is_one()
    }

    /// Whether keys are spread over several servers.
    pub fn is_cluster(&self) -> bool {
        self.topology.is_cluster()
    }

    /// Asks the cluster or the Sentinels who has what. Nothing to do where there is one server.
    pub async fn look_around(&self) -> Result<(), redis::RedisError> {
        self.topology.read().await
    }

    /// The primaries, as last heard: one, or those of the cluster.
    pub fn primaries(&self) -> Vec<Arc<Node>> {
        self.topology.primaries()
    }

    /// The primaries that have keys, as last heard: in a cluster there may be some that have no slots (yet).
    pub fn owners(&self) -> Vec<Arc<Node>> {
        self.topology.owners()
    }

    /// Who has this key, as last heard. Keys with one hash tag have one owner.
    pub fn owner(&self, key: &str) -> Option<Arc<Node>> {
        self.topology.owner(self.slot(key))
    }

    fn slot(&self, key: &str) -> Option<u16> {
        (self.is_cluster()).then(|| slots::slot_of(key.as_bytes()))
    }

    /// A pooled connection for ordinary work. It goes where the keys are; in a cluster the keys of one
    /// command must have one hash tag, those of a pipeline need not.
    pub async fn pooled(&self) -> Result<Connection, redis::RedisError> {
        if self.is_cluster() {
            return Ok(Connection::routed(self.topology.clone(), Lines::Pooled));
        }
        let node = self.topology.find(None).await?;
        Ok(Connection::pooled(node.pooled().await?))
    }

    /// Connections in the pools.
    pub fn pool_size(&self) -> PoolSize {
        let pools = self.primaries();
        pools
            .iter()
            .map(|node| node.pool_status())
            .fold(PoolSize::default(), |sum, pool| PoolSize {
                size: sum.size + pool.size,
                idle: sum.idle + pool.available,
            })
    }

    /// A connection of its own that receives what is published on the channel of changes. In a cluster any
    /// node passes on what any other was told.
    pub async fn subscribe(&self) -> Result<redis::aio::PubSub, redis::RedisError> {
        let node = self.topology.find(None).await?;
        let mut subscriber = node.subscriber().await?;
        subscriber.subscribe(self.keys.changes()).await?;
        Ok(subscriber)
    }

    /// The hot connection of the server that has this key, reconnecting if there is none. Only to an approved
    /// process. In a cluster it goes where each command's key is, to approved processes only.
    pub async fn hot_for(&self, key: &str) -> Result<Connection, HotError> {
        let connection = self.topology.hot(self.slot(key)).await?;
        if self.is_cluster() {
            return Ok(Connection::routed(self.topology.clone(), Lines::Hot));
        }
        Ok(Connection::hot(connection))
    }

    /// The hot connection, once every server that has keys is open.
    pub async fn hot(&self) -> Result<Connection, HotError> {
        self.topology.find(None).await?;
        let mut last = None;
        for node in self.topology.owners() {
            last = Some(node.hot().await?);
        }
        match last {
            Some(connection) if !self.is_cluster() => Ok(Connection::hot(connection)),
            _ => Ok(Connection::routed(self.topology.clone(), Lines::Hot)),
        }
    }

    /// A planted bug: a connection to whoever has the key now, approved or not.
    pub async fn hot_unchecked(&self) -> Result<Connection, HotError> {
        let node = self.topology.find(None).await?;
        if self.is_cluster() {
            return Ok(Connection::routed(self.topology.clone(), Lines::Unchecked));
        }
        Ok(Connection::hot(node.hot_unchecked().await?))
    }

    /// Whether purchases of every sale can be judged at this moment, as far as is known without asking.
    pub fn gate_is_open(&self) -> bool {
        let owners = self.topology.owners();
        !owners.is_empty() && owners.iter().all(|node| node.gate_is_open())
    }

    /// Lets go of the hot connection to whoever has this key after an error on it; the next use reconnects.
    pub fn drop_hot_for(&self, key: &str) {
        if let Some(node) = self.owner(key) {
            node.drop_hot();
        }
    }

    /// Waits until at least one server answers.
    pub async fn answers(&self) -> Result<(), redis::RedisError> {
        self.topology.find(None).await?;
        self.any(async |node| node.live_run_id().await.map(drop))
            .await
    }

    /// Waits until purchases of at least some sales can be judged.
    pub async fn sells_something(&self) -> Result<(), HotError> {
        self.topology.find(None).await?;
        self.any(async |node| node.hot().await.map(drop)).await
    }

    /// Asks every server that has keys, one after the other, until one says yes.
    async fn any<E>(&self, ask: impl AsyncFn(&Node) -> Result<(), E>) -> Result<(), E> {
        let mut refused = None;
        for node in self.topology.owners() {
            match ask(&node).await {
                Ok(()) => return Ok(()),
                Err(error) => refused = Some(error),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// The incarnation of the process that has this key.
    pub async fn run_id_for(&self, key: &str) -> Result<String, redis::RedisError> {
        self.topology
            .find(self.slot(key))
            .await?
            .live_run_id()
            .await
    }

    /// The incarnation of the process that a fresh checkout reaches; of one of them, in a cluster.
    pub async fn live_run_id(&self) -> Result<String, redis::RedisError> {
        self.topology.find(None).await?.live_run_id().await
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
