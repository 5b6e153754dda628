//! The services of a process.

use crate::admission::{Admission, AdmissionSettings};
use crate::audit::Auditor;
use crate::catalog::Catalog;
use crate::fail_point::FailPoints;
use crate::order_log::AcceptedBatch;
use crate::orders::Orders;
use crate::payments::Payments;
use crate::payments::provider::PaymentProvider;
use crate::postgres::Pool;
use crate::rebuild::Rebuild;
use crate::redis::Redis;
use crate::tasks::Liveness;
use crate::telemetry::instruments::{Metrics, RoundTrips};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

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
}

/// The health of this process.
pub struct Health {
    catalog: Arc<Catalog>,
    liveness: Arc<Liveness>,
}

impl Health {
    /// Asks each dependency; bounded to a second.
    pub async fn readiness(&self) -> Readiness {
        async fn within<T, E: std::fmt::Display>(
            asked: impl Future<Output = Result<T, E>>,
        ) -> Result<(), String> {
            match tokio::time::timeout(Duration::from_secs(1), asked).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no answer within a second".to_owned()),
            }
        }
        let (postgres, redis, admission) = tokio::join!(
            within(sqlx::query("SELECT 1").execute(&self.catalog.postgres)),
            within(self.catalog.redis.ping()),
            within(self.catalog.sells_something()),
        );
        Readiness { postgres, redis, admission, loops: self.liveness.check() }
    }
}

/// All services, on the same stores.
#[derive(Clone)]
pub struct Services {
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
    /// `handoff` leads to the writer of this process, if it has one.
    pub fn new(
        postgres: Pool,
        redis: Arc<Redis>,
        provider: Arc<dyn PaymentProvider>,
        handoff: mpsc::Sender<AcceptedBatch>,
        settings: AdmissionSettings,
        metrics: Metrics,
        fail_points: FailPoints,
    ) -> Self {
        let (metrics, round_trips) = (Arc::new(metrics), Arc::new(RoundTrips::default()));
        let catalog = Catalog::new(postgres, redis, metrics.clone(), fail_points.clone());
        let catalog = Arc::new(catalog);
        let admission = Arc::new(Admission::new(
            catalog.clone(),
            settings,
            handoff,
            round_trips.clone(),
            metrics.clone(),
            fail_points.clone(),
        ));
        let orders = Arc::new(Orders::new(
            catalog.clone(),
            admission.clone(),
            round_trips,
            metrics.clone(),
            fail_points.clone(),
        ));
        let liveness = Arc::<Liveness>::default();
        Self {
            health: Arc::new(Health { catalog: catalog.clone(), liveness: liveness.clone() }),
            payments: Arc::new(Payments::new(orders.clone(), provider)),
            rebuild: Arc::new(Rebuild::new(orders.clone())),
            auditor: Arc::new(Auditor::new(catalog.clone())),
            catalog,
            admission,
            orders,
            liveness,
            metrics,
            fail_points,
        }
    }
}
