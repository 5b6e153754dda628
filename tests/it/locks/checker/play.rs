//! The play: clients that take the lock in turns and write down what they believed. Turns wait for
//! what they are about, so a slow machine makes a play longer and nothing else.

use super::judge::{Belief, End, Written, nanos};
use crate::{
    locks::{SOON, soon},
    support::random::Random,
};
use flash_sale::lock::{
    Acquired, Guard, Lock,
    fencing::{RedisResource, Write},
    wire::Line,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

pub const CLIENTS: usize = 5;
/// A play lasts at least so long,
const LEAST: Duration = Duration::from_millis(1_200);
/// and at most, if it does not show what it should.
const LONGEST: Duration = Duration::from_secs(60);

/// How much a client trusts its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// It believes to hold it until it gives it back, as most code does.
    Blind,
    /// It stops when [`Guard::lost`] says so.
    UntilLost,
}

/// How long a client works under the lock.
#[derive(Debug, Clone, Copy)]
pub enum Work {
    For(Duration),
    /// It outlasts every lease: until somebody else has come in.
    UntilAnother,
    /// Until somebody else has come in, has done its work and has gone.
    UntilAnotherIsThrough,
    /// Until the next fault is over, and for so long afterwards.
    PastAFault(Duration),
}

/// What a client does in its next turn.
type Script = dyn Fn(usize, &mut Random) -> Work + Send + Sync;
/// Whether a history shows what the play is about.
type Enough = dyn Fn(&[Belief]) -> bool;

/// What clients and those who disturb them know of each other.
pub struct Scene {
    start: Instant,
    history: Mutex<Vec<Belief>>,
    turns: watch::Sender<[Turn; CLIENTS]>,
    /// When the last one was over.
    fault: watch::Sender<Option<Instant>>,
    curtain: CancellationToken,
}

/// A client's turns.
#[derive(Debug, Clone, Copy, Default)]
struct Turn {
    /// When the last one began.
    begun: Option<Instant>,
    /// When the last one began that is over.
    through: Option<Instant>,
    is_on: bool,
}

impl Scene {
    fn history(&self) -> Vec<Belief> {
        self.history.lock().expect("no panic").clone()
    }

    fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    fn at(&self, instant: Instant) -> u64 {
        nanos(instant.saturating_duration_since(self.start))
    }

    /// Until one of these clients believes to hold the lock, or all are gone.
    pub async fn until_held_by(&self, clients: std::ops::Range<usize>) {
        let mut turns = self.turns.subscribe();
        let held = turns.wait_for(|turns| turns[clients.clone()].iter().any(|turn| turn.is_on));
        held.await.expect("a scene");
    }

    pub async fn until_given_up_by(&self, client: usize) {
        let mut turns = self.turns.subscribe();
        let given_up = turns.wait_for(|turns| !turns[client].is_on);
        given_up.await.expect("a scene");
    }

    /// Until somebody has come in from now on.
    pub async fn until_a_turn_begins(&self) {
        let now = Instant::now();
        let mut turns = self.turns.subscribe();
        let begins = |turn: &Turn| turn.begun.is_some_and(|begun| begun > now);
        let begun = turns.wait_for(|turns| turns.iter().any(begins));
        begun.await.expect("a scene");
    }

    pub fn fault_is_over(&self) {
        self.fault.send_replace(Some(Instant::now()));
    }

    /// Until one of the others has had a turn that began after this; answers when it began.
    async fn another(
        &self,
        client: usize,
        after: Instant,
        which: fn(&Turn) -> Option<Instant>,
    ) -> Instant {
        let another = |turns: &[Turn; CLIENTS]| {
            let others = turns.iter().enumerate().filter(|(who, _)| *who != client);
            let begins = others.filter_map(|(_, turn)| which(turn));
            begins.filter(|came_in| *came_in > after).min()
        };
        let mut turns = self.turns.subscribe();
        let turns = turns.wait_for(|turns| another(turns).is_some()).await;
        another(&turns.expect("a scene")).expect("it was waited for")
    }

    /// Works; answers when the work was due to end, which is not when this task got to know of it. `None`:
    /// the play was over before.
    async fn work(&self, client: usize, work: Work, begun: Instant) -> Option<Instant> {
        let working = async {
            match work {
                Work::For(time) => {
                    sleep_until(begun + time).await;
                    begun + time
                }
                Work::UntilAnother => self.another(client, begun, |turn| turn.begun).await,
                Work::UntilAnotherIsThrough => {
                    self.another(client, begun, |turn| turn.through).await
                }
                Work::PastAFault(time) => {
                    let mut fault = self.fault.subscribe();
                    let over = fault.wait_for(|over| over.is_some_and(|over| over > begun));
                    let over = over.await.expect("a scene").expect("it was waited for");
                    sleep_until(over + time).await;
                    over + time
                }
            }
        };
        tokio::select! {
            due = working => Some(due),
            () = self.curtain.cancelled() => None,
        }
    }
}

pub struct Play {
    pub scene: Arc<Scene>,
    trust: Trust,
    work: Arc<Script>,
    resource: Option<(RedisResource, String)>,
    enough: Box<Enough>,
}

impl Play {
    /// `enough`: whether the history shows what the play is about.
    pub fn new(trust: Trust, enough: impl Fn(&[Belief]) -> bool + 'static) -> Self {
        Self {
            scene: Arc::new(Scene {
                start: Instant::now(),
                history: Mutex::default(),
                turns: watch::Sender::default(),
                fault: watch::Sender::default(),
                curtain: CancellationToken::new(),
            }),
            trust,
            work: Arc::new(|_, random| Work::For(random.millis(1..8))),
            resource: None,
            enough: Box::new(enough),
        }
    }

    /// What each client does in each of its turns.
    pub fn working(
        mut self,
        work: impl Fn(usize, &mut Random) -> Work + Send + Sync + 'static,
    ) -> Self {
        self.work = Arc::new(work);
        self
    }

    /// What is written to at the end of each turn, with the holder's number.
    pub fn writing_to(mut self, resource: RedisResource, key: &str) -> Self {
        self.resource = Some((resource, key.to_owned()));
        self
    }

    /// Everybody with a lock of their own, as in processes of their own; until it is enough.
    pub async fn run<L: Lock>(&self, name: &str, lock: impl Fn(usize) -> L) -> Vec<Belief> {
        let scene = &self.scene;
        let begun = Instant::now();
        let mut clients = Vec::new();
        for client in 0..CLIENTS {
            let actor = Actor {
                client,
                scene: scene.clone(),
                trust: self.trust,
                work: self.work.clone(),
                resource: self.resource.clone(),
            };
            clients.push(tokio::spawn(actor.plays(lock(client), name.to_owned())));
        }
        while begun.elapsed() < LONGEST
            && (begun.elapsed() < LEAST || !(self.enough)(&scene.history()))
        {
            sleep(Duration::from_millis(50)).await;
        }
        scene.curtain.cancel();
        for client in clients {
            let ended = tokio::time::timeout(LONGEST, client).await;
            ended.expect("the play ends").expect("no panic");
        }
        let history = scene.history();
        assert!(
            (self.enough)(&history),
            "after {LONGEST:?} the play has not shown what it is about: {} turns, {:?}",
            history.len(),
            super::judge::judge(&history)
        );
        history
    }
}

/// One client of a play.
struct Actor {
    client: usize,
    scene: Arc<Scene>,
    trust: Trust,
    work: Arc<Script>,
    resource: Option<(RedisResource, String)>,
}

impl Actor {
    async fn plays(self, lock: impl Lock, name: String) {
        let mut random = Random::of(1, "client", self.client as u64);
        while !self.scene.curtain.is_cancelled() {
            let wait = random.millis(0..200);
            let Ok(Acquired::Held(guard)) = lock.acquire(&name, wait).await else {
                sleep(random.millis(1..10)).await;
                continue;
            };
            let work = (self.work)(self.client, &mut random);
            let belief = self.holds(&guard, work).await;
            self.scene.history.lock().expect("no panic").push(belief);
            // What it says does not matter here: the belief has ended.
            let _ = guard.release().await;
            sleep(random.millis(0..4)).await;
        }
    }

    async fn holds(&self, guard: &impl Guard, work: Work) -> Belief {
        let (scene, client) = (&self.scene, self.client);
        let begun = Instant::now();
        scene.turns.send_modify(|turns| {
            turns[client].begun = Some(begun);
            turns[client].is_on = true;
        });
        let mut writes = Vec::new();
        let working = async {
            let due = scene.work(client, work, begun).await;
            // At the end of the work: whoever overslept writes late.
            if let (Some((resource, key)), Some(fencing)) = (&self.resource, guard.fencing()) {
                let write_begun = scene.now();
                let written = resource.write(key, fencing, "value").await;
                let written = written.expect("the resource answers");
                writes.push(Written {
                    fencing,
                    begun: write_begun,
                    ended: scene.now(),
                    applied: written == Write::Applied,
                });
            }
            due.unwrap_or(begun)
        };
        let end = match self.trust {
            Trust::Blind => {
                working.await;
                End::Blind
            }
            Trust::UntilLost => tokio::select! {
                biased;
                why = guard.lost() => End::Told(why),
                due = working => End::Work { due: scene.at(due) },
            },
        };
        let (from, ended) = (scene.at(begun), scene.now());
        scene.turns.send_modify(|turns| {
            turns[client].through = Some(begun);
            turns[client].is_on = false;
        });
        let sure = guard.lost().sure_until().map(|sure| scene.at(sure));
        Belief {
            client,
            from,
            until: match (self.trust, sure) {
                // A machine that is slow hears of it late; what counts is what it was told.
                (Trust::UntilLost, Some(sure)) => ended.min(sure).max(from),
                _ => ended,
            },
            sure,
            end,
            fencing: guard.fencing(),
            writes,
        }
    }
}

/// Plays while somebody disturbs.
pub async fn amid(
    disturbance: impl Future<Output = ()>,
    play: impl Future<Output = Vec<Belief>>,
) -> Vec<Belief> {
    tokio::select! {
        history = play => history,
        () = disturbance => unreachable!("it goes on"),
    }
}

/// How slow this machine is now: the slowest of some round trips, each with a wake-up before it.
pub async fn pace(line: &Line) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let begun = Instant::now();
        sleep(Duration::from_millis(1)).await;
        let pong: Result<String, _> = soon("PONG", line.send(&redis::cmd("PING"))).await;
        pong.expect("PONG");
        slowest = slowest.max(begun.elapsed());
    }
    slowest
}

/// A lease that is short to us, and long to this machine.
pub fn lease_at(pace: Duration) -> Duration {
    (pace * 20).clamp(Duration::from_millis(250), SOON / 2)
}

/// How long this process has stood still at a time, which is a pause of every holder.
#[derive(Default)]
pub struct Pulse {
    longest: watch::Sender<Duration>,
}

impl Pulse {
    const BEAT: Duration = Duration::from_millis(10);

    pub async fn beats(&self) {
        loop {
            let begun = Instant::now();
            sleep(Self::BEAT).await;
            let late = begun.elapsed().saturating_sub(Self::BEAT);
            self.longest
                .send_modify(|longest| *longest = late.max(*longest));
        }
    }

    pub fn longest_pause(&self) -> Duration {
        *self.longest.borrow()
    }
}
