//! The test bench of a strategy: its arena's rows, keys and settings, and its fault injection.
//!
//! A strategy reads like production code. The bench makes it fail on demand, instead of once a
//! month: [`Bench::interleaving_point`] brings two buyers to the dangerous point at once,
//! [`Bench::crash_point`] ends a node between two lines, [`Bench::pause`] is a long garbage
//! collection.
//!
//! Statements, transactions and locks in one line each stand in `shorthand`.

use crate::selling::{PurchaseError, Result, Trying};
use crate::{
    definition::Definition, interleaving::InterleavingPoints, losses::Losses, options::Options,
    servers::Servers,
};
use dashmap::DashMap;
use locks::wire::{self, Line, Meter};
use locks::zookeeper::Zoo;
use redis::{FromRedisValue, ToRedisArgs};
use sqlx::PgPool;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::AcqRel};
use std::{any::Any, panic::Location, time::Duration};
use tokio_util::sync::CancellationToken;

/// How long a line to Redis waits for a connection and for a reply. Long: a storm on a small
/// machine is no outage.
const REDIS_TIMEOUT: Duration = Duration::from_secs(15);

/// How long ZooKeeper waits for a sign of life.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it waits where a session is to lapse.
const SHORT_SESSION: Duration = Duration::from_secs(1);

/// Shared by the nodes of an arena in one process. It holds nothing by which a strategy could
/// coordinate its nodes.
pub struct Shared {
    pub definition: Definition,
    pub postgres: PgPool,
    /// Before every key of this arena.
    pub prefix: String,
    pub servers: Arc<Servers>,
    pub meter: Meter,
    pub points: InterleavingPoints,
    paused: AtomicBool,
    losses: Losses,
    /// How often the crash point has been passed on the node that is to crash.
    passed: AtomicI64,
    pub notes: DashMap<&'static str, u64>,
    /// Extra servers by their address, which run for as long as an arena uses them.
    kept: DashMap<String, Arc<dyn Any + Send + Sync>>,
}

impl Shared {
    pub fn new(definition: Definition, servers: Arc<Servers>) -> Self {
        let is_forced = definition.options.is("interleave", "on");
        Self {
            postgres: servers.postgres.clone(),
            prefix: servers.prefix_of(&definition.id),
            points: InterleavingPoints::new(is_forced, servers.first_wait),
            definition,
            servers,
            meter: Meter::default(),
            paused: AtomicBool::new(false),
            losses: Losses::default(),
            passed: AtomicI64::new(0),
            notes: DashMap::new(),
            kept: DashMap::new(),
        }
    }
}

/// One node's view of its arena.
#[derive(Clone)]
pub struct Bench {
    pub shared: Arc<Shared>,
    /// Which node this is, counted from 0. Another process on the same stores has nodes of its own,
    /// with the same numbers.
    pub node: u32,
    /// This node's connection to Redis; it connects when it is first used.
    pub line: Line,
    /// Cancelled when this incarnation of the node ends, by a crash or in order: whatever it runs
    /// in the background has to stop then.
    pub gone: CancellationToken,
}

impl Bench {
    pub fn new(
        shared: Arc<Shared>,
        node: u32,
        gone: CancellationToken,
    ) -> Result<Self, redis::RedisError> {
        // A connection of its own, as a server of its own would have.
        let line = Line::with_timeout(&shared.servers.redis_url, REDIS_TIMEOUT)?
            .of(&format!("node-{node}"))
            .counted_by(&shared.meter);
        Ok(Self { shared, node, line, gone })
    }

    // ---- the arena ----------------------------------------------------------------------------

    pub fn arena(&self) -> &str {
        &self.shared.definition.id
    }

    pub fn stock(&self) -> i32 {
        self.shared.definition.stock
    }

    pub fn per_user_limit(&self) -> i32 {
        self.shared.definition.per_user_limit
    }

    pub fn options(&self) -> &Options {
        &self.shared.definition.options
    }

    pub fn whole(&self, option: &str) -> i64 {
        self.options().whole(option)
    }

    pub fn choice(&self, option: &str) -> &str {
        self.options().choice(option)
    }

    pub fn millis(&self, option: &str) -> Duration {
        self.options().millis(option)
    }

    /// The Redis key of this name: of this arena only, removed with it.
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.shared.prefix)
    }

    // ---- Redis and locks ----------------------------------------------------------------------

    /// Sends one command: `bench.redis("HINCRBY", (&sale, "stock", -1))`.
    #[track_caller]
    pub fn redis<T: FromRedisValue + Send>(
        &self,
        command: &'static str,
        arguments: impl ToRedisArgs,
    ) -> impl Trying<T> + Send {
        self.passed(Location::caller());
        let (line, mut sent) = (self.line.clone(), redis::cmd(command));
        sent.arg(arguments);
        async move { Ok(line.send(&sent).await?) }
    }

    /// This node's connections to so many more, independent Redis servers. The last ones are down
    /// if `redis_nodes_down` says so.
    pub async fn lines(&self, count: usize) -> Result<Vec<Line>> {
        let down = usize::try_from(self.whole("redis_nodes_down")).unwrap_or(0);
        let mut lines = Vec::with_capacity(count);
        for number in 0..count {
            let url = if number + down >= count {
                "redis+unix:///dev/null/nobody".to_owned()
            } else if self.loses_redis() {
                self.shared.losses.redis_url(&self.shared.servers, self.arena(), number).await?
            } else {
                let server = self.shared.servers.redis_node(number).await?;
                let url = server.url();
                self.shared.kept.insert(url.clone(), server);
                url
            };
            let line = Line::with_timeout(&url, REDIS_TIMEOUT)?
                .of(&format!("node-{}", self.node))
                .to(&format!("redis-{}", number + 1))
                .counted_by(&self.shared.meter);
            lines.push(line);
        }
        Ok(lines)
    }

    fn loses_redis(&self) -> bool {
        self.whole("redis_node_loss") > 0
    }

    /// The Redis of a lock: the shop's, or one of the arena's own if it is to lose its data.
    pub async fn lock_line(&self) -> Result<Line> {
        if !self.loses_redis() {
            return Ok(self.line.clone());
        }
        let own = self.lines(1).await?.pop();
        own.ok_or_else(|| PurchaseError::from("no Redis for the lock"))
    }

    /// This node's session with ZooKeeper.
    pub async fn zoo(&self) -> Result<Zoo> {
        let server = self.shared.servers.zookeeper().await?;
        let mut cluster = server.server.cluster();
        self.shared.kept.insert(cluster.clone(), server);
        let mut timeout = SESSION_TIMEOUT;
        if self.choice("session_loss") == "on" {
            cluster = self.shared.losses.wire_to(self.node, cluster).await?;
            timeout = SHORT_SESSION;
        }
        let zoo = Zoo::new(&cluster, timeout).of(&format!("node-{}", self.node));
        Ok(zoo.counted_by(&self.shared.meter))
    }

    /// The lab's pool, as locks take it.
    pub fn wire_to_postgres(&self) -> wire::Sql {
        let wire = wire::Sql::new(self.shared.postgres.clone());
        wire.of(&format!("node-{}", self.node)).counted_by(&self.shared.meter)
    }

    // ---- fault injection ----------------------------------------------------------------------

    /// Waits a moment for another buyer at the same point, on any node of this process; then both
    /// go on. A lock that keeps others out makes it wait in vain.
    #[track_caller]
    pub fn interleaving_point(&self, place: &'static str) -> impl Future<Output = ()> + Send {
        self.passed(Location::caller());
        self.shared.points.meet(place)
    }

    /// Resumes the buyer that waits at this point, without waiting itself: for points that buyers
    /// reach one after the other.
    #[track_caller]
    pub fn resume_waiting(&self, place: &'static str) {
        self.passed(Location::caller());
        self.shared.points.resume_waiting(place);
    }

    /// The moment between looking and writing: another buyer may come in, this one may stop, and
    /// the work takes its time.
    #[track_caller]
    pub fn interleave(&self, place: &'static str) -> impl Future<Output = ()> + Send {
        let met = self.interleaving_point(place);
        async move {
            met.await;
            self.pause().await;
            self.work().await;
        }
    }

    /// The work between looking and writing.
    pub async fn work(&self) {
        let duration = self.millis("work_ms");
        if !duration.is_zero() {
            tokio::time::sleep(duration).await;
        }
    }

    /// The first buyer of the arena to come here stops for `pause_ms`.
    pub async fn pause(&self) {
        let duration = self.millis("pause_ms");
        if !duration.is_zero() && !self.shared.paused.swap(true, AcqRel) {
            tokio::time::sleep(duration).await;
        }
    }

    /// If the node is to crash here, it does: nothing after this line runs, for no purchase on this
    /// node, and its memory is dropped.
    #[track_caller]
    pub fn crash_point(&self, point: &'static str) -> impl Future<Output = ()> + Send {
        self.passed(Location::caller());
        async move {
            let is_here = self.choice("crash_at") == point
                && self.whole("crash_node") == i64::from(self.node);
            if is_here && self.shared.passed.fetch_add(1, AcqRel) + 1 == self.whole("crash_after") {
                self.note("node crashed");
                self.gone.cancel();
                std::future::pending::<()>().await;
            }
        }
    }

    /// While the first holder waits here, `redis_node_loss` of the lock's Redis servers are killed
    /// and come back empty.
    pub async fn lose_redis(&self) -> Result {
        if self.loses_redis() && self.shared.losses.begin() {
            let lost = usize::try_from(self.whole("redis_node_loss")).unwrap_or(0);
            self.shared.losses.restart_redis(lost).await?;
            self.note("redis lost its data");
        }
        Ok(())
    }

    /// While the first holder waits here, the session that made its znode lapses.
    pub async fn lose_session(&self, znode: &str) -> Result {
        if self.choice("session_loss") == "on" && self.shared.losses.begin() {
            let cluster = self.shared.servers.zookeeper().await?.server.cluster();
            self.shared.losses.end_session(self.node, &cluster, znode).await?;
            self.note("the holder's session ended");
        }
        Ok(())
    }

    /// A line that belongs to the purchase was executed.
    pub(crate) fn passed(&self, at: &'static Location<'static>) {
        self.shared.meter.passed(at);
    }

    /// Counts an event for the verdict.
    #[track_caller]
    pub fn note(&self, what: &'static str) {
        self.passed(Location::caller());
        *self.shared.notes.entry(what).or_default() += 1;
    }
}

/// An id that no other order has, in any process.
pub fn new_order_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
