//! Real losses: a Redis that restarts without its data, a ZooKeeper session that lapses. On servers
//! and connections of one arena, so that no other arena notices.

use crate::lessons::proxy::Proxy;
use crate::selling::{PurchaseError, Result};
use crate::servers::{OwnRedis, Servers};
use dashmap::DashMap;
use embedded::RedisServer;
use locks::LockError;
use locks::zookeeper::{Zoo, ZooError};
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// The servers and connections that an arena may lose, once.
#[derive(Default)]
pub struct Losses {
    lost: AtomicBool,
    redis: tokio::sync::Mutex<Vec<OwnRedis>>,
    /// The way of each node to ZooKeeper.
    wires: DashMap<u32, Arc<Proxy>>,
}

/// A way on which nothing gets through, until this is dropped.
struct Silence(Arc<Proxy>);

impl Drop for Silence {
    fn drop(&mut self) {
        self.0.mend();
    }
}

impl Losses {
    /// Whether this is the first time that somebody asks.
    pub fn begin(&self) -> bool {
        !self.lost.swap(true, AcqRel)
    }

    /// The address of the arena's own Redis of this number.
    pub async fn redis_url(&self, servers: &Servers, arena: &str, number: usize) -> Result<String> {
        let mut redis = self.redis.lock().await;
        while redis.len() <= number {
            let name = format!("{arena}-{}", redis.len() + 1);
            redis.push(servers.own_redis(&name, &[]).await?);
        }
        Ok(redis[number].server.url())
    }

    /// Kills so many of them; each comes back at once, at the same address and empty.
    pub async fn restart_redis(&self, count: usize) -> Result {
        for redis in self.redis.lock().await.iter().take(count) {
            let before = redis.server.pid();
            redis.server.kill();
            until_back(&redis.server, before).await?;
        }
        Ok(())
    }

    /// A way to ZooKeeper for this node alone.
    pub async fn wire_to(&self, node: u32, cluster: String) -> Result<String> {
        let proxy = Proxy::start(cluster).await.map_err(redis::RedisError::from)?;
        let address = proxy.address.to_string();
        self.wires.insert(node, Arc::new(proxy));
        Ok(address)
    }

    /// Nothing of this node gets through to ZooKeeper until the session that made the znode at
    /// `path` has ended there, or nobody waits for that any more.
    pub async fn end_session(&self, node: u32, cluster: &str, path: &str) -> Result {
        let wire = self.wires.get(&node).map(|wire| wire.clone());
        let _until_the_end = wire.inspect(|wire| wire.falls_silent()).map(Silence);
        Ok(until_gone(cluster, path).await.map_err(LockError::from)?)
    }
}

/// Until another process answers at the same address than the one before.
pub(crate) async fn until_back(server: &RedisServer, before: Option<u32>) -> Result {
    while server.pid() == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.wait_ready().await.map_err(|error| PurchaseError::Other(error.to_string()))
}

async fn until_gone(cluster: &str, path: &str) -> Result<(), ZooError> {
    let session = Zoo::new(cluster, Duration::from_secs(10)).session(Instant::now()).await?;
    while let (Some(_), watch) = session.watch(path).await? {
        watch.await;
    }
    Ok(())
}
