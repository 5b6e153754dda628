//! Asking Redis about a batch until it answers.

use super::admit::Decided;
use super::ids::{IdError, SpareIds};
use super::service::{Admission, NO_ANSWER, PendingPurchase};
use crate::catalog::cached_sale::CachedSale;
use crate::domain::{OrderId, Sale, unix_ms};
use crate::fail_point::Injected;
use crate::redis::functions::{AdmitOptions, Buyer, Fenced, Verdict};
use crate::redis::{is_passing, is_wrong_type};
use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The pause between two attempts of a batch.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

const FENCED: &str = "purchases are briefly suspended while the stock is checked";
const MOVING: &str = "purchases are briefly suspended while the sale moves to another server";

/// The answer of Redis on a batch.
pub(super) struct Answered {
    /// The sale as the batch was decided with.
    pub sale: Arc<Sale>,
    /// The ids that were offered, one for each buyer.
    pub ids: Vec<OrderId>,
    pub decided: Decided,
}

/// Why an attempt brought no verdicts.
enum Failure {
    /// Redis may not sell the sale in the epoch that this process knows.
    Fenced(Fenced),
    /// Nobody was decided on, for a transient reason: a slot moves, a node is elected or loads.
    Later(redis::RedisError),
    /// Redis refused the call (out of memory, read-only, a key of another type). The function reads
    /// everything that can fail before it writes, so nobody was decided on.
    Refused(redis::RedisError),
    /// No connection, reply or ids: the batch may have been decided on.
    Broken(String),
}

impl From<redis::RedisError> for Failure {
    fn from(error: redis::RedisError) -> Self {
        if is_passing(&error) {
            return Self::Later(error);
        }
        match error.kind() {
            redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => Self::Refused(error),
            _ => Self::Broken(error.to_string()),
        }
    }
}

impl From<Injected> for Failure {
    fn from(error: Injected) -> Self {
        Self::Broken(error.to_string())
    }
}

impl Admission {
    /// Asks Redis about these buyers until it answers, or until `deadline`.
    pub(super) async fn ask<P: Borrow<PendingPurchase>>(
        &self,
        cached: &Arc<CachedSale>,
        buyers: &[P],
        spare: &mut SpareIds,
        deadline: Instant,
    ) -> Result<Answered, &'static str> {
        if self.fail_points.at("admission.batched").await.is_err() {
            return Err(NO_ANSWER);
        }
        let began_ms = unix_ms(self.catalog.now());
        let mut ids = spare.take(buyers.len());
        let (mut reloaded, mut unanswered) = (false, false);
        loop {
            // No order number is safe either: another server may be giving out the same ones. And
            // one that evicts forgets buyers.
            if cached.is_suspect() || self.approval.is_doubtful() {
                return Err(FENCED);
            }
            let sale = cached.sale();
            let attempt_began = Instant::now();
            let attempt = self.attempt(&sale, buyers, &mut ids, began_ms);
            let attempted = tokio::time::timeout_at(deadline, attempt).await;
            let no_reply = |_| Err(Failure::Broken("no answer in time".into()));
            match attempted.unwrap_or_else(no_reply) {
                Ok(decided) => {
                    if self.fail_points.at("admission.answering").await.is_err() {
                        return Err(NO_ANSWER); // the log has what was accepted
                    }
                    // An attempt without a reply may still be on its way, with these ids.
                    if !unanswered {
                        spare.give_back(unused(&decided.verdicts, &ids));
                    }
                    return Ok(Answered { sale, ids, decided });
                }
                // Another instance may just have rebuilt or created this sale: reload it once
                // before calling for a rebuild.
                Err(Failure::Fenced(_)) if !reloaded => {
                    reloaded = true;
                    let reloading = tokio::time::timeout_at(deadline, self.reload(cached));
                    if !matches!(reloading.await, Ok(Ok(_))) {
                        return Err(FENCED);
                    }
                }
                Err(Failure::Later(error)) => {
                    // An attempt that the deadline cuts short would leave its buyers in doubt.
                    let next = RETRY_PAUSE + 2 * attempt_began.elapsed();
                    if Instant::now() + next >= deadline {
                        tracing::warn!(sale = %cached.id, %error, buyers = buyers.len(),
                            "redis cannot decide on a batch now");
                        return Err(if is_moving(&error) { MOVING } else { FENCED });
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(Failure::Broken(error)) if Instant::now() + RETRY_PAUSE < deadline => {
                    tracing::debug!(sale = %cached.id, %error, "asking again");
                    unanswered = true;
                    self.redis.drop_shared();
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(failure) => return Err(self.give_up(cached, failure, buyers.len())),
            }
        }
    }

    async fn reload(&self, cached: &CachedSale) -> Result<bool, crate::error::ServiceError> {
        let cached = self.catalog.refresh(cached.id).await?;
        self.catalog.adopt(&cached).await
    }

    /// The reply to buyers after a failure that a retry would not change.
    fn give_up(&self, cached: &CachedSale, failure: Failure, buyers: usize) -> &'static str {
        let sale = cached.id;
        match failure {
            Failure::Fenced(fenced) => {
                tracing::warn!(%sale, ?fenced, "redis has not the state that postgres names");
                if fenced == Fenced::Corrupt {
                    cached.suspect();
                }
                self.approval.call_for_rebuild();
                FENCED
            }
            Failure::Refused(error) => {
                // Reconnect: another process may answer the next batch.
                self.redis.drop_shared();
                if is_wrong_type(&error) {
                    self.catalog.suspect(sale);
                }
                tracing::warn!(%sale, %error, "redis refuses a batch");
                NO_ANSWER
            }
            Failure::Later(error) => {
                tracing::warn!(%sale, %error, "redis cannot decide on a batch now");
                FENCED
            }
            Failure::Broken(error) => {
                self.redis.drop_shared();
                tracing::warn!(%sale, %error, buyers, "no answer for a batch");
                NO_ANSWER
            }
        }
    }

    async fn attempt<P: Borrow<PendingPurchase>>(
        &self,
        sale: &Sale,
        purchases: &[P],
        ids: &mut Vec<OrderId>,
        began_ms: i64,
    ) -> Result<Decided, Failure> {
        let mut connection = self.redis.shared().await?;
        let missing = purchases.len() - ids.len();
        let taken = self.ids.take(&mut connection, missing, ids).await;
        taken.map_err(|error| match error {
            IdError::Redis(error) => Failure::from(error),
            other => Failure::Broken(other.to_string()),
        })?;
        let purchases = purchases.iter().map(Borrow::borrow);
        let buyers: Vec<Buyer> = purchases
            .zip(ids.iter())
            .map(|(purchase, order_id)| Buyer {
                user: purchase.user,
                order_id: *order_id,
                key: purchase.key,
            })
            .collect();
        let options = AdmitOptions {
            high_water: self.settings.high_water.max(1),
            own_writer: self.settings.handoff.is_some(),
            readmitted: None,
        };
        // An order is never older than its sale's opening.
        let first_tried_ms = began_ms.max(unix_ms(sale.opens_at));
        self.fail_points.at("admission.asking").await?;
        let admit = self.admit(&mut connection, sale, options, &buyers, first_tried_ms);
        let admitted = admit.await?;
        self.fail_points.at("admission.admitted").await?;
        admitted.map_err(Failure::Fenced)
    }
}

fn is_moving(error: &redis::RedisError) -> bool {
    error.redirect_node().is_some() || error.code() == Some("TRYAGAIN")
}

/// The ids that no accepted order has.
fn unused(verdicts: &[Verdict], ids: &[OrderId]) -> impl Iterator<Item = OrderId> {
    let both = verdicts.iter().zip(ids);
    both.filter_map(|(verdict, id)| (!verdict.is_acceptance()).then_some(*id))
}
