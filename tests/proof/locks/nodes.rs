//! Several independent Redis nodes: all of them, or a majority.

use crate::support::locks::*;

const SHORT: Duration = Duration::from_secs(1);

async fn watched(client: &str, nodes: &[RedisServer]) -> (Vec<Line>, Arc<Interceptor>) {
    let interceptor = Interceptor::new();
    let lines = lines(client, nodes).await.into_iter();
    (lines.map(|line| line.watched_by(interceptor.clone())).collect(), interceptor)
}

pub fn apart(lines: &[Line]) -> Vec<Line> {
    lines.iter().map(Line::another_connection).collect()
}

async fn all_free(lines: &[Line], name: &str) {
    for line in lines {
        is_free(line, name).await;
    }
}

pub async fn forget(node: &RedisServer) {
    let pid = node.pid();
    node.kill();
    wait_for!(node.pid().is_some_and(|now| Some(now) != pid));
    node.wait_ready().await.expect("redis");
}

#[tokio::test]
async fn a_multi_lock_release_that_stops_at_the_first_error() {
    let (all, interceptor) = watched("a", three().await).await;
    interceptor.fail("redis-1*token_release", u32::MAX);
    let of_redlock = name("release-all");
    freed(held(&Redlock::new(all.clone(), LEASE), &of_redlock).await).await;
    all_free(&all[1..], &of_redlock).await;
    let of_multi = name("release-all");
    assert_unreachable(held(&MultiLock::new(all.clone(), LEASE), &of_multi).await.release().await);
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

/// By then somebody else has some of them; on broken connections the first attempt is lost.
#[tokio::test]
async fn a_release_on_nodes_that_have_forgotten_is_none() {
    let nodes = nodes(3).await;
    let (all, interceptor) = watched("a", &nodes).await;
    let [of_token, of_reentrant, of_multi, of_redlock] =
        ["token", "reentrant", "multi", "redlock"].map(name);
    let token = held(&TokenLock::new(all[0].clone(), LEASE), &of_token).await;
    let reentrant = held(&ReentrantLock::new(all[0].clone(), LEASE), &of_reentrant).await;
    let multi = held(&MultiLock::new(apart(&all), LEASE), &of_multi).await;
    let redlock = held(&Redlock::new(apart(&all), LEASE), &of_redlock).await;
    join_all(nodes[..2].iter().map(forget)).await;
    let b = lines("b", &nodes[..1]).await.remove(0);
    let theirs = held(&TokenLock::new(b.clone(), LEASE), &of_token).await;
    let theirs_too = held(&ReentrantLock::new(b, LEASE), &of_reentrant).await;
    not_held(token).await;
    not_held(reentrant).await;
    not_held(multi).await;
    // The third node, which has not forgotten, does not answer.
    interceptor.fail("redis-3*token_release", 3);
    not_held(redlock).await;
    freed(theirs).await;
    freed(theirs_too).await;
}

#[tokio::test]
async fn multi_held_when_its_validity_has_gone() {
    let name = name("multi-validity");
    let (all, interceptor) = watched("a", three().await).await;
    let first = interceptor.hold_after("SET lock");
    turned_away_later(first, MultiLock::new(all.clone(), SHORT), &name, SHORT).await;
    all_free(&all, &name).await;
}

#[tokio::test]
async fn several_nodes_are_renewed_and_the_holder_learns_when_a_majority_forgets() {
    let nodes = nodes(3).await;
    let name = name("renewed");
    let (all, interceptor) = watched("a", &nodes).await;
    let guard = held(&Redlock::new(all.clone(), SHORT).renewed(), &name).await;
    wait_for!(interceptor.answered("token_renew") >= 3 * 7);
    assert!(!guard.lost().is_lost());
    // Of another client's nodes a minority is down: the lock is taken, and that is no error.
    let with_a_dead_one = [&all[..2], &[unreachable_line()]].concat();
    assert!(is_contended(&Redlock::new(with_a_dead_one, LEASE), &name).await);
    forget(&nodes[0]).await;
    forget(&nodes[1]).await;
    let why = soon("it is told", guard.lost()).await;
    assert!(matches!(why, Why::NotOurs | Why::LeaseOver), "{why:?}");
}

/// One node has forgotten the lock; with the silent one it is still a majority.
#[tokio::test]
async fn a_silent_node_is_asked_again_before_a_majority_is_given_up() {
    let nodes = nodes(3).await;
    let (all, interceptor) = watched("a", &nodes).await;
    let guard = held(&Redlock::new(all, 3 * SHORT).renewed(), &name("silent")).await;
    forget(&nodes[0]).await;
    interceptor.fail("redis-2*token_renew", 2);
    let before = interceptor.answered("token_renew");
    // Four rounds: that node answers in two of them.
    wait_for!(guard.lost().is_lost() || interceptor.answered("token_renew") >= before + 10);
    assert!(!guard.lost().is_lost());
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
