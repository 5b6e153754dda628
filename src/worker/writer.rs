//! The order writer: drains the channel into Postgres in batches, then deletes the log entries.
//!
//! ```text
//! channel ─▶ up to BATCH orders ─▶ one transaction ─▶ COMMIT ─▶ ack.lua deletes the entries
//! ```
//!
//! **Order of failure does not matter.** The insert is idempotent by order id and an entry is deleted
//! only after the commit, so: crash before the commit, and a recovery pass writes it; crash between
//! commit and acknowledgement, and the recovery pass finds rows that exist and acknowledges; Postgres
//! down, and the batch is retried here while the channel and then only the log fill up.
//!
//! When a batch is refused as a whole (a constraint, an epoch that ended) its orders are settled one
//! by one: live, admitted again into the new epoch, or `rejected`.

use crate::{
    domain::OrderStatus,
    postgres::timed_out,
    redis::{
        is_wrong_type,
        scripts::{self, Judged},
    },
    sale::{
        Shop, ShopError, gate, life,
        log::{self, AcceptedBatch, AcceptedOrder},
        orders::{self, Expect, Rejected, Written},
    },
    worker::survive,
};
use metrics::{counter, histogram};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// About how many orders one transaction writes.
const BATCH: usize = 2_000;

/// Takes batches from the channel until `stop`, then drains what is left in it.
///
/// After `stop` a failing write is given up instead of retried for ever: the log still has it.
pub async fn run(
    shop: Arc<Shop>,
    mut channel: mpsc::Receiver<AcceptedBatch>,
    stop: CancellationToken,
) {
    loop {
        let mut batches = Vec::new();
        let first = tokio::select! {
            first = channel.recv() => first,
            () = stop.cancelled() => channel.try_recv().ok(),
        };
        let Some(first) = first else { return };
        let mut orders = first.orders.len();
        batches.push(first);
        while orders < BATCH {
            let Ok(next) = channel.try_recv() else { break };
            orders += next.orders.len();
            batches.push(next);
        }
        persist_until_stopped(&shop, &batches, &stop).await;
    }
}

async fn persist_until_stopped(
    shop: &Arc<Shop>,
    batches: &[AcceptedBatch],
    stop: &CancellationToken,
) {
    let mut pause = Duration::from_millis(50);
    loop {
        let written = async {
            shop.fail_points
                .at("writer.received")
                .await
                .map_err(sqlx::Error::Io)?;
            persist(shop, batches, Expect::New).await
        };
        match survive(written).await {
            Ok(()) => return,
            Err(error) if stop.is_cancelled() => {
                tracing::warn!(%error, batches = batches.len(), "left in the log for a recovery pass");
                return;
            }
            Err(error) => {
                tracing::warn!(%error, batches = batches.len(), "could not write orders, will retry");
                counter!("flash_sale_writer_retries_total").increment(1);
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = stop.cancelled() => {}
                }
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        }
    }
}

/// Settles every order of these batches in Postgres, then acknowledges their log entries. Idempotent.
pub async fn persist(
    shop: &Arc<Shop>,
    batches: &[AcceptedBatch],
    expect: Expect,
) -> Result<(), ShopError> {
    let began = Instant::now();
    match write(shop, batches, expect).await {
        Ok(Written::All { new }) => count_written(new),
        Ok(Written::StaleEpoch | Written::IdTaken) => settle_each(shop, batches).await?,
        Err(error) if is_refusal(&error) => {
            tracing::warn!(%error, "postgres refuses a batch of accepted orders; settling them one by one");
            settle_each(shop, batches).await?;
        }
        Err(error) => return Err(error.into()),
    }
    histogram!("flash_sale_writer_seconds").record(began.elapsed().as_secs_f64());
    shop.watch.bell.notify_one();
    // The rows are committed: if this fails the caller comes again, finds rows, and acknowledges; and
    // if it dies, a recovery pass does.
    let fail_points = &shop.fail_points;
    fail_points
        .at("writer.committed")
        .await
        .map_err(sqlx::Error::Io)?;
    acknowledge(shop, batches).await?;
    fail_points
        .at("writer.acknowledged")
        .await
        .map_err(sqlx::Error::Io)?;
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
    if shop.fail_points.planted("bug.write_nothing") {
        return Err(sqlx::Error::PoolTimedOut);
    }
    if shop.fail_points.planted("bug.acknowledge_unwritten") {
        return Ok(Written::All { new: 0 });
    }
    tokio::time::timeout(WRITE_TIMEOUT, orders::write_accepted(shop, batches, expect))
        .await
        .unwrap_or_else(|_| Err(timed_out()))
}

fn count_written(new: u64) {
    counter!("flash_sale_writer_orders_total").increment(new);
    life::count(OrderStatus::PendingPayment, new);
}

/// Whether Postgres says that these rows must not be (class 23 integrity, class 22 data), in
/// contrast to not being able to say anything now.
fn is_refusal(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| code.starts_with("23") || code.starts_with("22"))
}

async fn acknowledge(shop: &Arc<Shop>, batches: &[AcceptedBatch]) -> Result<(), ShopError> {
    let mut by_sale: BTreeMap<_, Vec<(&str, usize)>> = BTreeMap::new();
    for batch in batches {
        by_sale
            .entry(batch.sale)
            .or_default()
            .push((batch.entry.as_str(), batch.orders.len()));
    }
    let mut connection = shop.redis.pooled().await?;
    for (sale, entries) in by_sale {
        let acknowledged = scripts::ack(&mut *connection, &shop.redis.keys, sale, &entries).await;
        if let Err(error) = &acknowledged
            && is_wrong_type(error)
        {
            // The log's key holds something else: only a rebuild of the sale mends that.
            shop.suspect(sale);
        }
        acknowledged?;
    }
    Ok(())
}

/// Settles orders whose batch was refused, each in its own transaction.
async fn settle_each(shop: &Arc<Shop>, batches: &[AcceptedBatch]) -> Result<(), ShopError> {
    for batch in batches {
        for order in &batch.orders {
            tokio::time::timeout(2 * WRITE_TIMEOUT, settle(shop, batch, *order))
                .await
                .unwrap_or_else(|_| Err(timed_out().into()))?;
        }
    }
    Ok(())
}

async fn settle(
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
            count_written(new);
            Ok(())
        }
        Ok(Written::StaleEpoch) => settle_late(shop, &single, order).await,
        Ok(Written::IdTaken) => put_aside(shop, &single, "its id is somebody else's order").await,
        Err(error) if is_refusal(&error) => reject(shop, &single, order, &error.to_string()).await,
        Err(error) => Err(error.into()),
    }
}

/// An order that was accepted in an epoch that has ended, and that the rebuild did not find. If it is
/// a row by now, all is well; otherwise it asks for a place in the live epoch like everybody else.
async fn settle_late(
    shop: &Arc<Shop>,
    single: &AcceptedBatch,
    order: AcceptedOrder,
) -> Result<(), ShopError> {
    if !orders::by_ids(&shop.postgres, &[order.id.get()])
        .await?
        .is_empty()
    {
        return Ok(());
    }
    let sale = match shop.refresh(single.sale).await {
        Ok(listing) => listing.sale(),
        Err(ShopError::SaleNotFound) => {
            tracing::error!(sale = %single.sale, order = %order.id, "an accepted order of a sale that does not exist");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let target = (sale.id, sale.epoch, sale.buyer_shards);
    let fail_points = &shop.fail_points;
    fail_points
        .at("writer.readmitting")
        .await
        .map_err(sqlx::Error::Io)?;
    let readmitted = gate::readmit(
        &shop.redis,
        &shop.board.clock,
        target,
        shop.settings.high_water,
        &[order],
    )
    .await?;
    let Ok((verdicts, batch)) = readmitted else {
        shop.rebuild_bell.notify_one();
        return Err(ShopError::Unavailable {
            what: "late orders wait until the sale is rebuilt",
            retry_after: Duration::from_secs(1),
        });
    };
    match verdicts.first() {
        Some(Judged::Accepted { .. }) => {
            // Now an order of the live epoch, with a log entry of its own.
            fail_points
                .at("writer.readmitted")
                .await
                .map_err(sqlx::Error::Io)?;
            if let Some(batch) = batch {
                Box::pin(persist(shop, std::slice::from_ref(&batch), Expect::New)).await?;
            }
            Ok(())
        }
        // Somebody else has readmitted it; their entry is written or in the log.
        Some(Judged::AcceptedBefore) => Ok(()),
        Some(Judged::BacklogFull) | None => Err(ShopError::Unavailable {
            what: "late orders wait until the backlog is written",
            retry_after: Duration::from_secs(1),
        }),
        Some(_) => {
            reject(
                shop,
                single,
                order,
                "its unit was sold again after redis lost data",
            )
            .await
        }
    }
}

async fn reject(
    shop: &Arc<Shop>,
    single: &AcceptedBatch,
    order: AcceptedOrder,
    why: &str,
) -> Result<(), ShopError> {
    let fail_points = &shop.fail_points;
    fail_points
        .at("writer.rejecting")
        .await
        .map_err(sqlx::Error::Io)?;
    match orders::write_rejected(&shop.postgres, single, &order).await {
        Ok(Rejected::New) => {
            tracing::warn!(order = %order.id, sale = %single.sale, why, "an accepted order is rejected");
            life::count(OrderStatus::Rejected, 1);
            shop.release_bell.notify_one();
        }
        Ok(Rejected::Before) => {}
        Ok(Rejected::IdTaken) => {
            put_aside(shop, single, "its id is somebody else's order").await?;
        }
        Err(error) if is_refusal(&error) => put_aside(shop, single, &error.to_string()).await?,
        Err(error) => return Err(error.into()),
    }
    fail_points
        .at("writer.rejected")
        .await
        .map_err(sqlx::Error::Io)?;
    Ok(())
}

/// The last resort for an order that cannot be a row of any kind, which no order of this program is:
/// it is kept for somebody to look at, and a rebuild of the sale returns its unit.
async fn put_aside(shop: &Arc<Shop>, single: &AcceptedBatch, why: &str) -> Result<(), ShopError> {
    let mut connection = shop.redis.pooled().await?;
    let key = log::put_aside(&mut *connection, &shop.redis.keys, single).await?;
    tracing::error!(sale = %single.sale, why, key, "a log entry that cannot be written was put aside");
    counter!("flash_sale_unwritable_orders_total").increment(1);
    shop.suspect(single.sale);
    Ok(())
}
