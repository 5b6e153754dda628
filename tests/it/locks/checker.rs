//! Is there ever more than one holder? Clients that play, faults, a history, and a judge who must
//! find two holders where theory says that there can be two, and none where it says that there
//! cannot.

mod judge;
mod play;

use super::{SOON, line, lines, name, nodes, nodes::forget, patient, pool, three};
use crate::support::{
    Servers,
    proxy::{Address, Fault, Lost, Proxy},
    random::Random,
};
use flash_sale::{
    embedded::RedisServer,
    lock::{
        AdvisoryLock, MultiLock, Redlock, ReentrantLock, SetPxNoOwner, TableLock, TokenLock,
        ZooKeeperLock,
        fencing::RedisResource,
        wire::{Line, Sql},
        zookeeper::Zoo,
    },
};
use futures_util::future::join_all;
use judge::{Belief, Judgement, judge, nanos, refused, several_turns, told, two_holders};
use play::{CLIENTS, Play, Pulse, Scene, Trust, Work, amid, lease_at, pace};
use std::{sync::Arc, time::Duration};
use tokio::time::{sleep, sleep_until};

/// Longer than any play: whatever ends here, no lease does.
const ENDLESS: Duration = Duration::from_secs(300);

/// Client 0 stands still for longer than its lease, every time; the others never.
fn oversleeping(client: usize, random: &mut Random) -> Work {
    if client == 0 {
        Work::UntilAnother
    } else {
        Work::For(random.millis(5..25))
    }
}

fn told_and_several_turns(history: &[Belief]) -> bool {
    told(history) > 0 && several_turns(history)
}

/// The same, and when it goes on somebody else has done what there was to do.
fn coming_back_too_late(client: usize, random: &mut Random) -> Work {
    match oversleeping(client, random) {
        Work::UntilAnother => Work::UntilAnotherIsThrough,
        awake => awake,
    }
}

/// As [`oversleeping`], and the others take a little longer, so that there is somebody to be harmed.
fn oversleeping_beside_workers(client: usize, random: &mut Random) -> Work {
    match oversleeping(client, random) {
        Work::For(_) => Work::For(random.millis(20..60)),
        sleeping => sleeping,
    }
}

/// Client 0 brings it on itself. What it does to the others is the bug. A machine that is slow may make a
/// sleeper of anybody: they are left out too.
fn without_sleepers(history: &[Belief], lease: Duration) -> Vec<Belief> {
    let lease = nanos(lease * 9 / 10);
    let awake = history
        .iter()
        .filter(|belief| belief.client != 0)
        .filter(|belief| match belief.sure {
            Some(sure) => belief.until <= sure,
            None => belief.until - belief.from < lease,
        });
    awake.cloned().collect()
}

/// A proxy before the shared Redis, and a line that leads through it.
async fn proxied_redis() -> (Arc<Proxy>, Line) {
    let servers = Servers::shared().await;
    let proxy = Proxy::start(Address::Unix(servers.redis.socket())).await;
    let line = patient(&format!("redis://{}", proxy.address()));
    (Arc::new(proxy), line)
}

async fn disturb(scene: &Scene, proxy: &Proxy, replies_to: &'static str) {
    let mut random = Random::of(1, "network", 0);
    loop {
        // Not always: nobody would ever come in on a machine that is slower than this.
        if random.chance(0.5) {
            scene.until_a_turn_begins().await;
        }
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

/// Whenever client 0 holds the lock nothing of it gets through any more, until it has given it up.
async fn cut_off(scene: &Scene, proxy: &Proxy) {
    loop {
        scene.until_held_by(0..1).await;
        proxy.set(Fault::BlackHole).await;
        scene.until_given_up_by(0).await;
        proxy.set(Fault::None).await;
        proxy.cut();
    }
}

/// Whenever somebody holds the lock these nodes die, and come back empty.
async fn forgetting(scene: &Scene, nodes: &[RedisServer]) {
    loop {
        scene.until_held_by(0..CLIENTS).await;
        join_all(nodes.iter().map(forget)).await;
        scene.fault_is_over();
        // Somebody must be able to come in before they die again.
        sleep(Duration::from_millis(20)).await;
    }
}

// --- where theory says that two can be

#[tokio::test]
async fn checker_token_pauses_beyond_the_lease_make_two_holders_and_fencing_no_stale_write() {
    let name = name("pauses");
    let line = line("client").await;
    let lease = lease_at(pace(&line).await);
    let play = Play::new(Trust::Blind, |history| {
        two_holders(history) && refused(history) > 0
    });
    let play = play.working(coming_back_too_late).writing_to(
        RedisResource::new(line.clone()),
        &format!("{name}:resource"),
    );
    let token = |_| TokenLock::new(line.another_connection(), lease).fenced();
    let judgement = judge(&play.run(&name, token).await);
    assert_eq!(
        (judgement.stale_writes, judgement.numbers_out_of_order),
        (0, 0)
    );
}

#[tokio::test]
async fn checker_one_redis_that_forgets_makes_two_holders() {
    let nodes = nodes(1).await;
    let [line] = lines("client", &nodes).await.try_into().expect("one");
    let play = Play::new(Trust::UntilLost, two_holders).working(|_, _| Work::UntilAnother);
    let name = name("forgets");
    let history = play.run(&name, |_| {
        TokenLock::new(line.another_connection(), ENDLESS)
    });
    amid(forgetting(&play.scene, &nodes), history).await;
}

#[tokio::test]
async fn checker_multi_lock_all_of_whose_nodes_forget_makes_two_holders() {
    let nodes = nodes(3).await;
    let all = lines("client", &nodes).await;
    let play = Play::new(Trust::UntilLost, two_holders).working(|_, _| Work::UntilAnother);
    let name = name("all-forget");
    let history = play.run(&name, |_| MultiLock::new(apart(&all), ENDLESS));
    amid(forgetting(&play.scene, &nodes), history).await;
}

#[tokio::test]
async fn checker_redlock_a_node_that_restarts_empty_inside_the_lease_makes_two_holders() {
    let restarts = Restarts::of_three().await;
    let play = Play::new(Trust::UntilLost, two_holders).working(oversleeping);
    let name = name("restarts-empty");
    let history = play.run(&name, |client| restarts.redlock(client, ENDLESS));
    amid(restarts.go_on(&play.scene, Duration::ZERO), history).await;
}

#[tokio::test]
async fn checker_zookeeper_a_blind_holder_makes_two_and_its_czxid_no_stale_write() {
    let server = zookeeper!("checker_zookeeper_a_blind_holder_makes_two…");
    let name = name("zk-blind");
    let line = line("resource").await;
    let session = session_at(pace(&line).await);
    let proxy = Proxy::start(Address::Tcp(server.address())).await;
    let [through_proxy, direct] = [proxy.address().to_string(), server.cluster()];
    let play = Play::new(Trust::Blind, |history| {
        two_holders(history) && refused(history) > 0
    });
    let play = play
        .working(coming_back_too_late)
        .writing_to(RedisResource::new(line), &format!("{name}:resource"));
    let history = play.run(&name, |client| {
        let cluster = if client == 0 { &through_proxy } else { &direct };
        ZooKeeperLock::new(Zoo::new(cluster, session))
    });
    let judgement = judge(&amid(cut_off(&play.scene, &proxy), history).await);
    assert_eq!(
        (judgement.stale_writes, judgement.numbers_out_of_order),
        (0, 0)
    );
}

/// The planted bug: a release that deletes without comparing. The same play with the comparison has
/// none, see the next test.
#[tokio::test]
async fn checker_finds_a_release_that_deletes_without_comparing() {
    let line = line("client").await;
    let lease = lease_at(pace(&line).await);
    let play = Play::new(Trust::Blind, move |history| {
        two_holders(&without_sleepers(history, lease))
    });
    let play = play.working(oversleeping_beside_workers);
    let lock = |_| SetPxNoOwner::new(line.another_connection(), lease);
    play.run(&name("no-owner"), lock).await;
}

#[tokio::test]
async fn checker_token_who_never_sleeps_is_never_one_of_two() {
    let line = line("client").await;
    let lease = lease_at(pace(&line).await);
    let play = Play::new(Trust::Blind, |history| {
        two_holders(history) && several_turns(history)
    });
    let play = play.working(oversleeping_beside_workers);
    let lock = |_| TokenLock::new(line.another_connection(), lease);
    let history = play.run(&name("owner"), lock).await;
    assert_eq!(judge(&without_sleepers(&history, lease)).two_holders, 0);
}

// --- where theory says that there is one

#[tokio::test]
async fn checker_token_who_stops_when_told_is_alone() {
    let line = line("client").await;
    let lease = lease_at(pace(&line).await);
    let play = Play::new(Trust::UntilLost, told_and_several_turns).working(oversleeping);
    let lock = |_| TokenLock::new(line.another_connection(), lease).fenced();
    let history = play.run(&name("told"), lock).await;
    assert_eq!(judge(&history), Judgement::default());
}

#[tokio::test]
async fn checker_token_amid_cuts_and_lost_replies() {
    let (proxy, line) = proxied_redis().await;
    let lease = lease_at(pace(&line).await) * 2;
    let play = Play::new(Trust::UntilLost, several_turns);
    let name = name("cuts");
    let history = play.run(&name, |_| {
        TokenLock::new(line.another_connection(), lease).fenced()
    });
    let history = amid(disturb(&play.scene, &proxy, "EVALSHA"), history).await;
    assert_eq!(judge(&history), Judgement::default());
    assert!(
        proxy.counts().cut > 0 && proxy.counts().lost_replies > 0,
        "{:?}",
        proxy.counts()
    );
}

#[tokio::test]
async fn checker_reentrant_with_watchdog_amid_cuts_and_lost_replies() {
    let (proxy, line) = proxied_redis().await;
    let lease = lease_at(pace(&line).await);
    // Longer than the lease now and then: the watchdog has work.
    let play = Play::new(Trust::UntilLost, several_turns).working(move |client, random| {
        Work::For(match client {
            0 => lease * 2,
            _ => random.millis(1..8),
        })
    });
    let name = name("cuts");
    let history = play.run(&name, |_| {
        ReentrantLock::new(line.another_connection(), lease).renewed()
    });
    let history = amid(disturb(&play.scene, &proxy, "EVALSHA"), history).await;
    assert_eq!(judge(&history), Judgement::default());
    assert!(proxy.counts().cut > 0, "{:?}", proxy.counts());
}

#[tokio::test]
async fn checker_reentrant_that_is_cut_off_is_told_and_alone() {
    let (proxy, of_one) = proxied_redis().await;
    let line = line("client").await;
    let lease = lease_at(pace(&line).await);
    let play = Play::new(Trust::UntilLost, told_and_several_turns).working(oversleeping);
    let name = name("cut-off");
    let history = play.run(&name, |client| {
        let line = if client == 0 { &of_one } else { &line };
        ReentrantLock::new(line.another_connection(), lease).renewed()
    });
    let history = amid(cut_off(&play.scene, &proxy), history).await;
    assert_eq!(judge(&history), Judgement::default());
}

/// One Redis of three forgets everything, again and again, and always while somebody holds the lock.
#[tokio::test]
async fn checker_multi_lock_that_loses_a_node_again_and_again() {
    let nodes = nodes(3).await;
    let all = lines("client", &nodes).await;
    let play = Play::new(Trust::UntilLost, several_turns)
        .working(|_, random| Work::PastAFault(random.millis(20..60)));
    let name = name("one-forgets");
    let history = play.run(&name, |_| MultiLock::new(apart(&all), ENDLESS));
    let history = amid(forgetting(&play.scene, &nodes[..1]), history).await;
    assert_eq!(judge(&history), Judgement::default());
}

#[tokio::test]
async fn checker_redlock_amid_cuts_to_a_minority() {
    let nodes = three().await;
    let mut all = lines("client", nodes).await;
    let lease = lease_at(pace(&all[1]).await) * 2;
    let proxy = Proxy::start(Address::Unix(nodes[0].socket())).await;
    all[0] = patient(&format!("redis://{}", proxy.address()));
    let play = Play::new(Trust::UntilLost, several_turns);
    let name = name("minority");
    let history = play.run(&name, |_| Redlock::new(apart(&all), lease));
    let history = amid(disturb(&play.scene, &proxy, ""), history).await;
    assert_eq!(judge(&history), Judgement::default());
    assert!(proxy.counts().cut > 0, "{:?}", proxy.counts());
}

/// The same restarts as those that make two holders; but the node stays away until every lease that it has
/// forgotten is over.
#[tokio::test]
async fn checker_redlock_a_node_that_stays_away_for_a_lease_is_alone_and_told() {
    let restarts = Restarts::of_three().await;
    let lease = lease_at(pace(&restarts.lines[0]).await) * 2;
    let play = Play::new(Trust::UntilLost, told_and_several_turns).working(oversleeping);
    let name = name("stays-away");
    let history = play.run(&name, |client| restarts.redlock(client, lease));
    let history = amid(restarts.go_on(&play.scene, lease), history).await;
    assert_eq!(judge(&history), Judgement::default());
}

#[tokio::test]
async fn checker_table_amid_pauses_is_alone_and_numbered() {
    let lease = lease_at(pace(&line("pace").await).await) * 2;
    let pools = pools().await;
    let play = Play::new(Trust::UntilLost, told_and_several_turns).working(oversleeping);
    let lock = |client: usize| TableLock::new(Sql::new(pools[client].clone()), lease);
    let history = play.run(&name("table-play"), lock).await;
    assert_eq!(judge(&history), Judgement::default());
}

/// No lease, and so nothing that a pause can outlast: even blind trust is right.
#[tokio::test]
async fn checker_advisory_amid_pauses_never_two() {
    let pools = pools().await;
    let play = Play::new(Trust::Blind, several_turns).working(|client, random| {
        Work::For(random.millis(if client == 0 { 100..140 } else { 5..25 }))
    });
    let lock = |client: usize| AdvisoryLock::new(Sql::new(pools[client].clone()));
    let history = play.run(&name("advisory-play"), lock).await;
    assert_eq!(judge(&history), Judgement::default());
}

#[tokio::test]
async fn checker_zookeeper_amid_cuts() {
    let server = zookeeper!("checker_zookeeper_amid_cuts");
    let proxy = Proxy::start(Address::Tcp(server.address())).await;
    let cuts = async {
        loop {
            sleep(Duration::from_millis(400)).await;
            proxy.cut();
        }
    };
    let cluster = proxy.address().to_string();
    let play = Play::new(Trust::UntilLost, several_turns);
    let name = name("zk-play");
    let history = play.run(&name, |_| ZooKeeperLock::new(Zoo::new(&cluster, SOON)));
    assert_eq!(judge(&amid(cuts, history).await), Judgement::default());
    assert!(proxy.counts().cut > 0, "{:?}", proxy.counts());
}

/// The same cuts as those that make two holders; but the holder stops when it is told.
///
/// Told is told in time: an eighth of the session before its end, if the process runs. One that stands still for
/// longer is a holder that sleeps, and two there can be: such a play is not judged, and played again.
#[tokio::test]
async fn checker_zookeeper_a_holder_that_is_cut_off_is_told_and_alone() {
    let server = zookeeper!("checker_zookeeper_a_holder_that_is_cut_off…");
    let session = session_at(pace(&line("pace").await).await);
    let proxy = Proxy::start(Address::Tcp(server.address())).await;
    let [through_proxy, direct] = [proxy.address().to_string(), server.cluster()];
    let mut paused = Duration::ZERO;
    for _ in 0..10 {
        let pulse = Pulse::default();
        let play = Play::new(Trust::UntilLost, told_and_several_turns).working(oversleeping);
        let name = name("zk-cut-off");
        let history = play.run(&name, |client| {
            let cluster = if client == 0 { &through_proxy } else { &direct };
            ZooKeeperLock::new(Zoo::new(cluster, session))
        });
        let disturbance = async {
            tokio::join!(cut_off(&play.scene, &proxy), pulse.beats());
        };
        let judgement = judge(&amid(disturbance, history).await);
        paused = pulse.longest_pause();
        if judgement == Judgement::default() {
            return;
        }
        assert!(
            paused > session / 16,
            "{judgement:?}, and the longest pause was {paused:?}"
        );
    }
    panic!("this machine stands still for {paused:?} at a time, of a session of {session:?}");
}

// --- nodes that restart

/// Three nodes, the second of which restarts empty. Client 0 never reaches the third: with all three, the loss of
/// one would leave it a majority.
struct Restarts {
    nodes: Vec<RedisServer>,
    /// Before the second: what stays away from its clients for longer than it takes to restart.
    proxy: Proxy,
    lines: Vec<Line>,
}

impl Restarts {
    async fn of_three() -> Self {
        let nodes = nodes(3).await;
        let proxy = Proxy::start(Address::Unix(nodes[1].socket())).await;
        let mut lines = lines("client", &nodes).await;
        lines[1] = patient(&format!("redis://{}", proxy.address()));
        Self {
            nodes,
            proxy,
            lines,
        }
    }

    fn redlock(&self, client: usize, lease: Duration) -> Redlock {
        let mut lines = apart(&self.lines);
        if client == 0 {
            lines[2] = Line::new("redis://127.0.0.1:1").expect("a url");
        }
        Redlock::new(lines, lease)
    }

    /// Whenever client 0 has its majority the node dies, and comes back empty after so long.
    async fn go_on(&self, scene: &Scene, away_for: Duration) {
        loop {
            scene.until_held_by(0..1).await;
            self.proxy.set(Fault::Refuse).await;
            self.proxy.cut();
            let died = forget(&self.nodes[1]).await;
            sleep_until(died + away_for).await;
            self.proxy.set(Fault::None).await;
            // Nobody else can have the lock before it is back, so client 0 has lost it or is one of two.
            scene.until_given_up_by(0).await;
        }
    }
}

/// As in processes of their own.
fn apart(lines: &[Line]) -> Vec<Line> {
    lines.iter().map(Line::another_connection).collect()
}

/// One for each client.
async fn pools() -> Vec<sqlx::PgPool> {
    join_all((0..CLIENTS).map(|_| pool(2))).await
}

/// A session that is short to us, and long to this machine.
fn session_at(pace: Duration) -> Duration {
    (pace * 100).clamp(Duration::from_secs(1), SOON / 2)
}
