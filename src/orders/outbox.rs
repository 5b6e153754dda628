//! The outbox `releases`: returns units to Redis by an idempotent function.
//!
//! The transaction that closes an order inserts the row; it is deleted after Redis has the unit.
//! After a crash in between, the repeated call finds nothing to return.

use crate::catalog::cached_sale::CachedSale;
use crate::domain::{OrderId, SaleId, UserId};
use crate::error::ServiceResult;
use crate::orders::service::Orders;
use crate::redis::functions::{self, Fenced};
use crate::redis::is_wrong_type;
use futures_util::FutureExt;
use std::sync::Arc;
use std::time::Duration;
use tasks::Tasks;
use time::OffsetDateTime;

const PAUSE: Duration = Duration::from_millis(250);

/// The most units of a sale that are returned at a time.
const STEP: i64 = 1_000;

pub fn spawn(orders: &Arc<Orders>, tasks: &Tasks) {
    tasks.spawn("releases", orders, |orders, task| async move {
        let mut periodic = task.every(PAUSE).or_on(&orders.release_wakeup);
        while periodic.tick(orders.release_all()).await {}
    });
}

impl Orders {
    /// Returns waiting units; idempotent, on any number of instances. Answers how many rows left
    /// the outbox; those of a sale that is being rebuilt stay for a later step.
    pub async fn release_step(&self) -> ServiceResult<usize> {
        let sales: Vec<SaleId> = sqlx::query_scalar("SELECT DISTINCT sale_id FROM releases")
            .fetch_all(&self.postgres)
            .await?;
        let (mut settled, mut failed) = (0, None);
        for sale in sales {
            match self.release_sale(sale).boxed().await {
                Ok(count) => settled += count,
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if settled == 0 => Err(error),
            _ => Ok(settled),
        }
    }

    async fn release_sale(&self, sale: SaleId) -> ServiceResult<usize> {
        let rows = sqlx::query_as(
            "SELECT user_id, order_id, created_at FROM releases WHERE sale_id = $1
             ORDER BY order_id LIMIT $2",
        );
        let rows: Vec<(UserId, OrderId, OffsetDateTime)> =
            rows.bind(sale).bind(STEP).fetch_all(&self.postgres).await?;
        let orders = rows.iter().map(|(user, order, _)| (*user, *order));
        let orders: Vec<(UserId, OrderId)> = orders.collect();
        self.fail_points.at("release.found").await?;
        if !self.return_units(sale, &orders).await? {
            return Ok(0);
        }
        self.fail_points.at("release.returned").await?;
        // A row that was renewed meanwhile (see `release_closed` in `orders/insert.rs`) has another
        // time, and stays for the next step.
        let (settled, times): (Vec<i64>, Vec<OffsetDateTime>) =
            rows.iter().map(|(_, order, time)| (order.get(), *time)).unzip();
        let query = sqlx::query(
            "DELETE FROM releases r
             USING UNNEST($1::bigint[], $2::timestamptz[]) AS d (order_id, created_at)
             WHERE r.order_id = d.order_id AND r.created_at = d.created_at",
        );
        let query = query.bind(&settled).bind(&times);
        query.execute(&self.postgres).await?;
        self.fail_points.at("release.settled").await?;
        Ok(settled.len())
    }

    /// Repeats until nothing more can be returned now.
    pub async fn release_all(&self) -> ServiceResult<()> {
        while self.release_step().await? > 0 {}
        Ok(())
    }

    /// Whether the rows may be deleted: Redis has the units, or has evicted the sale.
    async fn return_units(&self, id: SaleId, orders: &[(UserId, OrderId)]) -> ServiceResult<bool> {
        let mut cached = self.catalog.cached(id).await?;
        for reloaded in [false, true] {
            let Some(fenced) = self.return_to_redis(&cached, orders).await? else {
                return Ok(true);
            };
            match fenced {
                Fenced::Absent if cached.is_evictable(self.catalog.now()) => return Ok(true),
                Fenced::Corrupt if reloaded => cached.suspect(),
                _ if !reloaded => cached = self.catalog.refresh_row(id).await?,
                _ => {}
            }
        }
        Ok(false)
    }

    /// Answers why Redis refused, if it did.
    async fn return_to_redis(
        &self,
        cached: &CachedSale,
        orders: &[(UserId, OrderId)],
    ) -> ServiceResult<Option<Fenced>> {
        let (sale, keys) = (cached.sale(), &self.redis.keys);
        let outcome = {
            let mut connection = self.redis.pooled().await?;
            functions::release(&mut connection, keys, sale.id, sale.epoch, orders).await
        };
        if outcome.as_ref().is_err_and(is_wrong_type) {
            self.catalog.suspect(sale.id);
        }
        let released = match outcome? {
            Ok(released) => released,
            Err(fenced) => return Ok(Some(fenced)),
        };
        cached.tell_remaining(sale.epoch, released.revision, released.remaining, None);
        cached.notify_subscribers(self.catalog.now());
        if released.returned > 0 && released.remaining == released.returned {
            // Other instances may still refuse it as sold out.
            self.redis.announce(sale.id).await;
        }
        Ok(None)
    }
}
