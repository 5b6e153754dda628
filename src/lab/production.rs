//! The production path in an arena: not a copy of it, but a whole shop with its loops on stores of its
//! own. Its tables are those of the program's own migrations in the schema `lab_<arena>`, its keys stand
//! below the arena's prefix, and both go with the arena. It cannot see a real sale, nor be seen by one.

use super::{
    arena::Definition,
    servers::Servers,
    stand::Stand,
    strategy::{Buyer, Trouble},
};
use crate::{
    config::SaleSettings,
    domain::{SaleId, UserId},
    postgres::{self, Pool},
    redis::Redis,
    sale::{NewSale, Shop, metrics::Metrics},
    worker::running::{Role, Running},
};
use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, Executor, PgPool};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::OwnedSemaphorePermit;

/// The strategy that is the production path.
pub const STRATEGY: &str = "lua-stream";

/// Connections of one node; the loops behind a shop need a few at a time.
const CONNECTIONS: u32 = 4;
const OPENING_PATIENCE: Duration = Duration::from_secs(15);

/// The schema that this arena's orders are in, if its strategy is the production path itself.
pub fn schema_of(definition: &Definition) -> Option<String> {
    (definition.strategy.id == STRATEGY).then(|| schema(&definition.id))
}

/// Ids of arenas are hexadecimal digits.
fn schema(arena: &str) -> String {
    format!("lab_{arena}")
}

/// Removes what a shop of this arena has written.
pub async fn drop_schema(postgres: &PgPool, arena: &str) -> Result<(), sqlx::Error> {
    let statement = format!("DROP SCHEMA IF EXISTS {} CASCADE", schema(arena));
    postgres.execute(AssertSqlSafe(statement)).await.map(|_| ())
}

/// Ids of arenas that are gone and have left a schema behind.
pub async fn schemas_without_arena(postgres: &PgPool) -> Result<Vec<String>, sqlx::Error> {
    // Exactly the names that `schema` gives: what else somebody has called `lab_...` is not ours.
    sqlx::query_scalar(
        "SELECT substr(nspname::text, 5) FROM pg_namespace WHERE nspname ~ '^lab_[0-9a-f]{32}$'
         AND NOT EXISTS (SELECT FROM lab.arenas WHERE id = substr(nspname::text, 5))",
    )
    .fetch_all(postgres)
    .await
}

/// One server of the production path.
pub struct Server {
    pub shop: Arc<Shop>,
    pub sale: SaleId,
    running: Mutex<Option<Running>>,
    postgres: Pool,
    _place: OwnedSemaphorePermit,
}

impl Server {
    pub async fn open(stand: &Stand) -> Result<Self, Trouble> {
        let servers: &Arc<Servers> = stand.servers();
        let place = servers.production_node()?;
        let schema = schema(stand.arena());
        // Several nodes, and several processes, may do it at the same time.
        let create = format!("CREATE SCHEMA IF NOT EXISTS {schema}");
        let mut transaction = postgres::Transaction::begin(stand.postgres(), "BEGIN").await?;
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))")
            .bind(&schema)
            .execute(&mut *transaction)
            .await?;
        transaction.execute(AssertSqlSafe(create)).await?;
        transaction.commit().await?;
        let options = servers.postgres.connect_options();
        let options = options
            .as_ref()
            .clone()
            .options([("search_path", &*schema)]);
        let pool = postgres::pool(options, CONNECTIONS);
        let redis = Arc::new(Redis::new(servers.redis.url(), &stand.key(""))?);
        postgres::migrate(&pool)
            .await
            .map_err(|error| Trouble::Other(format!("the schema of the arena: {error}")))?;
        let settings = SaleSettings {
            backlog_limit: 1_000_000,
            batch_limit: 512,
            fail_points: String::new(),
        };
        let running = Running::start(
            &pool,
            &redis,
            &settings,
            Role::Server,
            Metrics::unpublished(),
        )
        .map_err(|error| Trouble::Other(error.to_string()))?;
        let mut server = Self {
            shop: running.shop.clone(),
            sale: SaleId::from_i64(1),
            running: Mutex::new(Some(running)),
            postgres: pool,
            _place: place,
        };
        match server.prepare(stand).await {
            Ok(sale) => {
                server.sale = sale;
                Ok(server)
            }
            Err(error) => {
                server.close().await;
                Err(error)
            }
        }
    }

    async fn prepare(&self, stand: &Stand) -> Result<SaleId, Trouble> {
        let opened = async {
            while self.shop.sells_something().await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(OPENING_PATIENCE, opened)
            .await
            .map_err(|_| Trouble::Other("the gate of the shop did not open".to_owned()))?;
        let sale = NewSale {
            title: "A thing of the lab".to_owned(),
            stock: i64::from(stand.stock()),
            per_user_limit: Some(i64::from(stand.per_user_limit())),
            // By its name, so that all nodes sell the same one.
            seed_key: Some("arena"),
            ..NewSale::default()
        };
        Ok(self.shop.create_sale(sale).await?.sale.id)
    }

    /// Waits until Postgres and Redis agree.
    pub async fn settle(&self) {
        while !self
            .shop
            .audit(self.sale)
            .await
            .is_ok_and(|audit| audit.quiescent)
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn take(&self) -> Option<Running> {
        self.running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Ends it in order.
    pub async fn close(&self) {
        if let Some(running) = self.take() {
            running.stop().await;
        }
        let _ = tokio::time::timeout(Duration::from_millis(500), self.postgres.close()).await;
    }
}

impl Drop for Server {
    /// Nobody closed it: the node has crashed.
    fn drop(&mut self) {
        if let Some(running) = self.take() {
            running.crash();
        }
    }
}

/// [`user_of`] in SQL, of a row of `lab.buyers heard`.
pub const USER_OF_BUYER: &str =
    "substr(encode(sha256(convert_to(heard.buyer, 'UTF8')), 'hex'), 1, 32)::uuid::text";

/// Every name is somebody.
pub fn user_of(buyer: &Buyer) -> UserId {
    let digest = Sha256::digest(buyer.name.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    UserId::from_bytes(bytes)
}
