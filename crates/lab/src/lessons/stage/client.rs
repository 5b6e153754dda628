//! Who acts: a client, and what it is doing.

use super::super::error::{LessonError, Result};
use super::super::lesson::REDIS_NODE as REDIS;
use super::super::waiting::{STEP_TIMEOUT, in_time};
use super::gate::{Decision, Gate, Of, Waiting};
use super::{LOCK, Stage, recording::Step};
use locks::wire::{Clock, Line, Reply, Sql};
use locks::{Acquired, Guard, Lock, LockError, Released, zookeeper::Zoo};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use std::{future::Future, panic::Location, time::Duration};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinError};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// A client: its connections, its clock, its gate. Another process, as far as any lock can tell.
#[derive(Clone)]
pub struct Client {
    pub id: &'static str,
    stage: Stage,
    gate: Arc<Gate>,
    pub clock: Clock,
}

/// What came of an attempt to take a lock.
type Tried<G> = Result<Acquired<G>, LockError>;

impl Stage {
    /// Clears the stage for an act of these clients.
    pub async fn act<const N: usize>(
        &self,
        id: &str,
        clients: [&'static str; N],
    ) -> Result<[Client; N]> {
        self.opens(id).await?;
        Ok(clients.map(|id| self.client(id)))
    }

    pub fn client(&self, id: &'static str) -> Client {
        let stage = self.clone();
        Client { id, stage, gate: Arc::default(), clock: Clock::default() }
    }
}

impl Client {
    pub fn line(&self) -> Result<Line> {
        self.line_to(REDIS)
    }

    pub fn line_to(&self, node: &str) -> Result<Line> {
        let line = self.stage.connect(node)?;
        Ok(line.of(self.id).watched_by(self.gate.clone()))
    }

    pub fn lines_to(&self, nodes: &[&str]) -> Result<Vec<Line>> {
        nodes.iter().map(|node| self.line_to(node)).collect()
    }

    pub fn sql(&self) -> Sql {
        let sql = Sql::new(self.stage.0.servers.postgres.clone());
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
        let task = AbortOnDropHandle::new(tokio::spawn(what));
        Doing { client: self.clone(), of: Of::Work, task, outcome: |_| None }
    }

    /// Starts to take a lock; believes to hold it once it is told so.
    pub fn does_take<G: Send + 'static>(
        &self,
        what: impl Future<Output = Tried<G>> + Send + 'static,
    ) -> Doing<Tried<G>> {
        self.does(what).with_outcome(|tried| match tried {
            Ok(Acquired::Held(_)) => Some(IN),
            Ok(Acquired::Contended { .. }) => Some("out"),
            Err(_) => None,
        })
    }

    /// Starts to take the lock [`LOCK`].
    pub fn acquires<L: Lock + Clone>(&self, lock: &L, wait: Duration) -> Doing<Tried<L::Guard>> {
        let (lock, name) = (lock.clone(), self.stage.key(LOCK));
        self.does_take(async move { lock.acquire(&name, wait).await })
    }

    /// Starts to give it back: its work is done, from here on it does not count as a holder.
    pub fn releases<G: Guard>(&self, guard: G) -> Doing<Result<Released, LockError>> {
        self.stops_believing();
        self.does(guard.release()).with_outcome(|freed| match freed {
            Ok(Released::NotHeld) => Some("late"),
            Ok(_) => Some("freed"),
            Err(_) => None,
        })
    }

    /// Takes the lock in one request and has it.
    pub async fn takes<L: Lock + Clone>(&self, lock: &L, step: &'static str) -> Result<L::Guard> {
        let tried = self.acquires(lock, Duration::ZERO).last(step).await?;
        self.must_hold(tried)
    }

    /// Tries once, in one request; `None` if somebody else has it.
    pub async fn tries<L: Lock + Clone>(
        &self,
        lock: &L,
        step: &'static str,
    ) -> Result<Option<L::Guard>> {
        Ok(self.acquires(lock, Duration::ZERO).last(step).await??.held())
    }

    /// Asks several nodes, and gives back (step `give-back`) whatever is not enough.
    pub async fn asks<L: Lock + Clone>(
        &self,
        lock: &L,
        step: &'static str,
    ) -> Result<Tried<L::Guard>> {
        self.acquires(lock, Duration::ZERO).rest_or_gives_back(step).await
    }

    /// Gives it back, in one request or a few.
    pub async fn unlocks<G: Guard>(&self, guard: G, step: &'static str) -> Result<Released> {
        Ok(self.releases(guard).rest(step).await??)
    }

    /// The lock has to be ours here.
    pub fn must_hold<G>(&self, tried: Tried<G>) -> Result<G> {
        tried?.held().ok_or(LessonError::TooSlow("somebody should have the lock and has not"))
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

    async fn let_pass(
        &self,
        waiting: Waiting,
        decision: Decision,
        step: &'static str,
    ) -> Result<Reply> {
        let Waiting { sent, decide } = waiting;
        let (answer, answered) = oneshot::channel();
        self.gate.replies.lock().insert(sent.id, answer);
        if decide.send(decision).is_err() {
            return Err(LessonError::TooSlow("a client gave up while it was waited for"));
        }
        let reply =
            in_time(answered, NO_REPLY).await?.map_err(|_| LessonError::TooSlow(NO_REPLY))?;
        let step = self.stage.step(self.id, step).at(sent.at.file(), sent.at.line());
        let step = step.staged(decision != Decision::Go);
        let to = self.stage.0.lesson.actor(&sent.node);
        step.to(to).with(&*sent.text, reply.to_string()).await?;
        Ok(reply)
    }

    /// Waits until the client stands before its next request, without letting it pass.
    pub async fn stands(&self) -> Result {
        let waits = || {
            let waiting = self.gate.waiting.lock();
            let mut waiting = waiting.iter();
            waiting.any(|one| !one.decide.is_closed() && !one.is_renewal()).then_some(())
        };
        in_time(self.gate.wait(waits), NO_REQUEST).await
    }

    /// A message of a subscription arrives.
    pub async fn hears(&self, step: &'static str) -> Result {
        let heard = self.gate.wait(|| self.gate.heard.lock().pop_front());
        let heard = in_time(heard, "a message that should come did not").await?;
        self.stage.step(self.id, step).with("MESSAGE", heard).await
    }

    /// Whether no message has come so far.
    pub fn heard_nothing(&self) -> bool {
        self.gate.heard.lock().is_empty()
    }

    /// Waits until its lock tells it that the lease is over, and stops working.
    pub async fn loses(&self, guard: &impl Guard) -> Result {
        let lost = timeout(self.stage.lease() * 3, guard.lost()).await;
        lost.map_err(|_| LessonError::TooSlow("a lease does not end"))?;
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
    ) -> impl Future<Output = Result> + Send + 'a {
        let plays = self.stage.plays(self.id, step);
        async move {
            plays.await?;
            sleep(self.stage.pause()).await;
            if self.stage.pause() > self.stage.lease() {
                self.stage.until_gone(node, LOCK).await?;
            }
            Ok(())
        }
    }

    /// Dies, at the line that it was about to send or with a lock: nothing of it runs any more, and
    /// what it wanted to send is never sent.
    #[track_caller]
    pub fn crashes<T>(&self, with: T, step: &'static str) -> Step<'_> {
        self.gate.dead.store(true, Relaxed);
        self.stops_believing();
        let stood = self.gate.waiting.lock().drain(..).next().map(|waiting| waiting.sent.at);
        drop(with);
        let at = stood.unwrap_or(Location::caller());
        self.stage.plays(self.id, step).at(at.file(), at.line())
    }

    /// Leaves the stage: what it still has to tidy up passes unseen.
    pub fn leaves(&self) {
        self.gate.open.store(true, Relaxed);
        self.stops_believing();
        for one in std::mem::take(&mut *self.gate.waiting.lock()) {
            let _ = one.decide.send(Decision::Go);
        }
    }
}

const NO_REQUEST: &str = "a request that should come did not";
const NO_REPLY: &str = "a reply that should come did not";
const NO_END: &str = "it does not end";
/// The outcome of an attempt: the lock is its client's.
const IN: &str = "in";

/// A request that is about to pass.
pub struct Next<'a> {
    client: &'a Client,
    of: Of,
}

impl Next<'_> {
    pub async fn goes(self, step: &'static str) -> Result<Reply> {
        self.pass(Decision::Go, step).await
    }

    /// It is never sent: the connection breaks before.
    pub async fn fails(self, step: &'static str) -> Result<Reply> {
        self.pass(Decision::Fail, step).await
    }

    /// It is sent and done, and the client never hears of it.
    pub async fn loses_reply(self, step: &'static str) -> Result<Reply> {
        self.pass(Decision::LoseReply, step).await
    }

    async fn pass(self, decision: Decision, step: &'static str) -> Result<Reply> {
        let gate = &self.client.gate;
        let waiting = in_time(gate.wait(|| gate.first(self.of)), NO_REQUEST).await?;
        self.client.let_pass(waiting, decision, step).await
    }
}

/// Something that a client does. Dropping it ends it where it stands.
pub struct Doing<T> {
    client: Client,
    of: Of,
    task: AbortOnDropHandle<T>,
    /// What came of it, as captions name it.
    outcome: fn(&T) -> Option<&'static str>,
}

impl<T> Doing<T> {
    pub fn with_outcome(mut self, outcome: fn(&T) -> Option<&'static str>) -> Self {
        self.outcome = outcome;
        self
    }

    /// Only its requests to this node are let pass by it.
    pub fn at(mut self, node: &'static str) -> Self {
        self.of = Of::WorkAt(node);
        self
    }

    /// One request.
    pub async fn next(&mut self, step: &'static str) -> Result<Reply> {
        Next { client: &self.client, of: self.of }.goes(step).await
    }

    /// Lets requests pass until it has ended.
    pub async fn rest(self, step: &'static str) -> Result<T> {
        self.rest_by(Decision::Go, |_| step).await
    }

    /// The same, and none of them is sent.
    pub async fn rest_fails(self, step: &'static str) -> Result<T> {
        self.rest_by(Decision::Fail, |_| step).await
    }

    /// The same; what each request is called depends on its text.
    pub async fn rest_named(self, step: impl Fn(&str) -> &'static str + Send) -> Result<T> {
        self.rest_by(Decision::Go, step).await
    }

    /// Attempts on several nodes; what follows them is called `give-back`.
    pub async fn rest_or_gives_back(self, step: &'static str) -> Result<T> {
        self.rest_named(|sent| if sent.starts_with("SET") { step } else { "give-back" }).await
    }

    async fn rest_by(
        mut self,
        decision: Decision,
        step: impl Fn(&str) -> &'static str + Send,
    ) -> Result<T> {
        let (gate, of) = (self.client.gate.clone(), self.of);
        loop {
            let waiting = tokio::select! {
                ended = &mut self.task => return self.ended(ended),
                waiting = gate.wait(|| gate.first(of)) => waiting,
                () = sleep(STEP_TIMEOUT) => return Err(LessonError::TooSlow(NO_END)),
            };
            let name = step(&waiting.sent.text);
            self.client.let_pass(waiting, decision, name).await?;
        }
    }

    /// One request, and its end.
    pub async fn last(mut self, step: &'static str) -> Result<T> {
        self.next(step).await?;
        self.end().await
    }

    /// Its end, without a further request.
    pub async fn end(mut self) -> Result<T> {
        let ended = in_time(&mut self.task, NO_END).await?;
        self.ended(ended)
    }

    fn ended(&self, ended: Result<T, JoinError>) -> Result<T> {
        let result = ended.map_err(|error| LessonError::NotAsWritten(error.to_string()))?;
        if let Some(outcome) = (self.outcome)(&result) {
            self.client.stage.came_of_it(self.client.id, outcome);
            if outcome == IN {
                self.client.believes(true);
            }
        }
        Ok(result)
    }

    pub fn abort_handle(&self) -> AbortHandle {
        self.task.abort_handle()
    }

    /// Whether it has neither ended nor anything to send: it sleeps.
    pub fn sleeps(&self) -> bool {
        let idle = self.client.gate.waiting.lock().iter().all(|one| one.decide.is_closed());
        idle && !self.task.is_finished()
    }
}
