//! The library's lab, as tests use it.

use super::{Database, Servers, prelude::*};
use flash_sale::in_lab::ThisShop;
use lab::{Lab, arena::Arena, selling::Buyer, servers};

pub const ARENAS: &str = "/api/v1/lab/arenas";

pub struct TestLab {
    pub lab: Arc<Lab>,
    pub database: Database,
}

impl TestLab {
    pub async fn start(prefix: &str) -> Self {
        Self::with(prefix, |_| ()).await
    }

    pub async fn with(prefix: &str, change: impl FnOnce(&mut servers::Servers)) -> Self {
        let shared = Servers::shared().await;
        let database = shared.database().await;
        let (postgres, redis) = (database.options(), shared.redis.url());
        let (shop, folder) = (Arc::new(ThisShop), shared.folder(prefix));
        let mut servers = servers::Servers::new(&postgres, &redis, prefix, shop, Some(folder));
        // This Postgres takes hundreds of connections.
        servers.allow_connections(60);
        servers.allow_production_nodes(32);
        change(&mut servers);
        Self { lab: Arc::new(Lab::new(servers)), database }
    }

    pub async fn arena(&self, strategy: &str, nodes: i64, options: Value) -> Arc<Arena> {
        let wanted = json!({"strategy": strategy, "stock": 5, "nodes": nodes, "options": options});
        let wanted = serde_json::from_value(wanted).expect("what is wanted");
        self.create(wanted).await.expect("an arena")
    }

    pub async fn execute(&self, statements: &str) {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
        statements.execute(&self.servers.postgres).await.expect("postgres");
    }

    pub async fn finish(self) {
        self.lab.close().await;
        self.database.drop().await;
    }
}

pub fn buyer(name: &str) -> Buyer {
    Buyer { name: name.to_owned() }
}

pub async fn buy(arena: &Arena, name: &str) {
    arena.purchase(&buyer(name), None).await.outcome.expect("an answer");
}

impl std::ops::Deref for TestLab {
    type Target = Arc<Lab>;

    fn deref(&self) -> &Arc<Lab> {
        &self.lab
    }
}
