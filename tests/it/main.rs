//! Black-box tests through the real router, on a private Postgres and a private Redis that this
//! binary starts. Every test has a database and a Redis key prefix of its own, so all run at once.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

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
mod upgrade;
mod watching;
mod writer;
