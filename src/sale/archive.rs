//! Moves the orders of sales that are long over out of `orders`, so that the table that purchases are written
//! to stays as large as what is on sale.
//!
//! ```text
//! begin:  one transaction: nothing is open any more → closed for good, epoch + 1 (fences every writer)
//! move:   a batch of orders and their payments into the archive, counted beside it, in one transaction
//! ```
//!
//! A sale may be archived once it has ended so long ago that Redis no longer holds it, and nothing of it is
//! open: no order that waits for payment, no unit in the outbox, nothing in the log. What appears all the
//! same afterwards (an order of a process that stood still for days becomes `rejected`) waits in `orders`
//! for the next run.
//!
//! On a crash between two batches some orders are here and some are there, each in one place; the next run
//! moves the rest. Two runs at once take turns on the sale's row. Readers that need old orders look into
//! both tables in one statement, or first into `orders` and then into the archive, so none sees an order
//! twice or not at all.

use super::{Shop, ShopError, board::RETIREMENT};
use crate::{
    domain::{Bucket, SaleId},
    postgres::{Transaction, unless_silent},
};
use std::time::Duration;
use time::OffsetDateTime;

/// The most orders of one transaction.
pub const BATCH: usize = 5_000;
/// Ids that are looked up at a time, 8 bytes each.
const IDS: i64 = 100_000;
/// The least time since the end of a sale: Redis has let go of it by then.
pub const LEAST_AGE: Duration =
    Duration::from_secs(RETIREMENT.whole_seconds().unsigned_abs() + 3_600);

/// A sale that is old enough, and what keeps it from being archived, if anything does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub sale: SaleId,
    pub title: String,
    /// Orders that are to be moved.
    pub orders: i64,
    pub obstacle: Option<&'static str>,
}

impl Shop {
    /// Sales that ended at least `age` ago and have orders outside of the archive, oldest first.
    pub async fn archive_candidates(
        &self,
        age: Duration,
        only: Option<SaleId>,
    ) -> Result<Vec<Candidate>, ShopError> {
        let found: Vec<(SaleId, String, i64, i64, i64)> = unless_silent(
            sqlx::query_as(
                "SELECT s.id, s.title, count(*), count(*) FILTER (WHERE o.status = 'pending_payment'),
                        (SELECT count(*) FROM releases r WHERE r.sale_id = s.id)
                 FROM sales s JOIN orders o ON o.sale_id = s.id
                 WHERE s.closes_at < now() - make_interval(secs => $1) AND ($2::bigint IS NULL OR s.id = $2)
                 GROUP BY s.id ORDER BY s.closes_at, s.id",
            )
            .bind(age.max(LEAST_AGE).as_secs_f64())
            .bind(only)
            .fetch_all(&self.postgres),
        )
        .await?;
        let mut candidates = Vec::with_capacity(found.len());
        for (sale, title, orders, held, outbox) in found {
            let obstacle = if held > 0 {
                Some("orders wait for payment")
            } else if outbox > 0 {
                Some("units wait to be returned")
            } else if self.is_in_redis(sale).await? {
                Some("redis still holds it")
            } else {
                None
            };
            candidates.push(Candidate {
                sale,
                title,
                orders,
                obstacle,
            });
        }
        Ok(candidates)
    }

    /// Whether Redis has the sale, or a log of it.
    async fn is_in_redis(&self, sale: SaleId) -> Result<bool, ShopError> {
        let divided: Option<(i16, i16)> =
            sqlx::query_as("SELECT buckets, former_buckets FROM sales WHERE id = $1")
                .bind(sale)
                .fetch_optional(&self.postgres)
                .await?;
        let (now, before) = divided.unwrap_or((1, 1));
        let keys = &self.redis.keys;
        let mut connection = self.redis.pooled().await?;
        for bucket in [now, before]
            .into_iter()
            .flat_map(|of| Bucket::all(sale, of.max(1).unsigned_abs()))
        {
            // Two questions, one slot: both keys carry the bucket's tag.
            let (state, log): (bool, bool) = redis::pipe()
                .exists(keys.state(bucket))
                .exists(keys.log(bucket))
                .query_async(&mut *connection)
                .await?;
            if state || log {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends a sale for good, if it is old enough and nothing of it is open. `false`: not now.
    pub async fn begin_archive(&self, sale: SaleId, age: Duration) -> Result<bool, ShopError> {
        if self.is_in_redis(sale).await? {
            return Ok(false);
        }
        // The row's lock, which every writer of this sale needs for its counter: what was written is seen,
        // what is not yet written will find the epoch over.
        let mut transaction = unless_silent(Transaction::begin(&self.postgres, "BEGIN")).await?;
        let begun: Option<OffsetDateTime> = unless_silent(
            sqlx::query_scalar(
                "WITH locked AS MATERIALIZED (
                     SELECT id, archived_at FROM sales
                     WHERE id = $1 AND closes_at < now() - make_interval(secs => $2) FOR UPDATE
                 )
                 UPDATE sales SET archived_at = now(), closed = true, epoch = epoch + 1, version = version + 1
                 FROM locked WHERE sales.id = locked.id AND locked.archived_at IS NULL
                 RETURNING sales.archived_at",
            )
            .bind(sale)
            .bind(age.max(LEAST_AGE).as_secs_f64())
            .fetch_optional(&mut *transaction),
        )
        .await?;
        // A new statement, with the lock: it sees what those have written who had it before.
        let may: bool = unless_silent(
            sqlx::query_scalar(
                "SELECT archived_at IS NOT NULL
                    AND NOT EXISTS (SELECT FROM orders WHERE sale_id = $1 AND status = 'pending_payment')
                    AND NOT EXISTS (SELECT FROM releases WHERE sale_id = $1)
                 FROM sales WHERE id = $1",
            )
            .bind(sale)
            .fetch_optional(&mut *transaction),
        )
        .await?
        .unwrap_or(false);
        if may {
            unless_silent(transaction.commit()).await?;
            if begun.is_some() {
                tracing::info!(%sale, "the sale is closed for good, its orders go to the archive");
            }
        } else {
            unless_silent(transaction.rollback()).await?;
        }
        Ok(may)
    }

    /// Ids of orders of this sale that are outside of the archive, after this one.
    pub async fn unarchived(&self, sale: SaleId, after: i64) -> Result<Vec<i64>, ShopError> {
        let ids = sqlx::query_scalar(
            "SELECT id FROM orders WHERE sale_id = $1 AND id > $2 AND status <> 'pending_payment'
             ORDER BY id LIMIT $3",
        )
        .bind(sale)
        .bind(after)
        .bind(IDS);
        Ok(unless_silent(ids.fetch_all(&self.postgres)).await?)
    }

    /// Moves these orders of a sale whose archiving has begun. Answers how many it moved: fewer if somebody
    /// else was faster.
    pub async fn archive_batch(&self, sale: SaleId, ids: &[i64]) -> Result<u64, ShopError> {
        let mut transaction = unless_silent(Transaction::begin(&self.postgres, "BEGIN")).await?;
        let begun: Option<bool> = unless_silent(
            sqlx::query_scalar(
                "SELECT archived_at IS NOT NULL FROM sales WHERE id = $1 FOR NO KEY UPDATE",
            )
            .bind(sale)
            .fetch_optional(&mut *transaction),
        )
        .await?;
        if begun != Some(true) {
            unless_silent(transaction.rollback()).await?;
            return Ok(0);
        }
        // Payments first: they refer to the orders.
        unless_silent(
            sqlx::query(
                "WITH gone AS (
                     DELETE FROM payments p USING orders o
                     WHERE p.order_id = ANY($1) AND o.id = p.order_id AND o.sale_id = $2
                     RETURNING p.order_id, p.amount_cents, p.reference, p.paid_at
                 )
                 INSERT INTO payments_archive (order_id, amount_cents, reference, paid_at)
                 SELECT order_id, amount_cents, reference, paid_at FROM gone",
            )
            .bind(ids)
            .bind(sale)
            .execute(&mut *transaction),
        )
        .await?;
        let moved = unless_silent(
            sqlx::query(
                "WITH gone AS (
                     DELETE FROM orders WHERE id = ANY($1) AND sale_id = $2 RETURNING *
                 )
                 INSERT INTO orders_archive (id, sale_id, user_id, slot, status, price_cents, idempotency_hash,
                                             created_at, pay_by, paid_at, closed_at)
                 SELECT id, sale_id, user_id, slot, status, price_cents, idempotency_hash,
                        created_at, pay_by, paid_at, closed_at FROM gone",
            )
            .bind(ids)
            .bind(sale)
            .execute(&mut *transaction),
        )
        .await?
        .rows_affected();
        unless_silent(
            sqlx::query("UPDATE sales SET archived_orders = archived_orders + $2 WHERE id = $1")
                .bind(sale)
                .bind(i64::try_from(moved).unwrap_or(i64::MAX))
                .execute(&mut *transaction),
        )
        .await?;
        unless_silent(transaction.commit()).await?;
        Ok(moved)
    }

    /// Archives one sale in batches of at most `batch` orders; `moved` hears of each. Answers how many orders
    /// were moved, or `None` if something of the sale is open.
    pub async fn archive_sale(
        &self,
        sale: SaleId,
        age: Duration,
        batch: usize,
        mut moved: impl FnMut(u64),
    ) -> Result<Option<u64>, ShopError> {
        if !self.begin_archive(sale, age).await? {
            return Ok(None);
        }
        let (mut total, mut after) = (0, 0);
        loop {
            let ids = self.unarchived(sale, after).await?;
            let Some(last) = ids.last() else {
                return Ok(Some(total));
            };
            after = *last;
            for some in ids.chunks(batch.clamp(1, BATCH)) {
                let count = self.archive_batch(sale, some).await?;
                total += count;
                moved(count);
            }
        }
    }
}
