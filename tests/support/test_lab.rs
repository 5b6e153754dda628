//! The library's lab, as tests use it.

use super::{Database, Servers};
use lab::{Lab, servers};
use std::sync::Arc;

pub const ARENAS: &str = "/api/v1/lab/arenas";

pub struct TestLab {
    pub lab: Arc<Lab>,
    pub database: Database,
}

impl TestLab {
    pub async fn start(prefix: &str) -> Self {
        Self::with(prefix, |servers| servers).await
    }

    pub async fn with(
        prefix: &str,
        change: impl FnOnce(servers::Servers) -> servers::Servers,
    ) -> Self {
        let shared = Servers::shared().await;
        let database = shared.database().await;
        let servers = shared.of_a_lab(&database, prefix, Some(shared.folder(prefix)));
        // This Postgres takes hundreds of connections.
        let servers = servers.with_connections(60).with_production_nodes(32);
        Self { lab: Arc::new(Lab::new(change(servers))), database }
    }

    pub async fn finish(self) {
        self.lab.close().await;
        self.database.drop().await;
    }
}

impl std::ops::Deref for TestLab {
    type Target = Arc<Lab>;

    fn deref(&self) -> &Arc<Lab> {
        &self.lab
    }
}
