//! Clients work amid faults: two holders exactly where theory allows them (more of these in the
//! lessons B4, B10 and B11).

mod history;
mod workload;

use super::nodes::{apart, forget};
use crate::support::proxy::{Address, Fault, Lost, Proxy};
use crate::support::{Servers, locks::*, random::Random};
use history::*;
use std::ops::Range;
use workload::*;

const ENDLESS: Duration = Duration::from_secs(300);

/// Until another has come in is beyond any lease.
fn only_client_0(does: Work, others: Range<u64>) -> impl Fn(usize, &mut Random) -> Work {
    move |client, random| match client {
        0 => does,
        _ => Work::For(random.millis(others.clone())),
    }
}

fn told(name: &str) -> Workload {
    let some = |history: &[Holding]| times_told(history) > 0 && several_holders(history);
    Workload::new(name, Trust::UntilLost, some).working(only_client_0(Work::UntilAnother, 5..25))
}

fn steady(name: &str) -> Workload {
    Workload::new(name, Trust::UntilLost, several_holders)
}

/// Client 0 oversleeps, and on a slow machine any may; what that does to others is the bug.
fn without_sleepers(history: &[Holding], lease: Duration) -> Vec<Holding> {
    let awake = |holding: &&Holding| match holding.sure {
        Some(sure) => holding.until <= sure,
        None => holding.until - holding.from < nanos(lease * 9 / 10),
    };
    history.iter().filter(|holding| holding.client != 0).filter(awake).cloned().collect()
}

#[track_caller]
fn assert_sound(history: &[Holding]) {
    assert_eq!(check(history), Violations::default());
}

async fn proxied_redis(server: &RedisServer) -> (Proxy, Line) {
    let proxy = Proxy::start(Address::Unix(server.socket())).await;
    let line = slow_line(&format!("redis://{}", proxy.address));
    (proxy, line)
}

async fn leased_line() -> (Line, Duration) {
    let line = line("client").await;
    let lease = lease_on(&line).await;
    (line, lease)
}

async fn pools() -> Vec<sqlx::PgPool> {
    join_all((0..CLIENTS).map(|_| pool(2))).await
}

async fn cuts_and_lost_replies(workload: &Workload, proxy: &Proxy, to: &'static str) {
    let mut random = Random::of(1, "network", 0);
    loop {
        // Not always: on a machine that is slower than this nobody would ever come in.
        if random.chance(0.5) {
            workload.until_a_turn_begins().await;
        }
        sleep(random.millis(10..40)).await;
        if random.chance(0.5) {
            proxy.cut();
        } else {
            proxy.set(Fault::LoseReplies { which: Lost::Next(1), to }).await;
        }
    }
}

async fn cut_off(workload: &Workload, proxy: &Proxy) {
    loop {
        workload.until_held_by(0..1).await;
        proxy.set(Fault::BlackHole).await;
        workload.until_given_up_by(0).await;
        proxy.set(Fault::None).await;
        proxy.cut();
    }
}

async fn forgetting(workload: &Workload, nodes: &[RedisServer]) {
    loop {
        workload.until_held_by(0..CLIENTS).await;
        join_all(nodes.iter().map(forget)).await;
        workload.fault_is_over();
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn checker_one_redis_that_forgets_makes_two_holders() {
    let nodes = nodes(1).await;
    let line = lines("client", &nodes).await.remove(0);
    let workload = Workload::new("all-forget", Trust::UntilLost, two_holders)
        .working(|_, _| Work::UntilAnother);
    let token = |_| TokenLock::new(line.another_connection(), ENDLESS);
    workload.run_amid(forgetting(&workload, &nodes), token).await;
}

/// The planted bug. With the comparison this workload has no two holders: the next test.
#[tokio::test]
async fn checker_finds_a_release_that_deletes_without_comparing() {
    let (line, lease) = leased_line().await;
    let harmed = move |history: &[Holding]| two_holders(&without_sleepers(history, lease));
    // The others work a little longer, so that there is somebody to be harmed.
    let workload = Workload::new("no-owner", Trust::Blind, harmed)
        .working(only_client_0(Work::UntilAnother, 20..60));
    workload.run(|_| SetPxNoOwner::new(line.another_connection(), lease)).await;
}

#[tokio::test]
async fn checker_token_a_client_that_never_sleeps_is_never_one_of_two() {
    let (line, lease) = leased_line().await;
    let two_of_several = |history: &[Holding]| two_holders(history) && several_holders(history);
    let workload = Workload::new("owner", Trust::Blind, two_of_several)
        .working(only_client_0(Work::UntilAnother, 20..60));
    let token = |_| TokenLock::new(line.another_connection(), lease);
    assert!(!two_holders(&without_sleepers(&workload.run(token).await, lease)));
}

#[tokio::test]
async fn checker_token_a_client_that_stops_when_told_is_alone() {
    let (line, lease) = leased_line().await;
    let token = |_| TokenLock::new(line.another_connection(), lease).fenced();
    assert_sound(&told("told").run(token).await);
}

#[tokio::test]
async fn checker_token_amid_cuts_and_lost_replies() {
    let (proxy, line) = proxied_redis(&Servers::shared().await.redis).await;
    let lease = lease_on(&line).await * 2;
    let workload = steady("cuts");
    let token = |_| TokenLock::new(line.another_connection(), lease).fenced();
    let faults = cuts_and_lost_replies(&workload, &proxy, "EVALSHA");
    assert_sound(&workload.run_amid(faults, token).await);
    let counts = proxy.counts();
    assert!(counts.cut > 0 && counts.lost_replies > 0, "{counts:?}");
}

#[tokio::test]
async fn checker_reentrant_with_watchdog_amid_cuts_and_lost_replies() {
    let (proxy, line) = proxied_redis(&Servers::shared().await.redis).await;
    let lease = lease_on(&line).await;
    // Longer than the lease now and then: the watchdog has work.
    let workload = steady("watchdog").working(only_client_0(Work::For(lease * 2), 1..8));
    let lock = |_| ReentrantLock::new(line.another_connection(), lease).renewed();
    let faults = cuts_and_lost_replies(&workload, &proxy, "EVALSHA");
    assert_sound(&workload.run_amid(faults, lock).await);
    assert!(proxy.counts().cut > 0, "{:?}", proxy.counts());
}

#[tokio::test]
async fn checker_reentrant_that_is_cut_off_is_told_and_alone() {
    let (proxy, of_client_0) = proxied_redis(&Servers::shared().await.redis).await;
    let lines = [of_client_0, line("client").await];
    let lease = lease_on(&lines[1]).await;
    let workload = told("cut-off");
    let lock = |client: usize| {
        ReentrantLock::new(lines[client.min(1)].another_connection(), lease).renewed()
    };
    assert_sound(&workload.run_amid(cut_off(&workload, &proxy), lock).await);
}

#[tokio::test]
async fn checker_multi_lock_that_loses_a_node_again_and_again() {
    let nodes = nodes(3).await;
    let all = lines("client", &nodes).await;
    let workload = steady("forgets").working(|_, random| Work::PastAFault(random.millis(20..60)));
    let multi = |_| MultiLock::new(apart(&all), ENDLESS);
    assert_sound(&workload.run_amid(forgetting(&workload, &nodes[..1]), multi).await);
}

#[tokio::test]
async fn checker_redlock_amid_cuts_to_a_minority() {
    let nodes = three().await;
    let mut all = lines("client", nodes).await;
    let lease = lease_on(&all[1]).await * 2;
    let (proxy, line) = proxied_redis(&nodes[0]).await;
    all[0] = line;
    let workload = steady("minority");
    let redlock = |_| Redlock::new(apart(&all), lease);
    assert_sound(&workload.run_amid(cuts_and_lost_replies(&workload, &proxy, ""), redlock).await);
    assert!(proxy.counts().cut > 0, "{:?}", proxy.counts());
}

#[tokio::test]
async fn checker_table_amid_pauses_is_alone_and_numbered() {
    let lease = lease_on(&line("pace").await).await * 2;
    let pools = pools().await;
    let table = |client: usize| TableLock::new(Sql::new(pools[client].clone()), lease);
    assert_sound(&told("table").run(table).await);
}

#[tokio::test]
async fn checker_advisory_amid_pauses_never_two() {
    let pools = pools().await;
    let work = only_client_0(Work::For(Duration::from_millis(120)), 5..25);
    let workload = Workload::new("advisory", Trust::Blind, several_holders).working(work);
    let advisory = |client: usize| AdvisoryLock(Sql::new(pools[client].clone()));
    assert_sound(&workload.run(advisory).await);
}

#[tokio::test]
async fn checker_zookeeper_amid_cuts() {
    let proxy = Proxy::start(Address::Tcp(zookeeper!().address())).await;
    let cluster = proxy.address.to_string();
    let cuts = async {
        loop {
            sleep(Duration::from_millis(400)).await;
            proxy.cut();
        }
    };
    let workload = steady("zk");
    assert_sound(&workload.run_amid(cuts, |_| ZooKeeperLock(Zoo::new(&cluster, SOON))).await);
    assert!(proxy.counts().cut > 0, "{:?}", proxy.counts());
}

/// A holder is told an eighth of the session after its connection was noticed to be gone, well
/// before the session's end. Holdings while this process stood still for so long are left out.
#[tokio::test]
async fn checker_zookeeper_a_holder_that_is_cut_off_is_told_and_alone() {
    let server = zookeeper!();
    let session = session_on(&line("pace").await).await;
    let proxy = Proxy::start(Address::Tcp(server.address())).await;
    let clusters = [proxy.address.to_string(), server.cluster()];
    let workload = told("zk-cut-off");
    let lock = |client: usize| ZooKeeperLock(Zoo::new(&clusters[client.min(1)], session));
    let faults = async {
        tokio::join!(cut_off(&workload, &proxy), workload.note_pauses(session / 8));
    };
    assert_sound(&workload.run_amid(faults, lock).await);
}
