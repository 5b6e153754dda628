//! Keeps the cache fresh: snapshots from Redis, rows from Postgres, published changes.
//!
//! Sales in use are read every [`WARM_PAUSE`], all in one round trip, so that a subscriber costs a
//! write and not a query; the others every [`COLD_PAUSE`].

use crate::catalog::Catalog;
use crate::catalog::cached_sale::CachedSale;
use crate::domain::{SaleId, UserId};
use crate::error::{ServiceError, ServiceResult};
use crate::postgres::within;
use crate::redis::functions::Snapshot;
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tasks::{STEP_LIMIT, Tasks};
use tokio_util::sync::CancellationToken;

/// At most 5 events a second for a subscriber; also the longest that "sold out" can be stale where
/// a message was lost.
const WARM_PAUSE: Duration = Duration::from_millis(200);
const COLD_PAUSE: Duration = Duration::from_secs(1);

pub fn spawn(catalog: &Arc<Catalog>, tasks: &Tasks) {
    tasks.spawn("warm sales", catalog, |catalog, task| async move {
        let mut periodic = task.every(WARM_PAUSE);
        while periodic.tick(read_warm(&catalog)).await {}
    });
    tasks.spawn("catalogue", catalog, |catalog, task| async move {
        let mut suspects = Vec::new();
        let mut periodic = task.every(COLD_PAUSE);
        while periodic.tick(read_all(&catalog, &mut suspects)).await {}
    });
    tasks.spawn("published changes", catalog, |catalog, task| async move {
        let stop = task.stop.clone();
        // One step lasts as long as the subscription.
        let mut periodic = task.every(COLD_PAUSE).without_limit();
        while periodic.tick(listen(&catalog, &stop)).await {}
    });
}

async fn read_all(catalog: &Arc<Catalog>, suspects: &mut Vec<(SaleId, i64)>) -> ServiceResult<()> {
    // Snapshots and metrics are refreshed even while Postgres is away.
    let snapshots = catalog.read_snapshots(&catalog.cache.cached_sales()).await;
    forget_old_buyers(catalog);
    report(catalog);
    catalog.refresh_catalogue().await?;
    // Repairs what could be read, even if other servers are silent.
    let repaired = catalog.reconcile(suspects).await;
    snapshots.and(repaired)
}

/// Sales that a client was interested in a moment ago.
fn warm_sales(catalog: &Catalog) -> Vec<Arc<CachedSale>> {
    let mut sales = catalog.cache.cached_sales();
    sales.retain(|cached| cached.is_warm());
    sales
}

async fn read_warm(catalog: &Arc<Catalog>) -> ServiceResult<()> {
    let warm = warm_sales(catalog);
    if warm.is_empty() {
        return Ok(());
    }
    catalog.read_snapshots(&warm).await?;
    for cached in warm {
        load_buyers_if_over(catalog, &cached);
    }
    Ok(())
}

/// Long-ended sales are refused without a list of buyers; see `admission::refusals`.
fn forget_old_buyers(catalog: &Catalog) {
    let now = catalog.now();
    for cached in catalog.cache.cached_sales() {
        if cached.is_evictable(now) {
            cached.buyers.forget();
        }
    }
}

/// Loads the buyers of a sale that sells no more, so that others can be refused here.
fn load_buyers_if_over(catalog: &Arc<Catalog>, cached: &Arc<CachedSale>) {
    let now = catalog.now();
    let selling = cached.view(now).state == crate::domain::SaleState::Open;
    if !cached.is_present() || selling || cached.is_evictable(now) {
        return;
    }
    let Some(known) = cached.snapshot() else {
        return;
    };
    if !cached.buyers.begin_loading(known.epoch, known.admitted) {
        return;
    }
    let (catalog, cached) = (catalog.clone(), cached.clone());
    tokio::spawn(async move {
        if let Err(error) = load(&catalog, &cached, &known).await {
            tracing::debug!(%error, sale = %cached.id, "could not load the buyers");
        }
        cached.buyers.end_loading();
    });
}

/// Fields a scan reads at a time: about a millisecond of Redis' time.
const SCAN: usize = 2_000;

async fn load(catalog: &Catalog, cached: &CachedSale, known: &Snapshot) -> ServiceResult<()> {
    if cached.sale().epoch != known.epoch {
        return Ok(());
    }
    let mut users = Vec::new();
    let record = |(user, _): (UserId, Vec<u8>)| users.push(user);
    let scan = catalog.each_buyer(cached.id, known.epoch, SCAN, record);
    scan.await?;
    let (epoch, admitted) = (known.epoch, known.admitted);
    cached.buyers.loaded(epoch, admitted, users.into_iter());
    Ok(())
}

/// Follows the channel of changes until it breaks.
async fn listen(catalog: &Arc<Catalog>, stop: &CancellationToken) -> ServiceResult<()> {
    let mut subscriber = catalog.redis.subscribe().await?;
    // Messages may have been missed before.
    for cached in warm_sales(catalog) {
        within(STEP_LIMIT, catalog.refresh(cached.id)).await?;
    }
    let mut messages = subscriber.on_message();
    loop {
        let message = tokio::select! {
            message = messages.next() => message,
            () = stop.cancelled() => return Ok(()),
        };
        let Some(message) = message else {
            let aborted = std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
            return Err(redis::RedisError::from(aborted).into());
        };
        let Ok(id) = message.get_payload::<i64>() else {
            continue;
        };
        match within(STEP_LIMIT, catalog.refresh(SaleId::from_i64(id))).await {
            Ok(_) | Err(ServiceError::SaleNotFound) => {}
            Err(error) => tracing::debug!(%error, sale = id, "could not follow a change"),
        }
    }
}

fn report(catalog: &Catalog) {
    let cached_sales = catalog.cache.cached_sales();
    let known = cached_sales.iter().filter_map(|cached| cached.snapshot());
    let pending: i64 = known.map(|known| known.pending).sum();
    let metrics = &catalog.metrics;
    metrics.backlog_orders.set(pending as f64);
    let redis = catalog.redis.pool_size();
    metrics.redis_connections.size.set(redis.size as f64);
    metrics.redis_connections.idle.set(redis.idle as f64);
    let postgres = &metrics.postgres_connections;
    postgres.size.set(f64::from(catalog.postgres.size()));
    postgres.idle.set(catalog.postgres.num_idle() as f64);
    let admission_is_open = catalog.admission_is_open();
    metrics.admission_open.set(f64::from(u8::from(admission_is_open)));
}
