//! The servers of the lab: its own connections to Postgres, so that a storm cannot take those of a
//! sale, and to Redis; more Redis nodes and ZooKeeper, started when they are first needed.

use crate::{
    embedded::{RedisServer, RedisSettings},
    redis::Redis,
};
use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use super::strategy::{Need, Trouble, Words};

/// Connections to Postgres for all arenas of this process.
const CONNECTIONS: u32 = 12;
/// How long a buyer may wait for one of them. Long: waiting in line is what a slow strategy costs.
const PATIENCE: Duration = Duration::from_secs(25);

pub struct Servers {
    pub postgres: PgPool,
    pub redis: Arc<Redis>,
    /// Where servers of the lab's own may be started; `None` if this program runs on servers that
    /// somebody else has set up.
    pub data_dir: Option<PathBuf>,
    /// More Redis nodes, by their number, once they have been needed.
    nodes: Mutex<HashMap<usize, Arc<RedisServer>>>,
    /// Nodes that run the whole production path, each with loops and a pool of its own.
    production: Arc<Semaphore>,
}

/// How many nodes of the production path a process runs at a time.
const PRODUCTION_NODES: usize = 6;

impl Servers {
    pub fn new(options: &PgConnectOptions, redis: Arc<Redis>, data_dir: Option<PathBuf>) -> Self {
        Self {
            postgres: pool(options, CONNECTIONS),
            redis,
            data_dir,
            nodes: Mutex::default(),
            production: Arc::new(Semaphore::new(PRODUCTION_NODES)),
        }
    }

    /// For a Postgres that takes more connections.
    pub fn with_production_nodes(self, most: usize) -> Self {
        Self {
            production: Arc::new(Semaphore::new(most)),
            ..self
        }
    }

    /// A place for one more node of the production path.
    pub fn production_node(&self) -> Result<OwnedSemaphorePermit, Trouble> {
        let free = self.production.clone().try_acquire_owned();
        free.map_err(|_| Trouble::Other("this process runs as many shops as it may".to_owned()))
    }

    /// One more Redis, independent of all others, started when it is first needed. It keeps nothing over
    /// a restart.
    pub async fn redis_node(&self, number: usize) -> Result<Arc<RedisServer>, Trouble> {
        let mut nodes = self.nodes.lock().await;
        if let Some(server) = nodes.get(&number) {
            return Ok(server.clone());
        }
        let data_dir = self
            .data_dir
            .as_ref()
            .ok_or_else(|| Trouble::Other("there is no place for more servers".to_owned()))?;
        let settings = RedisSettings {
            extra_args: ["--appendonly", "no", "--save", ""]
                .map(String::from)
                .to_vec(),
            ..RedisSettings::default()
        };
        let started =
            RedisServer::start(&data_dir.join(format!("redis-{}", number + 1)), settings).await;
        let server = Arc::new(started.map_err(|error| Trouble::Other(error.to_string()))?);
        nodes.insert(number, server.clone());
        Ok(server)
    }

    /// Before every key of this arena. In braces, so that a Redis Cluster keeps them together.
    pub fn prefix_of(&self, arena: &str) -> String {
        format!("{}lab:{{{arena}}}:", self.redis.keys.prefix())
    }

    /// Why a strategy with this need cannot run here; `None` if it can.
    pub fn lacks(&self, need: Need) -> Option<Words> {
        match need {
            Need::RedisNodes(_) if self.data_dir.is_some() => None,
            Need::RedisNodes(_) => Some(Words::new(
                "More independent Redis servers are needed; run embedded (without DATABASE_URL and REDIS_URL) to have \
                 them started.",
                "需要多台互相独立的 Redis；以内嵌方式运行（不设置 DATABASE_URL 和 REDIS_URL）会自动启动它们。",
            )),
            Need::ZooKeeper => Some(Words::new(
                "A ZooKeeper server is needed.",
                "需要一台 ZooKeeper 服务器。",
            )),
        }
    }

    /// Removes all keys of an arena. The keys of a large Redis are walked in small steps.
    pub async fn sweep(&self, arena: &str) -> Result<(), redis::RedisError> {
        let pattern = format!("{}*", escaped(&self.prefix_of(arena)));
        let mut connection = self.redis.pooled().await?;
        let mut cursor = 0_u64;
        loop {
            let (next, keys): (u64, Vec<Vec<u8>>) = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(&pattern)
                .arg("COUNT")
                .arg(1_000)
                .query_async(&mut *connection)
                .await?;
            if !keys.is_empty() {
                redis::cmd("UNLINK")
                    .arg(keys)
                    .exec_async(&mut *connection)
                    .await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    pub async fn close(&self) {
        let _ = tokio::time::timeout(Duration::from_millis(500), self.postgres.close()).await;
        // Dropping them ends them.
        self.nodes.lock().await.clear();
    }
}

/// A pool of the lab: nobody is told 503 here, everybody waits.
pub fn pool(options: &PgConnectOptions, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(PATIENCE)
        .idle_timeout(Duration::from_secs(30))
        .test_before_acquire(false)
        .connect_lazy_with(
            options
                .clone()
                .application_name("flash-sale-lab")
                .options([("statement_timeout", "30s")]),
        )
}

/// A text as a pattern that only it matches.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}
