//! The second tier: faults, clusters, proxies, and what takes long or needs other programs.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

mod bots;
mod clients;
mod cluster;
mod faults;
mod front;
mod judge;
mod lab;
mod locks;
mod pooler;
mod room;
mod traces;
