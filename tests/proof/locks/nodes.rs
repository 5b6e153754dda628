//! Several independent Redis nodes: all of them, or a majority.

use crate::support::locks::*;

const SHORT: Duration = Duration::from_secs(1);

async fn watched(client: &str, nodes: &[RedisServer]) -> (Vec<Line>, Arc<Interceptor>) {
    let interceptor = Interceptor::new();
    let lines = lines(client, nodes).await.into_iter();
    let lines = lines.map(|line| line.watched_by(interceptor.clone()));
    (lines.collect(), interceptor)
}

async fn all_free(lines: &[Line], name: &str) {
    for line in lines {
        is_free(line, name).await;
    }
}

/// Kills a node and waits until it is back, empty. Returns a time at which it was dead.
pub async fn forget(node: &RedisServer) -> Instant {
    let pid = node.pid();
    node.kill();
    let restarted = async || node.pid().is_some_and(|now| Some(now) != pid);
    until("the node is back", restarted).await;
    // Once it has another process nothing is left of the one before.
    let dead = Instant::now();
    node.wait_ready().await.expect("redis");
    dead
}

#[tokio::test]
async fn multi_lets_one_in_and_survives_a_node_that_forgets() {
    let nodes = nodes(3).await;
    let name = name("multi");
    let lock = MultiLock::new(lines("a", &nodes).await, LEASE);
    let guard = held(&lock, &name).await;
    assert!(is_contended(&lock, &name).await);
    forget(&nodes[1]).await;
    let other = MultiLock::new(lines("b", &nodes).await, LEASE);
    assert!(is_contended(&other, &name).await, "two nodes remember");
    // Not all of it was there any more: the second node says so.
    not_held(guard).await;
    freed(held(&other, &name).await).await;
}

#[tokio::test]
async fn a_multi_lock_release_that_stops_at_the_first_error() {
    let (all, interceptor) = watched("a", three().await).await;
    interceptor.fail("redis-1*token_release", u32::MAX);
    let of_redlock = name("release-all");
    freed(held(&Redlock::new(all.clone(), LEASE), &of_redlock).await).await;
    all_free(&all[1..], &of_redlock).await;

    let of_multi = name("release-all");
    let guard = held(&MultiLock::new(all.clone(), LEASE), &of_multi).await;
    assert_unreachable(guard.release().await);
    all_free(&all[1..], &of_multi).await;
}

/// The second node does it and its reply is lost; the third is never reached.
async fn half_acquired<L: Lock>(make: impl Fn(Vec<Line>) -> L) -> LockError {
    let name = name("half");
    let (all, interceptor) = watched("a", three().await).await;
    interceptor.lose("redis-2*SET lock", 1);
    interceptor.fail("redis-3*SET lock", 1);
    let error = make(all.clone()).acquire(&name, ONCE).await.err();
    all_free(&all, &name).await;
    error.expect("no lock")
}

#[tokio::test]
async fn a_failed_acquire_that_leaves_nodes_locked() {
    let error = half_acquired(|all| Redlock::new(all, LEASE)).await;
    assert!(matches!(error, LockError::NoQuorum { got: 1, needed: 2 }), "{error:?}");
    assert_unreachable::<()>(Err(half_acquired(|all| MultiLock::new(all, LEASE)).await));
}

/// A node that is asked again after its connection broke, and that has nothing, has freed nothing.
#[tokio::test]
async fn a_release_on_nodes_that_have_forgotten_is_none() {
    let nodes = nodes(3).await;
    let name = name("forgotten");
    let (all, interceptor) = watched("a", &nodes).await;
    let guard = held(&Redlock::new(all, LEASE), &name).await;
    forget(&nodes[0]).await;
    forget(&nodes[1]).await;
    interceptor.fail("redis-3*token_release", 3);
    not_held(guard).await;
}

/// A single node has forgotten, and somebody else has the lock by then.
#[tokio::test]
async fn a_release_on_a_redis_that_has_forgotten_is_none() {
    let nodes = nodes(1).await;
    let a = lines("a", &nodes).await.remove(0);
    let [of_token, of_reentrant] = ["token", "reentrant"].map(name);
    let token = held(&TokenLock::new(a.clone(), LEASE), &of_token).await;
    let reentrant = held(&ReentrantLock::new(a, LEASE), &of_reentrant).await;
    forget(&nodes[0]).await;
    let b = lines("b", &nodes).await.remove(0);
    let theirs = held(&TokenLock::new(b.clone(), LEASE), &of_token).await;
    let theirs_too = held(&ReentrantLock::new(b, LEASE), &of_reentrant).await;
    // Each has a connection that is broken: the first attempt has no answer.
    not_held(token).await;
    not_held(reentrant).await;
    freed(theirs).await;
    freed(theirs_too).await;
}

#[tokio::test]
async fn redlock_lets_one_in_while_a_minority_is_down() {
    let nodes = nodes(2).await;
    let name = name("redlock");
    let with_a_dead_one = async |client: &str| {
        let mut all = lines(client, &nodes).await;
        all.push(unreachable_line());
        Redlock::new(all, LEASE)
    };
    let guard = held(&with_a_dead_one("a").await, &name).await;
    assert!(is_contended(&with_a_dead_one("b").await, &name).await);
    freed(guard).await;
}

/// By the time the last node gives the lock, the lease on the first is over.
#[tokio::test]
async fn multi_held_when_its_validity_has_gone() {
    let name = name("multi-validity");
    let (all, interceptor) = watched("a", three().await).await;
    let first = interceptor.hold_after("SET lock");
    let asking = acquiring(MultiLock::new(all, SHORT), &name, ONCE);
    first.reached().await;
    let observers = lines("observer", three().await).await;
    gone(&observers[0], &name).await;
    first.resume();
    turned_away(asking).await;
    all_free(&observers, &name).await;
}

#[tokio::test]
async fn several_nodes_are_renewed_and_the_holder_learns_when_a_majority_forgets() {
    let nodes = nodes(3).await;
    let name = name("renewed");
    let (all, interceptor) = watched("a", &nodes).await;
    let guard = held(&Redlock::new(all, SHORT).renewed(), &name).await;
    until("two leases' worth", async || interceptor.answered("token_renew") >= 3 * 7).await;
    assert!(!guard.lost().is_lost());
    forget(&nodes[0]).await;
    forget(&nodes[1]).await;
    let why = soon("it is told", guard.lost()).await;
    assert!(matches!(why, Why::NotOurs | Why::LeaseOver), "{why:?}");
}

#[tokio::test]
async fn a_late_release_of_several_nodes_touches_nobody_elses() {
    let all = lines("a", three().await).await;
    let majority = |lease| Redlock::new(all.clone(), lease);
    let every_node = |lease| MultiLock::new(all.clone(), lease);
    let others = [every_node(LEASE), every_node(LEASE)];
    assert!(!late_release_lets_a_third_in(majority(SHORT), others).await);
    let others = [majority(LEASE), majority(LEASE)];
    assert!(!late_release_lets_a_third_in(every_node(SHORT), others).await);
}

/// A holder that dies says nothing: the leases end it.
#[tokio::test]
async fn several_nodes_end_by_themselves() {
    let [of_redlock, of_multi] = ["redlock", "multi"].map(name);
    let all = lines("a", three().await).await;
    drop(held(&Redlock::new(all.clone(), SHORT), &of_redlock).await);
    drop(held(&MultiLock::new(all.clone(), SHORT), &of_multi).await);
    let next = MultiLock::new(all, LEASE);
    for name in [of_redlock, of_multi] {
        freed(held_soon(&next, &name).await).await;
    }
}
