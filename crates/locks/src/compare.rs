//! A comparison of all locks: what each survives, with the test behind each claim, and what it
//! costs. The words stand in the lab's `texts/{en,zh}/locks.md`.
//!
//! The four properties are those of 《分布式锁的三种实现》. What they leave out is fencing.

use crate::{
    advisory::AdvisoryLock,
    error::{Answer, LockError},
    lock::{Acquired, Guard, Lock},
    multi::MultiLock,
    redlock::Redlock,
    reentrant::ReentrantLock,
    set_px_no_owner::SetPxNoOwner,
    setnx_expire::SetnxExpire,
    setnx_getset::SetnxGetset,
    table::TableLock,
    token::TokenLock,
    wire::{Clock, Line, Meter, RoundTrips, Sql, Zoo},
    zookeeper::ZooKeeperLock,
};
use futures_util::future::BoxFuture;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// That a lock has a property (`yes`, `no`, or `partly`: under a condition), and the test that
/// would fail if it were wrong: `file::test` in a folder `locks` of the tests, or
/// `lessons::lesson/act`, which `tests/it/lessons` plays.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    pub lock: &'static str,
    pub property: &'static str,
    pub holds: &'static str,
    pub test: &'static str,
}

/// All claims: lock by lock, the properties of each in the same order.
pub fn claims() -> impl Iterator<Item = Claim> {
    let rows = include_str!("claims.txt").lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|row| {
        let mut words = row.split_whitespace();
        let mut next = || words.next();
        Some(Claim { lock: next()?, property: next()?, holds: next()?, test: next()? })
    })
}

/// The servers for [`measure`]. Those that are `None` or empty are left out.
#[derive(Clone)]
pub struct Servers {
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

/// The time limit of a round. The first connects, loads scripts, prepares statements and makes
/// folders.
const ROUND_TIMEOUT: Duration = Duration::from_secs(10);
const TURNS: usize = 100;
/// No turn begins after this.
const BUDGET: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_secs(10);

type Trips = (RoundTrips, RoundTrips);

/// Any lock.
trait Measured: Send + Sync {
    /// Takes and releases it once.
    fn round<'a>(&'a self, name: &'a str, meter: &'a Meter) -> BoxFuture<'a, Answer<Trips>>;
}

impl<L: Lock> Measured for L {
    fn round<'a>(&'a self, name: &'a str, meter: &'a Meter) -> BoxFuture<'a, Answer<Trips>> {
        Box::pin(async {
            meter.take();
            let Acquired::Held(guard) = self.acquire(name, LEASE).await? else {
                // Left over by a measurement that was cut off.
                return Err(LockError::NoQuorum { got: 0, needed: 1 });
            };
            let acquire = meter.take();
            let _released = guard.release().await?;
            Ok((acquire, meter.take()))
        })
    }
}

/// A lock that is measured.
struct Candidate {
    id: &'static str,
    lock: Box<dyn Measured>,
    rounds: Vec<(Duration, Trips)>,
}

impl Candidate {
    /// One turn; false if the lock did not answer.
    async fn turn(&mut self, prefix: &str, meter: &Meter) -> bool {
        let (begun, name) = (Instant::now(), format!("{prefix}{}", self.id));
        let Ok(Ok(trips)) = timeout(ROUND_TIMEOUT, self.lock.round(&name, meter)).await else {
            tracing::debug!(lock = self.id, "not measured");
            return false;
        };
        self.rounds.push((begun.elapsed(), trips));
        true
    }

    fn cost(self) -> Option<Cost> {
        // More round trips are retries after a slow reply.
        let total = |(acquire, release): &Trips| acquire.total() + release.total();
        let (acquire, release) = self.rounds.iter().map(|(_, trips)| *trips).min_by_key(total)?;
        // The first connects.
        let mut times: Vec<_> = self.rounds.into_iter().skip(1).map(|(time, _)| time).collect();
        times.sort_unstable();
        let at = |percent| times.get(times.len().saturating_sub(1) * percent / 100).copied();
        Some(Cost {
            id: self.id,
            acquire,
            release,
            p50: at(50)?,
            p99: at(99)?,
            samples: times.len(),
        })
    }
}

/// How many locks [`measure`] tries to measure; fewer [`Cost`]s mean that one was too slow.
pub fn measurable(servers: &Servers) -> usize {
    candidates(servers, &Meter::default()).len()
}

fn candidates(servers: &Servers, meter: &Meter) -> Vec<Candidate> {
    let redis = || servers.redis.clone().counted_by(meter);
    let nodes = || servers.nodes.iter().map(|node| node.clone().counted_by(meter)).collect();
    let mut all = Vec::new();
    macro_rules! add {
        ($id:literal, $lock:expr) => {
            all.push(Candidate { id: $id, lock: Box::new($lock), rounds: Vec::new() })
        };
    }
    add!("setnx-expire", SetnxExpire::new(redis(), LEASE));
    add!("setnx-getset", SetnxGetset::new(redis(), LEASE, Clock::default()));
    add!("set-px-no-owner", SetPxNoOwner::new(redis(), LEASE));
    add!("token-lock", TokenLock::new(redis(), LEASE));
    add!("reentrant-lock", ReentrantLock::new(redis(), LEASE).renewed());
    if !servers.nodes.is_empty() {
        add!("multi-lock", MultiLock::new(nodes(), LEASE));
        add!("redlock", Redlock::new(nodes(), LEASE));
    }
    if let Some(sql) = &servers.sql {
        add!("advisory-lock", AdvisoryLock::new(sql.clone().counted_by(meter)));
        add!("db-lock-table", TableLock::new(sql.clone().counted_by(meter), LEASE));
    }
    if let Some(zoo) = &servers.zoo {
        add!("zookeeper-lock", ZooKeeperLock::new(zoo.clone().counted_by(meter)));
    }
    all
}

/// Takes and releases every lock in turns, uncontended, on keys with `prefix`. Locks whose server
/// does not answer are left out.
pub async fn measure(servers: &Servers, prefix: &str) -> Vec<Cost> {
    let meter = Meter::default();
    let mut living = candidates(servers, &meter);
    let begun = Instant::now();
    for turn in 0..=TURNS {
        if turn > 1 && begun.elapsed() > BUDGET {
            break;
        }
        for mut candidate in std::mem::take(&mut living) {
            if candidate.turn(prefix, &meter).await {
                living.push(candidate);
            }
        }
    }
    living.into_iter().filter_map(Candidate::cost).collect()
}
