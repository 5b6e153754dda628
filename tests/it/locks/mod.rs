//! The locks: each bug of the big libraries once, the historical ones breaking as told, and a checker
//! that knows where two holders can be and where not.

/// The ZooKeeper that tests share; where there is none the test ends here, loudly.
macro_rules! zookeeper {
    ($test:expr) => {
        match $crate::locks::zookeeper($test).await {
            Some(server) => server,
            None => return,
        }
    };
}

mod checker;
mod compare;
mod historical;
mod nodes;
mod postgres;
mod regressions;
mod stage;
mod zookeeper;

use crate::support::Servers;
use flash_sale::{
    embedded::{RedisServer, RedisSettings, ZooKeeperServer, ZooKeeperSettings},
    lock::{Acquired, Guard, Lock, LockError, fencing, table, wire::Line},
};
use futures_util::future::join_all;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::OnceCell,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

/// As long as any test is willing to wait for what must happen.
const SOON: Duration = Duration::from_secs(10);
const ONCE: Duration = Duration::ZERO;

/// A lock name of this test alone.
fn name(of: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("lock:{of}:{}", NUMBER.fetch_add(1, Relaxed))
}

/// A client of its own to the Redis that tests share.
async fn line(client: &str) -> Line {
    let servers = Servers::shared().await;
    warm(patient(&servers.redis.url()).of(client)).await
}

/// It waits for a busy machine: that an answer is late is no failure of a lock's.
fn patient(url: &str) -> Line {
    Line::with_timeouts(url, SOON, SOON).expect("a url")
}

/// Connects: no lease of a test shall be spent on that.
async fn warm(line: Line) -> Line {
    let pong: String = line.send(&redis::cmd("PING")).await.expect("PONG");
    assert_eq!(pong, "PONG");
    line
}

/// Redis nodes of one test, which it may kill: they come back empty.
async fn nodes(count: usize) -> Vec<RedisServer> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let servers = Servers::shared().await;
    let mut nodes = Vec::new();
    for _ in 0..count {
        let folder = servers.folder(&format!("node-{}", NUMBER.fetch_add(1, Relaxed)));
        let node = RedisServer::start(&folder, RedisSettings::without_persistence()).await;
        nodes.push(node.expect("redis starts"));
    }
    nodes
}

/// The three that tests share which kill none.
async fn three() -> &'static [RedisServer] {
    static NODES: OnceCell<Vec<RedisServer>> = OnceCell::const_new();
    NODES.get_or_init(|| nodes(3)).await
}

/// One client's lines to these nodes, called redis-1, redis-2, …
async fn lines(client: &str, nodes: &[RedisServer]) -> Vec<Line> {
    let numbered = nodes.iter().enumerate().map(|(number, node)| {
        let line = patient(&node.url()).of(client);
        warm(line.to(&format!("redis-{}", number + 1)))
    });
    join_all(numbered).await
}

/// A pool on the Postgres that tests share, with the lab's tables for locks.
async fn pool(connections: u32) -> sqlx::PgPool {
    static DATABASE: OnceCell<crate::support::Database> = OnceCell::const_new();
    let database = DATABASE
        .get_or_init(async || {
            let database = Servers::shared().await.database().await;
            let mut admin = database.connect().await;
            for statement in [
                "CREATE SCHEMA IF NOT EXISTS lab",
                table::TABLE,
                fencing::TABLE,
            ] {
                sqlx::raw_sql(statement)
                    .execute(&mut admin)
                    .await
                    .expect("DDL");
            }
            database
        })
        .await;
    flash_sale::postgres::pool(database.options(), connections)
        .connections()
        .clone()
}

/// The ZooKeeper that tests share; `None`, loudly, where there is none.
async fn zookeeper(test: &str) -> Option<&'static ZooKeeperServer> {
    static SERVER: OnceCell<Option<ZooKeeperServer>> = OnceCell::const_new();
    let server = SERVER
        .get_or_init(async || {
            if let Err(error) = ZooKeeperServer::check().await {
                say(&format!(
                    "ZOOKEEPER IS MISSING, ITS LOCK IS NOT EXERCISED: {error}"
                ));
                return None;
            }
            let folder = Servers::shared().await.folder("zookeeper");
            let settings = ZooKeeperSettings {
                tick: Duration::from_millis(100),
            };
            let server = ZooKeeperServer::start(&folder, settings).await;
            Some(server.expect("zookeeper starts"))
        })
        .await;
    if server.is_none() {
        say(&format!("NOT EXERCISED: {test}"));
    }
    server.as_ref()
}

/// Loudly: the test harness keeps to itself what a passing test prints, but not this.
pub(crate) fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "\n*** {text} ***");
}

/// What must happen, does.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let answer = timeout(SOON, future).await;
    answer.unwrap_or_else(|_| panic!("{what}: not within {SOON:?}"))
}

/// Polls until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}: not within {SOON:?}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Asks for a lock beside what the test goes on with.
fn acquiring<L: Lock>(lock: L, name: &str, wait: Duration) -> Acquiring<L> {
    let name = name.to_owned();
    tokio::spawn(async move { lock.acquire(&name, wait).await })
}

type Acquiring<L> = JoinHandle<Result<Acquired<<L as Lock>::Guard>, LockError>>;

/// Who waited is let in.
async fn let_in<G: Guard>(waiting: JoinHandle<Result<Acquired<G>, LockError>>) -> G {
    let acquired = soon("the waiter is let in", waiting).await;
    let acquired = acquired.expect("no panic").expect("an answer");
    acquired.held().expect("held")
}

/// Who asked is turned away, and not with an error.
async fn turned_away<G: Guard>(asking: JoinHandle<Result<Acquired<G>, LockError>>) {
    let acquired = soon("an answer", asking).await.expect("no panic");
    let acquired = acquired.expect("an answer");
    assert!(acquired.held().is_none(), "it has the lock");
}

async fn pttl(line: &Line, name: &str) -> i64 {
    line.send(redis::cmd("PTTL").arg(name)).await.expect("PTTL")
}

/// Polls until the key has gone, by itself or by somebody's hand.
async fn gone(line: &Line, name: &str) {
    until("the key goes", async || pttl(line, name).await == -2).await;
}

async fn held<L: Lock>(lock: &L, name: &str) -> L::Guard {
    match lock.acquire(name, ONCE).await {
        Ok(Acquired::Held(guard)) => guard,
        Ok(Acquired::Contended { remaining }) => panic!("{name} is taken for {remaining:?}"),
        Err(error) => panic!("{name}: {error:?}"),
    }
}

async fn is_contended<L: Lock>(lock: &L, name: &str) -> bool {
    match lock.acquire(name, ONCE).await {
        Ok(Acquired::Contended { .. }) => true,
        Ok(Acquired::Held(guard)) => {
            let _ = guard.release().await.expect("release");
            false
        }
        Err(error) => panic!("{name}: {error:?}"),
    }
}
