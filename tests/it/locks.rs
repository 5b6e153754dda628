//! Known bugs of the big libraries that no lesson (`lab::lessons`) plays; historical locks.

use crate::support::Servers;
use crate::support::locks::*;
use crate::support::plant::buggy_redis;
use locks::fencing::Write;
use locks::wire::{Clock, Meter};
use redis::cmd;

/// Long enough for a slow machine to renew in time, short enough to wait for.
const SHORT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_script_that_redis_has_forgotten_again_by_the_time_it_is_called() {
    let socket = Servers::shared().await.redis.socket();
    let forgotten = |mut command: Vec<Vec<u8>>| {
        let is_call = command[0].eq_ignore_ascii_case(b"EVALSHA");
        is_call.then(|| command[1] = b"0".repeat(40));
        command
    };
    let line = slow_line(&buggy_redis(socket, forgotten).await);
    let (lock, name) = (TokenLock::new(line, LEASE).fenced(), name("forgotten"));
    freed(held(&lock, &name).await).await;
    drop(held(&lock, &name).await);
}

#[tokio::test]
async fn a_watchdog_that_outlives_its_unlock() {
    let (line, interceptor, name) = watched("outlives").await;
    let lock = TokenLock::new(line.clone(), 3 * SHORT).renewed();
    let renewing = interceptor.hold("token_renew");
    let guard = held(&lock, &name).await;
    renewing.reached().await;
    freed(guard).await;
    renewing.resume();
    // The next holder is not renewed either, and no renewal is ever sent.
    drop(held(&TokenLock::new(line.clone(), SHORT), &name).await);
    gone(&line, &name).await;
    assert_eq!(interceptor.answered("token_renew"), 0);
}

async fn renewed<L: Lock>(lock: L, name: &str, interceptor: &Interceptor) -> Held<L> {
    let guard = held(&lock, name).await;
    wait_for!(interceptor.answered(&format!("renew*{name}")) > 0);
    guard
}

async fn ends_with_its_guard<L: Lock>(make: impl Fn(Line) -> L) {
    let (line, interceptor, name) = watched("failed").await;
    let guard = renewed(make(line.clone()), &name, &interceptor).await;
    interceptor.fail("release", u32::MAX);
    assert_unreachable(guard.release().await);
    gone(&line, &name).await;
    let (line, interceptor, name) = watched("dropped").await;
    let lost = renewed(make(line.clone()), &name, &interceptor).await.lost();
    assert_eq!(soon("the end", lost).await, Why::Released);
    gone(&line, &name).await;
}

#[tokio::test]
async fn a_watchdog_that_renews_for_ever_after_a_failed_unlock_or_of_a_dropped_guard() {
    let token = |line| TokenLock::new(line, 3 * SHORT).renewed();
    let reentrant = |line| ReentrantLock::new(line, 3 * SHORT).renewed();
    tokio::join!(ends_with_its_guard(token), ends_with_its_guard(reentrant));
}

#[tokio::test]
async fn a_watchdog_of_an_abandoned_acquire() {
    let (line, interceptor, name) = watched("abandoned").await;
    let lock = TokenLock::new(line.clone(), LEASE).renewed();
    let answered = interceptor.hold_after("SET lock");
    let asking = acquiring(lock.clone(), &name, ONCE);
    answered.reached().await;
    assert!(pttl(&line, &name).await > 0, "Redis has given the lock");
    asking.abort();
    gone(&line, &name).await;
    assert_eq!(interceptor.answered("token_renew"), 0);
}

#[tokio::test]
async fn a_watchdog_that_stops_after_a_lost_reply() {
    let (line, interceptor, name) = watched("one-failure").await;
    interceptor.lose("token_renew", 1);
    let guard = held(&TokenLock::new(line, 2 * SHORT).renewed(), &name).await;
    wait_for!(interceptor.answered("token_renew") >= 4);
    assert!(!guard.lost().is_lost());
    freed(guard).await;
}

#[tokio::test]
async fn a_holder_whose_renewals_failed_stays_lost_when_the_network_is_back() {
    let (line, interceptor, name) = watched("unreachable").await;
    interceptor.fail("renew", u32::MAX);
    let guard = held(&TokenLock::new(line.clone(), SHORT).renewed(), &name).await;
    assert_eq!(soon("it is told", guard.lost()).await, Why::LeaseOver);
    gone(&line, &name).await;
    interceptor.clear();
    not_held(guard).await;
}

#[tokio::test]
async fn a_holder_that_hears_nothing_when_its_lock_is_taken_away() {
    let line = line("a").await;
    let name = name("taken");
    let guard = held(&ReentrantLock::new(line.clone(), 3 * SHORT).renewed(), &name).await;
    let _: u32 = line.send(cmd("DEL").arg(&name)).await.expect("DEL");
    assert_eq!(soon("it is told", guard.lost()).await, Why::NotOurs);
    not_held(guard).await;
}

async fn waits(interceptor: &Interceptor) {
    wait_for!(interceptor.answered("reentrant_acquire") >= 2);
}

#[tokio::test]
async fn a_wake_up_that_comes_to_somebody_who_went_away() {
    let name = name("passed-on");
    let guard = held(&ReentrantLock::new(line("a").await, LEASE), &name).await;
    // Two waiters of one process, on one connection: one message wakes one of them.
    let shared = line("b").await;
    let wait = async |client: &str| -> (Breakpoint, Acquiring<_>) {
        let interceptor = Interceptor::new();
        let line = shared.clone().of(client).watched_by(interceptor.clone());
        let waiting = acquiring(ReentrantLock::new(line, LEASE), &name, LEASE);
        waits(&interceptor).await;
        (interceptor.hold("reentrant_acquire"), waiting)
    };
    let [one, other] = [wait("b1").await, wait("b2").await];
    freed(guard).await;
    let (woken, other) = tokio::select! {
        () = one.0.reached() => (one, other),
        () = other.0.reached() => (other, one),
    };
    woken.1.abort();
    woken.0.resume();
    other.0.resume();
    let_in(other.1).await;
}

#[tokio::test]
async fn a_wake_up_that_is_lost_with_its_connection() {
    // A Redis of its own, because all its subscribers are cut off.
    let nodes = nodes(1).await;
    let holder = lines("a", &nodes).await.remove(0);
    let (name, interceptor) = (name("cut-off"), Interceptor::new());
    let guard = held(&ReentrantLock::new(holder.clone(), LEASE), &name).await;
    let line = lines("b", &nodes).await.remove(0).watched_by(interceptor.clone());
    let waiting = acquiring(ReentrantLock::new(line, LEASE), &name, LEASE);
    waits(&interceptor).await;
    let again = interceptor.hold("SUBSCRIBE");
    let mut kill = cmd("CLIENT");
    assert_eq!(holder.send(kill.arg("KILL").arg("TYPE").arg("pubsub")).await.ok(), Some(1));
    again.reached().await;
    freed(guard).await;
    again.resume();
    drop(let_in(waiting).await);
}

#[tokio::test]
async fn waiting_asks_once_and_is_woken() {
    let (waiter, interceptor, name) = watched("woken").await;
    let guard = held(&ReentrantLock::new(line("a").await, LEASE), &name).await;
    let meter = Meter::default();
    let waiting = acquiring(ReentrantLock::new(waiter.counted_by(&meter), LEASE), &name, LEASE);
    waits(&interceptor).await;
    freed(guard).await;
    drop(let_in(waiting).await);
    // Tried, subscribed, tried again, tried when woken; and at most once gave the scripts' source.
    assert!((4..=5).contains(&meter.round_trips().redis), "{:?}", interceptor.texts());
}

#[tokio::test]
async fn an_unlock_reply_that_is_lost() {
    let (line, interceptor, of_token) = watched("unlock").await;
    interceptor.lose("token_release", 1);
    freed(held(&TokenLock::new(line.clone(), LEASE), &of_token).await).await;
    let name = name("unlock");
    let lock = ReentrantLock::new(line.clone(), LEASE);
    let outer = held(&lock, &name).await;
    let inner = held(&lock, &name).await;
    interceptor.lose("reentrant_release", 1);
    assert_eq!(released(inner).await, Released::StillHeld { count: 1 });
    interceptor.lose("reentrant_release", 1);
    freed(outer).await;
    is_free(&line, &name).await;
}

#[tokio::test]
async fn a_retried_acquire_that_counts_twice() {
    let (line, interceptor, name) = watched("retried").await;
    interceptor.lose("reentrant_acquire", 2);
    let guard = held_soon(&ReentrantLock::new(line.clone(), LEASE), &name).await;
    assert_eq!((guard.count(), guard.fencing()), (1, Some(1)));
    freed(guard).await;
    is_free(&line, &name).await;
}

#[tokio::test]
async fn a_retried_acquire_that_waits_for_itself() {
    let (line, interceptor, name) = watched("itself").await;
    let plain = TokenLock::new(line, LEASE);
    let fenced = (plain.clone().fenced(), "token_acquire", Some(1));
    for (lock, request, number) in [(plain, "SET lock", None), fenced] {
        interceptor.lose(request, 1);
        let guard = held_soon(&lock, &name).await;
        assert_eq!(guard.fencing(), number);
        freed(guard).await;
    }
}

#[tokio::test]
async fn contended_and_unreachable_are_different_answers() {
    let name = name("answers");
    assert_unreachable(TokenLock::new(unreachable_line(), LEASE).acquire(&name, ONCE).await);
    let line = line("a").await;
    let lock = ReentrantLock::new(line.clone(), LEASE);
    let _guard = held(&lock, &name).await;
    let contended = lock.another_owner().acquire(&name, ONCE).await;
    let Ok(Acquired::Contended { remaining: Some(remaining) }) = contended else {
        panic!("{contended:?}");
    };
    assert!(remaining <= LEASE && remaining > LEASE / 2, "{remaining:?}");
    let refused = soon("an answer", TokenLock::new(line, LEASE).acquire(&name, LEASE)).await;
    assert!(matches!(refused, Err(LockError::Refused { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_lock_returned_as_held_when_its_validity_has_gone() {
    for lost_before in [false, true] {
        let (line, interceptor, name) = watched("validity").await;
        // If its reply is lost the second attempt finds its token, of a lease that began before.
        interceptor.lose("SET lock", u32::from(lost_before));
        let answered = interceptor.hold_after("SET lock");
        turned_away_later(answered, TokenLock::new(line, SHORT), &name, SHORT).await;
    }
}

/// Redis has only just given the lock, but after a lease the client cannot know that.
async fn turned_away_when_delayed<L: Lock>(request: &str, make: impl Fn(Line, Duration) -> L) {
    let (line, interceptor, name) = watched("delayed").await;
    turned_away_later(interceptor.hold(request), make(line.clone(), SHORT), &name, SHORT).await;
    wait_for!(interceptor.answered("release") > 0);
    is_free(&line, &name).await;
}

#[tokio::test]
async fn a_lock_returned_as_held_when_its_first_request_was_delayed() {
    turned_away_when_delayed("SET lock", TokenLock::new).await;
    turned_away_when_delayed("token_acquire", fenced).await;
    turned_away_when_delayed("reentrant_acquire", ReentrantLock::new).await;
}

fn fenced(line: Line, lease: Duration) -> TokenLock {
    TokenLock::new(line, lease).fenced()
}

/// The first reply is lost, and a second request takes a while: the lease began with the first.
async fn vouches_from_the_first<L: Lock>(request: &str, make: impl Fn(Line, Duration) -> L) {
    let (line_of_a, interceptor, name) = watched("vouches").await;
    let observer = line("observer").await;
    interceptor.lose(request, 1);
    interceptor.fail(request, u32::MAX);
    let asking = acquiring(make(line_of_a, LEASE), &name, SOON);
    is_older_than_its_drift(&observer, &name).await;
    interceptor.clear();
    vouches_for_no_more_than_redis(let_in(asking).await, &observer, &name).await;
}

#[tokio::test]
async fn a_retried_acquire_that_vouches_for_longer_than_its_lease() {
    vouches_from_the_first("SET lock", TokenLock::new).await;
    vouches_from_the_first("token_acquire", fenced).await;
    vouches_from_the_first("reentrant_acquire", ReentrantLock::new).await;
}

/// It was given up as lost: the retry that finds its token must count from before.
#[tokio::test]
async fn a_delayed_request_that_takes_the_lock_after_a_later_answer() {
    let (line_of_a, interceptor, name) = watched("straggler").await;
    let observer = line("observer").await;
    let theirs = held(&TokenLock::new(observer.clone(), LEASE), &name).await;
    interceptor.fail("SET lock", 1); // to our client; in truth it is on its way
    let refused = interceptor.hold_after("SET lock");
    let asking = acquiring(TokenLock::new(line_of_a, LEASE), &name, SOON);
    refused.reached().await;
    freed(theirs).await;
    let straggler = interceptor.texts().swap_remove(0);
    let (set, words) = straggler.split_once(' ').expect("SET");
    let words: Vec<&str> = words.split(' ').collect();
    let before: Option<String> = observer.send(cmd(set).arg(words)).await.expect("SET");
    assert_eq!(before, None, "{straggler} takes it");
    is_older_than_its_drift(&observer, &name).await;
    refused.resume();
    vouches_for_no_more_than_redis(let_in(asking).await, &observer, &name).await;
}

/// Until so much of the lease has passed that the allowance for drift cannot hide it.
async fn is_older_than_its_drift(line: &Line, name: &str) {
    let enough = (LEASE - 2 * locks::drift(LEASE)).as_millis() as i64;
    wait_for!((0..enough).contains(&pttl(line, name).await));
}

async fn vouches_for_no_more_than_redis(guard: Held<impl Protocol>, line: &Line, name: &str) {
    let sure_until = guard.lost().sure_until().expect("a lease");
    let left = u64::try_from(pttl(line, name).await).expect("it has an end");
    let end = Instant::now() + Duration::from_millis(left + 1);
    assert!(sure_until <= end, "for {:?} too long", sure_until - end);
}

async fn lets_a_third_in<L: Lock>(make: impl Fn(Line, Duration) -> L) -> bool {
    let line = line("a").await;
    let others = [(); 2].map(|()| make(line.clone(), LEASE));
    late_release_lets_a_third_in(make(line, SHORT), others).await
}

#[tokio::test]
async fn an_unlock_of_somebody_elses_lock_reported_as_success() {
    let token = TokenLock::new(line("a").await, SHORT);
    assert_eq!(soon("its end", held(&token, &name("theirs")).await.lost()).await, Why::LeaseOver);
    assert!(!lets_a_third_in(TokenLock::new).await);
    assert!(!lets_a_third_in(ReentrantLock::new).await);
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
    assert_eq!(released(inner).await, Released::StillHeld { count: 1 });
    assert!(pttl(&line, &name).await > 30_000);
    freed(outer).await;
}

#[tokio::test]
async fn fencing_refuses_the_older_number() {
    let line = line("a").await;
    let name = name("fenced");
    let lock = fenced(line.clone(), SHORT);
    let sleeper = held(&lock, &name).await;
    gone(&line, &name).await;
    let [old, new] = [sleeper, held(&lock, &name).await].map(|guard| guard.fencing().expect("one"));
    assert!(old < new);
    let resource = format!("{name}:resource");
    let sql = Sql::new(pool(2).await);
    for (number, expected) in [
        (old, Write::Applied),
        (new, Write::Applied),
        (old, Write::Refused { newest: new }),
        (new, Write::Applied),
    ] {
        assert_eq!(line.write_fenced(&resource, number, "v").await.expect("redis"), expected);
        assert_eq!(sql.write_fenced(&resource, number, "v").await.expect("postgres"), expected);
    }
}

#[tokio::test]
async fn setnx_expire_and_set_px_no_owner_delete_somebody_elses_lock() {
    assert!(lets_a_third_in(SetnxExpire::new).await);
    assert!(lets_a_third_in(SetPxNoOwner::new).await);
}

#[tokio::test]
async fn setnx_getset_check_then_delete_deletes_somebody_elses_lock() {
    let (line_of_a, interceptor, name) = watched("getset-late").await;
    let guard = held(&SetnxGetset::new(line_of_a, LEASE, Clock::default()), &name).await;
    let between = interceptor.hold("DEL");
    let releasing = tokio::spawn(freed(guard));
    between.reached().await;
    // A has seen that its lease is not over; by B's clock it is.
    let fast = Clock::default();
    fast.set_offset_ms(61_000);
    let line = line("b").await;
    let _second = held(&SetnxGetset::new(line.clone(), LEASE, fast), &name).await;
    between.resume();
    releasing.await.expect("freed");
    is_free(&line, &name).await;
}

#[tokio::test]
async fn setnx_getset_ends_when_its_holder_has_died() {
    let name = name("getset-dead");
    let clock = Clock::default();
    let lock = SetnxGetset::new(line("a").await, LEASE, clock.clone());
    drop(held(&lock, &name).await);
    assert!(is_contended(&lock, &name).await);
    clock.set_offset_ms(61_000);
    let _next = held(&lock, &name).await;
}
