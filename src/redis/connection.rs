//! Connections: the pools of `deadpool-redis`, and shared ones.

use arc_swap::ArcSwapOption;
use deadpool_redis::sentinel::{self, SentinelNodeConnectionInfo, SentinelServerType, TlsMode};
use deadpool_redis::{Manager, PoolConfig, PoolError, Runtime, Timeouts};
use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo};
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo as NodeInfo};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, InfoDict, IntoConnectionInfo, Pipeline,
    RedisError, RedisFuture, ServerErrorKind, Value,
};
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

/// How long one command may take.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_millis(1_000);

const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_000);

/// How many connections a pool has.
#[derive(Debug, Clone, Copy, Default)]
pub struct PoolSize {
    pub size: usize,
    pub idle: usize,
}

/// The most connections of a pool.
const POOLED: usize = 16;

/// An idle connection that needs longer is dead, and so are the others that were idle as long: the
/// pool would try one after the other.
const CHECKOUT: Duration = Duration::from_millis(500);

/// The timeout of a cluster node: the client asks node after node for the owner of a slot, and
/// every command waits.
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// The pause before a redirected command is asked again.
const REDIRECT_PAUSE: Duration = Duration::from_millis(10);

/// The servers of `REDIS_URL`.
pub(super) enum Servers {
    One {
        client: Box<Client>,
        pool: deadpool_redis::Pool,
    },
    /// One connection to every node for purchases and one for all else: a pool would open many
    /// more, and `deadpool-redis` has no time limits for clusters.
    Cluster {
        nodes: Vec<Client>,
        purchases: Nodes,
        others: Nodes,
    },
    Sentinel {
        client: Box<Mutex<SentinelClient>>,
        pool: sentinel::Pool,
    },
}

fn limits(response: Duration) -> PoolConfig {
    let mut limits = PoolConfig::new(POOLED);
    limits.timeouts =
        Timeouts { wait: Some(2 * response), create: Some(response), recycle: Some(response) };
    limits
}

/// The members of a comma-separated list as URLs: the scheme and the login of the first apply to
/// members without their own.
fn members(list: &str) -> Vec<String> {
    let first = list.split(',').next().unwrap_or_default();
    let scheme_end = first.find("://").map_or(0, |at| at + 3);
    let prefix = &first[..first.rfind('@').map_or(scheme_end, |at| at + 1)];
    list.split(',')
        .filter(|member| !member.is_empty())
        .map(|member| match member.contains("://") {
            true => member.to_owned(),
            false => format!("{prefix}{member}"),
        })
        .collect()
}

fn invalid(why: &'static str) -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, why))
}

/// Builds a pool with this manager.
macro_rules! pool {
    ($module:ident, $manager:expr, $response:expr) => {
        $module::Pool::builder($manager)
            .config(limits($response))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| RedisError::from(std::io::Error::other(error)))?
    };
}

/// Borrows a connection that answers. An idle one is tried within [`CHECKOUT`]; otherwise the
/// pool's own time limits apply.
async fn lent<T, G>(
    idle: usize,
    get: impl Fn() -> G,
    forget_idle: impl FnOnce(),
) -> Result<T, RedisError>
where
    G: Future<Output = Result<T, PoolError>>,
{
    if idle > 0 {
        if let Ok(lent) = timeout(CHECKOUT, get()).await {
            return lent.map_err(pool_error);
        }
        forget_idle();
    }
    get().await.map_err(pool_error)
}

macro_rules! lend {
    ($pool:ident) => {{
        let forget_idle = || drop($pool.retain(|_, metrics| metrics.last_used() < CHECKOUT));
        lent($pool.status().available, || $pool.get(), forget_idle).await?
    }};
}

/// Converts a pool's error.
fn pool_error(error: PoolError) -> RedisError {
    match error {
        PoolError::Backend(error) => error,
        other => std::io::Error::new(std::io::ErrorKind::TimedOut, other.to_string()).into(),
    }
}

impl Servers {
    /// Connects to nothing yet. Errors do not repeat the address, which may hold a password.
    /// `response` is how long one command to a single server may take.
    pub fn new(url: &str, response: Duration) -> Result<Self, RedisError> {
        if let Some(rest) = url.strip_prefix("redis-sentinel://") {
            return Self::sentinel("redis://", rest);
        }
        if let Some(rest) = url.strip_prefix("rediss-sentinel://") {
            return Self::sentinel("rediss://", rest);
        }
        if url.contains(',') || url.contains("+cluster://") {
            let nodes = members(&url.replacen("+cluster://", "://", 1));
            // Longer retries are the caller's: it knows the deadline.
            let client = ClusterClientBuilder::new(nodes.clone())
                .connection_timeout(NODE_TIMEOUT)
                .response_timeout(NODE_TIMEOUT)
                .retries(6)
                .min_retry_wait(10)
                .max_retry_wait(30)
                .build()?;
            let nodes = nodes.into_iter().map(Client::open);
            return Ok(Self::Cluster {
                nodes: nodes.collect::<Result<_, _>>()?,
                purchases: Nodes::new(client.clone()),
                others: Nodes::new(client),
            });
        }
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(response))
            .set_connection_timeout(Some(response));
        Ok(Self::One {
            client: Box::new(Client::open(url)?),
            pool: pool!(deadpool_redis, Manager::new_with_config(url, config)?, response),
        })
    }

    /// `[user:password@]host:port,host:port/NAME[/DATABASE]`; the login is the primary's.
    fn sentinel(scheme: &str, rest: &str) -> Result<Self, RedisError> {
        let (hosts, name) = rest.split_once('/').unwrap_or((rest, ""));
        let (name, database) = name.split_once('/').unwrap_or((name, "0"));
        if name.is_empty() {
            let why = "a Sentinel address ends with the name of the primary: \
                       redis-sentinel://host,host/NAME";
            return Err(invalid(why));
        }
        let (login, hosts) = match hosts.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), hosts),
        };
        let sentinels = members(&format!("{scheme}{hosts}"));
        // The host is a placeholder: the Sentinels name the real one.
        let primary = format!("{scheme}{login}primary/{database}").into_connection_info()?;
        let tls = scheme == "rediss://";
        let info = primary.redis_settings().clone();
        let mut node = NodeInfo::default().set_redis_connection_info(info.clone());
        if tls {
            node = node.set_tls_mode(redis::TlsMode::Secure);
        }
        let pooled = SentinelNodeConnectionInfo {
            tls_mode: tls.then_some(TlsMode::Secure),
            redis_connection_info: Some(info.into()),
        };
        let (kind, name) = (redis::sentinel::SentinelServerType::Master, name.to_owned());
        let client = SentinelClient::build(sentinels.clone(), name.clone(), Some(node), kind)?;
        let manager =
            sentinel::Manager::new(sentinels, name, Some(pooled), SentinelServerType::Master)?;
        Ok(Self::Sentinel {
            client: Box::new(Mutex::new(client)),
            pool: pool!(sentinel, manager, RESPONSE_TIMEOUT),
        })
    }

    /// A connection for ordinary work.
    pub async fn pooled(&self) -> Result<Connection, RedisError> {
        Ok(match self {
            Self::One { pool, .. } => {
                let lent = lend!(pool);
                Connection::Server(lent.clone(), Some(Box::new(lent)))
            }
            Self::Sentinel { pool, .. } => {
                let lent = lend!(pool);
                Connection::Server(lent.clone(), Some(Box::new(lent)))
            }
            Self::Cluster { others, .. } => Connection::Cluster(others.connected().await?),
        })
    }

    /// A connection that callers share, taken out of the pool.
    pub async fn shared(&self) -> Result<Connection, RedisError> {
        Ok(match self {
            Self::One { pool, .. } => {
                let lent = lend!(pool);
                Connection::Server(deadpool_redis::Connection::take(lent), None)
            }
            Self::Sentinel { pool, .. } => {
                let lent = lend!(pool);
                Connection::Server(sentinel::Connection::take(lent), None)
            }
            Self::Cluster { purchases, .. } => Connection::Cluster(purchases.connected().await?),
        })
    }

    pub fn pool_size(&self) -> PoolSize {
        let status = match self {
            Self::One { pool, .. } => pool.status(),
            Self::Sentinel { pool, .. } => pool.status(),
            Self::Cluster { .. } => return PoolSize { size: 2, idle: 2 },
        };
        PoolSize { size: status.size, idle: status.available }
    }

    /// A connection for subscriptions.
    pub async fn subscriber(&self) -> Result<PubSub, RedisError> {
        let nodes = match self {
            Self::One { client, .. } => std::slice::from_ref(&**client),
            Self::Sentinel { client, .. } => {
                let mut client = client.lock().await;
                let primary = timeout(CONNECT_TIMEOUT, client.async_get_client()).await;
                &[primary.unwrap_or_else(|_| Err(timed_out()))?]
            }
            Self::Cluster { nodes, .. } => nodes,
        };
        let mut failed = invalid("no nodes are given");
        for node in nodes {
            let connected = timeout(CONNECT_TIMEOUT, node.get_async_pubsub()).await;
            match connected.unwrap_or_else(|_| Err(timed_out())) {
                Ok(subscriber) => return Ok(subscriber),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

/// A connection to every node of a cluster. The client follows slots that moved, but not past a
/// node that is silent. So after a timeout a second connection is made, which takes over once every
/// primary answers on it.
#[derive(Clone)]
pub struct Nodes(Arc<NodesInner>);

struct NodesInner {
    client: ClusterClient,
    current: ArcSwapOption<ClusterConnection>,
    connecting: Mutex<()>,
    renewing: Arc<Mutex<()>>,
}

impl Nodes {
    fn new(client: ClusterClient) -> Self {
        Self(Arc::new(NodesInner {
            client,
            current: ArcSwapOption::empty(),
            connecting: Mutex::new(()),
            renewing: Arc::default(),
        }))
    }

    /// Connects, unless that was done before.
    async fn connected(&self) -> Result<Self, RedisError> {
        let _one_at_a_time = self.0.connecting.lock().await;
        if self.0.current.load().is_none() {
            let connection = in_time(self.0.client.get_async_connection()).await?;
            self.0.current.store(Some(Arc::new(connection)));
        }
        Ok(self.clone())
    }

    fn current(&self) -> Result<ClusterConnection, RedisError> {
        let current = self.0.current.load();
        let current = current.as_deref().cloned();
        current.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected).into())
    }

    /// Asks, and follows redirections for as long as a node may take to answer. The client gives up
    /// after a few, which it loses to others: see [`asking`].
    async fn ask(&self, command: &Cmd) -> Result<Value, RedisError> {
        let began = Instant::now();
        loop {
            let mut connection = self.current()?;
            let mut answer = connection.req_packed_command(command).await;
            if let Err(error) = &answer
                && error.kind() == ErrorKind::Server(ServerErrorKind::Ask)
                && let Some((node, _slot)) = error.redirect_node()
                && let Some((host, port)) = node.rsplit_once(':')
                && let Ok(port) = port.parse()
            {
                answer = asking(&mut connection, host.to_owned(), port, command).await;
            }
            let is_redirected = answer.as_ref().is_err_and(|error| error.redirect_node().is_some());
            if !is_redirected || began.elapsed() >= NODE_TIMEOUT {
                return answer;
            }
            sleep(REDIRECT_PAUSE).await;
        }
    }

    /// Passes an answer on; after an I/O error it reconnects in the background.
    fn heard<T>(&self, answer: Result<T, RedisError>) -> Result<T, RedisError> {
        if answer.as_ref().is_err_and(RedisError::is_io_error)
            && let Ok(turn) = self.0.renewing.clone().try_lock_owned()
        {
            let nodes = self.0.clone();
            tokio::spawn(async move {
                match timeout(4 * NODE_TIMEOUT, complete(&nodes.client)).await {
                    Ok(Ok(connection)) => nodes.current.store(Some(Arc::new(connection))),
                    Ok(Err(error)) => tracing::debug!(%error, "some primaries do not answer"),
                    Err(_) => tracing::debug!("no connection to all primaries in time"),
                }
                sleep(NODE_TIMEOUT / 2).await;
                drop(turn);
            });
        }
        answer
    }
}

/// Sends ASKING and a command in one piece: it counts for the next command on the connection, which
/// many share.
async fn asking(
    connection: &mut ClusterConnection,
    host: String,
    port: u16,
    command: &Cmd,
) -> Result<Value, RedisError> {
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(command.clone());
    let node = SingleNodeRoutingInfo::ByAddress { host, port };
    let answers = connection.route_pipeline(both, 0, 2, node).await?;
    answers.into_iter().nth(1).unwrap_or(Value::Nil).extract_error()
}

/// Connects, and checks that all primaries answer: the client would skip a silent one.
async fn complete(client: &ClusterClient) -> Result<ClusterConnection, RedisError> {
    let mut connection = client.get_async_connection().await?;
    let primaries = primaries_of(&mut connection).await?;
    let answers = connection.route_command(redis::cmd("PING"), every_primary());
    let answers: HashMap<String, Value> = redis::from_redis_value(answers.await?)?;
    if answers.len() < primaries {
        return Err(invalid("a primary does not answer"));
    }
    Ok(connection)
}

/// The number of primaries by CLUSTER INFO.
async fn primaries_of(connection: &mut ClusterConnection) -> Result<usize, RedisError> {
    let info = redis::cmd("CLUSTER").arg("INFO").to_owned();
    let random = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
    let info: InfoDict = redis::from_redis_value(connection.route_command(info, random).await?)?;
    let size = info.get::<usize>("cluster_size");
    size.ok_or_else(|| invalid("the cluster does not say how large it is"))
}

/// A connection; a pooled one returns to its pool when it is dropped.
pub enum Connection {
    Server(MultiplexedConnection, Option<Box<dyn Any + Send + Sync>>),
    Cluster(Nodes),
}

impl Connection {
    /// The same connection for a concurrent command; dropping it returns nothing to the pool.
    pub fn another(&self) -> Self {
        match self {
            Self::Server(connection, _) => Self::Server(connection.clone(), None),
            Self::Cluster(nodes) => Self::Cluster(nodes.clone()),
        }
    }

    /// How many primaries there are.
    pub(super) async fn primaries(&self) -> Result<usize, RedisError> {
        let Self::Cluster(nodes) = self else {
            return Ok(1);
        };
        let mut connection = nodes.current()?;
        nodes.heard(in_time(primaries_of(&mut connection)).await)
    }

    /// Sends a command to every connected primary of a cluster. The reply is a map by address.
    pub(super) async fn ask_primaries(&self, command: &Cmd) -> Result<Value, RedisError> {
        let Self::Cluster(nodes) = self else {
            return Err(invalid("this is no cluster"));
        };
        let mut connection = nodes.current()?;
        let asked = connection.route_command(command.clone(), every_primary());
        nodes.heard(in_time(asked).await)?.extract_error()
    }
}

fn every_primary() -> RoutingInfo {
    RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None))
}

/// The cluster client's own limits do not cover its reconnects and redirections.
async fn in_time<T>(asked: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    let answer = timeout(RESPONSE_TIMEOUT, asked).await;
    answer.unwrap_or_else(|_| Err(timed_out()))
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Server(connection, _) => connection.req_packed_command(cmd),
            Self::Cluster(nodes) => Box::pin(async { nodes.heard(in_time(nodes.ask(cmd)).await) }),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Server(connection, _) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(nodes) => Box::pin(async move {
                let mut connection = nodes.current()?;
                let asked = connection.req_packed_commands(pipeline, offset, count);
                nodes.heard(in_time(asked).await)
            }),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Server(connection, _) => connection.get_db(),
            Self::Cluster(_) => 0,
        }
    }
}
