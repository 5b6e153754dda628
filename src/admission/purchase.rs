//! A purchase, from the cache to the queue.

use super::refusals;
use super::service::Admission;
use crate::catalog::cached_sale::CachedSale;
use crate::domain::{IdempotencyKey, PurchaseResult, SaleId, UserId};
use crate::error::{ServiceError, ServiceResult};
use std::sync::Arc;

impl Admission {
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
}
