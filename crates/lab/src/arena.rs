//! An arena: one stock that one strategy sells.
//!
//! Its definition is a row of `lab.arenas`, so every server process on the same stores serves it. A
//! process has its own nodes: each stands for the memory of one server, and can crash. Everything
//! of an arena carries its id: rows of the schema `lab`, keys below `lab:{id}:`, at most one schema
//! `lab_<id>`.

use crate::bench::{Bench, Shared};
use crate::selling::{Buyer, Outcome, PurchaseError, Result, hash_of};
use crate::tally::{Counts, Tally, Unsaved};
use crate::{
    definition::Definition, error::LabError, options::Options, seller::Seller, servers::Servers,
    storm_state::StormState, strategies,
};
use futures_util::FutureExt;
use locks::wire::RoundTrips;
use sqlx::PgPool;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use stores::sql;
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use web::address_limit::Share;

/// How long a purchase may take before it counts as failed.
const PURCHASE_LIMIT: Duration = Duration::from_secs(30);
/// How many purchases may be under way in one arena and process.
const MOST_IN_FLIGHT: u64 = 2_000;
/// How many purchases one arena and process takes in all: what they leave in memory is bounded.
const MOST_ATTEMPTS: u64 = 1_000_000;

/// The definition of the arena of this id. `None`: there is no such arena, or one of a strategy
/// that this version does not know.
pub async fn load(postgres: &PgPool, id: &str) -> Result<Option<Definition>, sqlx::Error> {
    let arena = "SELECT strategy, stock, nodes, per_user_limit, options::text, expires_at
                 FROM lab.arenas WHERE id = $1 AND expires_at > now()";
    let row: Option<(String, i32, i32, i32, String, OffsetDateTime)> =
        sql::row(postgres, arena, (id,)).await?;
    Ok(row.and_then(|(strategy, stock, nodes, per_user_limit, options, expires_at)| {
        let strategy = strategies::find(&strategy)?;
        Some(Definition {
            id: id.to_owned(),
            strategy,
            stock,
            nodes: u32::try_from(nodes).unwrap_or(1),
            per_user_limit,
            options: Options::read(strategy, &serde_json::from_str(&options).ok()?).ok()?,
            expires_at,
        })
    }))
}

/// One answer to a buyer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// `Err`: what went wrong, in detail.
    pub outcome: Result<Outcome, String>,
    pub waited: Duration,
}

/// An arena as one process serves it.
pub struct Arena {
    pub shared: Arc<Shared>,
    pub tally: Tally,
    pub storm: StormState,
    /// This process, among those that serve the arena.
    pub process: Uuid,
    nodes: Vec<Arc<Mutex<Slot>>>,
    turn: AtomicU64,
    saved: Mutex<()>,
    closed: AtomicBool,
    _share: Option<Share>,
}

/// A node.
#[derive(Default)]
struct Slot {
    up: Option<Up>,
    /// After a crash, until then.
    down_until: Option<Instant>,
}

impl Slot {
    /// Drops an incarnation that has crashed; the node stays down for a while.
    fn bury_if_crashed(&mut self, restart: Duration) {
        if self.up.as_ref().is_some_and(|up| up.bench.gone.is_cancelled()) {
            self.up = None;
            self.down_until = Some(Instant::now() + restart);
        }
    }
}

/// One incarnation of a node.
#[derive(Clone)]
struct Up {
    seller: Arc<dyn Seller>,
    bench: Bench,
}

impl Arena {
    /// Serves the arena from here: from now on verdicts wait for this process too.
    pub async fn open(
        definition: Definition,
        servers: Arc<Servers>,
        process: Uuid,
        share: Option<Share>,
    ) -> Result<Arc<Self>, LabError> {
        let tally = "INSERT INTO lab.tallies (arena, process, answered)
                     SELECT id, $2, asked FROM lab.arenas WHERE id = $1 ON CONFLICT DO NOTHING";
        sql::run(&servers.upkeep, tally, (&definition.id, process)).await?;
        let nodes = (0..definition.nodes).map(|_| Arc::default()).collect();
        Ok(Arc::new(Self {
            shared: Arc::new(Shared::new(definition, servers)),
            tally: Tally::default(),
            storm: StormState::default(),
            process,
            nodes,
            turn: AtomicU64::new(0),
            saved: Mutex::default(),
            closed: AtomicBool::new(false),
            _share: share,
        }))
    }

    pub fn definition(&self) -> &Definition {
        &self.shared.definition
    }

    /// One purchase. `node`: which one the load balancer chose; otherwise one after the other.
    pub async fn purchase(&self, buyer: &Buyer, node: Option<u32>) -> Answer {
        let attempt = self.tally.begin();
        let outcome = self.try_purchase(buyer, node).await;
        let waited = attempt.end(&buyer.name, &outcome);
        if let Err(error) = &outcome {
            tracing::debug!(arena = self.definition().id, %error, "a purchase failed");
        }
        Answer { outcome: outcome.map_err(|error| error.to_string()), waited }
    }

    async fn try_purchase(&self, buyer: &Buyer, node: Option<u32>) -> Result<Outcome> {
        if self.closed.load(Relaxed) {
            return Err(PurchaseError::from("the arena is gone"));
        }
        if self.tally.in_flight() > MOST_IN_FLIGHT {
            return Err(PurchaseError::from("too many purchases at once"));
        }
        if self.tally.attempts() > MOST_ATTEMPTS {
            return Err(PurchaseError::from("the arena has had its purchases"));
        }
        let bought = async {
            // A node that has to be opened first is part of the wait.
            let node = self.route(buyer, node);
            let collisions = &self.shared.points.collisions;
            let purchase = collisions.begin(&buyer.name, node);
            let up = self.node_up(node).await?;
            let buying = purchase.run(up.seller.buy(&up.bench, buyer));
            // A crash drops the purchase at any line. A panic fails only this purchase.
            let bought = tokio::select! {
                biased;
                () = up.bench.gone.cancelled() => Err(PurchaseError::NodeIsDown),
                bought = AssertUnwindSafe(buying).catch_unwind() =>
                    bought.unwrap_or_else(|_| Err(PurchaseError::from("the purchase panicked"))),
            };
            if let Ok(Outcome::Sold { order_id }) = &bought {
                collisions.sold(&purchase, order_id);
            }
            bought
        };
        tokio::time::timeout(PURCHASE_LIMIT, bought).await.unwrap_or_else(|_| {
            Err(PurchaseError::Other(format!("no answer within {PURCHASE_LIMIT:?}")))
        })
    }

    /// Chooses a node, as a load balancer does.
    fn route(&self, buyer: &Buyer, asked: Option<u32>) -> u32 {
        let nodes = self.definition().nodes.max(1);
        if self.definition().strategy.routes_by_buyer {
            return (hash_of(&buyer.name) % u64::from(nodes)) as u32;
        }
        match asked {
            Some(node) => node % nodes,
            None => (self.turn.fetch_add(1, Relaxed) % u64::from(nodes)) as u32,
        }
    }

    /// The node's living incarnation; a new one if the last has crashed and its time is over.
    async fn node_up(&self, number: u32) -> Result<Up> {
        let node =
            self.nodes.get(number as usize).ok_or_else(|| PurchaseError::from("no such node"))?;
        let mut slot = node.lock().await;
        if self.is_closed() {
            return Err(PurchaseError::from("the arena is gone"));
        }
        let restart = self.definition().options.millis("restart_ms");
        slot.bury_if_crashed(restart);
        if let Some(up) = &slot.up {
            return Ok(up.clone());
        }
        if slot.down_until.is_some_and(|until| Instant::now() < until) {
            return Err(PurchaseError::NodeIsDown);
        }
        let bench = Bench::new(self.shared.clone(), number, CancellationToken::new())?;
        let seller = strategies::open(self.definition().strategy, &bench).await?;
        let up = Up { seller, bench };
        slot.up = Some(up.clone());
        slot.down_until = None;
        // A crashed node's memory and loops end at once, not at the next purchase: other nodes
        // take over its work.
        let (node, gone) = (Arc::downgrade(node), up.bench.gone.clone());
        tokio::spawn(async move {
            gone.cancelled().await;
            if let Some(node) = node.upgrade() {
                node.lock().await.bury_if_crashed(restart);
            }
        });
        Ok(up)
    }

    /// Opens every node that is not up. One that cannot be says why to its first buyer.
    pub async fn open_nodes(&self) {
        let opened = (0..self.definition().nodes).map(|node| self.node_up(node));
        futures_util::future::join_all(opened).await;
    }

    async fn living(&self) -> Vec<Up> {
        let mut living = Vec::new();
        for node in &self.nodes {
            let slot = node.lock().await;
            living.extend(slot.up.clone().filter(|up| !up.bench.gone.is_cancelled()));
        }
        living
    }

    pub fn is_quiet(&self) -> bool {
        self.tally.in_flight() == 0 && !self.storm.is_running()
    }

    /// Waits until nothing is under way here and everything answered is written.
    pub async fn settle(&self) {
        while !self.is_quiet() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for up in self.living().await {
            tokio::select! {
                () = up.seller.settle(&up.bench) => {}
                () = up.bench.gone.cancelled() => {}
            }
        }
    }

    /// The counts of this process.
    pub fn counts(&self) -> Counts {
        let RoundTrips { redis, postgres, zookeeper } = self.shared.meter.round_trips();
        let notes = self.shared.notes.iter();
        let notes = notes.map(|note| ((*note.key()).to_owned(), *note.value())).collect();
        Counts { redis, postgres, zookeeper, notes, ..self.tally.counts() }
    }

    /// Writes this process' tally; `asked` if it answers a question for a verdict.
    ///
    /// In a task of its own: if the client hangs up, what was taken to be written must neither
    /// be forgotten nor, since nobody knows whether it was committed, be written twice.
    pub async fn save(self: &Arc<Self>, asked: Option<i64>) -> Result<(), sqlx::Error> {
        let arena = self.clone();
        let saving = tokio::spawn(async move {
            let _one_at_a_time = arena.saved.lock().await;
            let unsaved = arena.tally.take_unsaved();
            let saved = arena.write(&unsaved, asked).await;
            if saved.is_err() {
                arena.tally.return_unsaved(unsaved);
            }
            saved
        });
        saving.await.unwrap_or_else(|_| Err(sqlx::Error::WorkerCrashed))
    }

    async fn write(&self, unsaved: &Unsaved, asked: Option<i64>) -> Result<(), sqlx::Error> {
        let postgres = &self.shared.servers.upkeep;
        let id = &self.definition().id;
        let mut transaction = stores::postgres::Transaction::begin(postgres, "BEGIN").await?;
        let (buyers, tries): (Vec<&str>, Vec<i32>) =
            unsaved.buyers.iter().map(|(buyer, tries)| (buyer.as_str(), *tries)).unzip();
        if !buyers.is_empty() {
            // In order, so that two processes cannot wait for each other's rows.
            let known = "INSERT INTO lab.buyers AS known (arena, buyer, tries)
                 SELECT $1, * FROM unnest($2::text[], $3::int[]) ORDER BY 2
                 ON CONFLICT (arena, buyer) DO UPDATE SET tries = known.tries + excluded.tries";
            sql::run(&mut *transaction, known, (id, buyers, tries)).await?;
        }
        if !unsaved.told.is_empty() {
            let told = "INSERT INTO lab.told (arena, order_id) SELECT $1, unnest($2::text[])
                        ON CONFLICT DO NOTHING";
            sql::run(&mut *transaction, told, (id, &unsaved.told)).await?;
        }
        let counts = serde_json::to_string(&self.counts()).unwrap_or_else(|_| "{}".to_owned());
        let tally =
            "UPDATE lab.tallies SET counts = $3::text::jsonb, answered = greatest(answered, $4)
             WHERE arena = $1 AND process = $2";
        let values = (id, self.process, counts, asked.unwrap_or(0));
        sql::run(&mut *transaction, tally, values).await?;
        transaction.commit().await
    }

    /// Ends every node and takes no purchase any more.
    pub async fn close(&self) {
        self.closed.store(true, Relaxed);
        self.storm.cancel();
        let living = self.living().await;
        let ends = living.into_iter().map(|up| async move {
            let closed = up.seller.close(&up.bench);
            let _ = tokio::time::timeout(Duration::from_secs(2), closed).await;
            up.bench.gone.cancel();
        });
        futures_util::future::join_all(ends).await;
        for node in &self.nodes {
            // One may have been opened meanwhile.
            if let Some(up) = node.lock().await.up.take() {
                up.bench.gone.cancel();
            }
        }
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }
}
