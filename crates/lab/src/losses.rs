//! Losses that really happen: a Redis that comes back without its data, a ZooKeeper session that
//! lapses. On servers and connections of one arena, so that no other arena notices.

use crate::{lessons::proxy::Proxy, selling::Trouble, servers::Servers};
use embedded::RedisServer;
use locks::{LockError, zookeeper_client::Client};
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::AcqRel},
    },
    time::Duration,
};

/// What an arena may lose, once.
#[derive(Default)]
pub struct Losses {
    lost: AtomicBool,
    redis: tokio::sync::Mutex<Vec<Arc<OwnRedis>>>,
    /// The way of each node to ZooKeeper.
    wires: Mutex<HashMap<u32, Proxy>>,
}

/// A Redis of one arena, which keeps nothing on disk.
struct OwnRedis {
    server: RedisServer,
    _folder: Folder,
}

/// Removed after the server that uses it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Should it fail, a log file is left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Losses {
    /// Whether this is the first time that somebody asks.
    pub fn begin(&self) -> bool {
        !self.lost.swap(true, AcqRel)
    }

    /// The address of the arena's own Redis of this number.
    pub async fn redis_url(
        &self,
        servers: &Servers,
        arena: &str,
        number: usize,
    ) -> Result<String, Trouble> {
        let mut redis = self.redis.lock().await;
        while redis.len() <= number {
            let name = format!("{arena}-{}", redis.len() + 1);
            let (server, folder) = servers.own_redis(&name).await?;
            redis.push(Arc::new(OwnRedis { server, _folder: Folder(folder) }));
        }
        Ok(redis[number].server.url())
    }

    /// Kills so many of them; each comes back at once, at the same address and empty.
    pub async fn restart_redis(&self, count: usize) -> Result<(), Trouble> {
        let redis: Vec<_> = self.redis.lock().await.iter().take(count).cloned().collect();
        for redis in redis {
            let before = redis.server.pid();
            redis.server.kill();
            while redis.server.pid() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let ready = redis.server.wait_ready().await;
            ready.map_err(|error| Trouble::Other(error.to_string()))?;
        }
        Ok(())
    }

    /// A way to ZooKeeper for this node alone.
    pub async fn wire_to(&self, node: u32, cluster: String) -> Result<String, Trouble> {
        let proxy = Proxy::start(cluster).await.map_err(redis::RedisError::from)?;
        let address = proxy.address.to_string();
        self.wires.lock().unwrap_or_else(PoisonError::into_inner).insert(node, proxy);
        Ok(address)
    }

    /// Nothing of this node gets through to ZooKeeper until the session that made the znode at
    /// `path` has ended there.
    pub async fn end_session(&self, node: u32, cluster: &str, path: &str) -> Result<(), Trouble> {
        let wire = |cut: fn(&Proxy)| {
            let wires = self.wires.lock().unwrap_or_else(PoisonError::into_inner);
            wires.get(&node).map(cut);
        };
        wire(Proxy::falls_silent);
        let gone = until_gone(cluster, path).await;
        wire(Proxy::mend);
        Ok(gone.map_err(LockError::from)?)
    }
}

async fn until_gone(cluster: &str, path: &str) -> Result<(), locks::zookeeper_client::Error> {
    let client = Client::connect(cluster).await?;
    while let (Some(_), changed) = client.check_and_watch_stat(path).await? {
        changed.changed().await;
    }
    Ok(())
}
