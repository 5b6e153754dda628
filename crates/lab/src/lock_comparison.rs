//! All locks side by side, as the page and the command show them: what each promises, with the test
//! that backs it, and what it costs on the servers that this lab works on. The words stand in
//! `texts/{en,zh}/locks.md`.
//!
//! The four properties are those of 《分布式锁的三种实现》. What they leave out is fencing.

use crate::lock_costs::{self, Connections, Cost};
use crate::strategy::{Language, Need};
use crate::{selling::Result, servers::Servers, service::Lab, texts};
use locks::wire::{Line, Sql};
use locks::zookeeper::Zoo;
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};
use stores::sql::run;
use utoipa::ToSchema;

/// The name that the measurement goes by where an arena has its id.
const MEASUREMENT: &str = "locks-compared";
/// Independent nodes for the multi-lock and Redlock.
const NODES: usize = 3;
/// Of one request.
const TIMEOUT: Duration = Duration::from_millis(500);
const SESSION: Duration = Duration::from_secs(4);

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
    let rows = include_str!("lock_claims.txt").lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|row| {
        let mut words = row.split_whitespace();
        let mut next = || words.next();
        Some(Claim { lock: next()?, property: next()?, holds: next()?, test: next()? })
    })
}

/// Every lock, four properties, and what they cost here. Texts are in the language that was asked
/// for.
#[derive(Debug, Serialize, ToSchema)]
pub struct Locks {
    pub locks: Vec<LockBody>,
    pub properties: Vec<LockProperty>,
    /// What none of them gives.
    pub note_on_fencing: &'static str,
    /// How the costs were measured.
    pub note_on_costs: String,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lock)]
pub struct LockBody {
    pub id: &'static str,
    pub title: &'static str,
    /// By the id of the property.
    pub properties: BTreeMap<&'static str, LockClaim>,
    /// Measured here; null where a server is missing that the lock needs.
    pub round_trips: Option<LockRoundTrips>,
    /// Of an uncontended acquire and release together; null as above.
    pub cost_us: Option<LockCost>,
    pub use_when: &'static str,
    pub not_given: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LockClaim {
    /// `yes`, `no` or `partly`.
    pub holds: &'static str,
    pub why: &'static str,
    /// The test that shows it.
    pub test: &'static str,
}

/// Over all servers, as many as the lock talks to at once included.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct LockRoundTrips {
    pub acquire: u64,
    pub release: u64,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct LockCost {
    pub p50: u64,
    pub p99: u64,
    pub samples: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LockProperty {
    pub id: &'static str,
    pub title: &'static str,
    pub explanation: &'static str,
}

fn say(section: &str, key: &'static str, language: Language) -> &'static str {
    texts::item("locks", section, key, language)
}

impl LockBody {
    fn new(id: &'static str, cost: Option<&Cost>, language: Language) -> Self {
        let claim = |Claim { property, holds, test, .. }| {
            (property, LockClaim { holds, why: say(id, property, language), test })
        };
        Self {
            id,
            title: say("Titles", id, language),
            properties: claims().filter(|claim| claim.lock == id).map(claim).collect(),
            round_trips: cost.map(|cost| LockRoundTrips {
                acquire: cost.acquire.total(),
                release: cost.release.total(),
            }),
            cost_us: cost.map(|cost| LockCost {
                p50: cost.p50.as_micros() as u64,
                p99: cost.p99.as_micros() as u64,
                samples: cost.samples,
            }),
            use_when: say(id, "use_when", language),
            not_given: say(id, "not_given", language),
        }
    }
}

impl Lab {
    /// The comparison. Costs are measured when somebody first asks, which takes some seconds, and
    /// kept if all of them are there: one that was too slow just now must not look as if its server
    /// were missing for ever.
    pub async fn locks(&self, language: Language) -> Result<Locks> {
        let mut kept = self.lock_costs.lock().await;
        let costs = match &*kept {
            Some(costs) => costs.clone(),
            None => {
                let (costs, is_complete) = measure(&self.servers).await?;
                *kept = is_complete.then(|| costs.clone());
                costs
            }
        };
        drop(kept);
        let mut locks: Vec<_> = claims().map(|claim| claim.lock).collect();
        locks.dedup();
        let properties =
            claims().map_while(|claim| (claim.lock == locks[0]).then_some(claim.property));
        let lock = |id| LockBody::new(id, costs.iter().find(|cost| cost.id == id), language);
        let property = |id| LockProperty {
            id,
            title: say("Titles", id, language),
            explanation: say("Properties", id, language),
        };
        let text = |section| texts::of("locks", language).and_then(|text| text.section(section));
        let samples = costs.iter().map(|cost| cost.samples).min().unwrap_or(0).to_string();
        Ok(Locks {
            properties: properties.map(property).collect(),
            locks: locks.iter().copied().map(lock).collect(),
            note_on_fencing: text("Fencing").unwrap_or_default(),
            note_on_costs: text("Costs").unwrap_or_default().replace("{samples}", &samples),
        })
    }
}

/// What was measured, and whether that is all there is here.
async fn measure(servers: &Servers) -> Result<(Vec<Cost>, bool)> {
    // Servers that nobody holds are stopped.
    let (mut nodes, mut held) = (Vec::new(), Vec::new());
    if servers.lacks(Need::RedisNodes(NODES)).is_none() {
        for number in 0..NODES {
            let server = servers.redis_node(number).await?;
            nodes.push(
                Line::with_timeout(&server.url(), TIMEOUT)?.to(&format!("redis-{}", number + 1)),
            );
            held.push(server);
        }
    }
    let zookeeper = match servers.lacks(Need::ZooKeeper) {
        None => Some(servers.zookeeper().await?),
        Some(_) => None,
    };
    let zoo = zookeeper.as_ref();
    let zoo = zoo.map(|server| Zoo::new(&server.server.cluster(), SESSION));
    // One node and several are measured on servers of the same kind, where there are any.
    let redis = match nodes.first() {
        Some(node) => node.another_connection(),
        None => Line::with_timeout(&servers.redis_url, TIMEOUT)?,
    };
    let on = Connections { redis, nodes, sql: Some(Sql::new(servers.postgres.clone())), zoo };
    let prefix = servers.prefix_of(MEASUREMENT);
    let measured = lock_costs::measure(&on, &prefix).await;
    if let Some(zoo) = &on.zoo {
        zoo.close().await;
    }
    run(&servers.postgres, "DELETE FROM lab.locks WHERE starts_with(name, $1)", (prefix,)).await?;
    servers.sweep(MEASUREMENT).await?;
    Ok(measured)
}
