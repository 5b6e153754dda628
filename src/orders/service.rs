//! The order service, and reading orders.

use crate::admission::Admission;
use crate::catalog::Catalog;
use crate::catalog::approval::Approval;
use crate::databases::Databases;
use crate::domain::{Order, OrderId, SaleId, UserId, unix_ms};
use crate::error::{ServiceError, ServiceResult};
use crate::fail_point::FailPoints;
use crate::orders::loader::OrderLoader;
use crate::orders::queries::{self, Page};
use crate::orders::watch::OrderWatch;
use crate::postgres::Pool;
use crate::redis::Redis;
use crate::telemetry::instruments::Metrics;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;

/// The order service. One per process.
pub struct Orders {
    pub(super) catalog: Arc<Catalog>,
    pub(super) admission: Arc<Admission>,
    pub(super) approval: Arc<Approval>,
    pub(super) postgres: Pool,
    pub(super) redis: Arc<Redis>,
    pub watch: Arc<OrderWatch>,
    loader: OrderLoader,
    /// Whether the writer is writing a batch.
    pub(super) writer_is_busy: AtomicBool,
    /// When the oldest order in the writer's queue was admitted (Unix ms); 0: it has none.
    oldest_in_hand_ms: AtomicI64,
    /// Notified when the outbox has a new row.
    pub(super) release_wakeup: Notify,
    pub(super) metrics: Arc<Metrics>,
    pub(super) fail_points: FailPoints,
}

impl Orders {
    pub fn new(
        catalog: Arc<Catalog>,
        admission: Arc<Admission>,
        approval: Arc<Approval>,
        Databases { postgres, redis }: Databases,
        metrics: Arc<Metrics>,
        fail_points: FailPoints,
    ) -> Self {
        Self {
            watch: Arc::new(OrderWatch::new(postgres.clone())),
            catalog,
            admission,
            approval,
            postgres,
            redis,
            loader: OrderLoader::default(),
            writer_is_busy: AtomicBool::new(false),
            oldest_in_hand_ms: AtomicI64::new(0),
            release_wakeup: Notify::new(),
            metrics,
            fail_points,
        }
    }

    /// Whether everything that was handed to the writer is in Postgres.
    pub fn everything_is_written(&self) -> bool {
        self.admission.handoff_is_empty() && !self.writer_is_busy.load(Relaxed)
    }

    /// How long the oldest order in the writer's queue has waited; zero if there is none.
    pub fn writer_delay(&self) -> Duration {
        let waited = match self.oldest_in_hand_ms.load(Relaxed) {
            0 => 0,
            since => unix_ms(self.catalog.now()).saturating_sub(since),
        };
        Duration::from_millis(u64::try_from(waited).unwrap_or(0))
    }

    /// Unix ms; 0: the queue is empty.
    pub fn set_oldest_in_hand(&self, created_ms: i64) {
        self.oldest_in_hand_ms.store(created_ms, Relaxed);
    }

    /// The caller's order, queued ones included.
    pub async fn order(&self, user: UserId, id: OrderId) -> ServiceResult<Order> {
        if let Some(order) = self.written_order(user, id).await? {
            return Ok(order);
        }
        let queued = self.find_queued(user, id).await;
        // It may have been written, and even closed, between the two reads: Postgres is newer.
        if let Some(order) = self.written_order(user, id).await? {
            return Ok(order);
        }
        queued?.ok_or(ServiceError::OrderNotFound)
    }

    /// The user's order, if it is a row.
    async fn written_order(&self, user: UserId, id: OrderId) -> sqlx::Result<Option<Order>> {
        self.loader.order(&self.postgres, user, id).await
    }

    /// The caller's orders, newest first, queued ones included.
    pub async fn orders(&self, user: UserId, page: Page) -> ServiceResult<Vec<Order>> {
        // Redis first: the query below then sees orders that are written in between.
        let queued = self.queued_orders(user).await?;
        let mut found = queries::list_of_user(&self.postgres, user, page).await?;
        let is_full = found.len() >= usize::from(page.limit);
        let oldest = found.last().filter(|_| is_full).map(|order| order.id);
        let is_missing = |order: &Order| {
            page.after.is_none_or(|after| order.id < after)
                && oldest.is_none_or(|oldest| order.id > oldest)
                && !found.iter().any(|written| written.id == order.id)
        };
        let mut queued: Vec<_> = queued.into_iter().filter(is_missing).collect();
        if !queued.is_empty() {
            // Some may have been written since.
            let wanted = queued.iter().map(|order| (user, order.id)).collect();
            let written = queries::of_users(&self.postgres, &wanted).await?;
            queued.retain(|order| written.iter().all(|written| written.id != order.id));
            found.extend(written);
            found.append(&mut queued);
        }
        found.sort_by_key(|order| std::cmp::Reverse(order.id));
        found.truncate(usize::from(page.limit));
        Ok(found)
    }

    /// Yields at once and then on every change of the order.
    pub async fn watch_order(
        &self,
        user: UserId,
        id: OrderId,
    ) -> ServiceResult<tokio::sync::watch::Receiver<Order>> {
        let order = self.order(user, id).await?;
        Ok(self.watch.subscribe(order))
    }

    /// Orders of a sale for an operator, newest first.
    pub async fn sale_orders(
        &self,
        sale: SaleId,
        wanted: queries::Wanted,
        page: Page,
    ) -> ServiceResult<Vec<Order>> {
        self.catalog.cached(sale).await?;
        Ok(queries::list_of_sale(&self.postgres, sale, wanted, page).await?)
    }
}
