//! Black-box tests through the real router, on a private Postgres and a private Redis that this
//! binary starts. Every test has a database and a Redis key prefix of its own, so all run at once.

/// Waits until it is so, or until there is something: see `support::app::eventually`.
macro_rules! wait_for {
    ($what:expr, $found:expr) => {
        $crate::support::app::eventually($what, async || $found).await
    };
    ($condition:expr) => {
        wait_for!(stringify!($condition), ($condition).then_some(()))
    };
}

mod admission;
mod approval;
mod audit;
mod checkers;
mod cli;
mod contract;
mod embedded;
mod eviction;
mod ids;
mod judge;
mod lab;
mod lessons;
mod life;
mod liveness;
mod locks;
mod plans;
mod proxy;
mod recovery;
mod security;
#[path = "../support/mod.rs"]
mod support;
mod upgrade;
mod watching;
mod writer;
