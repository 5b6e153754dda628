//! Black-box tests through the real router, on a private Postgres and a private Redis that this
//! binary starts. Every test has a database and a Redis key prefix of its own, so all run at once.

/// Waits until it is so: see `support::app::eventually`.
macro_rules! wait_for {
    ($condition:expr) => {
        $crate::support::app::eventually(stringify!($condition), async || {
            ($condition).then_some(())
        })
        .await
    };
}

mod admission;
mod approval;
mod audit;
mod bots;
mod checkers;
mod cli;
mod clients;
mod cluster;
mod contract;
mod embedded;
mod faults;
mod front;
mod ids;
mod lab;
mod lessons;
mod life;
mod liveness;
mod locks;
mod log;
mod plans;
mod pooler;
mod proxy;
mod recovery;
mod room;
mod security;
#[path = "../support/mod.rs"]
mod support;
mod traces;
mod upgrade;
mod watching;
mod writer;
