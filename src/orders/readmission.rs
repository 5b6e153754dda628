//! Readmission: orders of an ended epoch whose log entry was lost before the rebuild, while a
//! living process still has them.
//!
//! Orders that are rows are settled. The others ask for a unit in the live epoch under their own
//! ids, and become rows or `rejected`. This process holds the only copy, so it writes them itself:
//! Redis may lose their second log entry too.

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

    pub(super) async fn readmit_some(
        &self,
        sale: SaleId,
        unwritten: &[Unwritten],
    ) -> ServiceResult<()> {
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
        let live = cached.sale();
        let readmitted = match self.admission.readmit(&live, created_ms, &orders).await? {
            Ok(readmitted) => readmitted,
            Err(Fenced::Absent) if cached.is_evictable(self.catalog.now()) => {
                // The sale was evicted and is not rebuilt any more: they can never be admitted.
                for order in &orders {
                    let single = alone(&cached, created_ms, *order);
                    self.reject(&single, *order, "its sale has long been over").await?;
                }
                return Ok(());
            }
            Err(fenced) => {
                if fenced == Fenced::Corrupt {
                    cached.suspect();
                }
                self.approval.call_for_rebuild();
                return Err(ServiceError::unavailable(
                    "orders of an ended epoch wait until the sale is rebuilt",
                ));
            }
        };
        self.fail_points.at("writer.readmitted").await?;
        for batch in &readmitted.batches {
            self.settle_live(batch, Expect::PerhapsWritten).await?;
        }
        let mut full = false;
        for (order, verdict) in orders.iter().zip(&readmitted.verdicts) {
            match verdict {
                Verdict::Accepted { .. } | Verdict::AcceptedBefore { .. } => {}
                Verdict::BacklogFull => full = true,
                _ => {
                    let single = alone(&cached, created_ms, *order);
                    let why = "redis lost it, and its unit or its place was given away since";
                    self.reject(&single, *order, why).await?;
                }
            }
        }
        if let Err(error) = self.acknowledge(&readmitted.batches).await {
            // They are rows; a recovery pass acknowledges them.
            tracing::debug!(%sale, %error, "readmitted orders stay in the log");
        }
        if full {
            return Err(ServiceError::unavailable(
                "orders of an ended epoch wait until the backlog is written",
            ));
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
