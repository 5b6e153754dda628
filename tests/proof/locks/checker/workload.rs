//! Clients take turns and record what they believed. They wait for events, not for times.

use super::{history::*, *};
use std::cell::RefCell;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub const CLIENTS: usize = 5;
const AT_LEAST: Duration = Duration::from_millis(1_200);
const AT_MOST: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    Blind,
    UntilLost,
}

#[derive(Debug, Clone, Copy)]
pub enum Work {
    For(Duration),
    UntilAnother,
    /// Until the next fault is over, and for so long afterwards.
    PastAFault(Duration),
}

type Script = dyn Fn(usize, &mut Random) -> Work;
type Enough = dyn Fn(&[Holding]) -> bool;

#[derive(Debug, Clone, Copy, Default)]
struct Turn {
    begun: Option<Instant>,
    is_on: bool,
}

pub struct Workload {
    name: String,
    trust: Trust,
    enough: Box<Enough>,
    work: Box<Script>,
    start: Instant,
    history: RefCell<Vec<Holding>>,
    pauses: RefCell<Vec<Range<u64>>>,
    turns: watch::Sender<[Turn; CLIENTS]>,
    fault: watch::Sender<Option<Instant>>,
    stop: CancellationToken,
}

impl Workload {
    pub fn new(name: &str, trust: Trust, enough: impl Fn(&[Holding]) -> bool + 'static) -> Self {
        Self {
            name: crate::support::locks::name(name),
            trust,
            enough: Box::new(enough),
            work: Box::new(|_, random| Work::For(random.millis(1..8))),
            start: Instant::now(),
            history: RefCell::default(),
            pauses: RefCell::default(),
            turns: watch::Sender::default(),
            fault: watch::Sender::default(),
            stop: CancellationToken::new(),
        }
    }

    pub fn working(mut self, work: impl Fn(usize, &mut Random) -> Work + 'static) -> Self {
        self.work = Box::new(work);
        self
    }

    pub async fn run<L: Lock>(&self, lock: impl Fn(usize) -> L) -> Vec<Holding> {
        self.run_amid(std::future::pending(), lock).await
    }

    pub async fn run_amid<L: Lock>(
        &self,
        faults: impl Future<Output = ()>,
        lock: impl Fn(usize) -> L,
    ) -> Vec<Holding> {
        let clients = join_all((0..CLIENTS).map(|client| self.client(client, lock(client))));
        let run = async { tokio::join!(clients, self.stop_when_enough()) };
        tokio::select! {
            biased; // a pause is noted before anybody asks whether this was enough
            () = faults => unreachable!("they go on"),
            ended = timeout(2 * AT_MOST, run) => drop(ended.expect("the clients end")),
        }
        let history = self.judged();
        let (turns, found) = (history.len(), check(&history));
        assert!((self.enough)(&history), "not shown in {AT_MOST:?}: {turns} turns, {found:?}");
        history
    }

    async fn stop_when_enough(&self) {
        let is_enough = || (self.enough)(&self.judged());
        let mut rounds = 0;
        // Twice in a row: the first time a pause that has just ended may not be noted yet.
        while self.start.elapsed() < AT_MOST && rounds < 2 {
            sleep(Duration::from_millis(50)).await;
            let is_over = self.start.elapsed() >= AT_LEAST && is_enough();
            rounds = if is_over { rounds + 1 } else { 0 };
        }
        self.stop.cancel();
    }

    /// Without those that held the lock while this process stood still.
    fn judged(&self) -> Vec<Holding> {
        let pauses = self.pauses.borrow();
        let paused = |holding: &Holding| {
            pauses.iter().any(|pause| pause.start < holding.until && holding.from < pause.end)
        };
        self.history.borrow().iter().filter(|holding| !paused(holding)).cloned().collect()
    }

    /// Notes when this process stands still for longer than `tolerated`.
    pub async fn note_pauses(&self, tolerated: Duration) {
        const TICK: Duration = Duration::from_millis(10);
        loop {
            let begun = Instant::now();
            sleep(TICK).await;
            if begun.elapsed() > TICK + tolerated {
                // Who comes in right afterwards had asked before it.
                let end = Instant::now() + tolerated;
                self.pauses.borrow_mut().push(self.at(begun)..self.at(end));
            }
        }
    }

    fn at(&self, instant: Instant) -> u64 {
        nanos(instant.saturating_duration_since(self.start))
    }

    pub async fn until_held_by(&self, clients: std::ops::Range<usize>) {
        let holds = |turns: &[Turn; CLIENTS]| turns[clients.clone()].iter().any(|turn| turn.is_on);
        self.turns.subscribe().wait_for(holds).await.expect("a sender");
    }

    pub async fn until_given_up_by(&self, client: usize) {
        self.turns.subscribe().wait_for(|turns| !turns[client].is_on).await.expect("a sender");
    }

    pub async fn until_a_turn_begins(&self) {
        let now = Instant::now();
        let begins = |turn: &Turn| turn.begun.is_some_and(|begun| begun > now);
        self.turns.subscribe().wait_for(|turns| turns.iter().any(begins)).await.expect("a sender");
    }

    pub fn fault_is_over(&self) {
        self.fault.send_replace(Some(Instant::now()));
    }

    async fn another(&self, client: usize, after: Instant) -> Instant {
        let another = |turns: &[Turn; CLIENTS]| {
            let others = turns.iter().enumerate().filter(|(other, _)| *other != client);
            let begun = others.filter_map(|(_, turn)| turn.begun);
            begun.filter(|begun| *begun > after).min()
        };
        let mut turns = self.turns.subscribe();
        let turns = turns.wait_for(|turns| another(turns).is_some()).await;
        another(&turns.expect("a sender")).expect("it was waited for")
    }

    /// Returns when the work was due to end, whenever this task noticed; `None`: the run was over.
    async fn work(&self, client: usize, work: Work, begun: Instant) -> Option<Instant> {
        let working = async {
            match work {
                Work::For(time) => {
                    sleep_until(begun + time).await;
                    begun + time
                }
                Work::UntilAnother => self.another(client, begun).await,
                Work::PastAFault(time) => {
                    let mut fault = self.fault.subscribe();
                    let over = fault.wait_for(|over| over.is_some_and(|over| over > begun));
                    let over = over.await.expect("a sender").expect("it was waited for");
                    sleep_until(over + time).await;
                    over + time
                }
            }
        };
        self.stop.run_until_cancelled(working).await
    }

    async fn client(&self, client: usize, lock: impl Lock) {
        let mut random = Random::of(1, "client", client as u64);
        while !self.stop.is_cancelled() {
            let wait = random.millis(0..200);
            let Ok(Acquired::Held(guard)) = lock.acquire(&self.name, wait).await else {
                sleep(random.millis(1..10)).await;
                continue;
            };
            let holding = self.hold(client, &guard, (self.work)(client, &mut random)).await;
            self.history.borrow_mut().push(holding);
            let _ = guard.release().await;
            sleep(random.millis(0..4)).await;
        }
    }

    async fn hold(&self, client: usize, guard: &Held<impl Protocol>, work: Work) -> Holding {
        let begun = Instant::now();
        let turn = Turn { begun: Some(begun), is_on: true };
        self.turns.send_modify(|turns| turns[client] = turn);
        let working = async { self.work(client, work, begun).await.unwrap_or(begun) };
        let end = match self.trust {
            Trust::Blind => {
                working.await;
                End::Blind
            }
            Trust::UntilLost => tokio::select! {
                biased;
                why = guard.lost() => End::Told(why),
                due = working => End::Work { due: self.at(due) },
            },
        };
        let (from, ended) = (self.at(begun), self.at(Instant::now()));
        self.turns.send_modify(|turns| turns[client].is_on = false);
        let sure = guard.lost().sure_until().map(|sure| self.at(sure));
        Holding {
            client,
            from,
            until: match (self.trust, sure) {
                // A slow machine hears of it late; what counts is what it was told.
                (Trust::UntilLost, Some(sure)) => ended.min(sure).max(from),
                _ => ended,
            },
            sure,
            end,
            fencing: guard.fencing(),
        }
    }
}

/// How slow this machine is now: the slowest of some round trips, each with a wake-up before it.
async fn pace(line: &Line) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let begun = Instant::now();
        sleep(Duration::from_millis(1)).await;
        let _: String = soon("PONG", line.send(&redis::cmd("PING"))).await.expect("PONG");
        slowest = slowest.max(begun.elapsed());
    }
    slowest
}

pub async fn lease_on(line: &Line) -> Duration {
    (pace(line).await * 20).clamp(Duration::from_millis(250), SOON / 2)
}

pub async fn session_on(line: &Line) -> Duration {
    (pace(line).await * 100).clamp(Duration::from_secs(1), SOON / 2)
}
