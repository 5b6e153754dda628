//! The services of a process.

use crate::admission::ids::IdGenerator;
use crate::admission::{Admission, AdmissionSettings};
use crate::audit::Auditor;
use crate::catalog::Catalog;
use crate::catalog::approval::Approval;
use crate::databases::Databases;
use crate::fail_point::FailPoints;
use crate::orders::Orders;
use crate::payments::Payments;
use crate::payments::provider::PaymentLink;
use crate::rebuild::Rebuild;
use crate::telemetry::instruments::Metrics;
use std::sync::Arc;
use std::time::Duration;
use tasks::Liveness;

/// The state of each dependency; `Err` says what is wrong.
#[derive(Debug, Clone)]
pub struct Readiness {
    pub postgres: Result<(), String>,
    pub redis: Result<(), String>,
    /// Whether Redis may sell the sales; in a cluster any of them, since a silent node concerns
    /// only its own.
    pub admission: Result<(), String>,
    /// Whether all background loops of this process run.
    pub loops: Result<(), String>,
    /// Whether Redis keeps its data over a restart; `None` if it does not answer.
    pub redis_durable: Option<bool>,
}

/// The health of this process.
pub struct Health {
    catalog: Arc<Catalog>,
    databases: Databases,
    liveness: Arc<Liveness>,
}

impl Health {
    /// Asks each dependency; bounded to a second.
    pub async fn readiness(&self) -> Readiness {
        async fn within<T, E: std::fmt::Display>(
            asked: impl Future<Output = Result<T, E>>,
        ) -> Result<T, String> {
            let answered = tokio::time::timeout(Duration::from_secs(1), asked).await;
            answered.map_or(Err("no answer within a second".to_owned()), |answer| {
                answer.map_err(|error| error.to_string())
            })
        }
        let Databases { postgres, redis } = &self.databases;
        let (postgres, redis, admission, durable) = tokio::join!(
            within(sqlx::query("SELECT 1").execute(postgres)),
            within(redis.ping()),
            within(self.catalog.sells_something()),
            within(redis.is_durable()),
        );
        Readiness {
            postgres: postgres.map(drop),
            redis,
            admission,
            loops: self.liveness.check(),
            redis_durable: durable.ok(),
        }
    }
}

/// All services, on the same databases.
#[derive(Clone)]
pub struct Services {
    pub databases: Databases,
    pub catalog: Arc<Catalog>,
    pub admission: Arc<Admission>,
    pub orders: Arc<Orders>,
    pub payments: Arc<Payments>,
    pub rebuild: Arc<Rebuild>,
    pub auditor: Arc<Auditor>,
    pub health: Arc<Health>,
    pub liveness: Arc<Liveness>,
    pub metrics: Arc<Metrics>,
    pub fail_points: FailPoints,
}

impl Services {
    pub fn new(
        databases: Databases,
        payments: impl Into<PaymentLink>,
        settings: AdmissionSettings,
        metrics: Metrics,
        fail_points: FailPoints,
    ) -> Self {
        let Databases { postgres, redis } = databases.clone();
        let (metrics, approval) = (Arc::new(metrics), Arc::<Approval>::default());
        let ids = IdGenerator::new(redis.clone(), postgres.clone(), fail_points.clone());
        let ids = Arc::new(ids);
        let catalog = Arc::new(Catalog::new(
            databases.clone(),
            approval.clone(),
            metrics.clone(),
            fail_points.clone(),
        ));
        let admission = Arc::new(Admission::new(
            catalog.clone(),
            redis,
            approval.clone(),
            ids.clone(),
            settings,
            metrics.clone(),
            fail_points.clone(),
        ));
        let orders = Arc::new(Orders::new(
            catalog.clone(),
            admission.clone(),
            approval.clone(),
            databases.clone(),
            metrics.clone(),
            fail_points.clone(),
        ));
        let payments = Arc::new(Payments::new(
            orders.clone(),
            payments.into(),
            postgres,
            metrics.clone(),
            fail_points.clone(),
        ));
        let rebuild = Arc::new(Rebuild::new(
            catalog.clone(),
            orders.clone(),
            ids,
            approval,
            databases.clone(),
            metrics.clone(),
            fail_points.clone(),
        ));
        let liveness = Arc::<Liveness>::default();
        let health = Arc::new(Health {
            catalog: catalog.clone(),
            databases: databases.clone(),
            liveness: liveness.clone(),
        });
        Self {
            auditor: Arc::new(Auditor::new(catalog.clone(), databases.clone())),
            databases,
            catalog,
            admission,
            orders,
            payments,
            rebuild,
            health,
            liveness,
            metrics,
            fail_points,
        }
    }
}
