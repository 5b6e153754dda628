//! The stage: clients who do nothing until they are told to.
//!
//! ```text
//! lesson ── next() ──▶ Gate of one client ◀── before() ── Line / Sql / Zoo of that client
//!        │                                                                     │
//!        │                        let one request through, wait for its reply ◀┘
//!        ▼
//! Record: the step, what the keys now hold (read unwatched), who believes to hold
//! ```
//!
//! Every request of every client waits in its gate until the lesson lets it pass. So an
//! interleaving is what the lesson says and never what the scheduler happens to do, and no lock
//! needs a hook for it. Time is only waited for where time is the subject: a lease is over when the
//! key is really gone.
//!
//! | file | what |
//! |---|---|
//! | here | one play: its acts, its servers, and what is cleared away after it |
//! | [`client`] | who acts, and what each is doing |
//! | [`gate`] | where a client's requests wait |
//! | [`look`] | what the keys, the queue and the shop hold, read by the stage hand |
//! | [`record`], [`recording`] | what is kept; steps, and who believes what |
//! | [`shopping`] | what clients do with the shop |
//!
//! What happens on a crash: keys, rows and nodes of a play have names of their own. Rows of a dead
//! process are removed by later plays; its keys expire, except those that a lesson gives no lease.

pub mod client;
mod gate;
mod look;
mod record;
mod recording;
mod shopping;

use super::error::{LessonError, Result};
pub use super::lesson::LOCK;
use super::lesson::{Kind, Lesson, NODES};
use super::timeline::{Ending, Event, Keys, Moment, Timeline};
use super::{nodes::Node, pauses::PauseDetector, shop::Shop, waiting::STEP_TIMEOUT};
use crate::options::Options;
use crate::servers::{OwnZooKeeper, Servers};
use futures_util::future::join_all;
use locks::{wire::Line, zookeeper::ZooSession};
use parking_lot::Mutex;
use record::{Record, Scene};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OnceCell, mpsc};

/// The lease of those whose lease must not end while we watch: it is never waited for.
pub const LONG: Duration = Duration::from_secs(60);
/// So much missing time explains anything.
const LONGEST_EXCUSED: Duration = Duration::from_secs(1);

/// One play. Clones are the same play.
#[derive(Clone)]
pub struct Stage(Arc<Inner>);

struct Inner {
    lesson: &'static Lesson,
    servers: Arc<Servers>,
    id: String,
    prefix: String,
    options: Options,
    started: Instant,
    pauses: PauseDetector,
    /// A verdict that a pause explains is not the last word.
    may_begin_again: bool,
    record: Mutex<Record>,
    told: Option<mpsc::UnboundedSender<Moment>>,
    /// The stage hand's connection to the Redis that all plays share.
    redis: Line,
    /// ZooKeeper, as long as this play needs it, and the stage hand's session with it.
    zoo: OnceCell<(Arc<OwnZooKeeper>, ZooSession)>,
    nodes: Mutex<Vec<Arc<Node>>>,
    pub shop: Shop,
}

impl Stage {
    pub(super) fn new(
        lesson: &'static Lesson,
        servers: Arc<Servers>,
        options: Options,
        told: Option<mpsc::UnboundedSender<Moment>>,
        may_begin_again: bool,
    ) -> Result<Self> {
        let id: String = uuid::Uuid::new_v4().simple().to_string();
        let scene = Scene::new(0, 0, Keys::new());
        let record = Record { scene, events: vec![], told: 0, endings: vec![] };
        Ok(Self(Arc::new(Inner {
            lesson,
            redis: Line::with_timeout(&servers.redis_url, STEP_TIMEOUT)?.of("stage hand"),
            prefix: servers.prefix_of(&id),
            shop: Shop::new(servers.postgres.clone(), &id),
            servers,
            id,
            options,
            started: Instant::now(),
            pauses: PauseDetector::start(),
            may_begin_again,
            record: Mutex::new(record),
            told,
            zoo: OnceCell::new(),
            nodes: Mutex::default(),
        })))
    }

    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// The lesson's lease, or its session: zero where it has neither.
    pub fn lease(&self) -> Duration {
        self.options().millis("lease_ms").max(self.options().millis("session_ms"))
    }

    pub fn pause(&self) -> Duration {
        self.options().millis("pause_ms")
    }

    pub fn shop(&self) -> &Shop {
        &self.0.shop
    }

    /// The real name of a key.
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.0.prefix)
    }

    // --- the acts

    /// Clears the stage for an act: no key, nobody who believes anything, a full shop.
    async fn opens(&self, id: &str) -> Result {
        let acts = self.0.lesson.acts;
        let number = acts.iter().position(|act| act.id == id);
        let number =
            number.ok_or_else(|| LessonError::NotAsWritten(format!("there is no act {id}")))?;
        tracing::trace!(act = id, lesson = self.0.lesson.id, "an act begins");
        self.sweep().await?;
        self.shop().open().await?;
        let rows = self.shop().look().await?;
        let mut record = self.0.record.lock();
        record.scene = Scene::new(number, record.events.len(), rows);
        Ok(())
    }

    /// What was in the shop's rows before the curtain rose; no lock is on stage.
    pub async fn begins_with(&self, statement: &'static str) -> Result {
        self.shop().run(statement).await?;
        let rows = self.shop().look().await?;
        let scene = &mut self.0.record.lock().scene;
        (scene.shown, scene.shows_shop, scene.keys) = (vec![], true, rows);
        Ok(())
    }

    /// Puts these keys of these nodes on stage instead of the lock.
    pub fn show_only(&self, keys: &[(&'static str, &'static str)]) {
        self.0.record.lock().scene.shown = keys.to_vec();
    }

    pub fn show_shop(&self) {
        self.0.record.lock().scene.shows_shop = true;
    }

    pub fn show_zoo(&self) {
        self.show_only(&[]);
        self.0.record.lock().scene.shows_zoo = true;
    }

    /// The act is over. `broken` has to come from what happened: [`Stage::overlap`], the shop's
    /// rows, a key.
    pub fn ends(&self, broken: bool) -> Result {
        self.ends_as(broken, if broken { "broken" } else { "held" })
    }

    /// The same, with other words than those under `broken` or `held`.
    pub fn ends_as(&self, broken: bool, key: &str) -> Result {
        let mut record = self.0.record.lock();
        let act = &self.0.lesson.acts[record.scene.act];
        if record.events.len() == record.scene.first_event {
            return Err(LessonError::NotAsWritten("an act without a step".to_owned()));
        }
        let is_surprising = broken == (act.kind == Kind::Cure);
        let may_begin_again = self.0.may_begin_again;
        if is_surprising && may_begin_again && self.stood_still_since(record.scene.began) {
            return Err(LessonError::StoodStill);
        }
        let keys = [format!("{}.{key}", act.id), key.to_owned()];
        record.endings.push(Ending { broken, why: self.says("Endings", &keys, [""; 2]) });
        drop(record);
        self.tell(0);
        Ok(())
    }

    /// Ends an act in which Alice, who stood still, wrote last; whether anybody came in between
    /// decides how it can have held.
    pub async fn ends_by_rows(&self, was_passed: bool, alone: &str) -> Result {
        // The fenced row keeps the last buyer: had she got past, it would be her.
        let overwritten = was_passed && self.shop().was_sold_last_to("alice").await?;
        match self.shop().is_oversold().await? || overwritten {
            false if !was_passed => self.ends_as(false, alone),
            broken => self.ends(broken),
        }
    }

    /// Whether so much time is missing that a lease may have ended by it: a quarter of one.
    fn stood_still_since(&self, since: Instant) -> bool {
        let lease = if self.lease().is_zero() { LONG } else { self.lease() };
        self.0.pauses.missing_since(since) >= (lease / 4).min(LONGEST_EXCUSED)
    }

    /// Whether the machine is to blame for what broke this play off.
    pub(super) fn stood_still(&self) -> bool {
        self.stood_still_since(self.0.started)
    }

    /// Whether two believed to hold the lock at once, in this act.
    pub fn overlap(&self) -> bool {
        let record = self.0.record.lock();
        let events = record.events.get(record.scene.first_event..).unwrap_or_default();
        events.iter().any(Event::is_overlap)
    }

    pub fn is_believed(&self) -> bool {
        !self.0.record.lock().scene.believers.is_empty()
    }

    pub(super) fn timeline(&self) -> Timeline {
        let mut record = self.0.record.lock();
        Timeline {
            lesson: self.0.lesson,
            repeats: 0,
            recorded: None,
            events: std::mem::take(&mut record.events),
            endings: std::mem::take(&mut record.endings),
        }
    }

    /// Servers of this play alone, which kills them; the first with more flags of `redis-server`.
    pub async fn three_nodes(&self, flags: &[String]) -> Result<[Arc<Node>; 3]> {
        let start = |at: usize, flags| Node::start(&self.0.servers, NODES[at], flags);
        let (first, second, third) =
            tokio::try_join!(start(0, flags), start(1, &[]), start(2, &[]))?;
        let nodes = [first, second, third].map(Arc::new);
        self.0.nodes.lock().extend(nodes.clone());
        Ok(nodes)
    }

    /// Removes the keys of this play.
    async fn sweep(&self) -> Result {
        let mut remove = redis::cmd("DEL");
        remove.arg(&[LOCK, "lock:phone:fence", "lock:phone:freed"].map(|name| self.key(name)));
        self.0.redis.ask::<u32>(&remove).await?;
        let nodes = self.0.nodes.lock().clone();
        for node in nodes {
            // One that is down is thrown away with what it held.
            let _ = node.hand.ask::<u32>(&remove).await;
        }
        Ok(())
    }

    /// Ends everything that belongs to this play.
    pub(super) async fn close(&self) {
        if let Err(error) = self.sweep().await {
            tracing::debug!(%error, "a play's keys stay until their leases are over");
        }
        if let Err(error) = self.shop().close().await {
            tracing::debug!(%error, "a play's rows stay until another play removes them");
        }
        let nodes = std::mem::take(&mut *self.0.nodes.lock());
        // Still in somebody's hands: it ends when they let it go.
        join_all(nodes.into_iter().filter_map(Arc::into_inner).map(Node::end)).await;
    }
}
