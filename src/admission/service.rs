//! The admission service.

use super::ids::IdGenerator;
use super::pending::PendingPurchase;
use super::throughput::ThroughputMeter;
use crate::catalog::Catalog;
use crate::domain::SaleId;
use crate::fail_point::FailPoints;
use crate::order_log::AcceptedBatch;
use crate::redis::Redis;
use crate::telemetry::instruments::{Metrics, RoundTrips};
use dashmap::DashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a batch is retried, and how long a buyer may wait for a batch.
pub(super) const ADMISSION_TIMEOUT: Duration = Duration::from_secs(2);

/// See `config.rs` for the defaults.
#[derive(Debug, Clone, Copy)]
pub struct AdmissionSettings {
    /// The most accepted orders of a sale that may wait to be written; beyond it buyers get 503.
    pub high_water: i64,
    /// The most buyers in one call.
    pub batch_limit: usize,
    /// Whether this process writes the orders it accepts.
    pub own_writer: bool,
}

/// Admits purchases. One per process.
pub struct Admission {
    pub(super) catalog: Arc<Catalog>,
    pub(super) redis: Arc<Redis>,
    pub ids: IdGenerator,
    pub settings: AdmissionSettings,
    pub(super) queues: DashMap<SaleId, mpsc::Sender<PendingPurchase>>,
    /// Accepted orders on their way to the writer. When it is full, or without a writer, the log
    /// still has them.
    pub(super) handoff: mpsc::Sender<AcceptedBatch>,
    pub throughput: ThroughputMeter,
    pub(super) round_trips: Arc<RoundTrips>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) fail_points: FailPoints,
}

impl Admission {
    pub fn new(
        catalog: Arc<Catalog>,
        settings: AdmissionSettings,
        handoff: mpsc::Sender<AcceptedBatch>,
        round_trips: Arc<RoundTrips>,
        metrics: Arc<Metrics>,
        fail_points: FailPoints,
    ) -> Self {
        let (redis, postgres) = (catalog.redis.clone(), catalog.postgres.clone());
        Self {
            ids: IdGenerator::new(redis.clone(), postgres, fail_points.clone()),
            catalog,
            redis,
            settings,
            queues: DashMap::new(),
            handoff,
            throughput: ThroughputMeter::default(),
            round_trips,
            metrics,
            fail_points,
        }
    }

    pub fn handoff_is_empty(&self) -> bool {
        self.handoff.capacity() == self.handoff.max_capacity()
    }
}
