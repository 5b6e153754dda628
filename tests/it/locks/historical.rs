//! The locks of the articles break as the articles' readers have seen them break; each cure holds.

use super::{ONCE, gone, held, is_contended, line, name, pttl, soon, stage::Stage};
use flash_sale::lock::{
    Acquired, Guard, Lock, Released, SetPxNoOwner, SetnxExpire, SetnxGetset, TokenLock,
    setnx_expire::Repair,
    setnx_getset::Takeover,
    wire::{Clock, Line},
};
use redis::cmd;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(30);
/// Longer than a busy machine takes for a few round trips.
const SHORT: Duration = Duration::from_millis(500);

async fn value(line: &Line, name: &str) -> Option<String> {
    line.send(cmd("GET").arg(name)).await.expect("GET")
}

/// A lock whose maker died between the two commands.
async fn orphan(name: &str) {
    let stage = Stage::new();
    stage.fail("PEXPIRE", 1);
    let maker = SetnxExpire::new(line("maker").await.watched_by(stage), LEASE);
    maker.acquire(name, ONCE).await.expect_err("the maker dies");
}

#[tokio::test]
async fn setnx_expire_leaves_a_lock_for_ever_when_its_maker_dies_in_between() {
    let name = name("orphan");
    orphan(&name).await;
    let line = line("next").await;
    assert_eq!(pttl(&line, &name).await, -1, "it has no expiry");
    let next = SetnxExpire::new(line, LEASE).repaired_by(Repair::Never);
    assert!(is_contended(&next, &name).await);
}

/// Two repairers, both of which have seen that there is no expiry before either goes on.
async fn repaired_by_two(repair: Repair) -> [Option<impl Guard>; 2] {
    let name = name("repair");
    orphan(&name).await;
    let mut tasks = Vec::new();
    let mut gates = Vec::new();
    for client in ["b", "c"] {
        let stage = Stage::new();
        gates.push(stage.hold_after("PTTL"));
        let lock =
            SetnxExpire::new(line(client).await.watched_by(stage), LEASE).repaired_by(repair);
        let name = name.clone();
        tasks.push(tokio::spawn(async move { lock.acquire(&name, ONCE).await }));
    }
    for gate in &gates {
        gate.reached().await;
    }
    let mut both = Vec::new();
    // One after the other: whoever comes second finds what the first has made.
    for (gate, task) in gates.iter().zip(tasks) {
        gate.open();
        let repaired = soon("a repair", task).await.expect("no panic");
        both.push(repaired.expect("redis").held());
    }
    both.try_into().unwrap_or_else(|_| unreachable!("two"))
}

#[tokio::test]
async fn setnx_expire_two_repairers_both_take_the_lock() {
    let both = repaired_by_two(Repair::TakeOver).await;
    assert!(both.iter().all(Option::is_some));
}

#[tokio::test]
async fn setnx_expire_repaired_with_del_lets_two_in() {
    let both = repaired_by_two(Repair::DeleteAndTake).await;
    assert!(both.iter().all(Option::is_some));
}

#[tokio::test]
async fn setnx_expire_given_an_expiry_ends_and_lets_one_in() {
    let both = repaired_by_two(Repair::OnlyExpire).await;
    assert!(both.iter().all(Option::is_none));
    let name = name("only-expire");
    orphan(&name).await;
    let line = line("next").await;
    let next = SetnxExpire::new(line.clone(), SHORT).repaired_by(Repair::OnlyExpire);
    assert!(is_contended(&next, &name).await);
    gone(&line, &name).await;
    let _held = held(&next, &name).await;
    assert!(is_contended(&next, &name).await);
}

/// A's lease ends, B comes in, A gives "its" lock back: C walks in beside B.
async fn a_late_release_lets_a_third_in<L: Lock>(make: impl Fn(Line, Duration) -> L) -> bool {
    let name = name("late");
    let (a, b, c) = (line("a").await, line("b").await, line("c").await);
    let late = held(&make(a.clone(), SHORT), &name).await;
    gone(&a, &name).await;
    let _second = held(&make(b, LEASE), &name).await;
    let released = late.release().await.expect("redis");
    let third_walks_in = matches!(
        make(c, LEASE).acquire(&name, ONCE).await,
        Ok(Acquired::Held(_))
    );
    assert_eq!(
        released == Released::Freed,
        third_walks_in,
        "it says what it does"
    );
    third_walks_in
}

#[tokio::test]
async fn setnx_expire_deletes_somebody_elses_lock() {
    assert!(a_late_release_lets_a_third_in(SetnxExpire::new).await);
}

#[tokio::test]
async fn set_px_no_owner_deletes_somebody_elses_lock() {
    assert!(a_late_release_lets_a_third_in(SetPxNoOwner::new).await);
}

#[tokio::test]
async fn token_does_not_delete_somebody_elses_lock() {
    assert!(!a_late_release_lets_a_third_in(TokenLock::new).await);
}

#[tokio::test]
async fn token_compared_and_deleted_in_two_calls_deletes_somebody_elses_lock() {
    let name = name("two-calls");
    let stage = Stage::new();
    let between = stage.hold("DEL");
    let a = line("a").await.watched_by(stage);
    let lock = TokenLock::new(a.clone(), Duration::from_secs(1)).released_in_two_calls();
    let guard = held(&lock, &name).await;
    let releasing = tokio::spawn(guard.release());
    between.reached().await;
    let b = line("b").await;
    gone(&b, &name).await;
    let _second = held(&TokenLock::new(b.clone(), LEASE), &name).await;
    between.open();
    let released = soon("the release", releasing).await.expect("no panic");
    assert_eq!(released.expect("redis"), Released::Freed);
    assert_eq!(value(&b, &name).await, None, "B's lock has gone");
}

#[tokio::test]
async fn set_px_no_owner_ends_by_itself() {
    let name = name("px");
    let line = line("a").await;
    let lock = SetPxNoOwner::new(line.clone(), SHORT);
    drop(held(&lock, &name).await);
    gone(&line, &name).await;
    let _next = held(&lock, &name).await;
    assert!(is_contended(&SetPxNoOwner::new(line, LEASE), &name).await);
}

/// Two who have both seen the ended stamp of a dead holder, and go on one after the other.
async fn taken_over_by_two(takeover: Takeover) -> (String, Line, [Option<i64>; 2]) {
    let name = name("getset");
    let line_of_a = line("a").await;
    let dead_clock = Clock::default();
    dead_clock.set_offset_ms(-60_000);
    drop(
        held(
            &SetnxGetset::new(line_of_a.clone(), SHORT, dead_clock),
            &name,
        )
        .await,
    );
    let (mut tasks, mut gates) = (Vec::new(), Vec::new());
    for client in ["b", "c"] {
        let stage = Stage::new();
        gates.push(stage.hold_after("GET lock"));
        let line = line(client).await.watched_by(stage);
        // Clocks that differ a little, so that the stamps do.
        let clock = Clock::default();
        clock.set_offset_ms(if client == "b" { 0 } else { 7 });
        let lock = SetnxGetset::new(line, LEASE, clock).taken_over_by(takeover);
        let name = name.clone();
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire(&name, ONCE).await.expect("redis").held();
            guard.map(|guard| guard.stamp())
        }));
    }
    for gate in &gates {
        gate.reached().await;
    }
    let mut stamps = [None; 2];
    for (index, task) in tasks.into_iter().enumerate() {
        gates[index].open();
        stamps[index] = soon("a take-over", task).await.expect("no panic");
    }
    (name, line_of_a, stamps)
}

#[tokio::test]
async fn setnx_getset_with_del_lets_two_in() {
    let (_, _, stamps) = taken_over_by_two(Takeover::DeleteAndSetnx).await;
    assert!(stamps.iter().all(Option::is_some), "{stamps:?}");
}

#[tokio::test]
async fn setnx_getset_lets_one_in_and_the_loser_overwrites_its_stamp() {
    let (name, line, [winner, loser]) = taken_over_by_two(Takeover::Getset).await;
    let winner = winner.expect("the first takes it");
    assert_eq!(loser, None);
    assert_ne!(
        value(&line, &name).await,
        Some(winner.to_string()),
        "the key says what the loser wrote"
    );
}

#[tokio::test]
async fn setnx_getset_a_fast_clock_steals_a_living_lock() {
    let name = name("skew");
    let lock = SetnxGetset::new(line("a").await, LEASE, Clock::default());
    let _living = held(&lock, &name).await;
    assert!(is_contended(&lock, &name).await);
    let fast = Clock::default();
    fast.set_offset_ms(31_000);
    let _stolen = held(&SetnxGetset::new(line("b").await, LEASE, fast), &name).await;
}

#[tokio::test]
async fn setnx_getset_check_then_delete_deletes_somebody_elses_lock() {
    let name = name("getset-late");
    let stage = Stage::new();
    let between = stage.hold("DEL");
    let clock = Clock::default();
    let a = SetnxGetset::new(line("a").await.watched_by(stage), LEASE, clock.clone());
    let guard = held(&a, &name).await;
    // Its time is not over when it looks …
    let releasing = tokio::spawn(guard.release());
    between.reached().await;
    // … and is over, to B, when it deletes.
    let later = Clock::default();
    later.set_offset_ms(31_000);
    let b = line("b").await;
    let _second = held(&SetnxGetset::new(b.clone(), LEASE, later), &name).await;
    between.open();
    let released = soon("the release", releasing).await.expect("no panic");
    assert_eq!(released.expect("redis"), Released::Freed);
    assert_eq!(value(&b, &name).await, None, "B's lock has gone");
}

#[tokio::test]
async fn setnx_getset_ends_when_its_holder_has_died() {
    let name = name("getset-dead");
    let clock = Clock::default();
    let lock = SetnxGetset::new(line("a").await, LEASE, clock.clone());
    drop(held(&lock, &name).await);
    assert!(is_contended(&lock, &name).await);
    clock.jump_ms(31_000);
    let _next = held(&lock, &name).await;
}

/// A lock that only one Redis knows is gone with that Redis.
#[tokio::test]
async fn one_node_that_forgets_lets_two_in() {
    let nodes = super::nodes(1).await;
    let name = name("forgotten");
    let [line] = super::lines("a", &nodes).await.try_into().expect("one");
    let token = TokenLock::new(line.clone(), LEASE);
    let first = held(&token, &name).await;
    super::nodes::forget(&nodes[0]).await;
    let second = soon("the second", token.acquire(&name, super::SOON)).await;
    assert!(second.expect("redis").held().is_some());
    assert!(!first.lost().is_lost(), "and the first knows nothing of it");
}
