//! Is there ever more than one holder? Many clients, faults, a history, and a judge.
//!
//! Each client writes down when it believed to hold the lock: from the moment in which `acquire` had
//! returned to the one in which it called `release` or was told that the lock is lost, on one monotonic
//! clock. Beliefs of two clients that overlap are two holders. Beside it each writes to a resource with its
//! fencing token; a write that was applied after one with a newer token is a stale write.
//!
//! Where theory says that two holders can be, the judge must find them; where it says they cannot, none.

use super::{SOON, line, lines, name, nodes, pool, soon, three, until};
use crate::support::{
    Servers,
    proxy::{Address, Fault, Lost, Proxy},
    random::Random,
};
use flash_sale::lock::{
    Acquired, AdvisoryLock, Guard, Lock, Redlock, ReentrantLock, SetPxNoOwner, TableLock,
    TokenLock, ZooKeeperLock,
    fencing::{RedisResource, Write},
    wire::{Line, Sql},
    zookeeper::Zoo,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::{Instant, sleep, sleep_until};

/// One client's belief to hold the lock, and what it wrote under it.
#[derive(Debug, Clone)]
struct Belief {
    client: usize,
    from: u64,
    until: u64,
    /// How long its guard said that it could be sure.
    sure: Option<u64>,
    fencing: Option<u64>,
    writes: Vec<Written>,
}

#[derive(Debug, Clone, Copy)]
struct Written {
    fencing: u64,
    begun: u64,
    ended: u64,
    applied: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Judgement {
    /// Pairs of beliefs that overlap.
    two_holders: usize,
    /// Pairs of beliefs of which the later has a number that is not higher.
    numbers_out_of_order: usize,
    /// Pairs of applied writes of which the later has an older number.
    stale_writes: usize,
}

/// The judge. Touching is not overlapping: one may begin in the instant in which the other ends.
fn judge(history: &[Belief]) -> Judgement {
    let mut judgement = Judgement::default();
    for (index, a) in history.iter().enumerate() {
        for b in &history[index + 1..] {
            let (first, second) = if a.from <= b.from { (a, b) } else { (b, a) };
            if second.from < first.until {
                judgement.two_holders += 1;
            } else if let (Some(earlier), Some(later)) = (first.fencing, second.fencing)
                && later <= earlier
            {
                judgement.numbers_out_of_order += 1;
            }
        }
    }
    let applied: Vec<Written> = history
        .iter()
        .flat_map(|belief| &belief.writes)
        .copied()
        .filter(|write| write.applied)
        .collect();
    for earlier in &applied {
        let stale = applied
            .iter()
            .filter(|later| earlier.ended < later.begun && later.fencing < earlier.fencing);
        judgement.stale_writes += stale.count();
    }
    judgement
}

// --- the judge itself, on histories that are planted

fn belief(client: usize, from: u64, until: u64, fencing: u64) -> Belief {
    Belief {
        client,
        from,
        until,
        sure: None,
        fencing: Some(fencing),
        writes: Vec::new(),
    }
}

fn writing(mut belief: Belief, begun: u64, applied: bool) -> Belief {
    belief.writes.push(Written {
        fencing: belief.fencing.expect("a number"),
        begun,
        ended: begun + 1,
        applied,
    });
    belief
}

#[test]
fn the_checker_finds_what_is_planted_and_nothing_else() {
    let found = |two_holders, numbers_out_of_order, stale_writes| Judgement {
        two_holders,
        numbers_out_of_order,
        stale_writes,
    };
    let one_after_the_other = [
        belief(1, 0, 10, 1),
        belief(2, 10, 20, 2),
        belief(1, 25, 30, 3),
    ];
    assert_eq!(judge(&one_after_the_other), found(0, 0, 0));
    let one_inside_another = [
        belief(1, 0, 100, 1),
        belief(2, 40, 50, 2),
        belief(3, 200, 201, 3),
    ];
    assert_eq!(judge(&one_inside_another), found(1, 0, 0));
    let by_a_nanosecond = [belief(2, 10, 20, 2), belief(1, 0, 11, 1)];
    assert_eq!(judge(&by_a_nanosecond), found(1, 0, 0));
    let three_at_once = [belief(1, 0, 9, 1), belief(2, 1, 9, 2), belief(3, 2, 9, 3)];
    assert_eq!(judge(&three_at_once), found(3, 0, 0));
    let counted_anew = [belief(1, 0, 1, 7), belief(2, 2, 3, 1)];
    assert_eq!(judge(&counted_anew), found(0, 1, 0));
    // 1 sleeps past its lease, 2 writes, 1 writes.
    let late = |applied| {
        [
            writing(belief(1, 0, 50, 1), 40, applied),
            writing(belief(2, 10, 20, 2), 15, true),
        ]
    };
    assert_eq!(judge(&late(true)), found(1, 0, 1));
    assert_eq!(judge(&late(false)), found(1, 0, 0), "fenced off");
}

// --- the play

/// How much a client trusts its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// It believes to hold it until it gives it back, as most code does.
    Blind,
    /// It stops when [`Guard::lost`] says so.
    UntilLost,
}

struct Play {
    clients: usize,
    for_so_long: Duration,
    trust: Trust,
    /// How long the work of these clients takes.
    work: fn(usize, &mut Random) -> Duration,
    resource: Option<RedisResource>,
}

impl Play {
    fn new(trust: Trust) -> Self {
        Self {
            clients: 5,
            for_so_long: Duration::from_millis(1_200),
            trust,
            work: |_, random| random.millis(1..8),
            resource: None,
        }
    }

    /// A play that is worth judging: several had their turns.
    async fn run<L: Lock>(&self, name: &str, lock: impl Fn(usize) -> L) -> Vec<Belief> {
        let history = self.once(name, lock).await;
        assert!(history.len() > 5, "only {} turns", history.len());
        let seen: std::collections::HashSet<_> =
            history.iter().map(|belief| belief.client).collect();
        assert!(seen.len() > 1, "only one client had a turn");
        history
    }

    /// Everybody with a lock of their own, as in processes of their own.
    async fn once<L: Lock>(&self, name: &str, lock: impl Fn(usize) -> L) -> Vec<Belief> {
        let start = Instant::now();
        let history = Arc::new(Mutex::new(Vec::new()));
        let mut clients = Vec::new();
        for client in 0..self.clients {
            let (lock, name) = (lock(client), name.to_owned());
            let (history, resource) = (history.clone(), self.resource.clone());
            let (trust, work, end) = (self.trust, self.work, start + self.for_so_long);
            clients.push(tokio::spawn(async move {
                let mut random = Random::of(1, "client", client as u64);
                while Instant::now() < end {
                    let wait = random.millis(0..200);
                    let Ok(Acquired::Held(guard)) = lock.acquire(&name, wait).await else {
                        sleep(random.millis(1..10)).await;
                        continue;
                    };
                    let belief = hold(
                        client,
                        start,
                        &guard,
                        trust,
                        work(client, &mut random),
                        resource.as_ref(),
                    );
                    let belief = belief.await;
                    history.lock().expect("no panic").push(belief);
                    // What it says does not matter here: the belief has ended.
                    let _ = guard.release().await;
                    sleep(random.millis(0..4)).await;
                }
            }));
        }
        for client in clients {
            soon("the play ends", client).await.expect("no panic");
        }
        history.lock().expect("no panic").clone()
    }
}

fn nanos(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).expect("a short play")
}

async fn hold(
    client: usize,
    start: Instant,
    guard: &impl Guard,
    trust: Trust,
    work: Duration,
    resource: Option<&RedisResource>,
) -> Belief {
    let from = nanos(start);
    let mut writes = Vec::new();
    let working = async {
        sleep_until(Instant::now() + work).await;
        // At the end of the work: whoever overslept writes late.
        if let (Some(resource), Some(fencing)) = (resource, guard.fencing()) {
            let begun = nanos(start);
            let written = resource.write("resource", fencing, "value").await;
            let written = written.expect("the resource answers");
            writes.push(Written {
                fencing,
                begun,
                ended: nanos(start),
                applied: written == Write::Applied,
            });
        }
        nanos(start)
    };
    let ended = match trust {
        Trust::Blind => working.await,
        Trust::UntilLost => tokio::select! {
            biased;
            _ = guard.lost() => nanos(start),
            until = working => until,
        },
    };
    let sure = guard.lost().sure_until();
    let sure = sure.map(|sure| u64::try_from((sure - start).as_nanos()).expect("a short play"));
    Belief {
        client,
        from,
        until: match (trust, sure) {
            // A machine that is slow hears of it late; what counts is what it was told.
            (Trust::UntilLost, Some(sure)) => ended.min(sure).max(from),
            _ => ended,
        },
        sure,
        fencing: guard.fencing(),
        writes,
    }
}

/// A proxy before the shared Redis, and who disturbs it until the play is over.
async fn disturbed_redis() -> (Arc<Proxy>, Line) {
    let servers = Servers::shared().await;
    let proxy = Proxy::start(Address::Unix(servers.redis.socket())).await;
    let url = format!("redis://{}", proxy.address());
    let short = Duration::from_millis(150);
    let line = Line::with_timeouts(&url, short, short).expect("a url");
    (Arc::new(proxy), line)
}

async fn disturb(proxy: &Proxy, replies_to: &'static str) {
    let mut random = Random::of(1, "network", 0);
    loop {
        sleep(random.millis(10..40)).await;
        if random.chance(0.5) {
            proxy.cut();
        } else {
            let which = Lost::Next(1);
            proxy
                .set(Fault::LoseReplies {
                    which,
                    to: replies_to,
                })
                .await;
        }
    }
}

/// Plays while the network is disturbed.
async fn amid(
    disturbance: impl Future<Output = ()>,
    play: impl Future<Output = Vec<Belief>>,
) -> Vec<Belief> {
    tokio::select! {
        history = play => history,
        () = disturbance => unreachable!("it goes on"),
    }
}

const LEASE: Duration = Duration::from_millis(400);
/// One client's work is sometimes longer than this.
const SHORT: Duration = Duration::from_millis(60);

/// Client 0 stands still for longer than the short lease, every time; the others never.
fn oversleeping(client: usize, random: &mut Random) -> Duration {
    if client == 0 {
        SHORT * 2
    } else {
        random.millis(5..25)
    }
}

// --- where theory says that two can be

#[tokio::test]
async fn checker_token_pauses_beyond_the_lease_make_two_holders_and_fencing_no_stale_write() {
    let name = name("pauses");
    let line = line("client").await;
    let mut play = Play::new(Trust::Blind);
    play.work = oversleeping;
    play.resource = Some(RedisResource::new(line.clone()));
    let token = |_| TokenLock::new(line.another_connection(), SHORT).fenced();
    let history = play.run(&name, token).await;
    let judgement = judge(&history);
    assert!(judgement.two_holders > 0, "{judgement:?}");
    assert_eq!(
        (judgement.stale_writes, judgement.numbers_out_of_order),
        (0, 0)
    );
    let refused = history
        .iter()
        .flat_map(|belief| &belief.writes)
        .filter(|write| !write.applied);
    assert!(refused.count() > 0, "the resource had to refuse somebody");
}

#[tokio::test]
async fn checker_one_redis_that_forgets_makes_two_holders() {
    let nodes = nodes(1).await;
    let [line] = lines("client", &nodes).try_into().expect("one");
    let mut play = Play::new(Trust::UntilLost);
    // Held nearly all the time, and for longer than Redis is away.
    play.work = |_, random| random.millis(250..350);
    play.for_so_long = Duration::from_millis(1_500);
    let forgetting = async || {
        loop {
            let pid = nodes[0].pid();
            sleep(Duration::from_millis(50)).await;
            nodes[0].kill();
            until("redis is back", async || {
                nodes[0].pid().is_some_and(|now| Some(now) != pid)
            })
            .await;
            nodes[0].wait_ready().await.expect("redis");
        }
    };
    found(async || {
        let name = name("forgets");
        let history = play.once(&name, |_| TokenLock::new(line.another_connection(), LEASE));
        judge(&amid(forgetting(), history).await).two_holders
    })
    .await;
}

/// The planted bug: a release that deletes without comparing. The same play with the comparison has
/// none, see the next test.
#[tokio::test]
async fn checker_finds_a_release_that_deletes_without_comparing() {
    let line = line("client").await;
    let mut play = Play::new(Trust::Blind);
    play.work = oversleeping;
    found(async || {
        let lock = |_| SetPxNoOwner::new(line.another_connection(), SHORT);
        let history = play.once(&name("no-owner"), lock).await;
        judge(&without_the_sleeper(history)).two_holders
    })
    .await;
}

#[tokio::test]
async fn checker_token_who_never_sleeps_is_never_one_of_two() {
    let name = name("owner");
    let line = line("client").await;
    let mut play = Play::new(Trust::Blind);
    play.work = oversleeping;
    let history = play
        .run(&name, |_| TokenLock::new(line.another_connection(), SHORT))
        .await;
    assert!(judge(&history).two_holders > 0);
    assert_eq!(judge(&without_the_sleeper(history)).two_holders, 0);
}

/// Client 0 brings it on itself. What it does to the others is the bug. A machine that is slow may make a
/// sleeper of anybody: they are left out too.
fn without_the_sleeper(history: Vec<Belief>) -> Vec<Belief> {
    let lease = u64::try_from((SHORT * 9 / 10).as_nanos()).expect("short");
    history
        .into_iter()
        .filter(|belief| belief.client != 0)
        .filter(|belief| match belief.sure {
            Some(sure) => belief.until <= sure,
            None => belief.until - belief.from < lease,
        })
        .collect()
}

/// What is only likely in one play is certain in a few.
async fn found(mut two_holders: impl AsyncFnMut() -> usize) {
    for _ in 0..5 {
        if two_holders().await > 0 {
            return;
        }
    }
    panic!("two holders can be here, and were not found");
}

// --- where theory says that there is one

#[tokio::test]
async fn checker_token_who_stops_when_told_is_alone() {
    let name = name("told");
    let line = line("client").await;
    let mut play = Play::new(Trust::UntilLost);
    play.work = oversleeping;
    let history = play
        .run(&name, |_| {
            TokenLock::new(line.another_connection(), SHORT).fenced()
        })
        .await;
    assert_eq!(judge(&history), Judgement::default());
}

#[tokio::test]
async fn checker_token_amid_cuts_and_lost_replies() {
    let name = name("cuts");
    let (proxy, line) = disturbed_redis().await;
    let play = Play::new(Trust::UntilLost);
    let history = play.run(&name, |_| {
        TokenLock::new(line.another_connection(), LEASE).fenced()
    });
    let history = amid(disturb(&proxy, "EVALSHA"), history).await;
    assert_eq!(judge(&history), Judgement::default());
    assert!(
        proxy.counts().cut > 0 && proxy.counts().lost_replies > 0,
        "{:?}",
        proxy.counts()
    );
}

#[tokio::test]
async fn checker_reentrant_with_watchdog_amid_cuts_and_lost_replies() {
    let name = name("cuts");
    let (proxy, line) = disturbed_redis().await;
    let mut play = Play::new(Trust::UntilLost);
    // Longer than the lease now and then: the watchdog has work.
    play.work = |client, random| random.millis(if client == 0 { 300..400 } else { 1..8 });
    let history = play.run(&name, |_| {
        ReentrantLock::new(line.another_connection(), LEASE / 2).renewed()
    });
    let history = amid(disturb(&proxy, "EVALSHA"), history).await;
    assert_eq!(judge(&history), Judgement::default());
    assert!(proxy.counts().cut > 0, "{:?}", proxy.counts());
}

#[tokio::test]
async fn checker_redlock_amid_cuts_to_a_minority() {
    let name = name("minority");
    let nodes = three().await;
    let proxy = Arc::new(Proxy::start(Address::Unix(nodes[0].socket())).await);
    let play = Play::new(Trust::UntilLost);
    let history = play.run(&name, |_| {
        let mut lines = lines("client", nodes);
        let short = Duration::from_millis(100);
        let url = format!("redis://{}", proxy.address());
        lines[0] = Line::with_timeouts(&url, short, short).expect("a url");
        Redlock::new(lines, LEASE)
    });
    let history = amid(disturb(&proxy, ""), history).await;
    assert_eq!(judge(&history), Judgement::default());
}

#[tokio::test]
async fn checker_table_amid_pauses_is_alone_and_numbered() {
    let name = name("table-play");
    let mut pools = Vec::new();
    for _ in 0..5 {
        pools.push(pool(2).await);
    }
    let mut play = Play::new(Trust::UntilLost);
    play.work = oversleeping;
    let history = play
        .run(&name, |client| {
            TableLock::new(Sql::new(pools[client].clone()), SHORT)
        })
        .await;
    assert_eq!(judge(&history), Judgement::default());
}

/// No lease, and so nothing that a pause can outlast: even blind trust is right.
#[tokio::test]
async fn checker_advisory_amid_pauses_never_two() {
    let name = name("advisory-play");
    let mut pools = Vec::new();
    for _ in 0..5 {
        pools.push(pool(2).await);
    }
    let mut play = Play::new(Trust::Blind);
    play.work = oversleeping;
    let history = play
        .run(&name, |client| {
            AdvisoryLock::new(Sql::new(pools[client].clone()))
        })
        .await;
    assert_eq!(judge(&history), Judgement::default());
}

#[tokio::test]
async fn checker_zookeeper_amid_cuts() {
    let Some(server) = super::zookeeper("checker_zookeeper_amid_cuts").await else {
        return;
    };
    let name = name("zk-play");
    let proxy = Proxy::start(Address::Tcp(server.address())).await;
    let cuts = async {
        loop {
            sleep(Duration::from_millis(400)).await;
            proxy.cut();
        }
    };
    let cluster = proxy.address().to_string();
    let mut play = Play::new(Trust::UntilLost);
    play.for_so_long = Duration::from_millis(2_500);
    let history = play.run(&name, |_| ZooKeeperLock::new(Zoo::new(&cluster, SOON)));
    assert_eq!(judge(&amid(cuts, history).await), Judgement::default());
}
