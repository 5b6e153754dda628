//! Several independent Redis nodes: all of them, or a majority.

use super::{
    ONCE, SOON, acquiring, gone, held, is_contended, lines, name, nodes, pttl, soon, stage::Stage,
    three, turned_away, until,
};
use flash_sale::{
    embedded::RedisServer,
    lock::{Guard, Lock, LockError, MultiLock, Redlock, ReentrantLock, Released, TokenLock, Why},
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(1);

/// A client's lines, watched.
async fn watched(
    client: &str,
    nodes: &[RedisServer],
) -> (Vec<flash_sale::lock::wire::Line>, Arc<Stage>) {
    let stage = Stage::new();
    let lines = lines(client, nodes).await.into_iter();
    (
        lines.map(|line| line.watched_by(stage.clone())).collect(),
        stage,
    )
}

/// Kills a node and waits until it is back, empty. Answers a time at which it was dead.
pub async fn forget(node: &RedisServer) -> Instant {
    let pid = node.pid();
    node.kill();
    until("the node is back", async || {
        node.pid().is_some_and(|now| Some(now) != pid)
    })
    .await;
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
    // The forgetful node says so, once its old connection has failed: not all of it was there any more.
    assert_eq!(guard.release().await.expect("redis"), Released::NotHeld);
    let again = held(&other, &name).await;
    assert_eq!(again.release().await.expect("redis"), Released::Freed);
}

#[tokio::test]
async fn multi_needs_every_node_and_keeps_none() {
    let nodes = nodes(2).await;
    let name = name("multi-down");
    let mut all = lines("a", &nodes).await;
    all.push(flash_sale::lock::wire::Line::new("redis://127.0.0.1:1").expect("a url"));
    let acquired = MultiLock::new(all, LEASE).acquire(&name, ONCE).await;
    assert!(
        matches!(acquired, Err(LockError::Unreachable { .. })),
        "{acquired:?}"
    );
    for line in lines("looker", &nodes).await {
        assert_eq!(pttl(&line, &name).await, -2, "given back");
    }
}

#[tokio::test]
async fn a_multi_lock_release_that_stops_at_the_first_error() {
    for majority in [false, true] {
        let name = name("release-all");
        let (all, stage) = watched("a", three().await).await;
        stage.fail_on("redis-1", "token_release", 3);
        if majority {
            let guard = held(&Redlock::new(all.clone(), LEASE), &name).await;
            assert_eq!(guard.release().await.expect("a majority"), Released::Freed);
        } else {
            let guard = held(&MultiLock::new(all.clone(), LEASE), &name).await;
            let released = guard.release().await;
            assert!(
                matches!(released, Err(LockError::Unreachable { .. })),
                "{released:?}"
            );
        }
        for line in &all[1..] {
            assert_eq!(pttl(line, &name).await, -2, "{line:?}");
        }
    }
}

#[tokio::test]
async fn a_failed_acquire_that_leaves_nodes_locked() {
    for majority in [false, true] {
        let name = name("half");
        let (all, stage) = watched("a", three().await).await;
        // The second node does it and its reply is lost; the third is never reached.
        stage.lose_on("redis-2", "SET lock", 1);
        stage.fail_on("redis-3", "SET lock", 1);
        let error = if majority {
            Redlock::new(all.clone(), LEASE)
                .acquire(&name, ONCE)
                .await
                .err()
        } else {
            MultiLock::new(all.clone(), LEASE)
                .acquire(&name, ONCE)
                .await
                .err()
        };
        let expected = match error {
            Some(LockError::NoQuorum { got: 1, needed: 2 }) => majority,
            Some(LockError::Unreachable { .. }) => !majority,
            _ => false,
        };
        assert!(expected, "{error:?}");
        for line in &all {
            assert_eq!(pttl(line, &name).await, -2, "{line:?}");
        }
    }
}

/// A node that is asked again because its connection had broken, and that has nothing, has freed nothing.
#[tokio::test]
async fn a_release_on_nodes_that_have_forgotten_is_none() {
    let nodes = nodes(3).await;
    let name = name("forgotten");
    let (all, stage) = watched("a", &nodes).await;
    let guard = held(&Redlock::new(all, LEASE), &name).await;
    forget(&nodes[0]).await;
    forget(&nodes[1]).await;
    stage.fail_on("redis-3", "token_release", 3);
    let released = guard.release().await;
    assert_eq!(released.expect("two nodes answer"), Released::NotHeld);
}

/// The same with one node, where somebody else has it by then.
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
    assert_eq!(token.release().await.expect("redis"), Released::NotHeld);
    assert_eq!(reentrant.release().await.expect("redis"), Released::NotHeld);
    assert_eq!(theirs.release().await.expect("redis"), Released::Freed);
    assert_eq!(theirs_too.release().await.expect("redis"), Released::Freed);
}

#[tokio::test]
async fn redlock_lets_one_in_while_a_minority_is_down() {
    let nodes = nodes(2).await;
    let name = name("redlock");
    let with_a_dead_one = async |client: &str| {
        let mut all = lines(client, &nodes).await;
        all.push(flash_sale::lock::wire::Line::new("redis://127.0.0.1:1").expect("a url"));
        Redlock::new(all, LEASE)
    };
    let guard = held(&with_a_dead_one("a").await, &name).await;
    assert!(is_contended(&with_a_dead_one("b").await, &name).await);
    assert_eq!(guard.release().await.expect("a majority"), Released::Freed);
}

#[tokio::test]
async fn redlock_without_a_majority_says_so() {
    let nodes = nodes(1).await;
    let mut all = lines("a", &nodes).await;
    for _ in 0..2 {
        all.push(flash_sale::lock::wire::Line::new("redis://127.0.0.1:1").expect("a url"));
    }
    let acquired = Redlock::new(all, LEASE)
        .acquire(&name("no-majority"), ONCE)
        .await;
    assert!(
        matches!(acquired, Err(LockError::NoQuorum { got: 1, needed: 2 })),
        "{acquired:?}"
    );
}

#[tokio::test]
async fn redlock_a_node_that_comes_back_empty_makes_a_second_majority() {
    let nodes = nodes(3).await;
    let name = name("second-majority");
    // A has nodes 1 and 2: its request to the third is lost.
    let (of_a, stage) = watched("a", &nodes).await;
    stage.fail_on("redis-3", "SET lock", 1);
    let first = held(&Redlock::new(of_a, LEASE), &name).await;
    let of_b = Redlock::new(lines("b", &nodes).await, LEASE);
    assert!(is_contended(&of_b, &name).await);
    forget(&nodes[1]).await;
    let second = soon("the second", of_b.acquire(&name, SOON)).await;
    assert!(second.expect("redis").held().is_some(), "two holders");
    assert!(!first.lost().is_lost());
}

/// As when a lease ends while the last node is being asked.
#[tokio::test]
async fn redlock_held_when_its_validity_has_gone() {
    let name = name("redlock-validity");
    let (all, stage) = watched("a", three().await).await;
    let last = stage.hold_after("SET lock");
    let asking = acquiring(Redlock::new(all, SHORT), &name, ONCE);
    last.reached().await;
    for line in lines("looker", three().await).await {
        gone(&line, &name).await;
    }
    last.open();
    turned_away(asking).await;
}

/// The first node gave it, and by the time the last one does, that lease is over.
#[tokio::test]
async fn multi_held_when_its_validity_has_gone() {
    let name = name("multi-validity");
    let (all, stage) = watched("a", three().await).await;
    let first = stage.hold_after("SET lock");
    let asking = acquiring(MultiLock::new(all, SHORT), &name, ONCE);
    first.reached().await;
    gone(&lines("looker", three().await).await[0], &name).await;
    first.open();
    turned_away(asking).await;
    for line in lines("looker", three().await).await {
        assert_eq!(pttl(&line, &name).await, -2, "given back");
    }
}

#[tokio::test]
async fn several_nodes_are_renewed_and_the_holder_learns_when_a_majority_forgets() {
    let nodes = nodes(3).await;
    let name = name("renewed");
    let (all, stage) = watched("a", &nodes).await;
    let guard = held(&Redlock::new(all, SHORT).renewed(), &name).await;
    until("two leases' worth", async || {
        stage.answered("token_renew") >= 3 * 7
    })
    .await;
    assert!(!guard.lost().is_lost());
    forget(&nodes[0]).await;
    forget(&nodes[1]).await;
    let why = soon("it is told", guard.lost()).await;
    assert!(matches!(why, Why::NotOurs | Why::LeaseOver), "{why:?}");
}

#[tokio::test]
async fn a_late_release_of_several_nodes_touches_nobody_elses() {
    let name = name("late-nodes");
    let (a, b) = (
        lines("a", three().await).await,
        lines("b", three().await).await,
    );
    let late = held(&Redlock::new(a.clone(), SHORT), &name).await;
    for line in &a {
        gone(line, &name).await;
    }
    let theirs = held(&MultiLock::new(b, LEASE), &name).await;
    assert_eq!(late.release().await.expect("redis"), Released::NotHeld);
    assert_eq!(theirs.release().await.expect("redis"), Released::Freed);

    let name = super::name("late-nodes");
    let late = held(&MultiLock::new(a.clone(), SHORT), &name).await;
    for line in &a {
        gone(line, &name).await;
    }
    let theirs = held(&Redlock::new(a, LEASE), &name).await;
    assert_eq!(late.release().await.expect("redis"), Released::NotHeld);
    assert_eq!(theirs.release().await.expect("redis"), Released::Freed);
}

/// A holder that dies says nothing: the leases end it.
#[tokio::test]
async fn several_nodes_end_by_themselves() {
    for majority in [false, true] {
        let name = name("dead-nodes");
        let all = lines("a", three().await).await;
        if majority {
            drop(held(&Redlock::new(all.clone(), SHORT), &name).await);
        } else {
            drop(held(&MultiLock::new(all.clone(), SHORT), &name).await);
        }
        let next = soon("the next", MultiLock::new(all, LEASE).acquire(&name, SOON)).await;
        let next = next.expect("redis").held().expect("ended");
        assert_eq!(next.release().await.expect("redis"), Released::Freed);
    }
}
