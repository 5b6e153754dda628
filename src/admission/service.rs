//! The admission service.

use super::ids::IdGenerator;
use super::pending::PendingPurchase;
use super::throughput::ThroughputMeter;
use crate::catalog::Catalog;
use crate::catalog::approval::Approval;
use crate::domain::SaleId;
use crate::fail_point::FailPoints;
use crate::order_log::AcceptedBatch;
use crate::redis::Redis;
use crate::telemetry::instruments::Metrics;
use dashmap::DashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a batch is retried, and how long a buyer may wait for a batch.
pub(super) const ADMISSION_TIMEOUT: Duration = Duration::from_secs(2);

/// See `config.rs` for the defaults.
#[derive(Debug, Clone)]
pub struct AdmissionSettings {
    /// The most accepted orders of a sale that may wait to be written; beyond it buyers get 503.
    pub high_water: i64,
    /// The most buyers in one call.
    pub batch_limit: usize,
    /// Leads accepted orders to the writer of this process; `None`: other processes write them.
    /// When it is full, the log still has them.
    pub handoff: Option<mpsc::Sender<AcceptedBatch>>,
}

/// Admits purchases. One per process.
pub struct Admission {
    pub(super) catalog: Arc<Catalog>,
    pub(super) redis: Arc<Redis>,
    pub(super) approval: Arc<Approval>,
    pub(super) ids: Arc<IdGenerator>,
    pub(super) settings: AdmissionSettings,
    pub(super) queues: DashMap<SaleId, mpsc::Sender<PendingPurchase>>,
    pub throughput: ThroughputMeter,
    pub(super) metrics: Arc<Metrics>,
    pub(super) fail_points: FailPoints,
}

impl Admission {
    pub fn new(
        catalog: Arc<Catalog>,
        redis: Arc<Redis>,
        approval: Arc<Approval>,
        ids: Arc<IdGenerator>,
        settings: AdmissionSettings,
        metrics: Arc<Metrics>,
        fail_points: FailPoints,
    ) -> Self {
        Self {
            catalog,
            redis,
            approval,
            ids,
            settings,
            queues: DashMap::new(),
            throughput: ThroughputMeter::default(),
            metrics,
            fail_points,
        }
    }

    pub fn handoff_is_empty(&self) -> bool {
        let handoff = self.settings.handoff.as_ref();
        handoff.is_none_or(|handoff| handoff.capacity() == handoff.max_capacity())
    }
}
