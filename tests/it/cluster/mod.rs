//! Redis Cluster and Sentinel: real processes on loopback, whose slots are moved and whose primaries are
//! killed while people buy.
//!
//! | file | what happens |
//! |---|---|
//! | `redirects.rs` | sales are spread; slots move at rest and under load: MOVED, ASK, TRYAGAIN |
//! | `failover.rs` | a primary is killed; its replica has everything, or not |
//! | `sentinel.rs` | the same under Sentinels |
//! | `split.rs` | a primary and an instance are cut off from everybody else, and go on selling |
//! | `addresses.rs` | addresses of the wrong kind, and what the lab says |
//!
//! The judges are the checkers of `tests/support/checkers`, on everything that the [`crowd`] was told.

mod addresses;
mod crowd;
mod evidence;
mod failover;
mod redirects;
mod sentinel;
#[cfg(target_os = "linux")]
mod split;

use crate::support::{
    Servers,
    app::{Options, TestApp},
    redis_servers::RedisCluster,
};
use serde_json::json;

/// A cluster, and two instances that sell from it.
struct Deployment {
    cluster: RedisCluster,
    apps: [TestApp; 2],
    servers: Servers,
}

impl Deployment {
    async fn start() -> Self {
        let options = Options::default();
        let servers = Servers::own().await;
        let cluster = RedisCluster::start(&servers.folder("cluster")).await;
        let database = servers.database().await;
        let first = TestApp::launch(database, cluster.url(), String::new(), options.clone()).await;
        let second = first.another(options).await;
        Self {
            cluster,
            apps: [first, second],
            servers,
        }
    }

    /// A sale whose keys are on this node.
    async fn sale_on(&self, node: usize, stock: i64) -> String {
        loop {
            let members = json!({"payment_timeout_secs": crowd::PAYMENT_SECS});
            let sale = self.apps[0].sale(stock, members).await;
            if self.cluster.owner(slot_of_sale(&sale)).await == node {
                return sale;
            }
        }
    }

    /// Ends the instances; the servers end with the value.
    async fn finish(self) {
        let [first, second] = self.apps;
        second.stop().await;
        first.stop().await;
        drop(self.servers);
    }
}

fn key_of(sale: &str) -> String {
    format!("{{sale:{sale}}}")
}

fn slot_of_sale(sale: &str) -> u16 {
    crate::support::redis_servers::slot_of(key_of(sale).as_bytes())
}
