//! What the tests of the locks stand on: lines, nodes, pools, and what is asked of every lock.

// Each tier uses its part of these.
#![allow(unused_imports)]

pub mod interceptor;

pub use embedded::{RedisServer, RedisSettings, ZooKeeperServer, ZooKeeperSettings};
pub use futures_util::future::join_all;
pub use interceptor::{Breakpoint, Interceptor};
pub use locks::wire::{Line, Sql};
pub use locks::zookeeper::Zoo;
pub use locks::*;
pub use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
pub use std::{sync::Arc, time::Duration};
pub use tokio::time::{Instant, sleep, sleep_until, timeout};
pub use tokio::{sync::OnceCell, task::JoinHandle};

use super::{Servers, app::eventually};

pub const SOON: Duration = Duration::from_secs(10);
pub const ONCE: Duration = Duration::ZERO;
/// No lease of this length ends during a test.
pub const LEASE: Duration = Duration::from_secs(60);

pub fn name(of: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("lock:{of}:{}", NUMBER.fetch_add(1, Relaxed))
}

pub async fn line(client: &str) -> Line {
    warm(slow_line(&Servers::shared().await.redis.url()).of(client)).await
}

pub async fn watched(of: &str) -> (Line, Arc<Interceptor>, String) {
    let interceptor = Interceptor::new();
    (line("watched").await.watched_by(interceptor.clone()), interceptor, name(of))
}

/// Its timeouts are long: a late answer on a busy machine is no failure of a lock.
pub fn slow_line(url: &str) -> Line {
    Line::with_timeout(url, SOON).expect("a url")
}

pub fn unreachable_line() -> Line {
    slow_line("redis://127.0.0.1:1")
}

/// Connects, so that no lease of a test is spent on that.
pub async fn warm(line: Line) -> Line {
    let pong: String = line.send(&redis::cmd("PING")).await.expect("PONG");
    assert_eq!(pong, "PONG");
    line
}

/// Redis nodes of one test, which it may kill: they come back empty.
pub async fn nodes(count: usize) -> Vec<RedisServer> {
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

pub async fn three() -> &'static [RedisServer] {
    static NODES: OnceCell<Vec<RedisServer>> = OnceCell::const_new();
    NODES.get_or_init(|| nodes(3)).await
}

/// One client's lines to these nodes, called redis-1, redis-2, …
pub async fn lines(client: &str, nodes: &[RedisServer]) -> Vec<Line> {
    let numbered = nodes.iter().enumerate().map(|(number, node)| {
        warm(slow_line(&node.url()).of(client).to(&format!("redis-{}", number + 1)))
    });
    join_all(numbered).await
}

pub async fn pool(connections: u32) -> sqlx::PgPool {
    static DATABASE: OnceCell<super::Database> = OnceCell::const_new();
    let database = DATABASE.get_or_init(async || Servers::shared().await.database().await).await;
    flash_sale::postgres::pool(database.options(), connections).connections().clone()
}

/// The ZooKeeper that tests share; `None`, and a message, where there is none.
pub async fn zookeeper() -> Option<&'static ZooKeeperServer> {
    static SERVER: OnceCell<Result<ZooKeeperServer, String>> = OnceCell::const_new();
    let start = async || {
        ZooKeeperServer::check().await.map_err(|why| why.to_string())?;
        let folder = Servers::shared().await.folder("zookeeper");
        let tick = Duration::from_millis(100);
        let server = ZooKeeperServer::start(&folder, ZooKeeperSettings { tick }).await;
        Ok(server.expect("zookeeper starts"))
    };
    let missing = |why: &&String| {
        let test = std::thread::current();
        super::not_exercised(&format!("{}: {why}", test.name().unwrap_or("ZooKeeper's lock")));
    };
    SERVER.get_or_init(start).await.as_ref().inspect_err(missing).ok()
}

pub async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    timeout(SOON, future).await.unwrap_or_else(|_| panic!("{what}: not within {SOON:?}"))
}

pub fn acquiring<L: Lock>(lock: L, name: &str, wait: Duration) -> Acquiring<Held<L>> {
    let name = name.to_owned();
    tokio::spawn(async move { lock.acquire(&name, wait).await })
}

pub type Acquiring<G> = JoinHandle<Result<Acquired<G>, LockError>>;

pub async fn answered<G>(asking: Acquiring<G>) -> Option<G> {
    soon("an answer", asking).await.expect("no panic").expect("an answer").held()
}

pub async fn let_in<G>(asking: Acquiring<G>) -> G {
    answered(asking).await.expect("held")
}

pub async fn turned_away<G>(asking: Acquiring<G>) {
    assert!(answered(asking).await.is_none(), "it has the lock");
}

/// Once it has got there, nobody waits any more for this acquire.
pub async fn given_up<G>(asking: Acquiring<G>, there: Breakpoint) {
    there.reached().await;
    asking.abort();
}

/// A lease passes while an acquire waits here: it cannot know any more whether it has the lock.
pub async fn turned_away_later<L: Lock>(late: Breakpoint, lock: L, name: &str, lease: Duration) {
    // It does not ask again.
    let asking = acquiring(lock, name, lease * 9 / 10);
    late.reached().await;
    // Time is the subject here.
    sleep(lease).await;
    late.resume();
    turned_away(asking).await;
}

pub async fn held<L: Lock>(lock: &L, name: &str) -> Held<L> {
    match lock.acquire(name, ONCE).await {
        Ok(Acquired::Held(guard)) => guard,
        Ok(Acquired::Contended { remaining }) => panic!("{name} is taken for {remaining:?}"),
        Err(error) => panic!("{name}: {error:?}"),
    }
}

pub async fn held_soon<L: Lock>(lock: &L, name: &str) -> Held<L> {
    soon(name, lock.acquire(name, SOON)).await.expect(name).held().expect(name)
}

pub async fn is_contended<L: Lock>(lock: &L, name: &str) -> bool {
    let Some(guard) = lock.acquire(name, ONCE).await.expect(name).held() else { return true };
    let _ = guard.release().await.expect("release");
    false
}

pub async fn released(guard: Held<impl Protocol>) -> Released {
    soon("the release", guard.release()).await.expect("an answer")
}

pub async fn freed(guard: Held<impl Protocol>) {
    assert_eq!(released(guard).await, Released::Freed);
}

pub async fn not_held(guard: Held<impl Protocol>) {
    assert_eq!(released(guard).await, Released::NotHeld);
}

pub fn assert_unreachable<T: std::fmt::Debug>(answer: Result<T, LockError>) {
    assert!(matches!(answer, Err(LockError::Unreachable { .. })), "{answer:?}");
}

/// A's lease ends, B comes in, and A releases "its" lock: whether C can come in beside B.
pub async fn late_release_lets_a_third_in<A: Lock, B: Lock>(a: A, [b, c]: [B; 2]) -> bool {
    let name = name("late");
    let late = held(&a, &name).await;
    let second = held_soon(&b, &name).await;
    let answer = released(late).await;
    let third_comes_in = !is_contended(&c, &name).await;
    let expected = if third_comes_in { Released::Freed } else { Released::NotHeld };
    assert_eq!(answer, expected, "the release says what it does");
    if !third_comes_in {
        freed(second).await;
    }
    third_comes_in
}

pub async fn pttl(line: &Line, name: &str) -> i64 {
    line.send(redis::cmd("PTTL").arg(name)).await.expect("PTTL")
}

pub async fn is_free(line: &Line, name: &str) {
    assert_eq!(pttl(line, name).await, -2, "{name} on {line:?}");
}

pub async fn gone(line: &Line, name: &str) {
    eventually("the key goes", async || (pttl(line, name).await == -2).then_some(())).await;
}
