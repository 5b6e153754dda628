//! Black-box tests through the real router. Each has its own database and Redis key prefix.

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
mod payments;
mod plans;
mod proxy;
mod recovery;
mod sandbox;
mod security;
mod terminal;
mod upgrade;
mod watching;
mod webhooks;
mod writer;
