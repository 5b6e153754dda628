//! Which server has which keys, now: always the same one, the primary that Sentinels name, or the owner of
//! the key's slot in a cluster.
//!
//! The map is an immutable value behind an [`ArcSwap`]: to look somebody up takes no lock and no allocation.
//! It is read anew before every check of the incarnations (`worker::rebuild`, five times a second), and a
//! MOVED mends it at once. Nothing depends on its being right: a server that is asked for a key that it does
//! not own says so, and one that is no longer the primary takes no writes.
//!
//! A [`Node`] lives as long as its address is in the map. One that has left it (demoted, removed) and comes
//! back is a new one, which has to be approved again before it is sold from.

use super::{
    HotError, Kind,
    address::{Address, HostPort, Login},
    cluster::{self, View},
    node::Node,
    sentinel::Sentinel,
    slots::SLOTS,
};
use arc_swap::ArcSwap;
use redis::{ErrorKind, RedisError};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex as StdMutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::sync::Mutex;

/// In [`Map::owners`]: nobody.
const NOBODY: u16 = u16::MAX;

/// Who has what.
#[derive(Clone, Default)]
struct Map {
    /// Owners of slots first, then those without.
    primaries: Vec<Arc<Node>>,
    /// How many of them own slots.
    owning: usize,
    /// For each slot the place of its owner in `primaries`. Empty: the first one has everything.
    owners: Vec<u16>,
}

impl Map {
    fn owner(&self, slot: Option<u16>) -> Option<&Arc<Node>> {
        match (slot, self.owners.is_empty()) {
            (_, true) => self.primaries.first(),
            (Some(slot), false) => {
                let place = *self.owners.get(usize::from(slot))?;
                self.primaries.get(usize::from(place))
            }
            // For a command that anybody may answer: preferably somebody who does.
            (None, false) => {
                let owning = &self.primaries[..self.owning];
                owning
                    .iter()
                    .find(|node| node.is_reachable())
                    .or(owning.first())
            }
        }
    }
}

enum Source {
    One,
    Cluster {
        login: Login,
        /// Those of the setting; asked while no other answers.
        seeds: Vec<Arc<Node>>,
    },
    Sentinel {
        login: Login,
        sentinels: Vec<Sentinel>,
        name: String,
    },
}

/// See the head of this file.
pub struct Topology {
    source: Source,
    map: ArcSwap<Map>,
    /// By address; those of the map, and those that an ASK has named since it was read.
    known: StdMutex<HashMap<HostPort, Arc<Node>>>,
    reading: Mutex<()>,
    /// Who of those that could be asked answered last: somebody who does not answer costs a second.
    answering: AtomicUsize,
}

impl Topology {
    pub fn new(address: &Address) -> Result<Self, RedisError> {
        let mut map = Map::default();
        let source = match address {
            Address::One(url) => {
                map.primaries.push(Arc::new(Node::new(url, Kind::One)?));
                map.owning = 1;
                Source::One
            }
            Address::Cluster { seeds, login } => {
                let seed = |at: &HostPort| Node::new(&login.url(at), Kind::Member).map(Arc::new);
                Source::Cluster {
                    login: login.clone(),
                    seeds: seeds.iter().map(seed).collect::<Result<_, _>>()?,
                }
            }
            Address::Sentinel {
                sentinels,
                master,
                login,
                sentinel_login,
            } => Source::Sentinel {
                login: login.clone(),
                sentinels: sentinels
                    .iter()
                    .map(|at| Sentinel::new(at, sentinel_login))
                    .collect::<Result<_, _>>()?,
                name: master.clone(),
            },
        };
        Ok(Self {
            source,
            map: ArcSwap::from_pointee(map),
            known: StdMutex::default(),
            reading: Mutex::default(),
            answering: AtomicUsize::new(0),
        })
    }

    /// Whether keys are spread over several servers.
    pub fn is_cluster(&self) -> bool {
        matches!(self.source, Source::Cluster { .. })
    }

    /// Whether this is one server at an address that never changes.
    pub fn is_one(&self) -> bool {
        matches!(self.source, Source::One)
    }

    /// The primaries, as last heard: the owners of slots, and then those without.
    pub fn primaries(&self) -> Vec<Arc<Node>> {
        self.map.load().primaries.clone()
    }

    /// The primaries that own slots, as last heard.
    pub fn owners(&self) -> Vec<Arc<Node>> {
        let map = self.map.load();
        map.primaries[..map.owning].to_vec()
    }

    /// Who has this slot, or whoever may answer a question without a key, as last heard.
    pub fn owner(&self, slot: Option<u16>) -> Option<Arc<Node>> {
        self.map.load().owner(slot).cloned()
    }

    /// The same; asks first if nothing has been heard yet.
    pub async fn find(&self, slot: Option<u16>) -> Result<Arc<Node>, RedisError> {
        if let Some(node) = self.owner(slot) {
            return Ok(node);
        }
        if self.map.load().primaries.is_empty() {
            // Boxed, because it is rare and large.
            Box::pin(self.read()).await?;
        }
        self.owner(slot).ok_or_else(|| {
            RedisError::from((
                ErrorKind::Io,
                "nobody in the cluster owns the slot of this key now",
            ))
        })
    }

    /// An approved connection to whoever has this slot.
    pub async fn hot(
        &self,
        slot: Option<u16>,
    ) -> Result<redis::aio::MultiplexedConnection, HotError> {
        // Without counting a reference, for the usual case.
        let map = self.map.load();
        match map.owner(slot) {
            Some(node) => node.hot().await,
            None => self.find(slot).await?.hot().await,
        }
    }

    /// A node has answered that this slot is at that address.
    pub fn moved(&self, slot: u16, to: &str, said_by: &Node) -> Result<Arc<Node>, RedisError> {
        let node = self.asked_at(to, said_by)?;
        self.map.rcu(|map| {
            let mut map = Map::clone(map);
            let place = match map
                .primaries
                .iter()
                .position(|known| Arc::ptr_eq(known, &node))
            {
                Some(place) if place < map.owning => place,
                Some(place) => {
                    // It had none: it goes behind those that do, where somebody else without stood.
                    map.primaries.swap(map.owning, place);
                    map.owning += 1;
                    map.owning - 1
                }
                None => {
                    map.primaries.push(node.clone());
                    let last = map.primaries.len() - 1;
                    map.primaries.swap(map.owning, last);
                    map.owning += 1;
                    map.owning - 1
                }
            };
            if let Some(owner) = map.owners.get_mut(usize::from(slot)) {
                *owner = u16::try_from(place).unwrap_or(NOBODY);
            }
            map
        });
        Ok(node)
    }

    /// The node at the address of a MOVED or an ASK.
    pub fn asked_at(&self, address: &str, said_by: &Node) -> Result<Arc<Node>, RedisError> {
        let Source::Cluster { login, .. } = &self.source else {
            return Err(RedisError::from((
                ErrorKind::InvalidClientConfig,
                "this server is a node of a Redis Cluster: write redis+cluster://host:port",
            )));
        };
        let address = cluster::target(address, said_by).ok_or_else(|| {
            RedisError::from((ErrorKind::UnexpectedReturnType, "MOVED to nowhere"))
        })?;
        self.node_at(&address, login, Kind::Member)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<HostPort, Arc<Node>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node_at(&self, at: &HostPort, login: &Login, kind: Kind) -> Result<Arc<Node>, RedisError> {
        let mut known = self.known();
        if let Some(node) = known.get(at) {
            return Ok(node.clone());
        }
        let node = Arc::new(Node::new(&login.url(at), kind)?);
        known.insert(at.clone(), node.clone());
        Ok(node)
    }

    /// Asks who has what. One at a time; nothing to ask where there is one server.
    pub async fn read(&self) -> Result<(), RedisError> {
        let _one_at_a_time = self.reading.lock().await;
        match &self.source {
            Source::One => Ok(()),
            Source::Cluster { login, seeds } => {
                let view = self.cluster_view(seeds).await?;
                self.take_in(&view, login)
            }
            Source::Sentinel {
                login,
                sentinels,
                name,
            } => self.follow(login, sentinels, name).await,
        }
    }

    /// What the cluster says, preferably by somebody who is part of its majority.
    async fn cluster_view(&self, seeds: &[Arc<Node>]) -> Result<View, RedisError> {
        let mut candidates = self.primaries();
        for seed in seeds {
            if !candidates.iter().any(|known| known.name() == seed.name()) {
                candidates.push(seed.clone());
            }
        }
        let begin = self.answering.load(Relaxed);
        let (mut doubtful, mut failed) = (None, None);
        for number in 0..candidates.len() {
            let place = (begin + number) % candidates.len();
            match cluster::view(&candidates[place]).await {
                Ok(view) if view.is_ok && !view.owned.is_empty() => {
                    self.answering.store(place, Relaxed);
                    return Ok(view);
                }
                Ok(view) => doubtful = doubtful.or(Some(view)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match (doubtful, failed) {
            // Better than nothing: who is asked for what they do not have says so.
            (Some(view), _) if !view.owned.is_empty() => Ok(view),
            (Some(_), _) => Err(RedisError::from((
                ErrorKind::Io,
                "nobody in the cluster owns any slots",
            ))),
            (None, Some(error)) => Err(error),
            (None, None) => Err(RedisError::from((
                ErrorKind::InvalidClientConfig,
                "no nodes are given",
            ))),
        }
    }

    fn take_in(&self, view: &View, login: &Login) -> Result<(), RedisError> {
        let mut map = Map {
            owners: vec![NOBODY; usize::from(SLOTS)],
            ..Map::default()
        };
        let mut addresses: Vec<&HostPort> = Vec::new();
        for (range, at) in &view.owned {
            let place = addresses.iter().position(|known| *known == at);
            let place = place.unwrap_or_else(|| {
                addresses.push(at);
                addresses.len() - 1
            });
            let place = u16::try_from(place).unwrap_or(NOBODY);
            map.owners[usize::from(*range.start())..=usize::from(*range.end())].fill(place);
        }
        map.owning = addresses.len();
        addresses.extend(
            view.idle
                .iter()
                .filter(|at| !view.owned.iter().any(|(_, owner)| owner == *at)),
        );
        for at in &addresses {
            map.primaries.push(self.node_at(at, login, Kind::Member)?);
        }
        self.map.store(Arc::new(map));
        self.known().retain(|at, _| addresses.contains(&at));
        Ok(())
    }

    /// Follows the primary that a Sentinel names and that calls itself one. If there is none such, the one
    /// that is named all the same, so that its own error is heard.
    async fn follow(
        &self,
        login: &Login,
        sentinels: &[Sentinel],
        name: &str,
    ) -> Result<(), RedisError> {
        let begin = self.answering.load(Relaxed);
        let (mut named, mut failed): (Vec<HostPort>, _) = (Vec::new(), None);
        let mut sees_none = false;
        for number in 0..sentinels.len() {
            let place = (begin + number) % sentinels.len();
            let at = match sentinels[place].primary(name).await {
                Ok(Some(at)) => at,
                Ok(None) => {
                    sees_none = true;
                    continue;
                }
                Err(error) => {
                    failed = failed.or(Some(error));
                    continue;
                }
            };
            if named.contains(&at) {
                continue;
            }
            let node = self.node_at(&at, login, Kind::Watched)?;
            if node.live_run_id().await.is_ok() {
                self.answering.store(place, Relaxed);
                self.be_led_by(&at, node);
                return Ok(());
            }
            named.push(at);
        }
        match (named.first(), failed) {
            (Some(at), _) => {
                let node = self.node_at(at, login, Kind::Watched)?;
                self.be_led_by(at, node);
                Ok(())
            }
            (None, _) if sees_none => Err(RedisError::from((
                ErrorKind::MasterNameNotFoundBySentinel,
                "the Sentinels watch no primary of this name",
            ))),
            (None, Some(error)) => Err(error),
            (None, None) => Err(RedisError::from((
                ErrorKind::InvalidClientConfig,
                "no Sentinels are given",
            ))),
        }
    }

    fn be_led_by(&self, at: &HostPort, node: Arc<Node>) {
        let is_new = !matches!(&*self.map.load().primaries, [known] if Arc::ptr_eq(known, &node));
        if is_new {
            tracing::info!(primary = node.name(), "the Sentinels name the primary");
            self.map.store(Arc::new(Map {
                primaries: vec![node],
                owning: 1,
                owners: Vec::new(),
            }));
        }
        self.known().retain(|known, _| known == at);
    }
}
