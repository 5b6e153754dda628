//! The known bugs of the big lock libraries: one test for each, named after it.

use super::{
    ONCE, SOON, acquiring, gone, held, is_contended, let_in, line, name, pttl, soon, stage::Stage,
    turned_away, until,
};
use flash_sale::lock::{
    Acquired, Guard, Lock, LockError, ReentrantLock, Released, TokenLock, Why, fencing,
    wire::{Line, Meter},
};
use redis::cmd;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(60);
/// Long enough for a slow machine to renew in time, short enough to wait for.
const SHORT: Duration = Duration::from_secs(1);

async fn watched(client: &str) -> (Line, Arc<Stage>) {
    let stage = Stage::new();
    (line(client).await.watched_by(stage.clone()), stage)
}

// --- the watchdog

#[tokio::test]
async fn a_watchdog_that_outlives_its_unlock() {
    let (line, stage) = watched("a").await;
    let name = name("outlives");
    let lock = TokenLock::new(line.clone(), SHORT).renewed();
    let renewing = stage.hold("token_renew");
    let guard = held(&lock, &name).await;
    // A renewal is on its way at this very moment.
    renewing.reached().await;
    assert_eq!(
        soon("the release", guard.release()).await.expect("redis"),
        Released::Freed
    );
    renewing.open();
    // Whoever comes next is not renewed either, and no renewal is ever sent.
    drop(held(&TokenLock::new(line.clone(), SHORT), &name).await);
    gone(&line, &name).await;
    assert_eq!(stage.answered("token_renew"), 0);
}

#[tokio::test]
async fn a_watchdog_that_renews_for_ever_after_a_failed_unlock() {
    let (line, stage) = watched("a").await;
    for (name, script) in [
        (name("failed"), "token_re"),
        (name("failed"), "reentrant_re"),
    ] {
        let unlock = format!("{script}lease");
        let renewal = format!("{script}new");
        stage.fail(&unlock, 3);
        let released = if script == "token_re" {
            let guard = held(&TokenLock::new(line.clone(), SHORT).renewed(), &name).await;
            until("it is renewed", async || stage.answered(&renewal) > 0).await;
            guard.release().await
        } else {
            let guard = held(&ReentrantLock::new(line.clone(), SHORT).renewed(), &name).await;
            until("it is renewed", async || stage.answered(&renewal) > 0).await;
            guard.release().await
        };
        assert!(
            matches!(released, Err(LockError::Unreachable { .. })),
            "{released:?}"
        );
        gone(&line, &name).await;
    }
}

#[tokio::test]
async fn a_watchdog_of_an_abandoned_acquire() {
    let (line, stage) = watched("a").await;
    let name = name("abandoned");
    let lock = TokenLock::new(line.clone(), LEASE).renewed();
    let answered = stage.hold_after("SET lock");
    let asking = acquiring(lock.clone(), &name, ONCE);
    answered.reached().await;
    assert!(pttl(&line, &name).await > 0, "Redis has given the lock");
    asking.abort();
    // Not after the lease of a minute: it is given back.
    gone(&line, &name).await;
    assert_eq!(stage.answered("token_renew"), 0);
}

#[tokio::test]
async fn a_watchdog_of_a_dropped_guard() {
    let (line, stage) = watched("a").await;
    for renewal in ["token_renew", "reentrant_renew"] {
        let name = name("dropped");
        let lost = if renewal == "token_renew" {
            let guard = held(&TokenLock::new(line.clone(), SHORT).renewed(), &name).await;
            until("it is renewed", async || stage.answered(renewal) > 0).await;
            guard.lost()
        } else {
            let guard = held(&ReentrantLock::new(line.clone(), SHORT).renewed(), &name).await;
            until("it is renewed", async || stage.answered(renewal) > 0).await;
            guard.lost()
        };
        assert_eq!(soon("the end", lost).await, Why::Released);
        gone(&line, &name).await;
    }
}

#[tokio::test]
async fn a_watchdog_that_stops_after_one_failed_renewal() {
    let (line, stage) = watched("a").await;
    let name = name("one-failure");
    stage.fail("token_renew", 1);
    stage.lose("token_renew", 1);
    let guard = held(&TokenLock::new(line.clone(), SHORT).renewed(), &name).await;
    // Two leases' worth of renewals.
    until("it goes on", async || stage.answered("token_renew") >= 7).await;
    assert!(!guard.lost().is_lost());
    assert_eq!(guard.release().await.expect("redis"), Released::Freed);
}

#[tokio::test]
async fn a_holder_that_hears_nothing_when_its_renewals_fail() {
    let (line, stage) = watched("a").await;
    let name = name("unreachable");
    stage.fail("renew", u32::MAX);
    let guard = held(&TokenLock::new(line.clone(), SHORT).renewed(), &name).await;
    assert!(!guard.lost().is_lost());
    assert_eq!(soon("it is told", guard.lost()).await, Why::LeaseOver);
    gone(&line, &name).await;
    // Once lost stays lost, also when the network is back.
    stage.clear();
    assert_eq!(guard.release().await.expect("redis"), Released::NotHeld);
}

#[tokio::test]
async fn a_holder_that_hears_nothing_when_its_lock_is_taken_away() {
    let line = line("a").await;
    let name = name("taken");
    let guard = held(&ReentrantLock::new(line.clone(), SHORT).renewed(), &name).await;
    let _: u32 = line.send(cmd("DEL").arg(&name)).await.expect("DEL");
    assert_eq!(soon("it is told", guard.lost()).await, Why::NotOurs);
    assert_eq!(guard.release().await.expect("redis"), Released::NotHeld);
}

// --- waiting

#[tokio::test]
async fn a_missed_wake_up() {
    let name = name("wake-up");
    let holder = ReentrantLock::new(line("a").await, LEASE);
    let guard = held(&holder, &name).await;
    let (line, stage) = watched("b").await;
    let subscribing = stage.hold("SUBSCRIBE");
    let waiting = acquiring(ReentrantLock::new(line, LEASE), &name, LEASE);
    subscribing.reached().await;
    // Freed, and said so, before the waiter listens.
    assert_eq!(guard.release().await.expect("redis"), Released::Freed);
    subscribing.open();
    drop(let_in(waiting).await);
}

#[tokio::test]
async fn a_wake_up_that_comes_to_somebody_who_went_away() {
    let name = name("passed-on");
    let holder = ReentrantLock::new(line("a").await, LEASE);
    let guard = held(&holder, &name).await;
    // Two waiters of one process, on one connection: one message wakes one of them.
    let shared = line("b").await;
    let (stages, mut waiting): (Vec<_>, Vec<_>) = ["b1", "b2"]
        .map(|client| {
            let stage = Stage::new();
            let line = shared.clone().of(client).watched_by(stage.clone());
            let (lock, name) = (ReentrantLock::new(line, LEASE), name.clone());
            let waiting = tokio::spawn(async move { lock.acquire(&name, LEASE).await });
            (stage, waiting)
        })
        .into_iter()
        .unzip();
    for stage in &stages {
        until("both wait", async || {
            stage.answered("reentrant_acquire") >= 2
        })
        .await;
    }
    let gates: Vec<_> = stages
        .iter()
        .map(|stage| stage.hold("reentrant_acquire"))
        .collect();
    assert_eq!(guard.release().await.expect("redis"), Released::Freed);
    // One of them is woken, and goes away before it has tried.
    let woken = tokio::select! {
        () = gates[0].reached() => 0,
        () = gates[1].reached() => 1,
    };
    waiting.remove(woken).abort();
    gates.iter().for_each(super::stage::Gate::open);
    let other = soon("the other is let in", waiting.remove(0)).await;
    assert!(other.expect("no panic").expect("redis").held().is_some());
}

#[tokio::test]
async fn a_wake_up_that_is_lost_with_its_connection() {
    // One of its own, for all its subscribers will be cut off.
    let nodes = super::nodes(1).await;
    let [holder] = super::lines("a", &nodes).await.try_into().expect("one");
    let [line] = super::lines("b", &nodes).await.try_into().expect("one");
    let name = name("cut-off");
    let guard = held(&ReentrantLock::new(holder.clone(), LEASE), &name).await;
    let stage = Stage::new();
    let line = line.watched_by(stage.clone());
    let waiting = acquiring(ReentrantLock::new(line, LEASE), &name, LEASE);
    until("it waits", async || {
        stage.answered("reentrant_acquire") >= 2
    })
    .await;
    // The message comes while nobody listens.
    let again = stage.hold("SUBSCRIBE");
    let killed: u32 = holder
        .send(cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub"))
        .await
        .expect("CLIENT KILL");
    assert_eq!(killed, 1);
    again.reached().await;
    assert_eq!(guard.release().await.expect("redis"), Released::Freed);
    again.open();
    drop(let_in(waiting).await);
}

#[tokio::test]
async fn waiting_asks_once_and_is_woken() {
    let name = name("woken");
    let guard = held(&ReentrantLock::new(line("a").await, LEASE), &name).await;
    let meter = Meter::default();
    let (line, stage) = watched("b").await;
    let lock = ReentrantLock::new(line.counted_by(&meter), LEASE);
    let waiting = acquiring(lock, &name, LEASE);
    until("it waits", async || {
        stage.answered("reentrant_acquire") >= 2
    })
    .await;
    assert_eq!(guard.release().await.expect("redis"), Released::Freed);
    drop(let_in(waiting).await);
    // Tried, subscribed, tried again, was woken, tried; and at most once gave the scripts' source.
    let asked = meter.round_trips().redis;
    assert!((4..=5).contains(&asked), "{asked}: {:?}", stage.texts());
}

// --- lost replies

#[tokio::test]
async fn an_unlock_reply_that_is_lost() {
    let (line, stage) = watched("a").await;
    stage.lose("token_release", 1);
    let token = held(&TokenLock::new(line.clone(), LEASE), &name("unlock")).await;
    assert_eq!(token.release().await.expect("redis"), Released::Freed);

    // With one holding left it is still held, and given back once, not twice.
    let name = name("unlock");
    let lock = ReentrantLock::new(line.clone(), LEASE);
    let outer = held(&lock, &name).await;
    let inner = held(&lock, &name).await;
    stage.lose("reentrant_release", 1);
    assert_eq!(
        inner.release().await.expect("redis"),
        Released::StillHeld { count: 1 }
    );
    stage.lose("reentrant_release", 1);
    assert_eq!(outer.release().await.expect("redis"), Released::Freed);
    assert_eq!(pttl(&line, &name).await, -2);
}

#[tokio::test]
async fn a_retried_acquire_that_counts_twice() {
    let (line, stage) = watched("a").await;
    let name = name("retried");
    stage.lose("reentrant_acquire", 2);
    let lock = ReentrantLock::new(line.clone(), LEASE);
    let guard = lock
        .acquire(&name, SOON)
        .await
        .expect("redis")
        .held()
        .expect("free");
    assert_eq!((guard.count(), guard.fencing()), (1, Some(1)));
    assert_eq!(guard.release().await.expect("redis"), Released::Freed);
    assert_eq!(pttl(&line, &name).await, -2);
}

#[tokio::test]
async fn a_retried_acquire_that_waits_for_itself() {
    let (line, stage) = watched("a").await;
    for fenced in [false, true] {
        let name = name("itself");
        let lock = TokenLock::new(line.clone(), LEASE);
        let lock = if fenced { lock.fenced() } else { lock };
        stage.lose(if fenced { "token_acquire" } else { "SET lock" }, 1);
        let guard = soon("its own lock", lock.acquire(&name, LEASE)).await;
        let guard = guard.expect("redis").held().expect("free");
        assert_eq!(guard.fencing(), fenced.then_some(1));
        assert_eq!(guard.release().await.expect("redis"), Released::Freed);
    }
}

#[tokio::test]
async fn contended_and_unreachable_are_different_answers() {
    let nowhere = Line::new("redis://127.0.0.1:1").expect("a url");
    let name = name("answers");
    let unreachable = TokenLock::new(nowhere, LEASE).acquire(&name, ONCE).await;
    assert!(
        matches!(unreachable, Err(LockError::Unreachable { .. })),
        "{unreachable:?}"
    );
    let line = line("a").await;
    let lock = ReentrantLock::new(line.clone(), LEASE);
    let _guard = held(&lock, &name).await;
    let contended = lock.another_owner().acquire(&name, ONCE).await;
    let Ok(Acquired::Contended {
        remaining: Some(remaining),
    }) = contended
    else {
        panic!("{contended:?}");
    };
    assert!(remaining <= LEASE && remaining > LEASE / 2, "{remaining:?}");
    // A key of another type is neither, and is not asked again and again.
    let token = TokenLock::new(line, LEASE);
    let refused = soon("an answer", token.acquire(&name, LEASE)).await;
    assert!(
        matches!(refused, Err(LockError::Refused { .. })),
        "{refused:?}"
    );
}

// --- what is believed

#[tokio::test]
async fn a_lock_returned_as_held_when_its_validity_has_gone() {
    for lost_before in [false, true] {
        let (line, stage) = watched("a").await;
        let name = name("validity");
        if lost_before {
            // The reply to the first attempt is lost; the second finds its own token, whose lease began with
            // the first.
            stage.lose("SET lock", 1);
        }
        let answered = stage.hold_after("SET lock");
        let wait = if lost_before { SHORT / 2 } else { ONCE };
        let lock = TokenLock::new(line, SHORT);
        let asking = acquiring(lock, &name, wait);
        answered.reached().await;
        gone(&super::line("looker").await, &name).await;
        answered.open();
        turned_away(asking).await;
    }
}

/// What is late is the request: Redis has only just given the lock. But nobody can know that who hears of it
/// after a lease.
#[tokio::test]
async fn a_lock_returned_as_held_when_its_first_request_was_delayed() {
    for request in ["SET lock", "token_acquire", "reentrant_acquire"] {
        let (line, stage) = watched("a").await;
        let name = name("delayed");
        let delayed = stage.hold(request);
        let asking = tokio::spawn({
            let (line, name) = (line.clone(), name.clone());
            async move {
                let token = TokenLock::new(line.clone(), SHORT);
                match request {
                    "SET lock" => token.acquire(&name, ONCE).await.map(is_held),
                    "token_acquire" => token.fenced().acquire(&name, ONCE).await.map(is_held),
                    _ => {
                        let lock = ReentrantLock::new(line, SHORT);
                        lock.acquire(&name, ONCE).await.map(is_held)
                    }
                }
            }
        });
        delayed.reached().await;
        // Time is the subject here: a lease passes.
        tokio::time::sleep(SHORT).await;
        delayed.open();
        let held = soon("an answer", asking).await.expect("no panic");
        assert!(!held.expect("redis"), "{request}");
        until("it is given back", async || stage.answered("release") > 0).await;
        assert_eq!(pttl(&line, &name).await, -2, "{request}");
    }
}

fn is_held<G>(acquired: Acquired<G>) -> bool {
    acquired.held().is_some()
}

/// The reply to the first request was lost, and it took a while until a second one got through: the lease began
/// with the first.
#[tokio::test]
async fn a_retried_acquire_that_vouches_for_longer_than_its_lease() {
    for request in ["SET lock", "token_acquire", "reentrant_acquire"] {
        let (line, stage) = watched("a").await;
        let looker = self::line("looker").await;
        let name = name("vouches");
        stage.lose(request, 1);
        stage.fail(request, u32::MAX);
        let asking = tokio::spawn({
            let name = name.clone();
            async move {
                let token = TokenLock::new(line.clone(), LEASE);
                let guard: Result<Box<dyn Vouching>, LockError> = match request {
                    "SET lock" => token.acquire(&name, SOON).await.map(boxed),
                    "token_acquire" => token.fenced().acquire(&name, SOON).await.map(boxed),
                    _ => {
                        let lock = ReentrantLock::new(line, LEASE);
                        lock.acquire(&name, SOON).await.map(boxed)
                    }
                };
                guard.expect("redis")
            }
        });
        is_older_than_its_drift(&looker, &name).await;
        stage.clear();
        let guard = soon("its own lock", asking).await.expect("no panic");
        vouches_for_no_more_than_redis(&*guard, &looker, &name).await;
    }
}

/// A request that was given up as lost arrives after a later one has had its answer: the retry that finds its
/// token must count from before.
#[tokio::test]
async fn a_delayed_request_that_takes_the_lock_after_a_later_answer() {
    let (line, stage) = watched("a").await;
    let looker = self::line("looker").await;
    let name = name("straggler");
    let theirs = held(&TokenLock::new(looker.clone(), LEASE), &name).await;
    stage.fail("SET lock", 1); // to our client; in truth it is on its way
    let refused = stage.hold_after("SET lock");
    let asking = acquiring(TokenLock::new(line, LEASE), &name, SOON);
    refused.reached().await;
    assert_eq!(theirs.release().await.expect("redis"), Released::Freed);
    let straggler = stage.texts().swap_remove(0);
    let mut words = straggler.split(' ');
    let mut command = cmd(words.next().expect("SET"));
    words.for_each(|word| {
        command.arg(word);
    });
    let before: Option<String> = looker.send(&command).await.expect("SET");
    assert_eq!(before, None, "{straggler} takes it");
    is_older_than_its_drift(&looker, &name).await;
    refused.open();
    let guard = soon("its own lock", asking).await.expect("no panic");
    let guard = guard.expect("redis").held().expect("ours");
    vouches_for_no_more_than_redis(&guard, &looker, &name).await;
}

/// Until so much of the lease has passed that what is left out for drift cannot hide it.
async fn is_older_than_its_drift(line: &Line, name: &str) {
    let enough = LEASE - 2 * flash_sale::lock::drift(LEASE);
    until("the lease has run for a while", async || {
        let left = pttl(line, name).await;
        u64::try_from(left).is_ok_and(|left| Duration::from_millis(left) < enough)
    })
    .await;
}

async fn vouches_for_no_more_than_redis(guard: &dyn Vouching, line: &Line, name: &str) {
    let sure_until = guard.sure_until().expect("a lease");
    let left = u64::try_from(pttl(line, name).await).expect("it has an end");
    let end = Instant::now() + Duration::from_millis(left + 1);
    assert!(
        sure_until <= end,
        "{name}: for {:?} too long",
        sure_until - end
    );
}

/// Of a guard of any lock: until when it says that its holder can be sure.
trait Vouching: Send {
    fn sure_until(&self) -> Option<Instant>;
}

impl<G: Guard> Vouching for G {
    fn sure_until(&self) -> Option<Instant> {
        self.lost().sure_until()
    }
}

fn boxed<G: Guard>(acquired: Acquired<G>) -> Box<dyn Vouching> {
    Box::new(acquired.held().expect("ours"))
}

#[tokio::test]
async fn an_unlock_of_somebody_elses_lock_reported_as_success() {
    let (a, b) = (line("a").await, line("b").await);
    let name_of_token = name("theirs");
    let late = held(&TokenLock::new(a.clone(), SHORT), &name_of_token).await;
    assert_eq!(soon("its end", late.lost()).await, Why::LeaseOver);
    gone(&a, &name_of_token).await;
    let theirs = held(&TokenLock::new(b.clone(), LEASE), &name_of_token).await;
    assert_eq!(late.release().await.expect("redis"), Released::NotHeld);
    assert_eq!(theirs.release().await.expect("redis"), Released::Freed);

    let name_of_reentrant = name("theirs");
    let late = held(&ReentrantLock::new(a.clone(), SHORT), &name_of_reentrant).await;
    gone(&a, &name_of_reentrant).await;
    let theirs = held(&ReentrantLock::new(b, LEASE), &name_of_reentrant).await;
    assert_eq!(late.release().await.expect("redis"), Released::NotHeld);
    assert_eq!(theirs.release().await.expect("redis"), Released::Freed);
}

#[tokio::test]
async fn a_short_second_holding_that_ends_the_first() {
    let line = line("a").await;
    let name = name("shorter");
    let long = ReentrantLock::new(line.clone(), LEASE);
    let outer = held(&long, &name).await;
    let inner = held(&long.clone().with_lease(SHORT), &name).await;
    assert_eq!(inner.count(), 2);
    assert!(is_contended(&long.another_owner(), &name).await);
    assert!(pttl(&line, &name).await > 30_000, "the first one's lease");
    assert_eq!(
        inner.release().await.expect("redis"),
        Released::StillHeld { count: 1 }
    );
    assert!(pttl(&line, &name).await > 30_000);
    assert_eq!(outer.release().await.expect("redis"), Released::Freed);
}

// --- the resource's side

#[tokio::test]
async fn fencing_refuses_the_older_number() {
    use fencing::{PostgresResource, RedisResource, Write};
    let line = line("a").await;
    let name = name("fenced");
    let lock = TokenLock::new(line.clone(), SHORT).fenced();
    let sleeper = held(&lock, &name).await;
    gone(&line, &name).await;
    let successor = held(&lock, &name).await;
    let (old, new) = (
        sleeper.fencing().expect("one"),
        successor.fencing().expect("one"),
    );
    assert!(old < new);

    let resource = format!("{name}:resource");
    let in_redis = RedisResource::new(line);
    let in_postgres = PostgresResource::new(flash_sale::lock::wire::Sql::new(super::pool(2).await));
    for (number, expected) in [
        (old, Write::Applied),
        (new, Write::Applied),
        (old, Write::Refused { newest: new }),
        (new, Write::Applied),
    ] {
        assert_eq!(
            in_redis.write(&resource, number, "v").await.expect("redis"),
            expected
        );
        assert_eq!(
            in_postgres
                .write(&resource, number, "v")
                .await
                .expect("postgres"),
            expected
        );
    }
}

// --- the wire

#[tokio::test]
async fn a_watcher_sees_which_line_of_which_lock_asks() {
    let (line, stage) = watched("shopper").await;
    let name = name("seen");
    let _guard = held(&TokenLock::new(line, LEASE), &name).await;
    let seen = stage.last().expect("a request");
    assert_eq!((&*seen.client, &*seen.node), ("shopper", "redis"));
    assert!(
        seen.text.starts_with(&format!("SET {name} shopper-")),
        "{}",
        seen.text
    );
    assert!(seen.text.ends_with(" NX GET PX 60000"), "{}", seen.text);
    assert_eq!(seen.file, "src/lock/token.rs");
    let source = std::fs::read_to_string(format!("{}/{}", env!("CARGO_MANIFEST_DIR"), seen.file));
    let source = source.expect("the source");
    let line = source
        .lines()
        .nth(seen.line as usize - 1)
        .expect("the line");
    assert!(line.contains(".send("), "{line}");
}
