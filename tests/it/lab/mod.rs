//! The lab: strategies against their promises, and the lab itself from outside.

mod command;
mod conformance;
mod http;
mod judging;
mod limits;
mod processes;

use crate::support::Servers;
use flash_sale::{
    lab::{Lab, servers},
    redis::Redis,
};
use std::sync::Arc;

/// The library's lab on the shared servers, with a database of its own.
async fn lab(prefix: &str) -> (Lab, crate::support::Database) {
    lab_with(prefix, |servers| servers).await
}

async fn lab_with(
    prefix: &str,
    change: impl FnOnce(servers::Servers) -> servers::Servers,
) -> (Lab, crate::support::Database) {
    let shared = Servers::shared().await;
    let database = shared.database().await;
    let redis = Redis::new(&shared.redis.url(), prefix).expect("redis url");
    let servers = servers::Servers::new(
        &database.options(),
        Arc::new(redis),
        Some(shared.folder(prefix)),
    );
    // This Postgres takes hundreds of connections.
    let servers = servers.with_connections(60).with_production_nodes(32);
    (Lab::new(change(servers)), database)
}
