//! The queue of a sale: one task carries all waiting buyers to Redis in one call, and their results
//! back.
//!
//! One batch is in flight while the next one fills. Buyers are decided on in the order of their
//! arrival.

use super::ids::SpareIds;
use super::service::{ADMISSION_TIMEOUT, Admission, NO_ANSWER, PendingPurchase};
use crate::catalog::cached_sale::CachedSale;
use crate::domain::{IdempotencyKey, PurchaseResult, UserId};
use crate::error::{ServiceError, ServiceResult};
use crate::telemetry::traces;
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

/// The most waiting buyers of a sale; more get 503 at once.
const QUEUE: usize = 65_536;

const OVERLOADED: &str = "too many people are waiting for this sale";

impl Admission {
    /// Joins the sale's queue and waits for the result.
    pub(super) async fn join_queue(
        self: &Arc<Self>,
        cached: &Arc<CachedSale>,
        user: UserId,
        key: Option<IdempotencyKey>,
    ) -> ServiceResult<PurchaseResult> {
        let (reply, result) = oneshot::channel();
        let purchase =
            PendingPurchase { user, key, trace: traces::here(), since: Instant::now(), reply };
        let replied = if self.enqueue(cached, purchase) {
            let result = result.instrument(traces::below_here("admission"));
            result.await.unwrap_or(Err(NO_ANSWER))
        } else {
            self.metrics.unavailable.increment(1);
            Err(OVERLOADED)
        };
        replied.map_err(ServiceError::unavailable)
    }

    /// False if the queue is full.
    fn enqueue(self: &Arc<Self>, cached: &Arc<CachedSale>, purchase: PendingPurchase) -> bool {
        if let Some(queue) = self.queues.get(&cached.id) {
            return queue.try_send(purchase).is_ok();
        }
        let queue = self.queues.entry(cached.id);
        let queue = queue.or_insert_with(|| self.open_queue(cached));
        queue.try_send(purchase).is_ok()
    }

    /// Starts the task of a queue; it ends with the service.
    fn open_queue(self: &Arc<Self>, cached: &Arc<CachedSale>) -> mpsc::Sender<PendingPurchase> {
        let (sender, mut receiver) = mpsc::channel(QUEUE);
        let (admission, cached) = (Arc::downgrade(self), cached.clone());
        tokio::spawn(async move {
            // A panic must not end the sale: the next batch is decided by a fresh run.
            while AssertUnwindSafe(run(&admission, &cached, &mut receiver))
                .catch_unwind()
                .await
                .is_err()
            {}
        });
        sender
    }

    /// Decides on a batch and replies to everybody in it.
    async fn serve(
        &self,
        cached: &Arc<CachedSale>,
        batch: Vec<PendingPurchase>,
        spare: &mut SpareIds,
    ) {
        let began = Instant::now();
        let requests = batch.iter().filter_map(|buyer| buyer.trace.as_deref());
        let span = traces::shared("admission batch", requests);
        let deciding = self.decide(cached, &batch, spare).instrument(span);
        let decided = AssertUnwindSafe(deciding).catch_unwind().await;
        // After a panic, as after any failure, nobody knows whether the batch was accepted.
        let decided = decided.unwrap_or(Err(NO_ANSWER));
        let answered = decided.as_ref().map_or(0, Vec::len);
        self.throughput.note(answered, began.elapsed());
        match decided {
            Ok(replies) => {
                for (buyer, reply) in batch.into_iter().zip(replies) {
                    match &reply {
                        Ok(result) => self.metrics.verdicts(result).increment(1),
                        Err(_) => self.metrics.unavailable.increment(1),
                    }
                    // The client may have hung up: its order stands.
                    let _ = buyer.reply.send(reply);
                }
            }
            Err(why) => self.refuse(batch, why),
        }
    }

    fn refuse(&self, buyers: Vec<PendingPurchase>, why: &'static str) {
        self.metrics.unavailable.increment(buyers.len() as u64);
        for buyer in buyers {
            let _ = buyer.reply.send(Err(why));
        }
    }
}

async fn run(
    admission: &Weak<Admission>,
    cached: &Arc<CachedSale>,
    queue: &mut mpsc::Receiver<PendingPurchase>,
) {
    let mut waiting = Vec::new();
    let mut spare = SpareIds::default();
    loop {
        let limit = admission.upgrade().map_or(1, |of| of.settings.batch_limit);
        if queue.recv_many(&mut waiting, limit).await == 0 {
            return;
        }
        // The service owns the sender: holding the service here would keep this task alive for
        // ever.
        let Some(admission) = admission.upgrade() else {
            return;
        };
        let began = Instant::now();
        // Drop clients that hung up; clients that waited too long have most likely given up.
        waiting.retain(|buyer| !buyer.reply.is_closed());
        let (on_time, late): (Vec<_>, Vec<_>) = waiting
            .drain(..)
            .partition(|buyer| began.duration_since(buyer.since) < ADMISSION_TIMEOUT);
        admission.refuse(late, OVERLOADED);
        if on_time.is_empty() {
            continue;
        }
        cached.touch();
        let metrics = &admission.metrics;
        metrics.batch_size.record(on_time.len() as f64);
        admission.serve(cached, on_time, &mut spare).await;
        metrics.admission_seconds.record(began.elapsed().as_secs_f64());
    }
}
