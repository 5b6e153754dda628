//! Evicts ended sales from Redis, whose memory is the most expensive place for them.
//!
//! [`EVICT_AFTER`] after its end a sale gets no more retries, and units that still come back are
//! counted in Postgres only. From then on the cache answers `ended`; Postgres keeps everything.

use crate::catalog::Catalog;
use crate::catalog::cached_sale::{CachedSale, EVICT_AFTER};
use crate::error::ServiceResult;
use crate::redis::functions;
use std::sync::Arc;
use std::time::Duration;
use tasks::Tasks;

const PAUSE: Duration = Duration::from_secs(60);

pub fn spawn(catalog: &Arc<Catalog>, tasks: &Tasks) {
    tasks.spawn("eviction", catalog, |catalog, task| async move {
        let mut periodic = task.every(PAUSE);
        while periodic.tick(step(&catalog)).await {}
    });
}

/// One pass. Answers how many sales were evicted.
pub async fn step(catalog: &Arc<Catalog>) -> ServiceResult<usize> {
    let now = catalog.now();
    let (mut removed, mut outcome) = (0, Ok(()));
    for cached in catalog.cache.cached_sales() {
        if !cached.is_evictable(now) {
            continue;
        }
        let settled = cached.snapshot().is_some_and(|known| known.pending == 0);
        if !settled {
            continue;
        }
        match remove(catalog, &cached).await {
            Ok(gone) => removed += usize::from(gone),
            // A failure must not keep the others in Redis.
            Err(error) => outcome = Err(error),
        }
    }
    if removed > 0 {
        tracing::info!(sales = removed, "ended sales were taken out of redis");
    }
    outcome.map(|()| removed)
}

async fn remove(catalog: &Arc<Catalog>, cached: &Arc<CachedSale>) -> ServiceResult<bool> {
    // The cache may be old: an operator may just have extended the sale.
    let sale = catalog.refresh(cached.id).await?.sale();
    if !cached.is_evictable(catalog.now()) {
        return Ok(false);
    }
    catalog.fail_points.at("eviction.deciding").await?;
    let gone = {
        let (mut connection, keys) = (catalog.redis.pooled().await?, &catalog.redis.keys);
        functions::evict(&mut connection, keys, sale.id, sale.epoch, EVICT_AFTER).await?
    };
    catalog.read_snapshots(std::slice::from_ref(cached)).await?;
    Ok(gone)
}
