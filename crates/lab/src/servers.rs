//! The servers of the lab: its own connections to Postgres, so that a storm cannot take those of a
//! sale, and to Redis; more Redis nodes and ZooKeeper, started when they are first needed.

use crate::{interleaving, loopback::OwnPort, real_shop::RealShop};
use embedded::{EmbeddedError, RedisServer, RedisSettings, ZooKeeperServer, ZooKeeperSettings};
use futures_util::TryStreamExt;
use redis::{AsyncCommands, ConnectionAddr, ScanOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, PgPool};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{collections::HashMap, sync::Arc};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use crate::selling::{PurchaseError, Result};
use crate::strategy::{Need, Words};

/// Connections to Postgres for all arenas of this process.
const CONNECTIONS: u32 = 12;
/// How long a buyer may wait for one of them. Long: waiting in line is what a slow strategy costs.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(25);

pub struct Servers {
    pub postgres: PgPool,
    /// Never lent to a strategy: tallies, verdicts and cleaning up get a connection whatever the
    /// arenas do.
    pub upkeep: PgPool,
    /// The one Redis of the shop, at an address that the `redis` crate takes.
    pub redis_url: String,
    /// Before every key of this program.
    pub key_prefix: String,
    pub shop: Arc<dyn RealShop>,
    /// Where servers of the lab's own may be started; `None` if this program runs on servers that
    /// somebody else has set up.
    pub data_dir: Option<PathBuf>,
    /// More Redis nodes, by their number, while they are needed.
    nodes: Spares<RedisServer>,
    zookeeper: Spares<OwnZooKeeper>,
    /// See [`IDLE_LIMIT`]; tests do not wait that long.
    pub idle_limit: Duration,
    /// See [`interleaving::FIRST_WAIT`].
    pub first_wait: Duration,
    /// Nodes that run the whole production path, each with loops and a pool of its own.
    production: Arc<Semaphore>,
    /// Connections of pools that nodes have to themselves, see [`Self::own_pool`].
    own: Arc<Semaphore>,
}

/// Connections for what the lab itself does.
const UPKEEP_CONNECTIONS: u32 = 3;
/// Connections of all nodes that keep some to themselves. As many as the consumers of a task queue
/// on the most nodes that an arena may have.
const OWN_CONNECTIONS: usize = 8;

/// How long an extra server runs that nobody uses: starting one again takes a moment.
pub const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// Servers that are needed only now and then, by number, each with the time at which somebody held
/// it last.
struct Spares<T>(Mutex<HashMap<usize, (Arc<T>, Instant)>>);

impl<T: Send + Sync + 'static> Spares<T> {
    async fn get(
        &self,
        number: usize,
        start: impl Future<Output = Result<T, EmbeddedError>> + Send + 'static,
    ) -> Result<Arc<T>> {
        let mut all = self.0.lock().await;
        if let Some((server, _)) = all.get(&number) {
            return Ok(server.clone());
        }
        let server = Arc::new(started(start).await?);
        all.insert(number, (server.clone(), Instant::now()));
        Ok(server)
    }

    /// Stops those that nobody has held for so long. New ones wait: they need the folders.
    async fn stop_idle<F: Future>(&self, limit: Duration, stop: impl Fn(T) -> F) {
        let mut all = self.0.lock().await;
        let in_use = all.values_mut().filter(|(server, _)| Arc::strong_count(server) > 1);
        in_use.for_each(|(_, held)| *held = Instant::now());
        let idle: Vec<_> = all.extract_if(|_, (_, held)| held.elapsed() >= limit).collect();
        for server in idle.into_iter().filter_map(|(_, (server, _))| Arc::into_inner(server)) {
            stop(server).await;
        }
    }
}

/// A Redis that keeps nothing over a restart, and the folder of its files.
pub struct OwnRedis {
    pub server: RedisServer,
    _folder: Folder,
    _port: Option<OwnPort>,
}

/// The ZooKeeper of the lab.
pub struct OwnZooKeeper {
    pub server: ZooKeeperServer,
    _port: OwnPort,
}

/// Removed after the server that uses it, or that did not start.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Should it fail, a log file is left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A pool of one node. Its connections count against a bound of the process until this is dropped.
pub struct OwnPool {
    pub pool: PgPool,
    _places: OwnedSemaphorePermit,
}

/// How many nodes of the production path a process runs at a time.
const PRODUCTION_NODES: usize = 6;

impl Servers {
    pub fn new(
        options: &PgConnectOptions,
        redis_url: &str,
        key_prefix: &str,
        shop: Arc<dyn RealShop>,
        data_dir: Option<PathBuf>,
    ) -> Self {
        Self {
            postgres: pool(options, CONNECTIONS),
            upkeep: pool(options, UPKEEP_CONNECTIONS),
            redis_url: redis_url.to_owned(),
            key_prefix: key_prefix.to_owned(),
            shop,
            data_dir,
            nodes: Spares(Mutex::default()),
            zookeeper: Spares(Mutex::default()),
            idle_limit: IDLE_LIMIT,
            first_wait: interleaving::FIRST_WAIT,
            production: Arc::new(Semaphore::new(PRODUCTION_NODES)),
            own: Arc::new(Semaphore::new(OWN_CONNECTIONS)),
        }
    }

    /// For a Postgres that takes more connections: so many for all arenas, and as many for the
    /// nodes that keep some to themselves.
    pub fn allow_connections(&mut self, most: u32) {
        self.postgres = pool(&self.postgres.connect_options(), most);
        self.own = Arc::new(Semaphore::new(most as usize));
    }

    /// The ports of the stores. One behind a socket file is merely closed to the judge, too.
    pub fn ports(&self) -> Vec<u16> {
        let redis = redis::IntoConnectionInfo::into_connection_info(&*self.redis_url).ok();
        let redis = redis.and_then(|info| match info.addr() {
            ConnectionAddr::Tcp(_, port) | ConnectionAddr::TcpTls { port, .. } => Some(*port),
            _ => None,
        });
        redis.into_iter().chain([self.postgres.connect_options().get_port()]).collect()
    }

    /// For a Postgres that takes more connections.
    pub fn allow_production_nodes(&mut self, most: usize) {
        self.production = Arc::new(Semaphore::new(most));
    }

    /// A place for one more node of the production path.
    pub fn production_node(&self) -> Result<OwnedSemaphorePermit> {
        let why = "this process runs as many nodes of lua-stream as it may; delete another arena \
                   of it";
        self.production.clone().try_acquire_owned().map_err(|_| why.into())
    }

    /// A pool of one node alone: what it keeps, nobody else waits for.
    pub fn own_pool(&self, connections: u32) -> Result<OwnPool> {
        let why = "the nodes of this process keep as many connections to themselves as they may";
        let places = self.own.clone().try_acquire_many_owned(connections).map_err(|_| why)?;
        Ok(OwnPool { pool: pool(&self.postgres.connect_options(), connections), _places: places })
    }

    /// One more Redis, independent of all others, started when it is first needed. It keeps nothing
    /// over a restart. It is stopped some time after everybody has let go of it.
    pub async fn redis_node(&self, number: usize) -> Result<Arc<RedisServer>> {
        let folder = self.folder(&format!("redis-{}", number + 1))?;
        self.nodes.get(number, async move { start_redis(&folder, &[]).await }).await
    }

    /// A Redis that belongs to the caller, under a name that nobody else uses, with more flags if
    /// need be.
    pub async fn own_redis(&self, name: &str, flags: &[String]) -> Result<OwnRedis> {
        let (folder, flags) = (Folder(self.folder(name)?), flags.to_vec());
        let port = flags.iter().skip_while(|flag| *flag != "--port").nth(1);
        let port = port.and_then(|port| port.parse().ok()).map(OwnPort::new);
        let start = async move {
            let server = start_redis(&folder.0, &flags).await?;
            Ok(OwnRedis { server, _folder: folder, _port: port })
        };
        started(start).await
    }

    /// Where the files of a server of this name stand.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        let root = self.data_dir.as_ref();
        root.map(|root| root.join(name)).ok_or("there is no place for more servers".into())
    }

    /// The ZooKeeper of the lab, started when it is first needed and stopped as the Redis nodes.
    pub async fn zookeeper(&self) -> Result<Arc<OwnZooKeeper>> {
        let folder = self.folder("zookeeper")?;
        let start = async move {
            let server = ZooKeeperServer::start(&folder, ZooKeeperSettings::default()).await?;
            Ok(OwnZooKeeper { _port: OwnPort::new(server.address().port()), server })
        };
        self.zookeeper.get(0, start).await
    }

    /// Stops the servers that nobody has held for a while.
    pub async fn stop_idle(&self) {
        self.nodes.stop_idle(self.idle_limit, RedisServer::stop).await;
        // Its port is closed to the judge until then.
        let stop = async |own: OwnZooKeeper| own.server.stop().await;
        self.zookeeper.stop_idle(self.idle_limit, stop).await;
    }

    /// Before every key of this arena. In braces, so that a Redis Cluster keeps them together.
    pub fn prefix_of(&self, arena: &str) -> String {
        format!("{}lab:{{{arena}}}:", self.key_prefix)
    }

    /// Why a strategy with this need cannot run here; `None` if it can.
    pub fn lacks(&self, need: Need) -> Option<Words> {
        let why = match need {
            Need::RedisNodes(_) if self.data_dir.is_some() => return None,
            Need::RedisNodes(_) => "redis-nodes",
            Need::ZooKeeper if self.data_dir.is_none() => "zookeeper",
            Need::ZooKeeper if !cfg!(feature = "zookeeper") => "client",
            Need::ZooKeeper if ZooKeeperServer::is_installed() => return None,
            Need::ZooKeeper => "package",
        };
        Some(Words::of("servers", "Missing", why))
    }

    /// Removes all keys of an arena. The keys of a large Redis are walked in small steps.
    pub async fn sweep(&self, arena: &str) -> Result<(), redis::RedisError> {
        let pattern = format!("{}*", escaped(&self.prefix_of(arena)));
        let client = redis::Client::open(&*self.redis_url)?;
        // The client's own limit, half a second, is too short on a busy machine.
        let limit = Some(Duration::from_secs(15));
        let config = redis::AsyncConnectionConfig::new();
        let config = config.set_connection_timeout(limit).set_response_timeout(limit);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let options = ScanOptions::default().with_pattern(pattern).with_count(1_000);
        let mut scanning = connection.clone();
        let keys = scanning.scan_options::<Vec<u8>>(options).await?;
        let mut keys = std::pin::pin!(keys.try_chunks(1_000));
        while let Some(keys) = keys.try_next().await.map_err(|error| error.1)? {
            redis::cmd("UNLINK").arg(keys).exec_async(&mut connection).await?;
        }
        Ok(())
    }

    pub async fn close(&self) {
        let pools = async { tokio::join!(self.postgres.close(), self.upkeep.close()) };
        let _ = tokio::time::timeout(Duration::from_millis(500), pools).await;
        // Dropping them ends them.
        self.nodes.0.lock().await.clear();
        self.zookeeper.0.lock().await.clear();
    }
}

async fn start_redis(folder: &Path, flags: &[String]) -> Result<RedisServer, EmbeddedError> {
    let mut settings = RedisSettings::without_persistence();
    settings.extra_args.extend_from_slice(flags);
    RedisServer::start(folder, settings).await
}

/// Starts a server, which goes on if nobody waits for it any more: its folder is in use.
async fn started<T: Send + 'static>(
    start: impl Future<Output = Result<T, EmbeddedError>> + Send + 'static,
) -> Result<T> {
    let started = tokio::spawn(start).await;
    let started = started.map_err(|error| PurchaseError::Other(error.to_string()))?;
    started.map_err(|error| PurchaseError::Other(error.to_string()))
}

/// A pool of the lab: nobody is told 503 here, everybody waits.
pub fn pool(options: &PgConnectOptions, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .idle_timeout(Duration::from_secs(30))
        .test_before_acquire(false)
        .connect_lazy_with(
            options
                .clone()
                // A statement that waits at an interleaving point or for a lock is slow on purpose.
                .disable_statement_logging()
                .application_name("flash-sale-lab")
                // A lock that leaks makes Postgres complain at each unlock: the verdict says it
                // better.
                .options([("statement_timeout", "30s"), ("client_min_messages", "error")]),
        )
}

/// A text as a pattern that only it matches.
fn escaped(text: &str) -> String {
    let escaped =
        |letter| if "*?[]\\".contains(letter) { vec!['\\', letter] } else { vec![letter] };
    text.chars().flat_map(escaped).collect()
}
