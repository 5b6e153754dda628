//! Readmission: orders of an ended epoch whose log entry was lost before the rebuild, while a
//! living process still has them.
//!
//! Orders that are rows are settled. The others ask for a unit in the live epoch under their own
//! ids, and become rows or `rejected`. This process holds the only copy, so it writes them itself:
//! Redis may lose their second log entry too.

use crate::admission::Decided;
use crate::catalog::cached_sale::CachedSale;
use crate::domain::SaleId;
use crate::error::{ServiceError, ServiceResult};
use crate::order_log::{AcceptedBatch, AcceptedOrder};
use crate::orders::insert::Expect;
use crate::orders::queries;
use crate::orders::service::Orders;
use crate::postgres::within;
use crate::redis::functions::{Fenced, Verdict};
use std::time::Duration;

/// The most orders of one call.
const CALL: usize = 512;

const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// One call, and writing its rows.
const READMISSION_TIMEOUT: Duration = Duration::from_secs(20);

/// An order, and when it was admitted (Unix ms).
type Unwritten = (AcceptedOrder, i64);

impl Orders {
    /// Settles all orders of these batches of one sale, of any epoch. Idempotent.
    pub(crate) async fn settle_ended_epoch(
        &self,
        sale: SaleId,
        batches: &[AcceptedBatch],
    ) -> ServiceResult<()> {
        let of = |batch: &AcceptedBatch| {
            let created_ms = batch.created_ms;
            batch.orders.clone().into_iter().map(move |order| (order, created_ms))
        };
        let mut unwritten: Vec<Unwritten> = batches.iter().flat_map(of).collect();
        let ids: Vec<i64> = unwritten.iter().map(|(order, _)| order.id.get()).collect();
        // Bounded: this process holds the only copy, and must not wait for a silent server.
        let reading = queries::existing(&self.postgres, &ids);
        let written = within(READ_TIMEOUT, reading).await?;
        unwritten.retain(|(order, _)| !written.contains(&order.id));
        unwritten.sort_unstable_by_key(|(order, _)| order.id);
        for some in unwritten.chunks(CALL) {
            within(READMISSION_TIMEOUT, self.readmit_some(sale, some)).await?;
        }
        Ok(())
    }

    async fn readmit_some(&self, sale: SaleId, unwritten: &[Unwritten]) -> ServiceResult<()> {
        let cached = match self.catalog.refresh_row(sale).await {
            Ok(cached) => cached,
            Err(ServiceError::SaleNotFound) => {
                tracing::error!(%sale, orders = unwritten.len(),
                    "accepted orders of a sale that does not exist");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.fail_points.at("writer.readmitting").await?;
        // The time of the first admission: the window was checked then.
        let created_ms = unwritten.iter().map(|(_, created)| *created).min().unwrap_or(0);
        let orders: Vec<AcceptedOrder> = unwritten.iter().map(|(order, _)| *order).collect();
        match self.admission.readmit(&cached.sale(), created_ms, &orders).await? {
            Ok(decided) => self.settle_readmitted(&cached, created_ms, &orders, decided).await,
            Err(Fenced::Absent) if cached.is_evictable(self.catalog.now()) => {
                // The sale was evicted and is not rebuilt any more: they can never be admitted.
                let why = "its sale has long been over";
                self.reject_all(&cached, created_ms, orders.iter(), why).await
            }
            Err(fenced) => {
                if fenced == Fenced::Corrupt {
                    cached.suspect();
                }
                self.approval.call_for_rebuild();
                Err(ServiceError::unavailable(
                    "orders of an ended epoch wait until the sale is rebuilt",
                ))
            }
        }
    }

    /// Writes the orders that have a unit in the live epoch, and rejects those that found none.
    async fn settle_readmitted(
        &self,
        cached: &CachedSale,
        created_ms: i64,
        orders: &[AcceptedOrder],
        decided: Decided,
    ) -> ServiceResult<()> {
        self.fail_points.at("writer.readmitted").await?;
        for batch in &decided.batches {
            self.settle_live(batch, Expect::PerhapsWritten).await?;
        }
        let waits = |verdict: &Verdict| *verdict == Verdict::BacklogFull;
        let found_none = orders.iter().zip(&decided.verdicts).filter_map(|(order, verdict)| {
            (!verdict.is_acceptance() && !waits(verdict)).then_some(order)
        });
        let why = "redis lost it, and its unit or its place was given away since";
        self.reject_all(cached, created_ms, found_none, why).await?;
        if let Err(error) = self.acknowledge(&decided.batches).await {
            // They are rows; a recovery pass acknowledges them.
            tracing::debug!(sale = %cached.id, %error, "readmitted orders stay in the log");
        }
        if decided.verdicts.iter().any(waits) {
            return Err(ServiceError::unavailable(
                "orders of an ended epoch wait until the backlog is written",
            ));
        }
        Ok(())
    }

    async fn reject_all<'a>(
        &self,
        cached: &CachedSale,
        created_ms: i64,
        orders: impl Iterator<Item = &'a AcceptedOrder>,
        why: &str,
    ) -> ServiceResult<()> {
        for order in orders {
            self.reject(&alone(cached, created_ms, *order), *order, why).await?;
        }
        Ok(())
    }
}

/// A batch of this one order.
fn alone(cached: &CachedSale, created_ms: i64, order: AcceptedOrder) -> AcceptedBatch {
    AcceptedBatch {
        sale: cached.id,
        epoch: cached.sale().epoch,
        entry: String::new(),
        created_ms,
        own_writer: true,
        orders: vec![order],
        traced: Vec::new(),
    }
}
