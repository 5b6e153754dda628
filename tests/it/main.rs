//! Black-box tests through the real router, on a private Postgres and a private Redis that this
//! binary starts. Every test has a database and a Redis key prefix of its own, so all run at once.

mod admission;
mod archive;
mod audit;
mod checkers;
mod citus;
mod cli;
mod clients;
mod contract;
mod embedded;
mod faults;
mod ids;
mod lab;
mod lessons;
mod life;
mod locks;
mod plans;
mod pooler;
mod proxy;
mod recovery;
mod security;
#[path = "../support/mod.rs"]
mod support;
mod writer;
