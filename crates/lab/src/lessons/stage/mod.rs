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
//! | [`record`] | steps, and who believes what |
//!
//! What happens on a crash: keys, rows and nodes of a play have names of their own; what a dead
//! process leaves behind is removed by later plays.

pub mod client;
mod gate;
mod look;
mod record;
mod recording;
mod shopping;

use super::{
    environment::Environment,
    error::Trouble,
    lesson::{Kind, Lesson, REDIS_NODE as REDIS},
    nodes::Node,
    options::Settings,
    pauses::PauseDetector,
    shop::Shop,
    timeline::{Ending, Event, Moment, Timeline},
};
use locks::wire::Line;
use record::{Record, Written};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// How long anything on stage may take that should happen at once. Also a server's answer: a busy
/// machine is no failure of the lesson's.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// The lease of those whose lease must not end while we watch: it is never waited for.
pub const LONG: Duration = Duration::from_secs(60);
/// So much missing time explains anything.
const LONGEST_EXCUSED: Duration = Duration::from_secs(1);
/// The lock of all lessons.
pub const LOCK: &str = "lock:phone";

/// One play. Clones are the same play.
#[derive(Clone)]
pub struct Stage(Arc<Inner>);

struct Inner {
    lesson: &'static Lesson,
    environment: Arc<Environment>,
    id: String,
    prefix: String,
    options: Settings,
    started: Instant,
    pauses: PauseDetector,
    /// A verdict that a pause explains is not the last word.
    may_begin_again: bool,
    record: Mutex<Record>,
    told: Option<mpsc::UnboundedSender<Moment>>,
    /// The stage hand's connections, by node.
    hands: tokio::sync::Mutex<HashMap<String, Line>>,
    nodes: Mutex<Vec<Arc<Node>>>,
    pub shop: Shop,
}

impl Stage {
    pub(super) fn new(
        lesson: &'static Lesson,
        environment: Arc<Environment>,
        options: Settings,
        told: Option<mpsc::UnboundedSender<Moment>>,
        may_begin_again: bool,
    ) -> Self {
        let id: String = uuid::Uuid::new_v4().simple().to_string();
        Self(Arc::new(Inner {
            lesson,
            prefix: environment.servers.prefix_of(&id),
            shop: Shop::new(environment.servers.postgres.clone(), &id),
            environment,
            id,
            options,
            started: Instant::now(),
            pauses: PauseDetector::start(),
            may_begin_again,
            record: Mutex::default(),
            told,
            hands: tokio::sync::Mutex::default(),
            nodes: Mutex::default(),
        }))
    }

    pub fn options(&self) -> &Settings {
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

    pub fn environment(&self) -> &Environment {
        &self.0.environment
    }

    /// The real name of a key.
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.0.prefix)
    }

    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.0.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // --- the acts

    /// Clears the stage for an act: no key, nobody who believes anything, a full shop.
    pub async fn act(&self, id: &str) -> Result<(), Trouble> {
        let acts = self.0.lesson.acts;
        let number = acts.iter().position(|act| act.id == id);
        let number =
            number.ok_or_else(|| Trouble::NotAsWritten(format!("there is no act {id}")))?;
        self.sweep().await?;
        self.shop().open().await?;
        let rows = self.shop().look().await?.into_iter();
        let rows =
            rows.filter_map(|(name, value, _)| Some((name, Written::before_the_act(value?))));
        let mut record = self.record();
        record.act = number;
        record.act_began = Some(Instant::now());
        record.first_of_act = record.events.len();
        record.shown = vec![(REDIS.to_owned(), LOCK)];
        record.shop_is_open = false;
        record.zoo_is_shown = false;
        record.owners = rows.collect();
        record.believers.clear();
        Ok(())
    }

    /// Puts one more key on stage.
    pub fn show(&self, node: &str, key: &'static str) {
        let mut record = self.record();
        let entry = (node.to_owned(), key);
        if !record.shown.contains(&entry) {
            record.shown.push(entry);
        }
    }

    /// Puts these keys on stage instead.
    pub fn show_only(&self, keys: &[(&str, &'static str)]) {
        let keys = keys.iter().map(|(node, key)| ((*node).to_owned(), *key));
        self.record().shown = keys.collect();
    }

    pub fn show_shop(&self) {
        self.record().shop_is_open = true;
    }

    pub fn show_zoo(&self) {
        let mut record = self.record();
        record.zoo_is_shown = true;
        record.shown.clear();
    }

    /// The act is over. `broken` has to come from what happened: [`Stage::overlap`], the shop's
    /// rows, a key.
    pub fn ends(&self, broken: bool) -> Result<(), Trouble> {
        self.ends_as(broken, if broken { "broken" } else { "held" })
    }

    /// The same, with other words than those under `broken` or `held`.
    pub fn ends_as(&self, broken: bool, key: &str) -> Result<(), Trouble> {
        let mut record = self.record();
        let act = &self.0.lesson.acts[record.act];
        if record.events.len() == record.first_of_act {
            return Err(Trouble::NotAsWritten("an act without a step".to_owned()));
        }
        let is_surprising = broken == (act.kind == Kind::Cure);
        let began = record.act_began.unwrap_or(self.0.started);
        if is_surprising && self.0.may_begin_again && self.stood_still_since(began) {
            return Err(Trouble::StoodStill);
        }
        let why = self.0.lesson.say("Endings", &[format!("{}.{key}", act.id), key.to_owned()]);
        let why = self.filled(why, |text, _| text.to_owned());
        record.endings.push(Ending { broken, why });
        drop(record);
        self.tell(0);
        Ok(())
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
        let record = self.record();
        let events = record.events.get(record.first_of_act..).unwrap_or_default();
        events.iter().any(Event::is_overlap)
    }

    pub fn believers(&self) -> Vec<&'static str> {
        self.record().believers.clone()
    }

    pub fn is_believed(&self) -> bool {
        !self.record().believers.is_empty()
    }

    pub(super) fn timeline(&self) -> Timeline {
        let mut record = self.record();
        Timeline {
            lesson: self.0.lesson,
            repeats: 0,
            recorded: None,
            events: std::mem::take(&mut record.events),
            endings: std::mem::take(&mut record.endings),
        }
    }

    /// A server of this play alone, with more flags of `redis-server` if need be.
    pub async fn node(&self, id: &'static str, flags: Vec<String>) -> Result<Arc<Node>, Trouble> {
        let node = Arc::new(self.0.environment.nodes.take(id, flags).await?);
        // Another one than before, under the same name.
        self.0.hands.lock().await.remove(id);
        self.nodes().push(node.clone());
        Ok(node)
    }

    fn nodes(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Node>>> {
        self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self, node: &str) -> Result<Line, Trouble> {
        let private = self.nodes().iter().rev().find(|one| one.id == node).cloned();
        let line = match private {
            Some(node) => Line::with_timeouts(&node.url(), STEP_TIMEOUT, STEP_TIMEOUT),
            None => Line::with_timeouts(
                &self.0.environment.servers.redis_url,
                STEP_TIMEOUT,
                STEP_TIMEOUT,
            ),
        };
        line.map(|line| line.to(node)).map_err(|error| Trouble::NotAsWritten(error.to_string()))
    }

    /// Removes the keys of this play.
    async fn sweep(&self) -> Result<(), Trouble> {
        let mut nodes = vec![REDIS.to_owned()];
        nodes.extend(self.nodes().iter().map(|node| node.id.to_owned()));
        for node in nodes {
            let line = self.hand(&node).await?;
            let names = [LOCK, "lock:phone:fence", "lock:phone:freed"].map(|name| self.key(name));
            let removed: Result<u32, _> = line.send(redis::cmd("DEL").arg(&names)).await;
            // A private node that is down is thrown away with what it held.
            if let (Err(error), true) = (removed, node == REDIS) {
                return Err(line.lock_error(error).into());
            }
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
        self.0.hands.lock().await.clear();
        let nodes = std::mem::take(&mut *self.nodes());
        for node in nodes {
            self.0.environment.nodes.give_back(node).await;
        }
    }
}
