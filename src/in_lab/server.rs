//! A server of the real shop in an arena: all services and tasks, on tables and keys of the arena's
//! own. It cannot see a real sale, nor be seen by one.

use crate::catalog::changes::NewSale;
use crate::config::SaleSettings;
use crate::domain::{PurchaseResult, SaleId, UserId};
use crate::error::ServiceError;
use crate::payments::provider::SimulatedPayments;
use crate::postgres::{self, Pool};
use crate::redis::Redis;
use crate::running::{Role, Running};
use crate::services::Services;
use crate::telemetry::instruments::Metrics;
use futures_util::future::BoxFuture;
use lab::real_shop::{Premises, RealServer};
use lab::selling::{Outcome, PurchaseError};
use locks::wire::RoundTrips;
use sqlx::{AssertSqlSafe, Executor};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// Connections of one server; its tasks need a few at a time.
const CONNECTIONS: u32 = 4;
const OPENING_TIMEOUT: Duration = Duration::from_secs(15);
/// For opening it and for its tasks: a storm on a small machine is no outage.
const REDIS_TIMEOUT: Duration = Duration::from_secs(5);

impl From<ServiceError> for PurchaseError {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::Postgres(error) => Self::Postgres(error),
            ServiceError::Redis(error) => Self::Redis(error),
            other => Self::Shop(Box::new(other)),
        }
    }
}

/// One server of the shop.
pub struct Server {
    services: Services,
    sale: SaleId,
    running: Mutex<Option<Running>>,
    postgres: Pool,
}

impl Server {
    pub async fn open(premises: Premises) -> Result<Self, PurchaseError> {
        let pool = own_schema(&premises).await?;
        let Premises { redis_url, key_prefix, .. } = &premises;
        let redis = Arc::new(Redis::with_timeout(redis_url, key_prefix, REDIS_TIMEOUT)?);
        let settings = SaleSettings::default();
        let metrics = Metrics::unpublished();
        let payments = Arc::new(SimulatedPayments);
        let running = Running::start(&pool, &redis, payments, &settings, Role::Server, metrics)
            .map_err(|error| PurchaseError::Other(error.to_string()))?;
        let mut server = Self {
            services: running.services.clone(),
            sale: SaleId::from_i64(1),
            running: Mutex::new(Some(running)),
            postgres: pool,
        };
        match server.prepare(&premises).await {
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

    async fn prepare(&self, premises: &Premises) -> Result<SaleId, PurchaseError> {
        let opened = async {
            while self.services.catalog.sells_something().await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(OPENING_TIMEOUT, opened)
            .await
            .map_err(|_| PurchaseError::Other("the shop did not open for purchases".to_owned()))?;
        let sale = NewSale {
            title: "A thing of the lab".to_owned(),
            stock: i64::from(premises.stock),
            per_user_limit: Some(i64::from(premises.per_user_limit)),
            // All nodes of the arena sell the sale of this key.
            seed_key: Some("arena".to_owned()),
            ..NewSale::default()
        };
        Ok(self.services.catalog.create_sale(sale).await?.sale.id)
    }

    fn take(&self) -> Option<Running> {
        let running = self.running.lock();
        running.unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A pool on this schema, with the shop's own migrations applied.
async fn own_schema(premises: &Premises) -> Result<Pool, PurchaseError> {
    let schema = &premises.schema;
    // Nodes and processes may do this concurrently.
    let create = format!("CREATE SCHEMA IF NOT EXISTS {schema}");
    let mut transaction = postgres::Transaction::begin(&premises.postgres, "BEGIN").await?;
    let query = sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))");
    query.bind(schema).execute(&mut *transaction).await?;
    transaction.execute(AssertSqlSafe(create)).await?;
    transaction.commit().await?;
    let options = premises.postgres.connect_options().as_ref().clone();
    let options = options.options([("search_path", &**schema)]);
    let pool = postgres::pool(options, CONNECTIONS);
    let migrated = postgres::migrate(&pool).await;
    migrated.map_err(|error| PurchaseError::Other(format!("the schema of the arena: {error}")))?;
    Ok(pool)
}

impl RealServer for Server {
    fn buy(&self, user: Uuid) -> BoxFuture<'_, Result<Outcome, PurchaseError>> {
        Box::pin(async move {
            let user = UserId::from_bytes(*user.as_bytes());
            let buying = self.services.admission.purchase(self.sale, user, None);
            match buying.await? {
                PurchaseResult::Accepted { order_id, .. } => {
                    Ok(Outcome::Sold { order_id: order_id.to_string() })
                }
                PurchaseResult::AlreadyOrdered { .. } => Ok(Outcome::Duplicate),
                PurchaseResult::SoldOut => Ok(Outcome::SoldOut),
                other => Err(PurchaseError::Other(format!("the sale is not open: {other:?}"))),
            }
        })
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let audit = || self.services.auditor.audit(self.sale);
            while !audit().await.is_ok_and(|audit| audit.quiescent) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(running) = self.take() {
                running.stop().await;
            }
            let _ = tokio::time::timeout(Duration::from_millis(500), self.postgres.close()).await;
        })
    }

    fn round_trips(&self) -> RoundTrips {
        let sent = &self.services.metrics.round_trips;
        let [redis, postgres] = [&sent.redis, &sent.postgres].map(|count| count.swap(0, Relaxed));
        RoundTrips { redis, postgres, zookeeper: 0 }
    }
}

impl Drop for Server {
    /// Dropped without `close`: the node has crashed.
    fn drop(&mut self) {
        if let Some(running) = self.take() {
            running.crash();
        }
    }
}
