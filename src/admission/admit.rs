//! One call of the admission function, for purchases and for orders that are readmitted.

use super::service::Admission;
use crate::domain::Sale;
use crate::order_log::{AcceptedBatch, AcceptedOrder};
use crate::redis::Connection;
use crate::redis::functions::{self, AdmitOptions, Admitted, Buyer, Fenced, Verdict};
use crate::telemetry::traces;
use redis::RedisError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use tracing::Instrument;

/// The result of one call.
pub struct Decided {
    /// One for each buyer, in order.
    pub verdicts: Vec<Verdict>,
    pub remaining: i64,
    /// Orders admitted in this epoch, ever.
    pub admitted: i64,
    pub revision: i64,
    /// Orders to be written: newly accepted ones with their log entry, and those of an earlier
    /// attempt, whose entry is not known.
    pub batches: Vec<AcceptedBatch>,
}

impl Admission {
    /// Decides on these buyers in the live epoch. `first_tried_ms`: the earliest time at which an
    /// attempt without a reply can have accepted them.
    pub(super) async fn admit(
        &self,
        connection: &mut Connection,
        sale: &Sale,
        options: AdmitOptions,
        buyers: &[Buyer],
        first_tried_ms: i64,
    ) -> Result<Result<Decided, Fenced>, RedisError> {
        let asked = Instant::now();
        self.metrics.round_trips.redis.fetch_add(1, Relaxed);
        let keys = &self.redis.keys;
        let admitted = functions::admit(connection, keys, sale.id, sale.epoch, options, buyers)
            .instrument(traces::below_here("redis admit.lua"))
            .await?;
        Ok(admitted.map(|admitted| {
            self.catalog.cache.clock.read(admitted.now_ms, asked);
            decided(sale, options, buyers, first_tried_ms, admitted)
        }))
    }

    /// Admits orders of an older epoch, accepted at `created_ms` (Unix), under their own ids.
    pub async fn readmit(
        &self,
        sale: &Sale,
        created_ms: i64,
        orders: &[AcceptedOrder],
    ) -> Result<Result<Decided, Fenced>, RedisError> {
        let mut connection = self.redis.pooled().await?;
        let buyers: Vec<Buyer> = orders
            .iter()
            .map(|order| Buyer { user: order.user, order_id: order.id, key: order.key })
            .collect();
        let created_ms = created_ms.max(1);
        let options = AdmitOptions {
            high_water: self.settings.high_water.max(1),
            own_writer: true,
            readmitted: Some(created_ms),
        };
        self.admit(&mut connection, sale, options, &buyers, created_ms).await
    }
}

fn decided(
    sale: &Sale,
    options: AdmitOptions,
    buyers: &[Buyer],
    first_tried_ms: i64,
    admitted: Admitted,
) -> Decided {
    let (mut accepted, mut before) = (Vec::new(), Vec::new());
    for (buyer, verdict) in buyers.iter().zip(&admitted.verdicts) {
        let (orders, slot) = match *verdict {
            Verdict::Accepted { slot } => (&mut accepted, slot),
            Verdict::AcceptedBefore { slot: Some(slot) } => (&mut before, slot),
            _ => continue,
        };
        orders.push(AcceptedOrder { id: buyer.order_id, user: buyer.user, slot, key: buyer.key });
    }
    let batch = |entry: String, created_ms: i64, orders: Vec<AcceptedOrder>| AcceptedBatch {
        sale: sale.id,
        epoch: sale.epoch,
        entry,
        created_ms: options.readmitted.unwrap_or(created_ms),
        own_writer: options.own_writer,
        orders,
        traced: Vec::new(),
    };
    let mut batches = Vec::new();
    if let Some(entry) = admitted.entry {
        batches.push(batch(entry, admitted.now_ms, accepted));
    }
    if !before.is_empty() {
        // Written in any case: a second copy until they are rows, should Redis lose its own.
        batches.push(batch(String::new(), first_tried_ms, before));
    }
    Decided {
        verdicts: admitted.verdicts,
        remaining: admitted.remaining,
        admitted: admitted.admitted,
        revision: admitted.revision,
        batches,
    }
}
