//! The rebuild service, and the result of a rebuild.

use crate::admission::ids::IdGenerator;
use crate::catalog::Catalog;
use crate::catalog::approval::Approval;
use crate::databases::Databases;
use crate::domain::SaleId;
use crate::error::ServiceError;
use crate::fail_point::FailPoints;
use crate::orders::Orders;
use crate::postgres::Pool;
use crate::redis::Redis;
use crate::telemetry::instruments::Metrics;
use std::sync::Arc;
use std::time::Duration;

/// The pause between two checks or retries.
pub(super) const PAUSE: Duration = Duration::from_millis(200);

/// Rebuilds Redis from Postgres. One per process.
pub struct Rebuild {
    pub(super) catalog: Arc<Catalog>,
    pub(super) orders: Arc<Orders>,
    pub(super) ids: Arc<IdGenerator>,
    pub(super) approval: Arc<Approval>,
    pub(super) postgres: Pool,
    pub(super) redis: Arc<Redis>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) fail_points: FailPoints,
}

impl Rebuild {
    pub fn new(
        catalog: Arc<Catalog>,
        orders: Arc<Orders>,
        ids: Arc<IdGenerator>,
        approval: Arc<Approval>,
        Databases { postgres, redis }: Databases,
        metrics: Arc<Metrics>,
        fail_points: FailPoints,
    ) -> Self {
        Self { catalog, orders, ids, approval, postgres, redis, metrics, fail_points }
    }
}

/// The result of a rebuild.
#[derive(Default)]
pub(super) struct Outcome {
    pub sales: usize,
    /// Orders restored.
    pub buyers: usize,
    /// Whether the old state of some sale could not be fenced.
    pub unfenced: bool,
    /// The last sale that could not be rebuilt, and why.
    pub failed: Option<(SaleId, ServiceError)>,
}

impl Outcome {
    pub fn fail(&mut self, sale: SaleId, error: ServiceError) {
        tracing::error!(%sale, %error, "could not be rebuilt, will retry");
        self.failed = Some((sale, error));
    }
}
