//! The transitions of an order, each a single statement.
//!
//! A cancelled handler leaves nothing open. Each changes an order only in the status that it leads
//! out of, and a rejected one is written only if its id is new, so every race has one winner. Lock
//! order everywhere: orders first, then sales by id.

use crate::domain::{IdempotencyKey, OrderId, SaleId, UserId, from_unix_ms};
use crate::order_log::{AcceptedBatch, AcceptedOrder};
use crate::postgres::Pool;
use sqlx::PgExecutor;

/// The result of [`write_rejected`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    New,
    Before,
    /// Its id is another user's order: it cannot be a row.
    IdTaken,
}

/// Writes an order that Postgres refuses to hold live, and returns its unit by the outbox.
/// Idempotent.
pub async fn write_rejected(
    postgres: &Pool,
    batch: &AcceptedBatch,
    order: &AcceptedOrder,
) -> sqlx::Result<Rejected> {
    let written = sqlx::query(
        "WITH written AS (
             INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, idempotency_hash,
                 created_at, closed_at)
             SELECT $1, s.id, $3, NULL, 'rejected', s.price_cents, $4, $5, now() FROM sales s
             WHERE s.id = $2
             ON CONFLICT (id) DO NOTHING
             RETURNING id, sale_id, user_id
         )
         INSERT INTO releases (order_id, sale_id, user_id) SELECT id, sale_id, user_id
             FROM written",
    );
    let written = written.bind(order.id).bind(batch.sale).bind(order.user);
    let written = written.bind(order.key.map(IdempotencyKey::get));
    let written = written.bind(from_unix_ms(batch.created_ms));
    let written = written.execute(postgres).await?;
    if written.rows_affected() == 1 {
        return Ok(Rejected::New);
    }
    let same = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM orders WHERE id = $1 AND sale_id = $2 AND user_id = $3)",
    );
    let same = same.bind(order.id).bind(batch.sale).bind(order.user);
    let same: bool = same.fetch_one(postgres).await?;
    Ok(if same { Rejected::Before } else { Rejected::IdTaken })
}

/// Whether the order can be paid now. It waits for a transaction that closes it, and holds up the
/// next until its own ends. (Payments of one order take turns by the ledger's rows.)
pub async fn lock_payable(postgres: impl PgExecutor<'_>, id: OrderId) -> sqlx::Result<bool> {
    let payable = sqlx::query(
        "SELECT id FROM orders WHERE id = $1 AND status = 'pending_payment' AND pay_by > now()
         FOR KEY SHARE",
    );
    Ok(payable.bind(id).fetch_optional(postgres).await?.is_some())
}

/// Marks the order paid. `false`: it was not payable any more.
pub async fn mark_paid(postgres: impl PgExecutor<'_>, id: OrderId) -> sqlx::Result<bool> {
    // Postgres' clock decides here and in the sweeper: a payment and an expiry cannot both be in
    // time.
    let paid = sqlx::query(
        "UPDATE orders SET status = 'paid', paid_at = now()
         WHERE id = $1 AND status = 'pending_payment' AND pay_by > now()",
    );
    Ok(paid.bind(id).execute(postgres).await?.rows_affected() == 1)
}

/// The end of statements that close orders. `closed` names rows (id, sale_id, user_id) that were
/// live; their units return to the sale's counter and the outbox.
macro_rules! return_units {
    () => {
        ", counts AS (
             SELECT sale_id, count(*) AS count FROM closed GROUP BY sale_id
         ), locked AS (
             SELECT s.id, counts.count FROM sales s JOIN counts ON counts.sale_id = s.id
             ORDER BY s.id FOR NO KEY UPDATE OF s
         ), returned AS (
             UPDATE sales SET taken = taken - locked.count FROM locked WHERE sales.id = locked.id
         )
         INSERT INTO releases (order_id, sale_id, user_id) SELECT id, sale_id, user_id FROM closed"
    };
}

/// Cancels the user's order. `false`: it was not pending payment any more.
pub async fn mark_cancelled(postgres: &Pool, user: UserId, id: OrderId) -> sqlx::Result<bool> {
    let cancelled = sqlx::query(concat!(
        "WITH closed AS (
             UPDATE orders SET status = 'cancelled', slot = NULL, closed_at = now()
             WHERE id = $1 AND user_id = $2 AND status = 'pending_payment' AND pay_by > now()
             RETURNING id, sale_id, user_id
         )",
        return_units!()
    ));
    let cancelled = cancelled.bind(id).bind(user).execute(postgres).await?;
    Ok(cancelled.rows_affected() == 1)
}

/// Cancels a paid order. `false`: it was not paid.
pub async fn take_back(postgres: impl PgExecutor<'_>, id: OrderId) -> sqlx::Result<bool> {
    let cancelled = sqlx::query(concat!(
        "WITH closed AS (
             UPDATE orders SET status = 'cancelled', slot = NULL, paid_at = NULL, closed_at = now()
             WHERE id = $1 AND status = 'paid'
             RETURNING id, sale_id, user_id
         )",
        return_units!()
    ));
    Ok(cancelled.bind(id).execute(postgres).await?.rows_affected() == 1)
}

/// Sales that have orders whose time to pay is over.
pub async fn sales_with_due(postgres: &Pool) -> sqlx::Result<Vec<SaleId>> {
    sqlx::query_scalar(
        "SELECT DISTINCT sale_id FROM orders WHERE status = 'pending_payment' AND pay_by <= now()",
    )
    .fetch_all(postgres)
    .await
}

/// Expires up to `limit` due orders of one sale or all; concurrent sweeps skip each other's rows.
/// Returns how many.
pub async fn expire_due(postgres: &Pool, sale: Option<SaleId>, limit: i64) -> sqlx::Result<u64> {
    let expired = sqlx::query(concat!(
        "WITH due AS (
             SELECT id FROM orders
             WHERE status = 'pending_payment' AND pay_by <= now()
                 AND ($2::bigint IS NULL OR sale_id = $2)
             ORDER BY pay_by LIMIT $1 FOR UPDATE SKIP LOCKED
         ), closed AS (
             UPDATE orders SET status = 'expired', slot = NULL, closed_at = now() FROM due
                 WHERE orders.id = due.id
             RETURNING orders.id, orders.sale_id, orders.user_id
         )",
        return_units!()
    ));
    let expired = expired.bind(limit).bind(sale).execute(postgres).await?;
    Ok(expired.rows_affected())
}

/// Expires one order if it is due; returns whether it did. Waits for a concurrent transition, so
/// that the caller reads its result.
pub async fn expire_if_due(postgres: &Pool, id: OrderId) -> sqlx::Result<bool> {
    let expired = sqlx::query(concat!(
        "WITH closed AS (
             UPDATE orders SET status = 'expired', slot = NULL, closed_at = now()
             WHERE id = $1 AND status = 'pending_payment' AND pay_by <= now()
             RETURNING id, sale_id, user_id
         )",
        return_units!()
    ));
    let expired = expired.bind(id).execute(postgres).await?;
    Ok(expired.rows_affected() == 1)
}
