//! Who acts: a client, and what it is doing.

use super::super::error::{LessonError, Result};
use super::super::lesson::REDIS_NODE as REDIS;
use super::super::timeline::{Event, Name};
use super::super::waiting::{STEP_TIMEOUT, in_time, until};
use super::gate::{Gate, Waiting, Which};
use super::{LOCK, Stage, recording::Step};
use locks::wire::{Clock, Line, Reply, Sql, Tapped, Verdict};
use locks::{Acquired, Held, Lock, LockError, Protocol, Released, zookeeper::Zoo};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use std::{panic::Location, time::Duration};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinError};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// A client: its connections, its clock, its gate. Another process, as far as any lock can tell.
#[derive(Clone)]
pub struct Client {
    pub id: Name,
    stage: Stage,
    gate: Arc<Gate>,
    pub clock: Clock,
}

/// What came of an attempt to take a lock.
type Tried<G> = Result<Acquired<G>, LockError>;

impl Stage {
    /// Clears the stage for an act of these clients.
    pub async fn act<const N: usize>(&self, id: &str, clients: [Name; N]) -> Result<[Client; N]> {
        self.opens(id).await?;
        Ok(clients.map(|id| self.client(id)))
    }

    pub fn client(&self, id: Name) -> Client {
        let stage = self.clone();
        Client { id, stage, gate: Arc::default(), clock: Clock::default() }
    }
}

impl Client {
    fn watched<C>(&self, connection: Tapped<C>) -> Tapped<C> {
        connection.of(self.id).watched_by(self.gate.clone())
    }

    pub fn line(&self) -> Line {
        self.line_to(REDIS)
    }

    pub fn line_to(&self, node: &str) -> Line {
        self.watched(self.stage.hand(node).another_connection())
    }

    pub fn lines_to(&self, nodes: &[&str]) -> Vec<Line> {
        nodes.iter().map(|node| self.line_to(node)).collect()
    }

    pub fn sql(&self) -> Sql {
        self.watched(Sql::new(self.stage.0.servers.postgres.clone()))
    }

    /// A session with ZooKeeper at this address.
    pub fn zoo(&self, address: &str, session: Duration) -> Zoo {
        self.watched(Zoo::new(address, session))
    }

    /// Starts something; its requests wait in the gate.
    pub fn does<T: Send + 'static>(
        &self,
        what: impl Future<Output = T> + Send + 'static,
    ) -> Doing<T> {
        let task = AbortOnDropHandle::new(tokio::spawn(what));
        Doing { client: self.clone(), which: Which::default(), task, outcome: |_| None }
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
    pub fn acquires<L: Lock + Clone>(&self, lock: &L, wait: Duration) -> Doing<Tried<Held<L>>> {
        let (lock, name) = (lock.clone(), self.stage.key(LOCK));
        self.does_take(async move { lock.acquire(&name, wait).await })
    }

    /// Starts to give it back: its work is done, from here on it does not count as a holder.
    pub fn releases<P: Protocol>(&self, guard: Held<P>) -> Doing<Result<Released, LockError>> {
        self.stops_believing();
        self.does(guard.release()).with_outcome(|freed| match freed {
            Ok(Released::NotHeld) => Some("late"),
            Ok(_) => Some("freed"),
            Err(_) => None,
        })
    }

    /// Takes the lock in one request and has it.
    pub async fn takes<L: Lock + Clone>(&self, lock: &L, step: Name) -> Result<Held<L>> {
        let tried = self.acquires(lock, Duration::ZERO).last(step).await?;
        self.must_hold(tried)
    }

    /// Tries once, in one request; `None` if somebody else has it.
    pub async fn tries<L: Lock + Clone>(&self, lock: &L, step: Name) -> Result<Option<Held<L>>> {
        Ok(self.acquires(lock, Duration::ZERO).last(step).await??.held())
    }

    /// Asks several nodes, and gives back (step `give-back`) whatever is not enough.
    pub async fn asks<L: Lock + Clone>(&self, lock: &L, step: Name) -> Result<Tried<Held<L>>> {
        self.acquires(lock, Duration::ZERO).rest_or_gives_back(step).await
    }

    /// Gives it back, in one request or a few.
    pub async fn unlocks<P: Protocol>(&self, guard: Held<P>, step: Name) -> Result<Released> {
        Ok(self.releases(guard).rest(step).await??)
    }

    /// The lock has to be ours here.
    pub fn must_hold<G>(&self, tried: Tried<G>) -> Result<G> {
        tried?.held().ok_or(LessonError::TooSlow("somebody should have the lock and has not"))
    }

    /// Its belief changes with the step that was just recorded.
    pub fn believes(&self, holds: bool) {
        self.stops_believing();
        let record = &mut *self.stage.0.record.lock();
        record.scene.believers.extend(holds.then_some(self.id));
        if let Some(last) = record.events.last_mut() {
            last.believers.clone_from(&record.scene.believers);
        }
    }

    /// From its next step on it does not count as a holder: its work is done.
    pub fn stops_believing(&self) {
        let scene = &mut self.stage.0.record.lock().scene;
        scene.believers.retain(|believer| *believer != self.id);
    }

    /// The next request of its work.
    pub fn next(&self) -> Next<'_> {
        Next { client: self, which: Which::default() }
    }

    /// Its next request to this node.
    pub fn at(&self, node: Name) -> Next<'_> {
        Next { client: self, which: Which { node: Some(node), is_renewal: false } }
    }

    /// The next renewal.
    pub fn watchdog(&self) -> Next<'_> {
        Next { client: self, which: Which { node: None, is_renewal: true } }
    }

    async fn let_pass(&self, waiting: Waiting, verdict: Verdict, step: Name) -> Result<Reply> {
        let Waiting { sent, decide } = waiting;
        let is_staged = !matches!(verdict, Verdict::Go);
        // Of a request that its client gives up, only this is heard: the sender is dropped with
        // it. One that is never replied to is no pause: that may be the defect.
        let (done, is_done) = oneshot::channel();
        let tells = Box::pin(async { done.send(()).unwrap_or_default() });
        let verdict = if is_staged { verdict } else { Verdict::GoThenWait(tells) };
        let asked = Instant::now();
        decide.send(verdict).map_err(|_| LessonError::TooSlow(GAVE_UP))?;
        let replied = self.gate.wait(|| self.gate.replies.lock().remove(&sent.id));
        let reply = tokio::select! {
            reply = in_time(replied, "a reply that should come did not") => Some(reply?),
            Err(_) = is_done, if !is_staged => None,
        };
        if !is_staged {
            self.stage.0.pauses.note(asked.elapsed());
        }
        let reply = reply.ok_or(LessonError::TooSlow(GAVE_UP))?;
        let event = Event {
            to: self.stage.0.lesson.actor(&sent.node),
            command: Some(sent.text),
            reply: Some(reply.to_string()),
            line: Some((sent.at.file(), sent.at.line())),
            is_staged,
            ..Event::of(self.id, step)
        };
        self.stage.write(event).await?;
        Ok(reply)
    }

    /// Waits until the client stands before its next request, without letting it pass.
    pub async fn stands(&self) -> Result {
        in_time(self.gate.wait(|| self.gate.is_met().then_some(())), NO_REQUEST).await
    }

    /// A message of a subscription arrives.
    pub async fn hears(&self, step: Name) -> Result {
        let heard = self.gate.wait(|| self.gate.heard.lock().pop_front());
        let heard = in_time(heard, "a message that should come did not").await?;
        let (command, reply) = (Some("MESSAGE".to_owned()), Some(heard));
        self.stage.write(Event { command, reply, ..Event::of(self.id, step) }).await
    }

    /// Lets its watchdog's next renewal pass; false if there is none, and the lease ends.
    #[track_caller]
    pub fn renews(&self, step: Name) -> impl Future<Output = Result<bool>> + Send {
        let expires = self.stage.expires(REDIS);
        async move {
            tokio::select! {
                Ok(_) = self.watchdog().goes(step) => Ok(true),
                expired = expires => expired.map(|()| false),
            }
        }
    }

    /// Waits until its lock tells it that the lease is over, and stops working.
    pub async fn loses(&self, guard: &Held<impl Protocol>) -> Result {
        let lost = timeout(self.stage.lease() * 3, guard.lost()).await;
        lost.map_err(|_| LessonError::TooSlow("a lease does not end"))?;
        self.stops_believing();
        Ok(())
    }

    /// Stands still for the play's `pause_ms`; where that is longer than the lease, until the key
    /// is gone.
    #[track_caller]
    pub fn pauses(&self, node: Name, step: Name) -> impl Future<Output = Result> + Send {
        let (plays, expires) = (self.stage.plays(self.id, step), self.stage.expires(node));
        async move {
            plays.await?;
            sleep(self.stage.pause()).await;
            if self.stage.pause() > self.stage.lease() {
                expires.await?;
            }
            Ok(())
        }
    }

    /// Dies, at the line that it was about to send or with a lock: nothing of it runs any more, and
    /// what it wanted to send is never sent.
    #[track_caller]
    pub fn crashes<T>(&self, with: T, step: Name) -> Step<'_> {
        self.gate.dead.store(true, Relaxed);
        self.stops_believing();
        let stood = self.gate.waiting.lock().drain(..).next().map(|waiting| waiting.sent.at);
        drop(with);
        let at = stood.unwrap_or(Location::caller());
        let mut step = self.stage.plays(self.id, step);
        step.event.line = Some((at.file(), at.line()));
        step
    }

    /// Leaves the stage: what it still has to tidy up passes unseen.
    pub fn leaves(&self) {
        self.gate.open.store(true, Relaxed);
        self.stops_believing();
        for one in std::mem::take(&mut *self.gate.waiting.lock()) {
            let _ = one.decide.send(Verdict::Go);
        }
    }
}

const GAVE_UP: &str = "a client gave up while it was waited for";
const NO_REQUEST: &str = "a request that should come did not";
const NO_END: &str = "it does not end";
/// The outcome of an attempt: the lock is its client's.
const IN: &str = "in";

/// A request that is about to pass.
pub struct Next<'a> {
    client: &'a Client,
    which: Which,
}

impl Next<'_> {
    pub async fn goes(self, step: Name) -> Result<Reply> {
        self.pass(Verdict::Go, step).await
    }

    /// It is never sent: the connection breaks before.
    pub async fn fails(self, step: Name) -> Result<Reply> {
        self.pass(Verdict::Fail, step).await
    }

    /// It is sent and done, and the client never hears of it.
    pub async fn loses_reply(self, step: Name) -> Result<Reply> {
        self.pass(Verdict::LoseReply, step).await
    }

    async fn pass(self, verdict: Verdict, step: Name) -> Result<Reply> {
        let gate = &self.client.gate;
        let waiting = in_time(gate.wait(|| gate.first(self.which)), NO_REQUEST).await?;
        self.client.let_pass(waiting, verdict, step).await
    }
}

/// Something that a client does. Dropping it ends it where it stands.
pub struct Doing<T> {
    client: Client,
    which: Which,
    task: AbortOnDropHandle<T>,
    /// What came of it, as captions name it.
    outcome: fn(&T) -> Option<Name>,
}

impl<T> Doing<T> {
    pub fn with_outcome(mut self, outcome: fn(&T) -> Option<Name>) -> Self {
        self.outcome = outcome;
        self
    }

    /// Only its requests to this node are let pass by it.
    pub fn at(mut self, node: Name) -> Self {
        self.which.node = Some(node);
        self
    }

    /// One request.
    pub async fn next(&mut self, step: Name) -> Result<Reply> {
        Next { client: &self.client, which: self.which }.goes(step).await
    }

    /// Lets requests pass until it has ended.
    pub async fn rest(self, step: Name) -> Result<T> {
        self.rest_named(|_| step).await
    }

    /// Attempts on several nodes; what follows them is called `give-back`.
    pub async fn rest_or_gives_back(self, step: Name) -> Result<T> {
        self.rest_named(|sent| if sent.starts_with("SET") { step } else { "give-back" }).await
    }

    /// What each request is called depends on its text.
    pub async fn rest_named(mut self, step: impl Fn(&str) -> Name + Send) -> Result<T> {
        let (gate, which) = (self.client.gate.clone(), self.which);
        loop {
            let waiting = tokio::select! {
                ended = &mut self.task => return self.ended(ended),
                waiting = gate.wait(|| gate.first(which)) => waiting,
                () = sleep(STEP_TIMEOUT) => return Err(LessonError::TooSlow(NO_END)),
            };
            let name = step(&waiting.sent.text);
            self.client.let_pass(waiting, Verdict::Go, name).await?;
        }
    }

    /// One request, and its end.
    pub async fn last(mut self, step: Name) -> Result<T> {
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

    /// Whether it stands before another request; false once it has ended.
    pub async fn goes_on(&self) -> Result<bool> {
        let gate = &self.client.gate;
        until(NO_END, || async { Ok(gate.is_met() || self.task.is_finished()) }).await?;
        Ok(gate.is_met())
    }

    /// Whether it has neither ended, nor heard anything, nor anything to send: it sleeps.
    pub fn sleeps(&self) -> bool {
        let gate = &self.client.gate;
        !gate.is_met() && gate.heard.lock().is_empty() && !self.task.is_finished()
    }
}
