//! Redis servers that belong to one play, which may kill them.
//!
//! They keep nothing on disk unless told to, so one that is killed comes back empty. Those that
//! come out of a play unharmed are cleared and kept for the next one: starting a process is what
//! costs most.

use super::error::Trouble;
use embedded::{RedisServer, RedisSettings};
use redis::AsyncConnectionConfig;
use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// How many are kept for later plays.
const MOST_IDLE: usize = 9;
/// With a server that is busy, or starts.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Nodes {
    /// `None`: no servers are started here.
    root: Option<PathBuf>,
    idle: Mutex<Vec<Server>>,
}

struct Server {
    redis: RedisServer,
    folder: PathBuf,
}

/// One server in one play.
pub struct Node {
    /// Its name on stage.
    pub id: &'static str,
    server: Server,
    /// Killed, or told to be something else than a plain empty server.
    spoilt: AtomicBool,
}

impl Nodes {
    pub(super) fn new(root: Option<PathBuf>) -> Self {
        Self { root: root.map(|root| root.join("lessons")), idle: Mutex::default() }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Server>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server, with more flags of `redis-server` if need be.
    pub(super) async fn take(&self, id: &'static str, flags: Vec<String>) -> Result<Node, Trouble> {
        let spoilt = AtomicBool::new(!flags.is_empty());
        let kept = if flags.is_empty() { self.idle().pop() } else { None };
        let server = match kept {
            Some(server) => server,
            None => self.start(flags).await?,
        };
        Ok(Node { id, server, spoilt })
    }

    async fn start(&self, flags: Vec<String>) -> Result<Server, Trouble> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let folder = self.root.as_ref().map(|root| root.join(name));
        let mut extra_args: Vec<String> = ["--appendonly", "no"].map(String::from).to_vec();
        extra_args.extend(flags);
        let settings = RedisSettings { extra_args, ..RedisSettings::default() };
        let folder = folder.ok_or_else(|| Trouble::NotAsWritten("no servers here".to_owned()))?;
        // On a thread of its own: the compiler cannot see that this future may move between
        // threads.
        let runtime = tokio::runtime::Handle::current();
        let starting = tokio::task::spawn_blocking(move || {
            let redis = runtime.block_on(RedisServer::start(&folder, settings))?;
            Ok(Server { redis, folder })
        });
        starting.await.map_err(|error| Trouble::NotAsWritten(error.to_string()))?
    }

    /// Clears a node for the next play, or ends it.
    pub(super) async fn give_back(&self, node: Arc<Node>) {
        let Some(node) = Arc::into_inner(node) else {
            return; // still in somebody's hands; it ends when they let it go
        };
        if !node.spoilt.load(Relaxed) && self.idle().len() < MOST_IDLE && node.clear().await.is_ok()
        {
            self.idle().push(node.server);
            return;
        }
        node.server.end().await;
    }

    pub(super) async fn close(&self) {
        let idle = std::mem::take(&mut *self.idle());
        for server in idle {
            server.end().await;
        }
    }
}

impl Server {
    async fn end(self) {
        // What it knows is of no use to anybody: no need to let it save.
        self.redis.kill();
        self.redis.stop().await;
        // Should it fail, the folder holds a log file and nothing else.
        let _ = tokio::fs::remove_dir_all(&self.folder).await;
    }
}

impl Node {
    pub fn url(&self) -> String {
        self.server.redis.url()
    }

    async fn connection(&self) -> Result<redis::aio::MultiplexedConnection, redis::RedisError> {
        // The library's own half a second is less than a busy machine may need.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(NODE_TIMEOUT))
            .set_response_timeout(Some(NODE_TIMEOUT));
        redis::Client::open(self.url())?.get_multiplexed_async_connection_with_config(&config).await
    }

    /// A command of the director.
    pub async fn order<T: redis::FromRedisValue>(
        &self,
        command: &redis::Cmd,
    ) -> Result<T, Trouble> {
        Ok(command.query_async(&mut self.connection().await?).await?)
    }

    /// Waits until this replica has all that its primary has.
    pub async fn until_synchronised(&self) -> Result<(), Trouble> {
        let waiting = async {
            loop {
                let info: String = self.order(redis::cmd("INFO").arg("replication")).await?;
                if info.contains("master_link_status:up") {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(NODE_TIMEOUT, waiting).await;
        waited.unwrap_or(Err(Trouble::TooSlow("replication does not get ready")))
    }

    async fn clear(&self) -> Result<(), redis::RedisError> {
        redis::cmd("FLUSHALL").exec_async(&mut self.connection().await?).await
    }

    /// Is no plain empty server any more.
    pub fn spoil(&self) {
        self.spoilt.store(true, Relaxed);
    }

    /// `kill -9`, and waits until it has been started again, with nothing.
    pub async fn restart(&self) -> Result<(), Trouble> {
        let before = self.run_id().await?;
        self.kill();
        self.until_back(&before).await
    }

    /// Waits until another process than this one answers.
    pub async fn until_back(&self, before: &str) -> Result<(), Trouble> {
        let back = async {
            while !self.run_id().await.is_ok_and(|now| now != before) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(NODE_TIMEOUT, back)
            .await
            .map_err(|_| Trouble::TooSlow("a node does not come back"))
    }

    /// `kill -9`. It is started again a moment later, as by any service manager.
    pub fn kill(&self) {
        self.spoil();
        self.server.redis.kill();
    }

    /// Different for every process.
    pub async fn run_id(&self) -> Result<String, Trouble> {
        let info: String = self.order(redis::cmd("INFO").arg("server")).await?;
        let line = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        Ok(line.unwrap_or_default().to_owned())
    }
}
