//! HTTP as the shop and the lab share it: problems, JSON bodies, event streams, addresses,
//! the accept loop.

pub mod address;
pub mod address_limit;
pub mod body;
pub mod events;
pub mod extract;
pub mod language;
pub mod limit;
pub mod openapi;
pub mod problem;
pub mod proxies;
pub mod server;
