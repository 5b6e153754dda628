//! The admission service: a purchase, from the cache to the queue.

use super::ids::IdGenerator;
use super::refusals;
use super::throughput::ThroughputMeter;
use crate::catalog::Catalog;
use crate::catalog::approval::Approval;
use crate::catalog::cached_sale::CachedSale;
use crate::domain::{IdempotencyKey, PurchaseResult, SaleId, UserId};
use crate::error::{ServiceError, ServiceResult};
use crate::fail_point::FailPoints;
use crate::order_log::AcceptedBatch;
use crate::redis::Redis;
use crate::telemetry::instruments::Metrics;
use crate::telemetry::traces::SpanContext;
use dashmap::DashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

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

pub(super) const NO_ANSWER: &str = "the stock could not be asked in time; if the purchase went \
    through, a retry will name its order";

/// The reply to a buyer in the queue; `Err` says why there is no verdict.
pub(super) type Reply = Result<PurchaseResult, &'static str>;

/// A buyer in the queue.
pub(super) struct PendingPurchase {
    pub user: UserId,
    pub key: Option<IdempotencyKey>,
    pub trace: Option<Box<SpanContext>>,
    pub since: Instant,
    pub reply: oneshot::Sender<Reply>,
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

    /// A purchase of a sale without an access policy. Bounded in time: an answer, or
    /// [`ServiceError::Unavailable`], after which the order may exist; a retry names it.
    pub async fn purchase(
        self: &Arc<Self>,
        sale: SaleId,
        user: UserId,
        key: Option<IdempotencyKey>,
    ) -> ServiceResult<PurchaseResult> {
        let cached = match self.catalog.cache.get(sale) {
            Some(cached) => cached,
            // Boxed to keep the hot future small.
            None => Box::pin(self.catalog.look_up(sale)).await?,
        };
        if cached.has_access_policy() {
            // The caller saw no policy: the sale was not cached, or an operator has just changed
            // it.
            return Err(ServiceError::unavailable(
                "what this sale asks for was not known here a moment ago",
            ));
        }
        self.purchase_with_access(&cached, user, key).await
    }

    /// The purchase of a buyer who has met the sale's
    /// [`AccessPolicy`](crate::domain::AccessPolicy).
    pub async fn purchase_with_access(
        self: &Arc<Self>,
        cached: &Arc<CachedSale>,
        user: UserId,
        key: Option<IdempotencyKey>,
    ) -> ServiceResult<PurchaseResult> {
        if let Some(refusal) = refusals::from_cache(cached, &self.catalog.cache.clock, user, key) {
            self.metrics.verdicts(&refusal).increment(1);
            return Ok(refusal);
        }
        self.join_queue(cached, user, key).await
    }

    pub fn handoff_is_empty(&self) -> bool {
        let handoff = self.settings.handoff.as_ref();
        handoff.is_none_or(|handoff| handoff.capacity() == handoff.max_capacity())
    }
}
