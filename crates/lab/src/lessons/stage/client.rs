//! Who acts: a client, and what it is doing.

use super::{
    super::{error::Trouble, lesson::REDIS_NODE as REDIS, timeline::Said},
    LOCK, STEP_TIMEOUT, Stage,
    gate::{Decision, Gate, Of, Waiting, lock},
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

    pub fn sql(&self) -> Sql {
        let sql = Sql::new(self.stage.0.environment.servers.postgres.clone());
        sql.of(self.id).watched_by(self.gate.clone())
    }

    /// A session with ZooKeeper at this address.
    pub fn zoo(&self, address: &str, session: Duration) -> Zoo {
        Zoo::new(address, session).of(self.id).watched_by(self.gate.clone())
    }

    pub fn name(&self) -> &'static str {
        let cast = self.stage.0.lesson.cast;
        cast.iter().find(|actor| actor.id == self.id).map_or(self.id, |actor| actor.name.en)
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
        tried?.held().ok_or(Trouble::TooSlow("somebody should have the lock and has not"))
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
        self.pass(Of::WorkAt(node), Decision::Go, step, say.into()).await
    }

    /// It is never sent: the connection breaks before.
    pub async fn next_to_fails(
        &self,
        node: &'static str,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<Seen, Trouble> {
        self.pass(Of::WorkAt(node), Decision::Fail, step, say.into()).await
    }

    pub async fn next_to_loses_reply(
        &self,
        node: &'static str,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<Seen, Trouble> {
        self.pass(Of::WorkAt(node), Decision::LoseReply, step, say.into()).await
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
        self.pass(Of::Work, Decision::LoseReply, step, say.into()).await
    }

    /// Its watchdog renews.
    pub async fn renews(&self, step: &'static str, say: impl Into<Said>) -> Result<Seen, Trouble> {
        self.pass(Of::Watchdog, Decision::Go, step, say.into()).await
    }

    /// Its watchdog wants to renew, and the connection breaks.
    pub async fn renewal_fails(
        &self,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<Seen, Trouble> {
        self.pass(Of::Watchdog, Decision::Fail, step, say.into()).await
    }

    async fn pass(
        &self,
        of: Of,
        decision: Decision,
        step: &'static str,
        say: Said,
    ) -> Result<Seen, Trouble> {
        let waiting = timeout(STEP_TIMEOUT, self.gate.wait(|| self.gate.first(of))).await;
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
        let reply = timeout(STEP_TIMEOUT, answered).await;
        let reply = reply.ok().and_then(Result::ok);
        let reply = reply.ok_or(Trouble::TooSlow("a reply that should come did not"))?;
        let to = self.stage.0.lesson.actor(&sent.node);
        let line = Some((sent.file, sent.line));
        let (command, shown) = (Some(sent.text.clone()), Some(reply.to_string()));
        let stage = &self.stage;
        stage.write(self.id, to, step, command, shown, line, say).await?;
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
    pub async fn hears(&self, step: &'static str, say: impl Into<Said>) -> Result<(), Trouble> {
        let heard = self.gate.wait(|| lock(&self.gate.heard).pop_front());
        let heard = timeout(STEP_TIMEOUT, heard).await;
        let heard = heard.map_err(|_| Trouble::TooSlow("a message that should come did not"))?;
        let stage = &self.stage;
        let reply = (Some("MESSAGE".to_owned()), Some(heard));
        stage.write(self.id, None, step, reply.0, reply.1, None, say.into()).await
    }

    /// Whether no message has come so far.
    pub fn heard_nothing(&self) -> bool {
        lock(&self.gate.heard).is_empty()
    }

    /// Stands still for the play's `pause_ms`; where that is longer than the lease, until the key
    /// is gone.
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
impl Belief for Result<u64, sqlx::Error> {}
impl Belief for Result<String, locks::zookeeper_client::Error> {}
impl Belief for Result<locks::fencing::Write, LockError> {}

impl<T: Belief> Doing<T> {
    /// One request.
    pub async fn next(
        &mut self,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<Seen, Trouble> {
        self.client.pass(self.of, Decision::Go, step, say.into()).await
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
        let mut task = self.task.take().ok_or(Trouble::TooSlow("it has ended already"))?;
        let gate = self.client.gate.clone();
        loop {
            let arrival = gate.wait(|| gate.first(self.of));
            let waiting = tokio::select! {
                ended = &mut task => return Ok((self.ended(ended)?, count)),
                waiting = arrival => waiting,
                () = sleep(STEP_TIMEOUT) => return Err(Trouble::TooSlow("it does not end")),
            };
            let client = self.client.clone();
            client.let_pass(waiting, decision, step, say.clone()).await?;
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
        let task = self.task.take().ok_or(Trouble::TooSlow("it has ended already"))?;
        let ended = timeout(STEP_TIMEOUT, task).await;
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
        let idle = lock(&self.client.gate.waiting).iter().all(|one| one.decide.is_closed());
        idle && self.task.as_ref().is_some_and(|task| !task.is_finished())
    }
}
