//! The catalog: the sale cache, its refresh, and operators' changes.

pub mod approval;
pub mod cache;
pub mod cached_sale;
pub mod changes;
pub mod clock;
pub mod eviction;
pub mod known_buyers;
pub mod negative_cache;
pub mod refresh;
pub mod snapshots;

use crate::databases::Databases;
use crate::domain::{SaleId, SaleState, SaleView, UserId};
use crate::error::{ServiceError, ServiceResult};
use crate::fail_point::FailPoints;
use crate::postgres::{self, Pool, unless_silent};
use crate::redis::Redis;
use crate::telemetry::instruments::Metrics;
use approval::Approval;
use cache::SaleCache;
use cached_sale::{CachedSale, SaleUpdate};
use negative_cache::NegativeCache;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::watch::Receiver;

/// As long as a buyer waits for a batch.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(2);

/// A field of the buyers' hash: user, record.
type Entry = (Vec<u8>, Vec<u8>);

/// The catalog: a cache before Postgres and Redis, and operators' changes.
pub struct Catalog {
    postgres: Pool,
    redis: Arc<Redis>,
    pub cache: SaleCache,
    negative_cache: NegativeCache,
    approval: Arc<Approval>,
    metrics: Arc<Metrics>,
    fail_points: FailPoints,
}

impl Catalog {
    pub fn new(
        Databases { postgres, redis }: Databases,
        approval: Arc<Approval>,
        metrics: Arc<Metrics>,
        fail_points: FailPoints,
    ) -> Self {
        Self {
            postgres,
            redis,
            cache: SaleCache::new(),
            negative_cache: NegativeCache::default(),
            approval,
            metrics,
            fail_points,
        }
    }

    /// Marks the Redis state of a sale as damaged, and calls for a rebuild.
    pub fn suspect(&self, sale: SaleId) {
        if let Some(cached) = self.cache.get(sale) {
            cached.suspect();
        }
        self.approval.call_for_rebuild();
    }

    /// Redis' time, estimated by the monotonic clock.
    pub fn now(&self) -> OffsetDateTime {
        self.cache.clock.now()
    }

    /// Looks up a sale that is not cached, bounded in time; see [`negative_cache`].
    pub(crate) async fn look_up(&self, sale: SaleId) -> ServiceResult<Arc<CachedSale>> {
        if self.negative_cache.is_missing(sale) {
            return Err(ServiceError::SaleNotFound);
        }
        let asking = async {
            let _turn = self.negative_cache.turn().await;
            // Another request may have looked it up meanwhile.
            if let Some(cached) = self.cache.get(sale) {
                return Ok(cached);
            }
            if self.negative_cache.is_missing(sale) {
                return Err(ServiceError::SaleNotFound);
            }
            let found = self.refresh(sale).await;
            if matches!(found, Err(ServiceError::SaleNotFound)) {
                self.negative_cache.found_missing(sale);
            }
            found
        };
        tokio::time::timeout(LOOK_UP_TIMEOUT, asking)
            .await
            .unwrap_or(Err(ServiceError::unavailable("the sale could not be looked up in time")))
    }

    /// All cached sales, open ones first, then by opening time.
    pub fn sales(&self, state: Option<SaleState>) -> Vec<SaleView> {
        let now = self.now();
        let cached_sales = self.cache.cached_sales();
        let views = cached_sales.iter().map(|cached| cached.view(now));
        let mut views: Vec<SaleView> = views.collect();
        views.retain(|view| state.is_none_or(|wanted| view.state == wanted));
        let place = |view: &SaleView| {
            let sale = &view.sale;
            (view.state != SaleState::Open, sale.opens_at, sale.id)
        };
        views.sort_by_key(place);
        views
    }

    /// A sale from the cache, or looked up.
    pub async fn sale(&self, id: SaleId) -> ServiceResult<SaleView> {
        let cached = self.cached(id).await?;
        cached.touch();
        Ok(cached.view(self.now()))
    }

    /// Yields at once and then on every change, at most 5 a second.
    pub async fn watch_sale(&self, id: SaleId) -> ServiceResult<Receiver<SaleUpdate>> {
        let cached = self.cached(id).await?;
        cached.touch();
        Ok(cached.subscribe(self.now()))
    }

    /// The Redis processes that Postgres has approved. Approvals of another timeline are void: a
    /// promotion or a restore may lack what Redis has seen.
    pub async fn approved_processes(&self) -> ServiceResult<HashSet<String>> {
        let timeline = unless_silent(postgres::timeline(&self.postgres)).await?;
        let approved =
            sqlx::query_scalar("SELECT run_id FROM redis_incarnation WHERE timeline = $1")
                .bind(timeline);
        let approved: Vec<String> = unless_silent(approved.fetch_all(&self.postgres)).await?;
        Ok(approved.into_iter().collect())
    }

    /// Whether Redis may sell all sales that it should, as last read.
    pub fn admission_is_open(&self) -> bool {
        let now = self.now();
        let mut cached_sales = self.cache.cached_sales();
        cached_sales.retain(|cached| !cached.is_evictable(now));
        // A sale that was never read is new, and closes nothing.
        let is_closed = |cached: &Arc<CachedSale>| match cached.was_read() {
            true => !cached.is_sellable(),
            false => cached.snapshot().is_some(),
        };
        self.approval.is_approved() && !cached_sales.iter().any(is_closed)
    }

    /// Asks Redis whether it may sell at least one of the sales that it should.
    pub async fn sells_something(&self) -> ServiceResult<()> {
        let not_yet =
            ServiceError::unavailable("redis is not approved yet: it is rebuilt, or evicts");
        // Admission follows the checks of the rebuild task.
        let is_other = !self.redis.is_cluster() && !self.approval.is_approved();
        if is_other || self.approval.is_doubtful() {
            return Err(not_yet);
        }
        let now = self.now();
        let mut cached_sales = self.cache.cached_sales();
        cached_sales.retain(|cached| !cached.is_evictable(now));
        if cached_sales.is_empty() {
            let approved = self.approved_processes().await?;
            let live = self.redis.processes().await?;
            if live.iter().all(|process| approved.contains(process)) {
                return Ok(());
            }
        }
        for some in cached_sales.chunks(64) {
            let read = self.read_snapshots(some).await;
            let is_sold = |cached: &Arc<CachedSale>| cached.was_read() && cached.is_sellable();
            if some.iter().any(is_sold) {
                return Ok(());
            }
            read?;
        }
        Err(not_yet)
    }

    /// Scans the buyers of a sale, about `count` at a time; some may come more than once.
    pub async fn each_buyer(
        &self,
        id: SaleId,
        epoch: i64,
        count: usize,
        mut tell: impl FnMut((UserId, Vec<u8>)),
    ) -> ServiceResult<()> {
        let (key, mut cursor) = (self.redis.keys.buyers(id, epoch), 0);
        let mut connection = self.redis.pooled().await?;
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(&key).arg(cursor).arg("COUNT").arg(count);
            let found = scan.query_async(&mut connection);
            let (next, some): (u64, Vec<Entry>) = found.await?;
            for (user, orders) in some {
                if let Ok(user) = <[u8; 16]>::try_from(user) {
                    tell((UserId::from_bytes(user), orders));
                }
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }
}
