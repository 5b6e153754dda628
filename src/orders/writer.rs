//! The order writer: drains the channel into Postgres in batches, then deletes the log entries.
//!
//! ```text
//! channel ─▶ up to BATCH orders ─▶ one transaction ─▶ COMMIT ─▶ `ack` deletes the entries
//! ```
//!
//! **Failures.** The insert is idempotent by order id, and an entry is deleted only after the
//! commit. After a crash before the commit, a recovery pass writes the batch; after one before the
//! acknowledgement, it finds rows and acknowledges. While Postgres is away, the batch is retried,
//! the channel fills, and then only the log.
//!
//! If a constraint refuses a batch, its orders are settled one by one, live or `rejected`. If its
//! epoch has ended, its orders are readmitted ([`crate::orders::readmission`]).

use crate::domain::{OrderStatus, SaleId};
use crate::error::{ServiceError, ServiceResult};
use crate::order_log::{self, AcceptedBatch, AcceptedOrder};
use crate::orders::insert::Expect;
use crate::orders::outcome::{Outcome, Refusal};
use crate::orders::service::Orders;
use crate::orders::statements::{self, Rejected};
use crate::postgres::within;
use crate::redis::functions::{self, Settled};
use crate::redis::is_wrong_type;
use crate::telemetry::traces;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tasks::{Tasks, survive};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// About how many orders one transaction writes.
const BATCH: usize = 2_000;

/// The most logs of one acknowledgement: Redis is busy for some microseconds each.
const LOGS: usize = 256;

/// How long a failing write is retried after the stop.
const LAST_TRIES: Duration = Duration::from_secs(2);

/// Shared: a restarted writer continues with the same channel.
type Channel = Arc<Mutex<mpsc::Receiver<AcceptedBatch>>>;

pub fn spawn(
    orders: &Arc<Orders>,
    tasks: &Tasks,
    channel: mpsc::Receiver<AcceptedBatch>,
) -> JoinHandle<()> {
    let channel: Channel = Arc::new(Mutex::new(channel));
    tasks.spawn("writer", orders, move |orders, task| {
        let channel = channel.clone();
        async move { orders.run_writer(&mut *channel.lock().await, task.stop).await }
    })
}

impl Orders {
    /// Writes batches from the channel until `stop`, then drains it.
    ///
    /// After `stop` a failing write is given up after a while: the log has its orders.
    pub async fn run_writer(
        &self,
        channel: &mut mpsc::Receiver<AcceptedBatch>,
        stop: CancellationToken,
    ) {
        self.writer_is_busy.store(false, Relaxed); // a writer that died may have left it set
        loop {
            if channel.is_empty() {
                self.set_oldest_in_hand(0);
            }
            let first = tokio::select! {
                first = channel.recv() => first,
                () = stop.cancelled() => channel.try_recv().ok(),
            };
            let Some(first) = first else { return };
            self.set_oldest_in_hand(first.created_ms);
            let mut orders = first.orders.len();
            let mut batches = vec![first];
            while orders < BATCH
                && let Ok(next) = channel.try_recv()
            {
                orders += next.orders.len();
                batches.push(next);
            }
            self.writer_is_busy.store(true, Relaxed);
            let traced = batches.iter().flat_map(|batch| &batch.traced);
            let (write, orders) = traces::written(traced);
            let writing = async {
                if self.settle_or_give_up(&batches, &stop).await {
                    drop(orders); // their spans end when they are rows
                    self.acknowledge_once(&batches).await;
                }
            };
            writing.instrument(write).await;
            self.writer_is_busy.store(false, Relaxed);
        }
    }

    /// Settles these batches, however often it takes. False: `stop` came, and it failed for a while
    /// longer; the log has the orders.
    async fn settle_or_give_up(&self, batches: &[AcceptedBatch], stop: &CancellationToken) -> bool {
        let mut pause = Duration::from_millis(50);
        let mut give_up_at = None;
        loop {
            let written = async {
                self.fail_points.at("writer.received").await?;
                let step = traces::below_here("postgres transaction");
                self.settle(batches, Expect::New).instrument(step).await
            };
            match survive(written).await {
                Ok(()) => return true,
                Err(error) if stop.is_cancelled() => {
                    // Not at the first failure: after a loss in Redis this may be the only copy.
                    let give_up_at = *give_up_at.get_or_insert_with(|| Instant::now() + LAST_TRIES);
                    if Instant::now() >= give_up_at {
                        tracing::warn!(%error, batches = batches.len(),
                            "left in the log for a recovery pass");
                        return false;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => {
                    tracing::warn!(%error, batches = batches.len(),
                        "could not write orders, will retry");
                    self.metrics.writer_retries.increment(1);
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = stop.cancelled() => {}
                    }
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
            }
        }
    }

    /// Once only: while Redis is away, the rest of the channel must become rows, since Redis may
    /// come back without it. A recovery pass acknowledges the rest.
    async fn acknowledge_once(&self, batches: &[AcceptedBatch]) {
        let acknowledging = self.acknowledge_settled(batches);
        let step = traces::below_here("redis ack");
        if let Err(error) = survive(acknowledging.instrument(step)).await {
            tracing::debug!(%error, batches = batches.len(),
                "written; the log entries stay for a recovery pass");
        }
    }

    /// Settles all orders of these batches, then acknowledges their log entries. Idempotent.
    pub async fn persist(&self, batches: &[AcceptedBatch], expect: Expect) -> ServiceResult<()> {
        self.settle(batches, expect).await?;
        // If this fails, the caller or a recovery pass finds rows and acknowledges.
        self.acknowledge_settled(batches).await
    }

    /// Makes every order of these batches a row, live or `rejected`. Idempotent.
    async fn settle(&self, batches: &[AcceptedBatch], expect: Expect) -> ServiceResult<()> {
        let began = Instant::now();
        match self.write(batches, expect).await? {
            Outcome::StaleEpoch => self.settle_by_sale(batches, expect).await?,
            outcome => self.settle_same_epoch(batches, outcome).await?,
        }
        let seconds = began.elapsed().as_secs_f64();
        self.metrics.writer_seconds.record(seconds);
        self.watch.wakeup.notify_one();
        Ok(())
    }

    /// For a batch whose epoch was live a moment ago; if it has ended, the caller retries.
    pub async fn settle_live(&self, batch: &AcceptedBatch, expect: Expect) -> ServiceResult<()> {
        let batches = std::slice::from_ref(batch);
        let outcome = self.write(batches, expect).await?;
        self.settle_same_epoch(batches, outcome).await?;
        self.watch.wakeup.notify_one();
        Ok(())
    }

    /// Settles sales one by one, if at least one epoch has ended: a sale that waits for its rebuild
    /// must not hold up the others.
    async fn settle_by_sale(&self, batches: &[AcceptedBatch], expect: Expect) -> ServiceResult<()> {
        let mut by_sale: BTreeMap<SaleId, Vec<AcceptedBatch>> = BTreeMap::new();
        for batch in batches {
            by_sale.entry(batch.sale).or_default().push(batch.clone());
        }
        let is_mixed = by_sale.len() > 1;
        let mut failed = None;
        for (sale, batches) in by_sale {
            let settled = async {
                let outcome = match is_mixed {
                    true => self.write(&batches, expect).await?,
                    false => Outcome::StaleEpoch,
                };
                match outcome {
                    // Boxed: rare, and large.
                    Outcome::StaleEpoch => Box::pin(self.settle_ended_epoch(sale, &batches)).await,
                    outcome => self.settle_same_epoch(&batches, outcome).await,
                }
            };
            if let Err(error) = settled.await {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Settles batches whose epoch is the sale's.
    async fn settle_same_epoch(
        &self,
        batches: &[AcceptedBatch],
        outcome: Outcome,
    ) -> ServiceResult<()> {
        match outcome {
            Outcome::Written { new } => {
                self.count_written(new);
                Ok(())
            }
            Outcome::StaleEpoch => Err(rebuilt_again()),
            Outcome::IdTaken => self.settle_each(batches).await,
            Outcome::Refused { why, .. } => {
                tracing::warn!(
                    why,
                    "postgres refuses a batch of accepted orders; settling them one by one"
                );
                self.settle_each(batches).await
            }
        }
    }

    async fn acknowledge_settled(&self, batches: &[AcceptedBatch]) -> ServiceResult<()> {
        self.fail_points.at("writer.committed").await?;
        self.acknowledge(batches).await?;
        self.fail_points.at("writer.acknowledged").await?;
        Ok(())
    }

    async fn write(&self, batches: &[AcceptedBatch], expect: Expect) -> sqlx::Result<Outcome> {
        within(WRITE_TIMEOUT, self.write_accepted(batches, expect)).await
    }

    fn count_written(&self, new: u64) {
        self.metrics.writer_orders.increment(new);
        let written = self.metrics.orders(OrderStatus::PendingPayment);
        written.increment(new);
    }

    /// Deletes the log entries of batches whose orders are rows.
    pub(crate) async fn acknowledge(&self, batches: &[AcceptedBatch]) -> ServiceResult<()> {
        // The epoch is part of the key: an id of a lost log may be reused; see `ack` in
        // `redis/library/orders.lua`.
        let mut by_log: BTreeMap<_, Settled> = BTreeMap::new();
        for batch in batches.iter().filter(|batch| !batch.entry.is_empty()) {
            let log = by_log.entry((batch.sale, batch.epoch));
            let log = log.or_insert_with(|| Settled {
                sale: batch.sale,
                epoch: batch.epoch,
                entries: Vec::new(),
            });
            log.entries.push((&batch.entry, batch.orders.len()));
        }
        let settled: Vec<Settled> = by_log.into_values().collect();
        let mut failed = None;
        for some in settled.chunks(LOGS) {
            self.metrics.round_trips.redis.fetch_add(1, Relaxed);
            let calls = some.iter().map(|log| functions::ack(&self.redis.keys, log));
            let acknowledged = self.redis.query_all(calls.collect()).await;
            let acknowledged = acknowledged.unwrap_or_else(|error| vec![Err(error)]);
            for (log, acknowledged) in some.iter().zip(acknowledged) {
                if let Err(error) = acknowledged {
                    if is_wrong_type(&error) {
                        // The key holds no stream: only a rebuild of the sale repairs that.
                        self.catalog.suspect(log.sale);
                    }
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Settles orders whose batch was refused, each in its own transaction.
    async fn settle_each(&self, batches: &[AcceptedBatch]) -> ServiceResult<()> {
        for batch in batches {
            for order in &batch.orders {
                within(2 * WRITE_TIMEOUT, self.settle_one(batch, *order)).await?;
            }
        }
        Ok(())
    }

    async fn settle_one(&self, batch: &AcceptedBatch, order: AcceptedOrder) -> ServiceResult<()> {
        let single = AcceptedBatch { orders: vec![order], ..batch.clone() };
        let orders = std::slice::from_ref(&single);
        match self.write(orders, Expect::PerhapsWritten).await? {
            Outcome::IdTaken => {
                let why = "its id is somebody else's order";
                self.dead_letter(&single, why).await
            }
            Outcome::Refused { refusal, why } => {
                if refusal == Refusal::BeyondStock {
                    // Redis has units that Postgres does not know, and would sell them repeatedly.
                    self.catalog.suspect(single.sale);
                }
                self.reject(&single, order, &why).await
            }
            Outcome::Written { new } => {
                self.count_written(new);
                Ok(())
            }
            Outcome::StaleEpoch => Err(rebuilt_again()),
        }
    }

    /// Writes an order that Postgres refuses to hold live as `rejected`, which returns its unit.
    pub(crate) async fn reject(
        &self,
        single: &AcceptedBatch,
        order: AcceptedOrder,
        why: &str,
    ) -> ServiceResult<()> {
        self.fail_points.at("writer.rejecting").await?;
        match statements::write_rejected(&self.postgres, single, &order).await {
            Ok(Rejected::New) => {
                tracing::warn!(order = %order.id, sale = %single.sale, why,
                    "an accepted order is rejected");
                self.metrics.orders(OrderStatus::Rejected).increment(1);
                self.release_wakeup.notify_one();
            }
            Ok(Rejected::Before) => {}
            Ok(Rejected::IdTaken) => {
                self.dead_letter(single, "its id is somebody else's order").await?;
            }
            Err(error) if Refusal::of(&error).is_some() => {
                self.dead_letter(single, &error.to_string()).await?
            }
            Err(error) => return Err(error.into()),
        }
        self.fail_points.at("writer.rejected").await?;
        Ok(())
    }

    /// Keeps an order that cannot be a row as a dead letter, for a person to inspect; a rebuild
    /// returns its unit. This program makes no such order.
    async fn dead_letter(&self, single: &AcceptedBatch, why: &str) -> ServiceResult<()> {
        let mut connection = self.redis.pooled().await?;
        let key = order_log::dead_letter(&mut connection, &self.redis.keys, single).await?;
        tracing::error!(sale = %single.sale, why, key,
            "an accepted order that cannot be written was moved to the dead letters");
        self.metrics.unwritable_orders.increment(1);
        self.catalog.suspect(single.sale);
        Ok(())
    }
}

fn rebuilt_again() -> ServiceError {
    ServiceError::unavailable("the sale was rebuilt at the same moment")
}

/// How long one batch may take. After silence it is written again on another connection, which the
/// idempotent insert allows.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
