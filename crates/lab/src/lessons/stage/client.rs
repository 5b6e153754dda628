//! Who acts: a client, and what it is doing.

use super::{
    super::{error::Trouble, lesson::REDIS_NODE as REDIS},
    LOCK, STEP_TIMEOUT, Stage,
    gate::{Decision, Gate, Of, Waiting, lock},
    record::Step,
};
use locks::{
    Acquired, Guard, Lock, LockError, Released,
    wire::{Clock, Line, Reply, Sql},
    zookeeper::Zoo,
};
use std::{
    future::Future,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::oneshot,
    task::{AbortHandle, JoinHandle},
    time::{sleep, timeout},
};

/// A client: its connections, its clock, its gate. Another process, as far as any lock can tell.
#[derive(Clone)]
pub struct Client {
    pub id: &'static str,
    stage: Stage,
    gate: Arc<Gate>,
    pub clock: Clock,
}
/// A request that has passed.
#[derive(Debug, Clone)]
pub struct Seen {
    pub command: String,
    pub reply: Reply,
}

impl Stage {
    pub fn client(&self, id: &'static str) -> Client {
        Client::new(id, self.clone())
    }

    pub fn clients<const N: usize>(&self, ids: [&'static str; N]) -> [Client; N] {
        ids.map(|id| self.client(id))
    }
}

impl Client {
    fn new(id: &'static str, stage: Stage) -> Self {
        Self { id, stage, gate: Arc::new(Gate::default()), clock: Clock::default() }
    }

    pub fn line(&self) -> Result<Line, Trouble> {
        self.line_to(REDIS)
    }

    pub fn line_to(&self, node: &str) -> Result<Line, Trouble> {
        let line = self.stage.connect(node)?;
        Ok(line.of(self.id).watched_by(self.gate.clone()))
    }

    pub fn lines_to(&self, nodes: &[&str]) -> Result<Vec<Line>, Trouble> {
        nodes.iter().map(|node| self.line_to(node)).collect()
    }

    pub fn sql(&self) -> Sql {
        let sql = Sql::new(self.stage.0.environment.servers.postgres.clone());
        sql.of(self.id).watched_by(self.gate.clone())
    }

    /// A session with ZooKeeper at this address.
    pub fn zoo(&self, address: &str, session: Duration) -> Zoo {
        Zoo::new(address, session).of(self.id).watched_by(self.gate.clone())
    }

    /// Starts something; its requests wait in the gate.
    pub fn does<T: Send + 'static>(
        &self,
        what: impl Future<Output = T> + Send + 'static,
    ) -> Doing<T> {
        let task = tokio::spawn(what);
        Doing { client: self.clone(), of: Of::Work, abort: task.abort_handle(), task: Some(task) }
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
    ) -> Result<L::Guard, Trouble> {
        let tried = self.acquires(lock, Duration::ZERO).last(step).await?;
        self.must_hold(tried)
    }

    /// Tries once, in one request; `None` if somebody else has it.
    pub async fn tries<L: Lock + Clone>(
        &self,
        lock: &L,
        step: &'static str,
    ) -> Result<Option<L::Guard>, Trouble> {
        Ok(self.acquires(lock, Duration::ZERO).last(step).await??.held())
    }

    /// Asks several nodes, and gives back (step `give-back`) whatever is not enough.
    pub async fn asks<L: Lock + Clone>(
        &self,
        lock: &L,
        step: &'static str,
    ) -> Result<Result<Acquired<L::Guard>, LockError>, Trouble> {
        let named = |sent: &str| if sent.starts_with("SET") { step } else { "give-back" };
        self.acquires(lock, Duration::ZERO).rest_named(named).await
    }

    /// Gives it back, in one request or a few.
    pub async fn unlocks<G: Guard>(
        &self,
        guard: G,
        step: &'static str,
    ) -> Result<Released, Trouble> {
        Ok(self.releases(guard).rest(step).await??)
    }

    /// The lock has to be ours here.
    pub fn must_hold<G>(&self, tried: Result<Acquired<G>, LockError>) -> Result<G, Trouble> {
        tried?.held().ok_or(Trouble::TooSlow("somebody should have the lock and has not"))
    }

    pub fn believes(&self, holds: bool) {
        self.stage.believes(self.id, holds);
    }

    /// From its next step on it does not count as a holder: its work is done.
    pub fn stops_believing(&self) {
        self.stage.stops_believing(self.id);
    }

    /// The next request of its work.
    pub fn next(&self) -> Next<'_> {
        Next { client: self, of: Of::Work }
    }

    /// Its next request to this node.
    pub fn at(&self, node: &'static str) -> Next<'_> {
        Next { client: self, of: Of::WorkAt(node) }
    }

    /// The next renewal.
    pub fn watchdog(&self) -> Next<'_> {
        Next { client: self, of: Of::Watchdog }
    }

    async fn pass(&self, of: Of, decision: Decision, step: &'static str) -> Result<Seen, Trouble> {
        let waiting = timeout(STEP_TIMEOUT, self.gate.wait(|| self.gate.first(of))).await;
        let waiting =
            waiting.map_err(|_| Trouble::TooSlow("a request that should come did not"))?;
        self.let_pass(waiting, decision, step).await
    }

    async fn let_pass(
        &self,
        waiting: Waiting,
        decision: Decision,
        id: &'static str,
    ) -> Result<Seen, Trouble> {
        let Waiting { sent, decide } = waiting;
        let (answer, answered) = oneshot::channel();
        lock(&self.gate.replies).insert(sent.id, answer);
        if decide.send(decision).is_err() {
            return Err(Trouble::TooSlow("a client gave up while it was waited for"));
        }
        let reply = timeout(STEP_TIMEOUT, answered).await;
        let reply = reply.ok().and_then(Result::ok);
        let reply = reply.ok_or(Trouble::TooSlow("a reply that should come did not"))?;
        let step = Step {
            to: self.stage.0.lesson.actor(&sent.node),
            line: Some((sent.file, sent.line)),
            ..Step::new(self.id, id).with(&*sent.text, reply.to_string())
        };
        self.stage.write(step).await?;
        Ok(Seen { command: sent.text, reply })
    }

    /// Waits until the client stands before its next request, without letting it pass.
    pub async fn stands(&self) -> Result<String, Trouble> {
        let waits = || {
            let waiting = lock(&self.gate.waiting);
            let first = waiting.iter().find(|one| !one.decide.is_closed() && !one.is_renewal());
            first.map(|one| one.sent.text.clone())
        };
        let text = timeout(STEP_TIMEOUT, self.gate.wait(waits)).await;
        text.map_err(|_| Trouble::TooSlow("a request that should come did not"))
    }

    /// A message of a subscription arrives.
    pub async fn hears(&self, id: &'static str) -> Result<(), Trouble> {
        let heard = self.gate.wait(|| lock(&self.gate.heard).pop_front());
        let heard = timeout(STEP_TIMEOUT, heard).await;
        let heard = heard.map_err(|_| Trouble::TooSlow("a message that should come did not"))?;
        self.stage.write(Step::new(self.id, id).with("MESSAGE", heard)).await
    }

    /// Whether no message has come so far.
    pub fn heard_nothing(&self) -> bool {
        lock(&self.gate.heard).is_empty()
    }

    /// Waits until its lock tells it that the lease is over, and stops working.
    pub async fn loses(&self, guard: &impl Guard) -> Result<(), Trouble> {
        let lost = timeout(self.stage.lease() * 3, guard.lost()).await;
        lost.map_err(|_| Trouble::TooSlow("a lease does not end"))?;
        self.stops_believing();
        Ok(())
    }

    /// Stands still for the play's `pause_ms`; where that is longer than the lease, until the key
    /// is gone.
    #[track_caller]
    pub fn pauses<'a>(
        &'a self,
        node: &'a str,
        step: &'static str,
    ) -> impl Future<Output = Result<(), Trouble>> + Send + 'a {
        let happens = self.stage.happens(self.id, step);
        async move {
            happens.await?;
            sleep(self.stage.pause()).await;
            if self.stage.pause() > self.stage.lease() {
                self.stage.until_gone(node, LOCK).await?;
            }
            Ok(())
        }
    }

    /// Dies, in the middle of something or with a lock: nothing of it runs any more, and what it
    /// wanted to send is never sent.
    #[track_caller]
    pub fn crashes<T>(
        &self,
        with: T,
        step: &'static str,
    ) -> impl Future<Output = Result<(), Trouble>> + Send + use<'_, T> {
        self.dies();
        drop(with);
        self.stage.happens(self.id, step)
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

/// A request that is about to pass.
pub struct Next<'a> {
    client: &'a Client,
    of: Of,
}

impl Next<'_> {
    pub async fn goes(self, step: &'static str) -> Result<Seen, Trouble> {
        self.client.pass(self.of, Decision::Go, step).await
    }

    /// It is never sent: the connection breaks before.
    pub async fn fails(self, step: &'static str) -> Result<Seen, Trouble> {
        self.client.pass(self.of, Decision::Fail, step).await
    }

    /// It is sent and done, and the client never hears of it.
    pub async fn loses_reply(self, step: &'static str) -> Result<Seen, Trouble> {
        self.client.pass(self.of, Decision::LoseReply, step).await
    }
}

/// What came of something, as captions name it.
pub trait Outcome {
    fn outcome(&self) -> Option<&'static str> {
        None
    }
}

/// The lock is its client's.
const IN: &str = "in";

impl<G> Outcome for Result<Acquired<G>, LockError> {
    fn outcome(&self) -> Option<&'static str> {
        match self {
            Ok(Acquired::Held(_)) => Some(IN),
            Ok(Acquired::Contended { .. }) => Some("out"),
            Err(_) => None,
        }
    }
}

impl Outcome for Result<Released, LockError> {
    fn outcome(&self) -> Option<&'static str> {
        match self {
            Ok(Released::NotHeld) => Some("late"),
            Ok(_) => Some("freed"),
            Err(_) => None,
        }
    }
}

/// A stock.
impl Outcome for Result<i32, sqlx::Error> {
    fn outcome(&self) -> Option<&'static str> {
        match self {
            Ok(left) => Some(if *left > 0 { "left" } else { "none" }),
            Err(_) => None,
        }
    }
}

impl Outcome for Result<bool, LockError> {}
impl Outcome for Result<bool, redis::RedisError> {}
impl Outcome for Result<(), redis::RedisError> {}
impl Outcome for Result<i64, redis::RedisError> {}
impl Outcome for Result<(), sqlx::Error> {}
impl Outcome for Result<u64, sqlx::Error> {}
impl Outcome for Result<String, locks::zookeeper::ZooError> {}
impl Outcome for Result<locks::fencing::Write, LockError> {}

impl<T: Outcome> Doing<T> {
    /// One request.
    pub async fn next(&mut self, step: &'static str) -> Result<Seen, Trouble> {
        self.client.pass(self.of, Decision::Go, step).await
    }

    /// Only its requests to this node are let pass by it.
    pub fn at(mut self, node: &'static str) -> Self {
        self.of = Of::WorkAt(node);
        self
    }

    /// Lets requests pass until it has ended.
    pub async fn rest(self, step: &'static str) -> Result<T, Trouble> {
        self.rest_by(Decision::Go, |_| step).await
    }

    /// The same, and none of them is sent.
    pub async fn rest_fails(self, step: &'static str) -> Result<T, Trouble> {
        self.rest_by(Decision::Fail, |_| step).await
    }

    /// The same; what each request is called depends on its text.
    pub async fn rest_named(
        self,
        step: impl Fn(&str) -> &'static str + Send,
    ) -> Result<T, Trouble> {
        self.rest_by(Decision::Go, step).await
    }

    async fn rest_by(
        mut self,
        decision: Decision,
        step: impl Fn(&str) -> &'static str + Send,
    ) -> Result<T, Trouble> {
        let mut task = self.task.take().ok_or(Trouble::TooSlow("it has ended already"))?;
        let gate = self.client.gate.clone();
        loop {
            let arrival = gate.wait(|| gate.first(self.of));
            let waiting = tokio::select! {
                ended = &mut task => return self.ended(ended),
                waiting = arrival => waiting,
                () = sleep(STEP_TIMEOUT) => return Err(Trouble::TooSlow("it does not end")),
            };
            let name = step(&waiting.sent.text);
            self.client.let_pass(waiting, decision, name).await?;
        }
    }

    /// One request, and its end.
    pub async fn last(mut self, step: &'static str) -> Result<T, Trouble> {
        self.next(step).await?;
        self.end().await
    }

    /// Its end, without a further request.
    pub async fn end(mut self) -> Result<T, Trouble> {
        let task = self.task.take().ok_or(Trouble::TooSlow("it has ended already"))?;
        let ended = timeout(STEP_TIMEOUT, task).await;
        self.ended(ended.map_err(|_| Trouble::TooSlow("it does not end"))?)
    }

    fn ended(&self, ended: Result<T, tokio::task::JoinError>) -> Result<T, Trouble> {
        let outcome = ended.map_err(|error| Trouble::NotAsWritten(error.to_string()))?;
        if let Some(what) = outcome.outcome() {
            self.client.stage.came_of_it(self.client.id, what);
            if what == IN {
                self.client.believes(true);
            }
        }
        Ok(outcome)
    }

    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// Whether it has neither ended nor anything to send: it sleeps.
    pub fn sleeps(&self) -> bool {
        let idle = lock(&self.client.gate.waiting).iter().all(|one| one.decide.is_closed());
        idle && self.task.as_ref().is_some_and(|task| !task.is_finished())
    }
}
