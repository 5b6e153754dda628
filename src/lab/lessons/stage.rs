//! The stage: clients who do nothing until they are told to.
//!
//! ```text
//! lesson (the director) ── next() ──▶ Gate of one client ◀── before() ── Line / Sql / Zoo of that client
//!        │                                                                     │
//!        │                        let one request through, wait for its reply ◀┘
//!        ▼
//! Record: the step, what the keys now hold (read by the stage hand, unwatched), who believes to hold
//! ```
//!
//! Every request of every client waits in its gate until the lesson lets it pass. So an interleaving is what
//! the lesson says and never what the scheduler happens to do, and no lock needs a hook for it. Time is only
//! waited for where time is the subject: a lease is over when the key is really gone.
//!
//! What happens on a crash: keys, rows and nodes of a play have names of their own; what a dead process
//! leaves behind is removed by later plays.

use super::{
    Ground, Lesson, Trouble,
    nodes::Node,
    options::Settings,
    shop::Shop,
    timeline::{Ending, Event, KeyState, Moment, Said, Timeline},
};
use crate::lock::{
    Acquired, Guard, Lock, LockError, Released,
    wire::{Clock, Line, LuaScript, Reply, Sent, Sql, Verdict, Watcher},
    zookeeper::Zoo,
};
use futures_util::future::BoxFuture;
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    task::{AbortHandle, JoinHandle},
    time::{sleep, timeout},
};

/// How long anything on stage may take that should happen at once. Also a server's answer: a busy machine is
/// no failure of the lesson's.
const PATIENCE: Duration = Duration::from_secs(10);
/// The lease of those whose lease must not end while we watch: it is never waited for.
pub const LONG: Duration = Duration::from_secs(60);
/// The lock of all lessons.
pub const LOCK: &str = "lock:phone";
/// The node that lessons use which need only one.
pub const REDIS: &str = "redis";

static LOOK: LuaScript = LuaScript::new("look.lua", include_str!("look.lua"));

/// One play. Clones are the same play.
#[derive(Clone)]
pub struct Stage(Arc<Inner>);

struct Inner {
    lesson: &'static Lesson,
    ground: Arc<Ground>,
    id: String,
    prefix: String,
    options: Settings,
    started: Instant,
    record: Mutex<Record>,
    told: Option<mpsc::UnboundedSender<Moment>>,
    /// The stage hand's connections, by node.
    hands: tokio::sync::Mutex<HashMap<String, Line>>,
    nodes: Mutex<Vec<Arc<Node>>>,
    pub shop: Shop,
}

#[derive(Default)]
struct Record {
    act: usize,
    first_of_act: usize,
    /// Keys on stage: the node and the key's name without the play's prefix.
    shown: Vec<(String, &'static str)>,
    shop_is_open: bool,
    zoo_is_shown: bool,
    owners: HashMap<String, (String, Option<&'static str>)>,
    believers: Vec<&'static str>,
    events: Vec<Event>,
    told: usize,
    endings: Vec<Ending>,
}

impl Stage {
    pub(super) fn new(
        lesson: &'static Lesson,
        ground: Arc<Ground>,
        options: Settings,
        told: Option<mpsc::UnboundedSender<Moment>>,
    ) -> Self {
        let id: String = uuid::Uuid::new_v4().simple().to_string();
        Self(Arc::new(Inner {
            lesson,
            prefix: ground.servers.prefix_of(&id),
            shop: Shop::new(ground.servers.postgres.clone(), &id),
            ground,
            id,
            options,
            started: Instant::now(),
            record: Mutex::default(),
            told,
            hands: tokio::sync::Mutex::default(),
            nodes: Mutex::default(),
        }))
    }

    pub fn options(&self) -> &Settings {
        &self.0.options
    }

    pub fn lease(&self) -> Duration {
        self.options().millis("lease_ms")
    }

    pub fn pause(&self) -> Duration {
        self.options().millis("pause_ms")
    }

    pub fn shop(&self) -> &Shop {
        &self.0.shop
    }

    pub fn ground(&self) -> &Ground {
        &self.0.ground
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
        let mut record = self.record();
        record.act = number;
        record.first_of_act = record.events.len();
        record.shown = vec![(REDIS.to_owned(), LOCK)];
        record.shop_is_open = false;
        record.zoo_is_shown = false;
        record.owners.clear();
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

    /// The act is over. `broken` has to come from what happened: [`Stage::overlap`], the shop's rows, a key.
    pub fn ends(
        &self,
        broken: bool,
        if_broken: impl Into<Said>,
        if_held: impl Into<Said>,
    ) -> Result<(), Trouble> {
        let why = if broken {
            if_broken.into()
        } else {
            if_held.into()
        };
        let mut record = self.record();
        if record.events.len() == record.first_of_act {
            return Err(Trouble::NotAsWritten("an act without a step".to_owned()));
        }
        record.endings.push(Ending { broken, why });
        drop(record);
        self.tell(0);
        Ok(())
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
            events: std::mem::take(&mut record.events),
            endings: std::mem::take(&mut record.endings),
        }
    }

    // --- recording

    /// Something happens that is no request: a pause, a crash, a failover.
    pub async fn happens(
        &self,
        actor: &'static str,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<(), Trouble> {
        self.write(actor, None, step, None, None, None, say.into())
            .await
    }

    /// The director's own command to a node, with its reply.
    pub async fn orders(
        &self,
        actor: &'static str,
        step: &'static str,
        command: impl Into<String>,
        reply: impl Into<String>,
        say: impl Into<Said>,
    ) -> Result<(), Trouble> {
        let (command, reply) = (command.into(), reply.into());
        self.write(
            actor,
            None,
            step,
            Some(command),
            Some(reply),
            None,
            say.into(),
        )
        .await
    }

    /// What a client of the lesson's own sends.
    pub async fn orders_to(
        &self,
        actor: &'static str,
        to: &'static str,
        step: &'static str,
        command: impl Into<String>,
        reply: impl Into<String>,
        say: impl Into<Said>,
    ) -> Result<(), Trouble> {
        let (command, reply) = (Some(command.into()), Some(reply.into()));
        self.write(actor, Some(to), step, command, reply, None, say.into())
            .await
    }

    #[expect(clippy::too_many_arguments, reason = "one step is made of so much")]
    async fn write(
        &self,
        actor: &'static str,
        to: Option<&'static str>,
        step: &'static str,
        command: Option<String>,
        reply: Option<String>,
        line: Option<(&'static str, u32)>,
        say: Said,
    ) -> Result<(), Trouble> {
        let t_ms = (self.0.started.elapsed().as_secs_f64() * 10_000.0).round() / 10.0;
        let seen = self.look().await?;
        let mut record = self.record();
        let mut keys = BTreeMap::new();
        for (name, value, ttl_ms) in seen {
            let before = record.owners.get(&name);
            let owner = match (&value, before) {
                (None, _) => None,
                // Whoever changed it has just acted.
                (Some(value), Some((known, owner))) if value == known => *owner,
                (Some(_), _) => Some(actor),
            };
            match &value {
                Some(value) => record.owners.insert(name.clone(), (value.clone(), owner)),
                None => record.owners.remove(&name),
            };
            keys.insert(
                name,
                KeyState {
                    value,
                    ttl_ms,
                    owner,
                },
            );
        }
        let event = Event {
            t_ms,
            act: record.act,
            actor,
            to,
            step,
            command: command.map(|text| self.readable(&text)),
            reply: reply.map(|text| self.readable(&text)),
            say,
            line,
            keys,
            believers: record.believers.clone(),
        };
        record.events.push(event);
        drop(record);
        // The last one may still learn what its client made of the reply.
        self.tell(1);
        Ok(())
    }

    fn tell(&self, keep: usize) {
        let Some(told) = &self.0.told else { return };
        let mut record = self.record();
        while record.told + keep < record.events.len() {
            let event = record.events[record.told].clone();
            record.told += 1;
            // Nobody listens any more: the play goes on to its end, which is near.
            let _ = told.send(Moment::Step(Box::new(event)));
        }
    }

    /// A client's belief changes with the step that was just recorded.
    fn believes(&self, client: &'static str, holds: bool) {
        let mut record = self.record();
        record.believers.retain(|believer| *believer != client);
        if holds {
            record.believers.push(client);
        }
        let believers = record.believers.clone();
        if let Some(last) = record.events.last_mut() {
            last.believers = believers;
        }
    }

    /// From the next step on.
    fn stops_believing(&self, client: &'static str) {
        self.record()
            .believers
            .retain(|believer| *believer != client);
    }

    /// Without the prefix that keeps plays apart, and with the first of many random digits.
    fn readable(&self, text: &str) -> String {
        shortened(&text.replace(&self.0.prefix, "").replace(&self.0.id, "play"))
    }

    // --- looking

    async fn hand(&self, node: &str) -> Result<Line, Trouble> {
        let mut hands = self.0.hands.lock().await;
        if let Some(line) = hands.get(node) {
            return Ok(line.clone());
        }
        let line = self.connect(node)?.of("stage hand");
        hands.insert(node.to_owned(), line.clone());
        Ok(line)
    }

    /// What every key on stage holds now: name, value, time left.
    async fn look(&self) -> Result<Vec<(String, Option<String>, Option<i64>)>, Trouble> {
        let (shown, shop, zoo) = {
            let record = self.record();
            (
                record.shown.clone(),
                record.shop_is_open,
                record.zoo_is_shown,
            )
        };
        let mut by_node: BTreeMap<&str, Vec<&'static str>> = BTreeMap::new();
        for (node, key) in &shown {
            by_node.entry(node).or_default().push(*key);
        }
        let several = by_node.len() > 1;
        let mut seen = Vec::new();
        for (node, keys) in by_node {
            let full: Vec<String> = keys.iter().map(|key| self.key(key)).collect();
            let full: Vec<&str> = full.iter().map(String::as_str).collect();
            let line = self.hand(node).await?;
            let call = LOOK.on(&full);
            let answer: Result<Vec<(Option<String>, i64)>, _> = line.run(&call).await;
            for (index, key) in keys.iter().enumerate() {
                let name = if several {
                    format!("{node} {key}")
                } else {
                    (*key).to_owned()
                };
                match &answer {
                    Ok(values) => {
                        let (value, ttl) = values.get(index).cloned().unwrap_or((None, -2));
                        seen.push((
                            name,
                            value.map(|text| self.readable(&text)),
                            (ttl >= 0).then_some(ttl),
                        ));
                    }
                    // The node is down. What it may remember is seen when it is back.
                    Err(_) => seen.push((name, None, None)),
                }
            }
        }
        if zoo {
            seen.extend(self.look_at_zoo().await?);
        }
        if shop {
            seen.extend(self.shop().look().await?);
        }
        Ok(seen)
    }

    async fn look_at_zoo(&self) -> Result<Vec<(String, Option<String>, Option<i64>)>, Trouble> {
        let client = self.0.ground.zoo_client().await?;
        let path = self.queue();
        let mut children = match client.list_children(&path).await {
            Ok(children) => children,
            Err(zookeeper_client::Error::NoNode) => Vec::new(),
            Err(error) => return Err(LockError::from(error).into()),
        };
        // By place in the queue: the number stands at the end of the name.
        children.sort_by_key(|child| child.rsplit('-').next().map(str::to_owned));
        let mut seen = Vec::new();
        for child in children {
            if let Ok((_, stat)) = client.get_data(&format!("{path}/{child}")).await {
                let value = format!("czxid {:#x}", stat.czxid);
                seen.push((self.readable(&child), Some(value), None));
            }
        }
        Ok(seen)
    }

    /// Where the clients of ZooKeeper's lock stand in line.
    pub fn queue(&self) -> String {
        format!("/locks/{}", self.key(LOCK).replace('/', "_"))
    }

    /// Waits until nobody stands there.
    pub async fn until_queue_is_empty(&self) -> Result<(), Trouble> {
        let empty = async {
            while !self.look_at_zoo().await?.is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        };
        timeout(PATIENCE, empty)
            .await
            .unwrap_or(Err(Trouble::TooSlow("a session does not end")))
    }

    /// What Redis says of a key's time: -1 no expiry, -2 no such key.
    pub async fn pttl(&self, node: &str, key: &str) -> Result<i64, Trouble> {
        let line = self.hand(node).await?;
        let ttl = line.send(redis::cmd("PTTL").arg(self.key(key))).await;
        ttl.map_err(|error| line.lock_error(error).into())
    }

    /// Waits until a key is really gone.
    pub async fn until_gone(&self, node: &str, key: &str) -> Result<(), Trouble> {
        let gone = async {
            loop {
                match self.pttl(node, key).await? {
                    -2 => return Ok(()),
                    -1 => return Err(Trouble::NotAsWritten(format!("{key} never expires"))),
                    left => sleep(Duration::from_millis(left.unsigned_abs().clamp(1, 20))).await,
                }
            }
        };
        timeout(PATIENCE, gone)
            .await
            .unwrap_or(Err(Trouble::TooSlow("a lease did not end")))
    }

    /// Waits until a key is there.
    pub async fn until_there(&self, node: &str, key: &str) -> Result<(), Trouble> {
        let there = async {
            while self.pttl(node, key).await? == -2 {
                sleep(Duration::from_millis(2)).await;
            }
            Ok(())
        };
        timeout(PATIENCE, there)
            .await
            .unwrap_or(Err(Trouble::TooSlow("a key does not come")))
    }

    /// Whether the lock is there for ever: no expiry, and nobody who would give it back.
    pub async fn is_stuck(&self, node: &str) -> Result<bool, Trouble> {
        Ok(self.pttl(node, LOCK).await? == -1 && !self.is_believed())
    }

    // --- the cast

    pub fn client(&self, id: &'static str) -> Client {
        Client {
            id,
            stage: self.clone(),
            gate: Arc::new(Gate::default()),
            clock: Clock::default(),
        }
    }

    /// A server of this play alone, with more flags of `redis-server` if need be.
    pub async fn node(&self, id: &'static str, flags: Vec<String>) -> Result<Arc<Node>, Trouble> {
        let node = Arc::new(self.0.ground.nodes.take(id, flags).await?);
        self.nodes().push(node.clone());
        Ok(node)
    }

    fn nodes(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Node>>> {
        self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self, node: &str) -> Result<Line, Trouble> {
        let private = self
            .nodes()
            .iter()
            .rev()
            .find(|one| one.id == node)
            .cloned();
        let line = match private {
            Some(node) => Line::with_timeouts(&node.url(), PATIENCE, PATIENCE),
            None => Line::with_timeouts(self.0.ground.servers.redis.url(), PATIENCE, PATIENCE),
        };
        line.map(|line| line.to(node))
            .map_err(|error| Trouble::NotAsWritten(error.to_string()))
    }

    /// Forgets the connection to a node that another one takes the place of.
    pub async fn forget(&self, node: &str) {
        self.0.hands.lock().await.remove(node);
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
            self.0.ground.nodes.give_back(node).await;
        }
    }
}

/// Runs of many hexadecimal digits are cut: six tell two tokens apart.
fn shortened(text: &str) -> String {
    let mut short = String::with_capacity(text.len());
    let mut run = String::new();
    for letter in text.chars().chain(['\n']) {
        if letter.is_ascii_hexdigit() && !letter.is_ascii_uppercase() {
            run.push(letter);
            continue;
        }
        short.push_str(if run.len() >= 32 { &run[..6] } else { &run });
        run.clear();
        short.push(letter);
    }
    short.pop();
    short
}

// --- one client

/// A client: its connections, its clock, its gate. Another process, as far as any lock can tell.
#[derive(Clone)]
pub struct Client {
    pub id: &'static str,
    stage: Stage,
    gate: Arc<Gate>,
    pub clock: Clock,
}

/// Where a client's requests wait.
#[derive(Default)]
struct Gate {
    waiting: Mutex<VecDeque<Waiting>>,
    replies: Mutex<HashMap<u64, oneshot::Sender<Reply>>>,
    heard: Mutex<VecDeque<String>>,
    arrived: Notify,
    dead: AtomicBool,
    /// Nobody watches any more: what is left to tidy up passes by itself.
    open: AtomicBool,
}

struct Waiting {
    sent: Sent,
    decide: oneshot::Sender<Decision>,
}

impl Waiting {
    /// What a watchdog sends, beside the work.
    fn is_renewal(&self) -> bool {
        self.sent
            .script
            .is_some_and(|name| name.ends_with("renew.lua"))
    }
}

/// Which of a client's requests.
#[derive(Debug, Clone, Copy)]
enum Of {
    Work,
    WorkAt(&'static str),
    Watchdog,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Go,
    Fail,
    LoseReply,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watcher for Gate {
    fn before<'a>(&'a self, sent: &'a Sent) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            if self.open.load(Relaxed) {
                return Verdict::Go;
            }
            if self.dead.load(Relaxed) {
                return Verdict::Fail;
            }
            let (decide, decided) = oneshot::channel();
            lock(&self.waiting).push_back(Waiting {
                sent: sent.clone(),
                decide,
            });
            self.arrived.notify_waiters();
            match decided.await {
                Ok(Decision::Go) => Verdict::Go,
                Ok(Decision::LoseReply) => Verdict::LoseReply,
                // Nobody will ever let it pass: the play is over, or its client dead.
                Ok(Decision::Fail) | Err(_) => Verdict::Fail,
            }
        })
    }

    fn after(&self, sent: &Sent, reply: &Reply) {
        if let Some(waits) = lock(&self.replies).remove(&sent.id) {
            let _ = waits.send(reply.clone());
        }
    }

    fn heard(&self, _client: &str, _node: &str, channel: &str, message: &str) {
        lock(&self.heard).push_back(format!("{channel}: {message}"));
        self.arrived.notify_waiters();
    }
}

impl Gate {
    /// Waits until `found` finds something.
    async fn wait<T>(&self, found: impl Fn() -> Option<T>) -> T {
        loop {
            let arrival = self.arrived.notified();
            tokio::pin!(arrival);
            arrival.as_mut().enable();
            if let Some(it) = found() {
                return it;
            }
            arrival.await;
        }
    }

    /// The first request of this kind.
    fn first(&self, of: Of) -> Option<Waiting> {
        let mut waiting = lock(&self.waiting);
        let fits = |one: &Waiting| match of {
            Of::Work => !one.is_renewal(),
            Of::WorkAt(node) => !one.is_renewal() && &*one.sent.node == node,
            Of::Watchdog => one.is_renewal(),
        };
        let index = waiting
            .iter()
            .position(|one| !one.decide.is_closed() && fits(one))?;
        waiting.remove(index)
    }
}

/// A request that has passed.
#[derive(Debug, Clone)]
pub struct Seen {
    pub command: String,
    pub reply: Reply,
}

impl Client {
    pub fn line(&self) -> Result<Line, Trouble> {
        self.line_to(REDIS)
    }

    pub fn line_to(&self, node: &str) -> Result<Line, Trouble> {
        let line = self.stage.connect(node)?;
        Ok(line.of(self.id).watched_by(self.gate.clone()))
    }

    pub fn sql(&self) -> Sql {
        let sql = Sql::new(self.stage.0.ground.servers.postgres.clone());
        sql.of(self.id).watched_by(self.gate.clone())
    }

    /// A session with ZooKeeper at this address.
    pub fn zoo(&self, address: &str, session: Duration) -> Zoo {
        Zoo::new(address, session)
            .of(self.id)
            .watched_by(self.gate.clone())
    }

    pub fn name(&self) -> &'static str {
        let cast = self.stage.0.lesson.cast;
        cast.iter()
            .find(|actor| actor.id == self.id)
            .map_or(self.id, |actor| actor.name.en)
    }

    /// Starts something; its requests wait in the gate.
    pub fn does<T: Send + 'static>(
        &self,
        what: impl Future<Output = T> + Send + 'static,
    ) -> Doing<T> {
        let task = tokio::spawn(what);
        Doing {
            client: self.clone(),
            of: Of::Work,
            abort: task.abort_handle(),
            task: Some(task),
        }
    }

    /// Starts to take the lock [`LOCK`]; believes to hold it once the lock says so.
    pub fn acquires<L: Lock + Clone>(
        &self,
        lock: &L,
        wait: Duration,
    ) -> Doing<Result<Acquired<L::Guard>, LockError>> {
        let (lock, name) = (lock.clone(), self.stage.key(LOCK));
        self.does(async move { lock.acquire(&name, wait).await })
    }

    /// Starts to give it back: its work is done, from here on it does not count as a holder.
    pub fn releases<G: Guard>(&self, guard: G) -> Doing<Result<Released, LockError>> {
        self.stage.stops_believing(self.id);
        self.does(guard.release())
    }

    /// Takes the lock in one request and has it.
    pub async fn takes<L: Lock + Clone>(
        &self,
        lock: &L,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<L::Guard, Trouble> {
        let tried = self.acquires(lock, Duration::ZERO).last(step, say).await?;
        self.must_hold(tried)
    }

    /// Tries once, in one request; `None` if somebody else has it.
    pub async fn tries<L: Lock + Clone>(
        &self,
        lock: &L,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<Option<L::Guard>, Trouble> {
        let tried = self.acquires(lock, Duration::ZERO).last(step, say).await?;
        Ok(tried?.held())
    }

    /// The lock has to be ours here; where it is not, a lease was over before it should be.
    pub fn must_hold<G>(&self, tried: Result<Acquired<G>, LockError>) -> Result<G, Trouble> {
        tried?.held().ok_or(Trouble::TooSlow(
            "somebody should have the lock and has not",
        ))
    }

    pub fn believes(&self, holds: bool) {
        self.stage.believes(self.id, holds);
    }

    /// From its next step on it does not count as a holder: its work is done.
    pub fn stops_believing(&self) {
        self.stage.stops_believing(self.id);
    }

    /// Lets the next request of this client pass.
    pub async fn next(&self, step: &'static str, say: impl Into<Said>) -> Result<Seen, Trouble> {
        self.pass(Of::Work, Decision::Go, step, say.into()).await
    }

    pub async fn next_to(
        &self,
        node: &'static str,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<Seen, Trouble> {
        self.pass(Of::WorkAt(node), Decision::Go, step, say.into())
            .await
    }

    /// It is never sent: the connection breaks before.
    pub async fn next_to_fails(
        &self,
        node: &'static str,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<Seen, Trouble> {
        self.pass(Of::WorkAt(node), Decision::Fail, step, say.into())
            .await
    }

    pub async fn next_to_loses_reply(
        &self,
        node: &'static str,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<Seen, Trouble> {
        self.pass(Of::WorkAt(node), Decision::LoseReply, step, say.into())
            .await
    }

    pub async fn next_fails(
        &self,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<Seen, Trouble> {
        self.pass(Of::Work, Decision::Fail, step, say.into()).await
    }

    /// It is sent and done, and the client never hears of it.
    pub async fn next_loses_reply(
        &self,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<Seen, Trouble> {
        self.pass(Of::Work, Decision::LoseReply, step, say.into())
            .await
    }

    /// Its watchdog renews.
    pub async fn renews(&self, step: &'static str, say: impl Into<Said>) -> Result<Seen, Trouble> {
        self.pass(Of::Watchdog, Decision::Go, step, say.into())
            .await
    }

    /// Its watchdog wants to renew, and the connection breaks.
    pub async fn renewal_fails(
        &self,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<Seen, Trouble> {
        self.pass(Of::Watchdog, Decision::Fail, step, say.into())
            .await
    }

    async fn pass(
        &self,
        of: Of,
        decision: Decision,
        step: &'static str,
        say: Said,
    ) -> Result<Seen, Trouble> {
        let waiting = timeout(PATIENCE, self.gate.wait(|| self.gate.first(of))).await;
        let waiting =
            waiting.map_err(|_| Trouble::TooSlow("a request that should come did not"))?;
        self.let_pass(waiting, decision, step, say).await
    }

    async fn let_pass(
        &self,
        waiting: Waiting,
        decision: Decision,
        step: &'static str,
        say: Said,
    ) -> Result<Seen, Trouble> {
        let Waiting { sent, decide } = waiting;
        let (answer, answered) = oneshot::channel();
        lock(&self.gate.replies).insert(sent.id, answer);
        if decide.send(decision).is_err() {
            return Err(Trouble::TooSlow("a client gave up while it was waited for"));
        }
        let reply = timeout(PATIENCE, answered).await;
        let reply = reply.ok().and_then(Result::ok);
        let reply = reply.ok_or(Trouble::TooSlow("a reply that should come did not"))?;
        let to = self.stage.0.lesson.actor(&sent.node);
        let line = Some((sent.file, sent.line));
        let (command, shown) = (Some(sent.text.clone()), Some(reply.to_string()));
        let stage = &self.stage;
        stage
            .write(self.id, to, step, command, shown, line, say)
            .await?;
        Ok(Seen {
            command: sent.text,
            reply,
        })
    }

    /// Waits until the client stands before its next request, without letting it pass.
    pub async fn stands(&self) -> Result<String, Trouble> {
        let waits = || {
            let waiting = lock(&self.gate.waiting);
            let first = waiting
                .iter()
                .find(|one| !one.decide.is_closed() && !one.is_renewal());
            first.map(|one| one.sent.text.clone())
        };
        let text = timeout(PATIENCE, self.gate.wait(waits)).await;
        text.map_err(|_| Trouble::TooSlow("a request that should come did not"))
    }

    /// A message of a subscription arrives.
    pub async fn hears(&self, step: &'static str, say: impl Into<Said>) -> Result<(), Trouble> {
        let heard = self.gate.wait(|| lock(&self.gate.heard).pop_front());
        let heard = timeout(PATIENCE, heard).await;
        let heard = heard.map_err(|_| Trouble::TooSlow("a message that should come did not"))?;
        let stage = &self.stage;
        let reply = (Some("MESSAGE".to_owned()), Some(heard));
        stage
            .write(self.id, None, step, reply.0, reply.1, None, say.into())
            .await
    }

    /// Whether no message has come so far.
    pub fn heard_nothing(&self) -> bool {
        lock(&self.gate.heard).is_empty()
    }

    /// Stands still for the play's `pause_ms`; where that is longer than the lease, until the key is gone.
    pub async fn pauses(&self, node: &str, say: impl Into<Said>) -> Result<(), Trouble> {
        self.stage.happens(self.id, "pause", say).await?;
        sleep(self.stage.pause()).await;
        if self.stage.pause() > self.stage.lease() {
            self.stage.until_gone(node, LOCK).await?;
        }
        Ok(())
    }

    /// Dies: nothing of it runs any more, and what it wanted to send is never sent.
    pub async fn crashes<T>(&self, doing: Doing<T>, say: impl Into<Said>) -> Result<(), Trouble> {
        self.dies();
        drop(doing);
        self.stage.happens(self.id, "crash", say).await
    }

    /// Dies with the lock in its hands.
    pub async fn crashes_holding<G>(&self, guard: G, say: impl Into<Said>) -> Result<(), Trouble> {
        self.dies();
        drop(guard);
        self.stage.happens(self.id, "crash", say).await
    }

    /// Leaves the stage: what it still has to tidy up passes unseen.
    pub fn leaves(&self) {
        self.gate.open.store(true, Relaxed);
        self.stage.stops_believing(self.id);
        let waiting = std::mem::take(&mut *lock(&self.gate.waiting));
        for one in waiting {
            let _ = one.decide.send(Decision::Go);
        }
    }

    /// Nothing is sent from here on.
    pub fn dies(&self) {
        self.gate.dead.store(true, Relaxed);
        self.stage.stops_believing(self.id);
        lock(&self.gate.waiting).clear();
    }
}

/// Something that a client does. Dropping it ends it where it stands.
pub struct Doing<T> {
    client: Client,
    of: Of,
    abort: AbortHandle,
    task: Option<JoinHandle<T>>,
}

impl<T> Drop for Doing<T> {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// What the end of something says about holding the lock.
pub trait Belief {
    fn belief(&self) -> Option<bool> {
        None
    }
}

impl<G> Belief for Result<Acquired<G>, LockError> {
    fn belief(&self) -> Option<bool> {
        matches!(self, Ok(Acquired::Held(_))).then_some(true)
    }
}

impl Belief for Result<Released, LockError> {}
impl Belief for Result<bool, LockError> {}
impl Belief for Result<bool, redis::RedisError> {}
impl Belief for Result<(), redis::RedisError> {}
impl Belief for Result<i64, redis::RedisError> {}
impl Belief for Result<(), sqlx::Error> {}
impl Belief for Result<i32, sqlx::Error> {}
impl Belief for Result<crate::lock::fencing::Write, LockError> {}

impl<T: Belief> Doing<T> {
    /// One request.
    pub async fn next(
        &mut self,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<Seen, Trouble> {
        self.client
            .pass(self.of, Decision::Go, step, say.into())
            .await
    }

    /// Only its requests to this node are let pass by it.
    pub fn at(mut self, node: &'static str) -> Self {
        self.of = Of::WorkAt(node);
        self
    }

    /// Lets requests pass until it has ended; `say` for each. Answers how many there were.
    pub async fn rest(
        mut self,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<(T, usize), Trouble> {
        self.rest_as(Decision::Go, step, say.into()).await
    }

    /// The same, and none of them is sent.
    pub async fn rest_fails(
        mut self,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<(T, usize), Trouble> {
        self.rest_as(Decision::Fail, step, say.into()).await
    }

    async fn rest_as(
        &mut self,
        decision: Decision,
        step: &'static str,
        say: Said,
    ) -> Result<(T, usize), Trouble> {
        let mut count = 0;
        let mut task = self
            .task
            .take()
            .ok_or(Trouble::TooSlow("it has ended already"))?;
        let gate = self.client.gate.clone();
        loop {
            let arrival = gate.wait(|| gate.first(self.of));
            let waiting = tokio::select! {
                ended = &mut task => return Ok((self.ended(ended)?, count)),
                waiting = arrival => waiting,
                () = sleep(PATIENCE) => return Err(Trouble::TooSlow("it does not end")),
            };
            let client = self.client.clone();
            client
                .let_pass(waiting, decision, step, say.clone())
                .await?;
            count += 1;
        }
    }

    /// One request, and its end.
    pub async fn last(mut self, step: &'static str, say: impl Into<Said>) -> Result<T, Trouble> {
        self.next(step, say).await?;
        self.end().await
    }

    /// Its end, without a further request.
    pub async fn end(mut self) -> Result<T, Trouble> {
        let task = self
            .task
            .take()
            .ok_or(Trouble::TooSlow("it has ended already"))?;
        let ended = timeout(PATIENCE, task).await;
        self.ended(ended.map_err(|_| Trouble::TooSlow("it does not end"))?)
    }

    fn ended(&self, ended: Result<T, tokio::task::JoinError>) -> Result<T, Trouble> {
        let outcome = ended.map_err(|error| Trouble::NotAsWritten(error.to_string()))?;
        if let Some(holds) = outcome.belief() {
            self.client.believes(holds);
        }
        Ok(outcome)
    }

    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// Whether it has neither ended nor anything to send: it sleeps.
    pub fn sleeps(&self) -> bool {
        let idle = lock(&self.client.gate.waiting)
            .iter()
            .all(|one| one.decide.is_closed());
        idle && self.task.as_ref().is_some_and(|task| !task.is_finished())
    }
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn long_random_digits_are_cut_and_nothing_else() {
        let token = "0123456789abcdef0123456789abcdef";
        assert_eq!(
            shortened(&format!("SET k alice-{token} PX 200")),
            "SET k alice-012345 PX 200"
        );
        assert_eq!(shortened("GET 1798123456789"), "GET 1798123456789");
        assert_eq!(shortened(token), "012345");
    }
}
