//! The locks of the articles fail as their readers have seen them fail. The other failures of these
//! locks, and their cures, are in the lessons: `tests/proof/lessons.rs` plays each a hundred times.

use crate::support::locks::*;
use locks::wire::Clock;

/// Longer than a busy machine takes for a few round trips.
const SHORT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn setnx_expire_deletes_somebody_elses_lock() {
    let line = line("a").await;
    let others = [(); 2].map(|()| SetnxExpire::new(line.clone(), LEASE));
    assert!(late_release_lets_a_third_in(SetnxExpire::new(line, SHORT), others).await);
}

#[tokio::test]
async fn set_px_no_owner_deletes_somebody_elses_lock() {
    let line = line("a").await;
    let others = [(); 2].map(|()| SetPxNoOwner::new(line.clone(), LEASE));
    assert!(late_release_lets_a_third_in(SetPxNoOwner::new(line, SHORT), others).await);
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

#[tokio::test]
async fn setnx_getset_check_then_delete_deletes_somebody_elses_lock() {
    let (line_of_a, interceptor, name) = watched("getset-late").await;
    let a = SetnxGetset::new(line_of_a, LEASE, Clock::default());
    let guard = held(&a, &name).await;
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
    clock.jump_ms(61_000);
    let _next = held(&lock, &name).await;
}
