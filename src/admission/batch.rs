//! A batch: deciding on its buyers, and turning verdicts into replies.

use super::admit::Decided;
use super::ids::SpareIds;
use super::retry::Answered;
use super::service::{ADMISSION_TIMEOUT, Admission, PendingPurchase, Reply};
use crate::catalog::cached_sale::CachedSale;
use crate::domain::{OrderId, PurchaseResult, Sale};
use crate::order_log::AcceptedBatch;
use crate::redis::functions::Verdict;
use crate::telemetry::traces::Traced;
use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What the second call of a batch may take, however long the first one took.
const LEAST_ATTEMPT: Duration = Duration::from_millis(500);

const BACKLOG_FULL: &str = "too many accepted orders are waiting to be written";

impl Admission {
    /// Decides on a batch. In a sale that seems sold out, the verdict on the first buyer may stand
    /// for the others.
    ///
    /// A buyer with an `Idempotency-Key` cannot be refused from memory: another instance may have
    /// sold to this key a moment ago. But if Redis answers "sold out" to the first buyer, it would
    /// answer the same to all others who waited then and had not bought, and the cache knows all
    /// buyers. So late crowds cost Redis one buyer a batch.
    ///
    /// On any other verdict the others are decided on in their order: nobody is overtaken.
    pub(super) async fn decide(
        &self,
        cached: &Arc<CachedSale>,
        batch: &[PendingPurchase],
        spare: &mut SpareIds,
    ) -> Result<Vec<Reply>, &'static str> {
        let deadline = Instant::now() + ADMISSION_TIMEOUT;
        let (first, others) = batch.split_at(batch.len().min(1));
        let one_may_do = !others.is_empty()
            && cached.is_present()
            && cached.seems_sold_out()
            && cached.has_not_bought(first[0].user);
        if !one_may_do {
            let answered = self.ask(cached, batch, spare, deadline).await?;
            return Ok(self.replies_of(cached, batch, answered));
        }
        let answered = self.ask(cached, first, spare, deadline).await?;
        let (epoch, admitted) = (answered.sale.epoch, answered.decided.admitted);
        let mut replies = self.replies_of(cached, first, answered);
        let is_sold_out = replies[..] == [Ok(PurchaseResult::SoldOut)];
        // Checked once: purchases elsewhere may add buyers meanwhile.
        let needs_own_verdict = |buyer: &&PendingPurchase| {
            let buyers = &cached.buyers;
            !is_sold_out || !buyers.had_bought_nothing(buyer.user, epoch, admitted)
        };
        let to_ask: Vec<&PendingPurchase> = others.iter().filter(needs_own_verdict).collect();
        if to_ask.is_empty() {
            replies.resize(batch.len(), Ok(PurchaseResult::SoldOut));
            return Ok(replies);
        }
        // Cut short in its first attempt, it would leave its buyers in doubt.
        let deadline = deadline.max(Instant::now() + LEAST_ATTEMPT);
        let own = match self.ask(cached, &to_ask, spare, deadline).await {
            Ok(answered) => self.replies_of(cached, &to_ask, answered),
            // The verdict on the first buyer stands even if this call fails.
            Err(why) => vec![Err(why); to_ask.len()],
        };
        let mut own = to_ask.iter().zip(own).peekable();
        replies.extend(others.iter().map(|buyer| {
            let next = own.next_if(|(next, _)| std::ptr::eq(**next, buyer));
            next.map_or(Ok(PurchaseResult::SoldOut), |(_, reply)| reply)
        }));
        Ok(replies)
    }

    /// Updates the cache, hands accepted orders to the writer, and turns verdicts into replies.
    fn replies_of<P: Borrow<PendingPurchase>>(
        &self,
        cached: &CachedSale,
        batch: &[P],
        answered: Answered,
    ) -> Vec<Reply> {
        let Answered { sale, ids, decided } = answered;
        note_in_cache(cached, sale.epoch, &decided);
        let traced = traced(batch, &ids, &decided.verdicts);
        self.hand_off(decided.batches, traced);
        let verdicts = decided.verdicts.iter().zip(&ids);
        verdicts.map(|(verdict, id)| reply(verdict, *id, &sale)).collect()
    }

    fn hand_off(&self, batches: Vec<AcceptedBatch>, mut traced: Vec<Traced>) {
        let Some(handoff) = &self.settings.handoff else {
            return;
        };
        for mut batch in batches {
            if !batch.entry.is_empty() {
                batch.traced = std::mem::take(&mut traced); // only one batch is new
            }
            if handoff.try_send(batch).is_err() {
                // The log has it; a recovery pass writes it after the grace period.
                self.metrics.not_handed_off.increment(1);
            }
        }
    }
}

fn note_in_cache(cached: &CachedSale, epoch: i64, decided: &Decided) {
    let new = decided.batches.iter().filter(|batch| !batch.entry.is_empty());
    let users = new.flat_map(|batch| batch.orders.iter().map(|order| order.user));
    let users: Vec<_> = users.collect();
    let admitted = decided.admitted;
    cached.buyers.saw(epoch, admitted, users.into_iter());
    cached.tell_remaining(epoch, decided.revision, decided.remaining, Some(admitted));
}

/// The newly accepted orders of traced requests.
fn traced<P: Borrow<PendingPurchase>>(
    batch: &[P],
    ids: &[OrderId],
    verdicts: &[Verdict],
) -> Vec<Traced> {
    let offered = batch.iter().map(Borrow::borrow).zip(ids).zip(verdicts);
    let accepted = offered.filter(|(_, verdict)| matches!(verdict, Verdict::Accepted { .. }));
    accepted.filter_map(|((buyer, id), _)| Some((*id, *buyer.trace.clone()?))).collect()
}

fn reply(verdict: &Verdict, offered: OrderId, sale: &Sale) -> Reply {
    let accepted = |order_id, replayed| PurchaseResult::Accepted { order_id, replayed };
    Ok(match *verdict {
        Verdict::Accepted { .. } | Verdict::AcceptedBefore { .. } => accepted(offered, false),
        Verdict::Replay(order_id) => accepted(order_id, true),
        Verdict::AlreadyOrdered(order_id) => PurchaseResult::AlreadyOrdered { order_id },
        Verdict::SoldOut => PurchaseResult::SoldOut,
        Verdict::NotOpen => PurchaseResult::NotOpen { opens_at: sale.opens_at },
        Verdict::Paused => PurchaseResult::Paused,
        Verdict::Ended => PurchaseResult::Ended,
        Verdict::BacklogFull => return Err(BACKLOG_FULL),
    })
}
