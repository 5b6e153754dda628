//! The order writer: drains the channel into Postgres in batches, then deletes the log entries.
//!
//! ```text
//! channel ─▶ up to BATCH orders ─▶ one transaction ─▶ COMMIT ─▶ `ack` deletes the entries
//! ```
//!
//! **Order of failure does not matter.** The insert is idempotent by order id and an entry is deleted
//! only after the commit, so: crash before the commit, and a recovery pass writes it; crash between
//! commit and acknowledgement, and the recovery pass finds rows that exist and acknowledges; Postgres
//! down, and the batch is retried here while the channel and then only the log fill up.
//!
//! When a batch is refused as a whole by a constraint, its orders are settled one by one, live or
//! `rejected`. When its epoch has ended, its orders ask again ([`super::late`]).

use crate::{
    domain::{OrderStatus, SaleId},
    postgres::timed_out,
    redis::{
        functions::{self, Settled},
        is_wrong_type,
    },
    sale::{
        Shop, ShopError,
        log::{self, AcceptedBatch, AcceptedOrder},
        orders::{self, Expect, Rejected, Written},
    },
    telemetry::traces,
    worker::{late, survive},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

/// About how many orders one transaction writes.
const BATCH: usize = 2_000;

/// The most logs that are acknowledged at a time: Redis does nothing else meanwhile, some microseconds each.
const LOGS: usize = 256;

/// How long a failing write is tried again once the program is stopping.
const LAST_TRIES: Duration = Duration::from_secs(2);

/// Takes batches from the channel until `stop`, then drains what is left in it.
///
/// After `stop` a failing write is given up after a while: the log still has it, as far as Redis does.
pub async fn run(
    shop: Arc<Shop>,
    channel: &mut mpsc::Receiver<AcceptedBatch>,
    stop: CancellationToken,
) {
    shop.writer_is_busy.store(false, Relaxed); // one that has died may have left it
    loop {
        if channel.is_empty() {
            shop.set_oldest_in_hand(0);
        }
        let mut batches = Vec::new();
        let first = tokio::select! {
            first = channel.recv() => first,
            () = stop.cancelled() => channel.try_recv().ok(),
        };
        let Some(first) = first else { return };
        shop.set_oldest_in_hand(first.created_ms);
        let mut orders = first.orders.len();
        batches.push(first);
        while orders < BATCH {
            let Ok(next) = channel.try_recv() else { break };
            orders += next.orders.len();
            batches.push(next);
        }
        shop.writer_is_busy.store(true, Relaxed);
        persist_until_stopped(&shop, &batches, &stop).await;
        shop.writer_is_busy.store(false, Relaxed);
    }
}

async fn persist_until_stopped(
    shop: &Arc<Shop>,
    batches: &[AcceptedBatch],
    stop: &CancellationToken,
) {
    let traced = batches.iter().flat_map(|batch| &batch.traced);
    let (write, orders) = traces::written(traced);
    let writing = persist_traced(shop, batches, stop, orders);
    writing.instrument(write).await;
}

/// `spans` end when the orders are rows.
async fn persist_traced(
    shop: &Arc<Shop>,
    batches: &[AcceptedBatch],
    stop: &CancellationToken,
    spans: Vec<Span>,
) {
    let mut pause = Duration::from_millis(50);
    let mut give_up_at = None;
    loop {
        let written = async {
            shop.fail_points.at("writer.received").await?;
            let step = traces::below_here("postgres transaction");
            settle(shop, batches, Expect::New).instrument(step).await
        };
        match survive(written).await {
            Ok(()) => break,
            Err(error) if stop.is_cancelled() => {
                // Not at the first failure: after a loss of data this may be the only copy.
                let give_up_at = *give_up_at.get_or_insert_with(|| Instant::now() + LAST_TRIES);
                if Instant::now() >= give_up_at {
                    tracing::warn!(%error, batches = batches.len(), "left in the log for a recovery pass");
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => {
                tracing::warn!(%error, batches = batches.len(), "could not write orders, will retry");
                shop.metrics.writer_retries.increment(1);
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = stop.cancelled() => {}
                }
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        }
    }
    drop(spans);
    // Once, and not until it succeeds: while Redis is away, what else is in the channel must become rows,
    // since Redis may come back without it. A recovery pass finds rows and acknowledges.
    let acknowledging = acknowledge_settled(shop, batches);
    let step = traces::below_here("redis ack.lua");
    if let Err(error) = survive(acknowledging.instrument(step)).await {
        tracing::debug!(%error, batches = batches.len(), "written; the log entries stay for a recovery pass");
    }
}

/// Settles every order of these batches in Postgres, then acknowledges their log entries. Idempotent.
pub async fn persist(
    shop: &Arc<Shop>,
    batches: &[AcceptedBatch],
    expect: Expect,
) -> Result<(), ShopError> {
    settle(shop, batches, expect).await?;
    // The rows are committed: if this fails the caller comes again, finds rows, and acknowledges; and
    // if it dies, a recovery pass does.
    acknowledge_settled(shop, batches).await
}

/// Makes every order of these batches a row, live or `rejected`. Idempotent.
async fn settle(
    shop: &Arc<Shop>,
    batches: &[AcceptedBatch],
    expect: Expect,
) -> Result<(), ShopError> {
    let began = Instant::now();
    match write(shop, batches, expect).await {
        Ok(Written::All { new }) => count_written(shop, new),
        Ok(Written::StaleEpoch) => settle_by_sale(shop, batches, expect).await?,
        Ok(Written::IdTaken) => settle_each(shop, batches).await?,
        Err(error) if is_refusal(&error) => {
            tracing::warn!(%error, "postgres refuses a batch of accepted orders; settling them one by one");
            settle_each(shop, batches).await?;
        }
        Err(error) => return Err(error.into()),
    }
    shop.metrics
        .writer_seconds
        .record(began.elapsed().as_secs_f64());
    shop.watch.bell.notify_one();
    Ok(())
}

/// Settles each sale by itself, when at least one is of an epoch that has ended: a sale that has to wait
/// until it is rebuilt must not hold up the others.
async fn settle_by_sale(
    shop: &Arc<Shop>,
    batches: &[AcceptedBatch],
    expect: Expect,
) -> Result<(), ShopError> {
    let mut by_sale: BTreeMap<SaleId, Vec<AcceptedBatch>> = BTreeMap::new();
    for batch in batches {
        by_sale.entry(batch.sale).or_default().push(batch.clone());
    }
    let is_mixed = by_sale.len() > 1;
    let mut failed = None;
    for (sale, batches) in by_sale {
        let settled = async {
            if is_mixed {
                match write(shop, &batches, expect).await {
                    Ok(Written::All { new }) => {
                        count_written(shop, new);
                        return Ok(());
                    }
                    Ok(Written::StaleEpoch) => {}
                    Ok(Written::IdTaken) => return settle_each(shop, &batches).await,
                    Err(error) if is_refusal(&error) => return settle_each(shop, &batches).await,
                    Err(error) => return Err(error.into()),
                }
            }
            Box::pin(late::settle(shop, sale, &batches)).await // boxed: rare, and large
        };
        if let Err(error) = settled.await {
            failed = Some(error);
        }
    }
    failed.map_or(Ok(()), Err)
}

/// The same for a batch that was found to be live a moment ago: if it is not any more, the caller has
/// to look again.
pub(super) async fn settle_live(
    shop: &Arc<Shop>,
    batch: &AcceptedBatch,
    expect: Expect,
) -> Result<(), ShopError> {
    match write(shop, std::slice::from_ref(batch), expect).await {
        Ok(Written::All { new }) => count_written(shop, new),
        Ok(Written::StaleEpoch) => return Err(rebuilt_again()),
        Ok(Written::IdTaken) => settle_each(shop, std::slice::from_ref(batch)).await?,
        Err(error) if is_refusal(&error) => {
            settle_each(shop, std::slice::from_ref(batch)).await?;
        }
        Err(error) => return Err(error.into()),
    }
    shop.watch.bell.notify_one();
    Ok(())
}

fn rebuilt_again() -> ShopError {
    ShopError::Unavailable {
        what: "the sale was rebuilt at the same moment",
        retry_after: Duration::from_secs(1),
    }
}

async fn acknowledge_settled(shop: &Arc<Shop>, batches: &[AcceptedBatch]) -> Result<(), ShopError> {
    let fail_points = &shop.fail_points;
    fail_points.at("writer.committed").await?;
    acknowledge(shop, batches).await?;
    fail_points.at("writer.acknowledged").await?;
    Ok(())
}

/// How long one batch, or the settling of one order, may take; a Postgres that says nothing at all is
/// asked again on another connection, which the idempotent insert allows.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

async fn write(
    shop: &Arc<Shop>,
    batches: &[AcceptedBatch],
    expect: Expect,
) -> Result<Written, sqlx::Error> {
    tokio::time::timeout(WRITE_TIMEOUT, orders::write_accepted(shop, batches, expect))
        .await
        .unwrap_or_else(|_| Err(timed_out()))
}

fn count_written(shop: &Shop, new: u64) {
    shop.metrics.writer_orders.increment(new);
    shop.metrics
        .orders(OrderStatus::PendingPayment)
        .increment(new);
}

/// Whether Postgres says that these rows must not be (class 23 integrity, class 22 data), in
/// contrast to not being able to say anything now.
pub(super) fn is_refusal(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| code.starts_with("23") || code.starts_with("22"))
}

/// Deletes the log entries of batches whose orders are rows.
pub(super) async fn acknowledge(
    shop: &Arc<Shop>,
    batches: &[AcceptedBatch],
) -> Result<(), ShopError> {
    let mut by_log: BTreeMap<_, Vec<(&str, usize)>> = BTreeMap::new();
    for batch in batches.iter().filter(|batch| !batch.entry.is_empty()) {
        // An id from a log that is lost may be another entry's by now; see `ack` in `redis/library/orders.lua`.
        by_log
            .entry((batch.sale, batch.epoch))
            .or_default()
            .push((batch.entry.as_str(), batch.orders.len()));
    }
    let settled: Vec<Settled> = by_log
        .into_iter()
        .map(|((sale, epoch), entries)| Settled {
            sale,
            epoch,
            entries,
        })
        .collect();
    let mut failed = None;
    for some in settled.chunks(LOGS) {
        shop.round_trips.redis.fetch_add(1, Relaxed);
        let calls = some.iter().map(|log| functions::ack(&shop.redis.keys, log));
        let acknowledged = match shop.redis.query_all(calls.collect()).await {
            Ok(acknowledged) => acknowledged,
            Err(error) => {
                failed = Some(error);
                continue;
            }
        };
        for (log, acknowledged) in some.iter().zip(acknowledged) {
            if let Err(error) = acknowledged {
                if is_wrong_type(&error) {
                    // The log's key holds something else: only a rebuild of the sale mends that.
                    shop.suspect(log.sale);
                }
                failed = Some(error);
            }
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Settles orders whose batch was refused, each in its own transaction.
async fn settle_each(shop: &Arc<Shop>, batches: &[AcceptedBatch]) -> Result<(), ShopError> {
    for batch in batches {
        for order in &batch.orders {
            tokio::time::timeout(2 * WRITE_TIMEOUT, settle_one(shop, batch, *order))
                .await
                .unwrap_or_else(|_| Err(timed_out().into()))?;
        }
    }
    Ok(())
}

async fn settle_one(
    shop: &Arc<Shop>,
    batch: &AcceptedBatch,
    order: AcceptedOrder,
) -> Result<(), ShopError> {
    let single = AcceptedBatch {
        orders: vec![order],
        ..batch.clone()
    };
    match write(shop, std::slice::from_ref(&single), Expect::PerhapsWritten).await {
        Ok(Written::All { new }) => {
            count_written(shop, new);
            Ok(())
        }
        Ok(Written::StaleEpoch) => Err(rebuilt_again()),
        Ok(Written::IdTaken) => put_aside(shop, &single, "its id is somebody else's order").await,
        Err(error) if is_refusal(&error) => {
            let constraint = error
                .as_database_error()
                .and_then(|error| error.constraint());
            if constraint == Some("sales_taken_within_stock") {
                // Redis has units that Postgres does not know of, and would sell them again and again.
                shop.suspect(single.sale);
            }
            reject(shop, &single, order, &error.to_string()).await
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes an order that Postgres will not hold live as `rejected`, which returns its unit.
pub(super) async fn reject(
    shop: &Arc<Shop>,
    single: &AcceptedBatch,
    order: AcceptedOrder,
    why: &str,
) -> Result<(), ShopError> {
    let fail_points = &shop.fail_points;
    fail_points.at("writer.rejecting").await?;
    match orders::write_rejected(&shop.postgres, single, &order).await {
        Ok(Rejected::New) => {
            tracing::warn!(order = %order.id, sale = %single.sale, why, "an accepted order is rejected");
            shop.metrics.orders(OrderStatus::Rejected).increment(1);
            shop.release_bell.notify_one();
        }
        Ok(Rejected::Before) => {}
        Ok(Rejected::IdTaken) => {
            put_aside(shop, single, "its id is somebody else's order").await?;
        }
        Err(error) if is_refusal(&error) => put_aside(shop, single, &error.to_string()).await?,
        Err(error) => return Err(error.into()),
    }
    fail_points.at("writer.rejected").await?;
    Ok(())
}

/// The last resort for an order that cannot be a row of any kind, which no order of this program is:
/// it is kept for somebody to look at, and a rebuild of the sale returns its unit.
async fn put_aside(shop: &Arc<Shop>, single: &AcceptedBatch, why: &str) -> Result<(), ShopError> {
    let mut connection = shop.redis.pooled().await?;
    let key = log::put_aside(&mut connection, &shop.redis.keys, single).await?;
    tracing::error!(sale = %single.sale, why, key, "a log entry that cannot be written was put aside");
    shop.metrics.unwritable_orders.increment(1);
    shop.suspect(single.sale);
    Ok(())
}
