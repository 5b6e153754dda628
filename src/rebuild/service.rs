//! The rebuild service, and the result of a rebuild.

use crate::admission::Admission;
use crate::catalog::Catalog;
use crate::domain::SaleId;
use crate::error::ServiceError;
use crate::fail_point::FailPoints;
use crate::orders::Orders;
use crate::telemetry::instruments::Metrics;
use std::sync::Arc;
use std::time::Duration;

/// The pause between two checks or retries.
pub(super) const PAUSE: Duration = Duration::from_millis(200);

/// Rebuilds Redis from Postgres. One per process.
pub struct Rebuild {
    pub(super) catalog: Arc<Catalog>,
    pub(super) admission: Arc<Admission>,
    pub(super) orders: Arc<Orders>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) fail_points: FailPoints,
}

impl Rebuild {
    pub fn new(orders: Arc<Orders>) -> Self {
        Self {
            catalog: orders.catalog.clone(),
            admission: orders.admission.clone(),
            metrics: orders.metrics.clone(),
            fail_points: orders.fail_points.clone(),
            orders,
        }
    }
}

/// The result of a rebuild.
#[derive(Default)]
pub(super) struct Outcome {
    pub sales: usize,
    /// Orders restored.
    pub buyers: usize,
    /// Whether the old state of some sale could not be sealed.
    pub unsealed: bool,
    /// The last sale that could not be rebuilt, and why.
    pub failed: Option<(SaleId, ServiceError)>,
}

impl Outcome {
    pub fn fail(&mut self, sale: SaleId, error: ServiceError) {
        tracing::error!(%sale, %error, "could not be rebuilt, will retry");
        self.failed = Some((sale, error));
    }
}
