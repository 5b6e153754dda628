//! Redis Cluster and Sentinel: real processes on loopback, whose slots are moved and whose
//! primaries are killed while people buy.
//! The judges are the checkers of `tests/support/checkers`, on what the [`crowd`] was told.

mod addresses;
mod crowd;
mod failover;
mod redirects;
#[cfg(target_os = "linux")]
mod split;

use crate::faults::{arm, epoch};
use crate::support::redis_servers::{KeyHolder, RedisCluster};
use crate::support::{driver::Sale, prelude::*};
use crowd::{Crowd, sale};

struct Deployment<S> {
    apps: [TestApp; 2],
    redis: S,
    _servers: Servers,
}

impl Deployment<RedisCluster> {
    async fn start() -> Self {
        let servers = Servers::own().await;
        let cluster = RedisCluster::start(&servers.folder("cluster")).await;
        let url = cluster.url();
        Self::with(servers, cluster, url).await
    }

    async fn sale_on(&self, node: usize, stock: i64) -> Sale {
        loop {
            let sale = sale(&self.apps[0], stock).await;
            if self.redis.owner(self.slot_of(&sale).await).await == node {
                return sale;
            }
        }
    }

    async fn slot_of(&self, sale: &Sale) -> u16 {
        self.redis.slot_of(&key_of(sale)).await
    }

    async fn sales(&self, of: impl IntoIterator<Item = (usize, i64)>) -> Vec<Sale> {
        join_all(of.into_iter().map(|(node, stock)| self.sale_on(node, stock))).await
    }
}

impl<S: KeyHolder> Deployment<S> {
    async fn with(servers: Servers, redis: S, url: String) -> Self {
        let (database, options) = (servers.database().await, Options::default());
        let first = TestApp::launch(database, url, String::new(), options.clone()).await;
        let second = first.another(options).await;
        Self { redis, apps: [first, second], _servers: servers }
    }

    fn arm(&self, points: &str) {
        self.apps.iter().for_each(|app| arm(app, points));
    }

    fn disarm(&self) {
        self.apps.iter().for_each(|app| app.services.fail_points.clear());
    }
}

fn key_of(sale: &Sale) -> String {
    format!("{{sale:{}}}", sale.id)
}

async fn epoch_of(app: &TestApp, sale: &Sale) -> i64 {
    epoch(app, &sale.id.to_string()).await
}
