//! One Redis process at an address: a pool for ordinary work, one long-lived connection for the purchase
//! path, and which process it is.
//!
//! **Incarnations.** Every hot connection is tied to the process that it reached, by that process'
//! `run_id`, read when the connection is made: a process cannot be replaced under a live connection. It is
//! handed out only while its incarnation is one that Postgres has approved ([`Node::approve`]); after a
//! restart or a failover the gate is therefore shut until a rebuild has looked at what survived. A primary
//! that was a replica for a while came back with somebody else's data under its old `run_id`, so where
//! replication says that it was promoted, that belongs to its name (see `incarnation`).

use super::{CONNECT_TIMEOUT, HotError, RESPONSE_TIMEOUT};
use arc_swap::ArcSwapOption;
use deadpool_redis::{Manager, Pool, PoolConfig, Runtime, Timeouts};
use redis::{AsyncConnectionConfig, ErrorKind, RedisError, aio::MultiplexedConnection};
use std::{
    pin::Pin,
    sync::{
        Arc, Mutex as StdMutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

/// What a server is expected to be, so that an address of the wrong kind is called that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The only server there is, whatever it says of replication.
    One,
    /// A primary of a cluster.
    Member,
    /// The primary that Sentinels have named.
    Watched,
}

/// A long-lived connection, and the process it leads to.
#[derive(Clone)]
struct Hot {
    connection: MultiplexedConnection,
    run_id: String,
}

/// All connections to one address.
pub struct Node {
    /// Without a login.
    name: String,
    kind: Kind,
    pool: Pool,
    client: redis::Client,
    hot: ArcSwapOption<Hot>,
    /// One reconnect at a time; the others wait for its result.
    reconnecting: Mutex<()>,
    approved: ArcSwapOption<String>,
    /// Whether the last attempt to use it came through.
    reachable: AtomicBool,
    /// When it last let somebody wait until their time was over.
    silent_since: StdMutex<Option<Instant>>,
}

/// How long nobody else waits for a node of a cluster that has fallen silent (it stands still, or its
/// network swallows everything): ordinary work for the others must not stand in line behind it. The check of
/// the incarnations asks it all the same, and ends this at once when it answers again.
const LEFT_ALONE: Duration = Duration::from_secs(3);

impl Node {
    /// Prepares the pool; connects to nothing yet.
    pub(super) fn new(url: &str, kind: Kind) -> Result<Self, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(RESPONSE_TIMEOUT))
            .set_connection_timeout(Some(CONNECT_TIMEOUT));
        let client = redis::Client::open(url)?;
        let name = client.get_connection_info().addr().to_string();
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
            .map_err(|error| RedisError::from(std::io::Error::other(error)))?;
        Ok(Self {
            name,
            kind,
            pool,
            client,
            hot: ArcSwapOption::empty(),
            reconnecting: Mutex::new(()),
            approved: ArcSwapOption::empty(),
            reachable: AtomicBool::new(true),
            silent_since: StdMutex::default(),
        })
    }

    /// `host:port`, or the path of its socket.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A pooled connection for ordinary work.
    pub async fn pooled(&self) -> Result<deadpool_redis::Connection, RedisError> {
        let borrowed = self.pool.get().await.map_err(pool_error);
        self.reachable.store(borrowed.is_ok(), Relaxed);
        borrowed
    }

    /// The same, for one of many: an error at once while it is left alone.
    pub(super) async fn pooled_unless_silent(
        &self,
    ) -> Result<deadpool_redis::Connection, RedisError> {
        let since = *self.silence();
        if since.is_some_and(|since| since.elapsed() < LEFT_ALONE) {
            return Err(RedisError::from((
                ErrorKind::Io,
                "this server did not answer a moment ago",
                self.name.clone(),
            )));
        }
        let borrowed = in_time(Box::pin(self.pooled())).await;
        if let Err(error) = &borrowed {
            self.note(error);
        }
        borrowed
    }

    /// Takes in what somebody's question came to.
    pub(super) fn note(&self, error: &RedisError) {
        if error.is_timeout() {
            *self.silence() = Some(Instant::now());
        }
    }

    fn silence(&self) -> MutexGuard<'_, Option<Instant>> {
        self.silent_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pool_status(&self) -> deadpool_redis::Status {
        self.pool.status()
    }

    pub(super) fn is_reachable(&self) -> bool {
        self.reachable.load(Relaxed)
    }

    /// A connection of its own that receives what is published.
    pub(super) async fn subscriber(&self) -> Result<redis::aio::PubSub, RedisError> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.client.get_async_pubsub());
        let connected = connected
            .await
            .unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()));
        self.reachable.store(connected.is_ok(), Relaxed);
        connected
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
        let run_id = self.run_id(&mut connection).await?;
        self.hot.store(Some(Arc::new(Hot {
            connection,
            run_id: run_id.clone(),
        })));
        self.approved_hot().ok_or(HotError::NotApproved { run_id })
    }

    /// Asks over the hot connection whether it still leads anywhere, and lets go of it otherwise: whoever uses it next
    /// may be somebody who does not notice that it is dead, or has no time to.
    pub async fn look_after_hot(&self) -> Result<(), HotError> {
        let mut connection = self.hot().await?;
        let asked = redis::cmd("PING").exec_async(&mut connection).await;
        if let Err(error) = asked {
            self.drop_hot();
            return Err(error.into());
        }
        Ok(())
    }

    /// Whatever process is there, approved or not: only for a bug that is planted.
    pub(super) async fn hot_unchecked(&self) -> Result<MultiplexedConnection, HotError> {
        Ok(MultiplexedConnection::clone(&*self.pool.get().await?))
    }

    fn approved_hot(&self) -> Option<MultiplexedConnection> {
        let hot = self.hot.load();
        let hot = hot.as_ref()?;
        let approved = self.approved.load();
        (**approved.as_ref()? == hot.run_id).then(|| hot.connection.clone())
    }

    /// Whether purchases can be judged here at this moment, as far as is known without asking.
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

    /// Shuts the gate until the next [`Node::approve`].
    pub fn disapprove(&self) {
        self.approved.store(None);
    }

    pub fn approved_run_id(&self) -> Option<Arc<String>> {
        self.approved.load_full()
    }

    /// The incarnation that a fresh checkout reaches. An error also if it is no primary (any more), where
    /// there are replicas that could be asked instead.
    pub async fn live_run_id(&self) -> Result<String, RedisError> {
        let asked = Box::pin(async {
            let mut connection = self.pooled().await?;
            self.run_id(&mut connection).await
        });
        if self.kind != Kind::Member {
            return asked.await;
        }
        let answered = in_time(asked).await;
        match &answered {
            Ok(_) => *self.silence() = None,
            Err(error) => self.note(error),
        }
        answered
    }

    async fn run_id(&self, connection: &mut MultiplexedConnection) -> Result<String, RedisError> {
        // Two commands, because Redis takes several sections in one only from version 7 on.
        let (server, replication): (String, String) = redis::pipe()
            .cmd("INFO")
            .arg("server")
            .cmd("INFO")
            .arg("replication")
            .query_async(connection)
            .await?;
        if let Some(complaint) = complaint(self.kind, &server, &replication) {
            return Err(RedisError::from((
                complaint.0,
                complaint.1,
                self.name.clone(),
            )));
        }
        incarnation(&server, &replication).ok_or_else(|| {
            RedisError::from((ErrorKind::UnexpectedReturnType, "INFO without run_id"))
        })
    }
}

/// Each of a pool's idle connections is tried for as long as a reply may take: that adds up. Boxed, because
/// what is large would stand on the stack of everybody who asks.
async fn in_time<T>(
    asked: Pin<Box<dyn Future<Output = Result<T, RedisError>> + Send + '_>>,
) -> Result<T, RedisError> {
    tokio::time::timeout(RESPONSE_TIMEOUT, asked)
        .await
        .unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
}

pub(super) fn pool_error(error: deadpool_redis::PoolError) -> RedisError {
    match error {
        deadpool_redis::PoolError::Backend(error) => error,
        other => std::io::Error::new(std::io::ErrorKind::TimedOut, other.to_string()).into(),
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// Why a server cannot be what the address says; `None` if it can.
fn complaint(kind: Kind, server: &str, replication: &str) -> Option<(ErrorKind, &'static str)> {
    let wrong = match (kind, field(server, "redis_mode").unwrap_or_default()) {
        (Kind::One, "cluster") => {
            Some("this server is a node of a Redis Cluster: write redis+cluster://host:port")
        }
        (Kind::Member, "standalone") => {
            Some("this server is not in cluster mode: write redis://host:port")
        }
        (_, "sentinel") => Some("this server is a Sentinel: write redis-sentinel://host:port/NAME"),
        _ => None,
    };
    if let Some(wrong) = wrong {
        return Some((ErrorKind::InvalidClientConfig, wrong));
    }
    // That passes: whoever took its place is about to be heard of.
    let is_replica = field(replication, "role") == Some("slave");
    (is_replica && kind != Kind::One).then_some((ErrorKind::Io, "this server is a replica now"))
}

/// A name for this process and what it holds: its `run_id`, and where it was promoted from a replica,
/// the offset up to which it follows its former primary's history.
fn incarnation(server: &str, replication: &str) -> Option<String> {
    let run_id = field(server, "run_id").filter(|id| !id.is_empty())?;
    match field(replication, "second_repl_offset") {
        Some(offset) if offset != "-1" => Some(format!("{run_id}+{offset}")),
        _ => Some(run_id.to_owned()),
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

    #[test]
    fn a_server_of_the_wrong_kind_is_called_that() {
        let mode = |mode: &str| format!("# Server\r\nredis_mode:{mode}\r\nrun_id:1\r\n");
        let said = |kind, server: &str, role: &str| {
            complaint(kind, &mode(server), &format!("role:{role}\r\n")).map(|(_, words)| words)
        };
        assert!(
            said(Kind::One, "cluster", "master").is_some_and(|words| words.contains("Cluster"))
        );
        assert!(
            said(Kind::Member, "standalone", "master")
                .is_some_and(|words| words.contains("not in cluster mode"))
        );
        assert!(said(Kind::One, "sentinel", "").is_some_and(|words| words.contains("Sentinel")));
        assert!(
            said(Kind::Watched, "standalone", "slave")
                .is_some_and(|words| words.contains("replica"))
        );
        for (kind, server, role) in [
            (Kind::One, "standalone", "slave"),
            (Kind::Member, "cluster", "master"),
            (Kind::Watched, "standalone", "master"),
        ] {
            assert_eq!(said(kind, server, role), None);
        }
    }
}
