//! What taking a free lock and releasing it costs: round trips, and time.

use futures_util::future::{BoxFuture, join_all};
use locks::wire::{Clock, Line, Meter, RoundTrips, Sql};
use locks::{
    AdvisoryLock, Lock, MultiLock, Redlock, ReentrantLock, SetPxNoOwner, SetnxExpire, SetnxGetset,
    TableLock, TokenLock, ZooKeeperLock, zookeeper::Zoo,
};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// The time limit of a round. The first connects, loads scripts, prepares statements and makes
/// folders.
const ROUND_TIMEOUT: Duration = Duration::from_secs(10);
const ROUNDS: usize = 100;
/// No round begins after this.
const BUDGET: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_secs(10);

/// The servers. The locks of those that are `None` or empty are left out.
#[derive(Clone)]
pub struct Connections {
    /// Measured like the nodes, so it should be a server of the same kind.
    pub redis: Line,
    /// Independent nodes, for the multi-lock and Redlock.
    pub nodes: Vec<Line>,
    pub sql: Option<Sql>,
    pub zoo: Option<Zoo>,
}

/// The cost of taking a free lock and releasing it.
#[derive(Debug, Clone)]
pub struct Cost {
    pub id: &'static str,
    pub acquire: RoundTrips,
    pub release: RoundTrips,
    /// Of acquire and release together.
    pub p50: Duration,
    pub p99: Duration,
    pub samples: usize,
}

/// Takes and releases every lock in turns, uncontended, on keys with `prefix`. Locks whose server
/// does not answer are left out; answers, too, whether there are none of these.
pub async fn measure(on: &Connections, prefix: &str) -> (Vec<Cost>, bool) {
    let turns =
        Turns { prefix, begun: Instant::now(), meter: Meter::default(), turn: Mutex::default() };
    let costs = join_all(candidates(on, &turns)).await;
    let is_complete = costs.iter().all(Option::is_some);
    (costs.into_iter().flatten().collect(), is_complete)
}

fn candidates<'a>(on: &Connections, turns: &'a Turns<'_>) -> Vec<BoxFuture<'a, Option<Cost>>> {
    let redis = || on.redis.clone().counted_by(&turns.meter);
    let nodes = || on.nodes.iter().map(|node| node.clone().counted_by(&turns.meter)).collect();
    let mut all = vec![
        turns.cost("setnx-expire", SetnxExpire::new(redis(), LEASE)),
        turns.cost("setnx-getset", SetnxGetset::new(redis(), LEASE, Clock::default())),
        turns.cost("set-px-no-owner", SetPxNoOwner::new(redis(), LEASE)),
        turns.cost("token-lock", TokenLock::new(redis(), LEASE)),
        turns.cost("reentrant-lock", ReentrantLock::new(redis(), LEASE).renewed()),
    ];
    if !on.nodes.is_empty() {
        all.push(turns.cost("multi-lock", MultiLock::new(nodes(), LEASE)));
        all.push(turns.cost("redlock", Redlock::new(nodes(), LEASE)));
    }
    if let Some(sql) = &on.sql {
        let sql = || sql.clone().counted_by(&turns.meter);
        all.push(turns.cost("advisory-lock", AdvisoryLock(sql())));
        all.push(turns.cost("db-lock-table", TableLock::new(sql(), LEASE)));
    }
    if let Some(zoo) = &on.zoo {
        let zoo = zoo.clone().counted_by(&turns.meter);
        all.push(turns.cost("zookeeper-lock", ZooKeeperLock(zoo)));
    }
    all
}

struct Turns<'a> {
    prefix: &'a str,
    begun: Instant,
    meter: Meter,
    /// Fair: the next round is of the lock that has waited longest.
    turn: Mutex<()>,
}

type Round = (RoundTrips, RoundTrips, Duration);

impl Turns<'_> {
    fn cost<'a>(&'a self, id: &'static str, lock: impl Lock) -> BoxFuture<'a, Option<Cost>> {
        Box::pin(async move {
            let (name, mut rounds) = (format!("{}{id}", self.prefix), Vec::new());
            for number in 0..=ROUNDS {
                let _turn = self.turn.lock().await;
                if number > 1 && self.begun.elapsed() > BUDGET {
                    break;
                }
                let round = timeout(ROUND_TIMEOUT, self.round(&lock, &name)).await;
                let Ok(Some(round)) = round else {
                    tracing::debug!(lock = id, "not measured");
                    return None;
                };
                rounds.push(round);
            }
            cost_of(id, &rounds)
        })
    }

    /// `None`: no answer, or the lock is left over by a measurement that was cut off.
    async fn round(&self, lock: &impl Lock, name: &str) -> Option<Round> {
        self.meter.take();
        let begun = Instant::now();
        let guard = lock.acquire(name, LEASE).await.ok()?.held()?;
        let acquire = self.meter.take();
        let _released = guard.release().await.ok()?;
        Some((acquire, self.meter.take(), begun.elapsed()))
    }
}

fn cost_of(id: &'static str, rounds: &[Round]) -> Option<Cost> {
    // More round trips are retries after a slow reply.
    let trips = |(acquire, release, _): &&Round| acquire.total() + release.total();
    let (acquire, release, _) = *rounds.iter().min_by_key(trips)?;
    // The first connects.
    let mut times: Vec<Duration> = rounds.iter().skip(1).map(|(.., time)| *time).collect();
    times.sort_unstable();
    let at = |percent| times.get(times.len().saturating_sub(1) * percent / 100).copied();
    Some(Cost { id, acquire, release, p50: at(50)?, p99: at(99)?, samples: times.len() })
}
