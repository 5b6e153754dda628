//! All SQL about orders: reading them, writing accepted ones, and the transitions of their life.
//!
//! Transitions are single statements, so that a handler dropped half-way leaves nothing open, and
//! each begins with `UPDATE orders … WHERE status = 'pending_payment'`, which gives every race one
//! winner. Lock order everywhere: orders first, then sales by id, so that no two transactions
//! can wait for each other.

use crate::{
    domain::{Order, OrderId, OrderStatus, SaleId, UserId},
    sale::{Page, board::from_ms, log::AcceptedBatch},
};
use sqlx::{PgConnection, PgExecutor, PgPool};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The columns of [`Order`], from `orders o JOIN sales s`.
macro_rules! order_columns {
    () => {
        "o.id, o.sale_id, s.title AS sale_title, o.user_id, o.status, o.price_cents, s.currency,
         o.created_at, o.pay_by, o.paid_at, o.closed_at"
    };
}

/// The user's order; somebody else's is as absent as one that does not exist (I12).
pub async fn of_user(
    postgres: &PgPool,
    user: UserId,
    id: OrderId,
) -> Result<Option<Order>, sqlx::Error> {
    sqlx::query_as(concat!(
        "SELECT ",
        order_columns!(),
        " FROM orders o JOIN sales s ON s.id = o.sale_id
         WHERE o.id = $1 AND o.user_id = $2"
    ))
    .bind(id)
    .bind(user)
    .fetch_optional(postgres)
    .await
}

pub async fn list_of_user(
    postgres: &PgPool,
    user: UserId,
    page: Page,
) -> Result<Vec<Order>, sqlx::Error> {
    sqlx::query_as(concat!(
        "SELECT ",
        order_columns!(),
        " FROM orders o JOIN sales s ON s.id = o.sale_id
         WHERE o.user_id = $1 AND o.id < $2 ORDER BY o.id DESC LIMIT $3"
    ))
    .bind(user)
    .bind(page.after.map_or(i64::MAX, OrderId::get))
    .bind(i64::from(page.limit))
    .fetch_all(postgres)
    .await
}

/// An operator's listing. It walks the primary key backwards and leaves other sales' orders out: no
/// index of its own, since every index costs each purchase and this page is opened by hand.
pub async fn list_of_sale(
    postgres: &PgPool,
    sale: SaleId,
    status: Option<OrderStatus>,
    page: Page,
) -> Result<Vec<Order>, sqlx::Error> {
    sqlx::query_as(concat!(
        "SELECT ",
        order_columns!(),
        " FROM orders o JOIN sales s ON s.id = o.sale_id
         WHERE o.sale_id = $1 AND o.id < $2 AND ($3::order_status IS NULL OR o.status = $3)
         ORDER BY o.id DESC LIMIT $4"
    ))
    .bind(sale)
    .bind(page.after.map_or(i64::MAX, OrderId::get))
    .bind(status)
    .bind(i64::from(page.limit))
    .fetch_all(postgres)
    .await
}

/// The orders with these ids that exist, whoever owns them.
pub async fn by_ids(postgres: &PgPool, ids: &[i64]) -> Result<Vec<Order>, sqlx::Error> {
    sqlx::query_as(concat!(
        "SELECT ",
        order_columns!(),
        " FROM orders o JOIN sales s ON s.id = o.sale_id WHERE o.id = ANY($1)"
    ))
    .bind(ids)
    .fetch_all(postgres)
    .await
}

/// How a batch of accepted orders fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// All are rows now; `new` of them were not before.
    All { new: u64 },
    /// At least one belongs to an epoch that is over, or to no sale. Nothing was written.
    StaleEpoch,
}

/// Columns of a batch insert, one element an order.
#[derive(Default)]
struct Columns {
    ids: Vec<i64>,
    sales: Vec<i64>,
    epochs: Vec<i64>,
    users: Vec<Uuid>,
    slots: Vec<i16>,
    hashes: Vec<Option<i64>>,
    created: Vec<time::OffsetDateTime>,
}

impl Columns {
    fn of(batches: &[AcceptedBatch]) -> Self {
        let mut orders: Vec<_> = batches
            .iter()
            .flat_map(|batch| batch.orders.iter().map(move |order| (order, batch)))
            .collect();
        // In id order, so that two writers of the same orders meet in the same sequence.
        orders.sort_unstable_by_key(|(order, _)| order.id);
        let mut columns = Self::default();
        for (order, batch) in orders {
            columns.ids.push(order.id.get());
            columns.sales.push(batch.sale.get());
            columns.epochs.push(batch.epoch);
            columns.users.push(order.user.uuid());
            columns.slots.push(i16::from(order.slot));
            columns
                .hashes
                .push(order.key.map(crate::domain::IdempotencyKey::to_stored));
            columns.created.push(from_ms(batch.created_ms));
        }
        columns
    }
}

/// The insert of a batch. Joined with sales by epoch: an order of an older epoch is simply not
/// selected. Returns the rows written for each sale, and under sale 0 those that were selected.
macro_rules! insert_accepted {
    ($on_conflict:literal) => {
        concat!(
            "WITH accepted AS (
                 SELECT d.id, d.sale_id, d.user_id, d.slot, d.hash, d.created_at, s.price_cents, s.payment_timeout_secs
                 FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[], $4::uuid[], $5::smallint[], $6::bigint[],
                             $7::timestamptz[]) AS d (id, sale_id, epoch, user_id, slot, hash, created_at)
                 JOIN sales s ON s.id = d.sale_id AND s.epoch = d.epoch
             ), written AS (
                 INSERT INTO orders
                     (id, sale_id, user_id, slot, status, price_cents, idempotency_hash, created_at, pay_by)
                 SELECT id, sale_id, user_id, slot, 'pending_payment', price_cents, hash, created_at,
                        now() + make_interval(secs => payment_timeout_secs)
                 FROM accepted ORDER BY id ",
            $on_conflict,
            " RETURNING sale_id
             )
             SELECT sale_id, count(*) FROM written GROUP BY sale_id
             UNION ALL
             SELECT 0, count(*) FROM accepted"
        )
    };
}
/// Writes accepted orders in one short transaction: insert those that are not rows yet, then count
/// them against the stock of each sale. The constraints decide: `sales_taken_within_stock` (I1) and
/// `orders_one_live_per_user_slot` (I2) fail the whole batch, and the caller goes one by one.
///
/// Only `id` may conflict silently: the same order written twice. A bare ON CONFLICT would hide a
/// violation of I2.
///
/// That is rare, and `ON CONFLICT` costs every row 3 µs of CPU, so a plain insert is tried first.
pub async fn write_accepted(
    postgres: &PgPool,
    batches: &[AcceptedBatch],
) -> Result<Written, sqlx::Error> {
    match write_with(postgres, batches, insert_accepted!("")).await {
        Err(error) if is_written_twice(&error) => {
            write_with(
                postgres,
                batches,
                insert_accepted!("ON CONFLICT (id) DO NOTHING"),
            )
            .await
        }
        other => other,
    }
}

fn is_written_twice(error: &sqlx::Error) -> bool {
    let constraint = error
        .as_database_error()
        .and_then(|error| error.constraint());
    constraint == Some("orders_pkey")
}

async fn write_with(
    postgres: &PgPool,
    batches: &[AcceptedBatch],
    insert: &'static str,
) -> Result<Written, sqlx::Error> {
    let columns = Columns::of(batches);
    let offered = columns.ids.len();
    let mut transaction = postgres.begin().await?;
    let inserted: Vec<(i64, i64)> = sqlx::query_as(insert)
        .bind(&columns.ids)
        .bind(&columns.sales)
        .bind(&columns.epochs)
        .bind(&columns.users)
        .bind(&columns.slots)
        .bind(&columns.hashes)
        .bind(&columns.created)
        .fetch_all(&mut *transaction)
        .await?;
    let of_live_epochs = inserted
        .iter()
        .find(|(sale, _)| *sale == 0)
        .map_or(0, |(_, count)| *count);
    if of_live_epochs != i64::try_from(offered).unwrap_or(i64::MAX) {
        transaction.rollback().await?;
        return Ok(Written::StaleEpoch);
    }
    let new: BTreeMap<i64, i64> = inserted
        .into_iter()
        .filter(|(sale, _)| *sale != 0)
        .collect();
    if !count_taken(&mut transaction, &new, batches).await? {
        transaction.rollback().await?;
        return Ok(Written::StaleEpoch);
    }
    transaction.commit().await?;
    Ok(Written::All {
        new: new.values().sum::<i64>().unsigned_abs(),
    })
}

/// Counts newly written orders against their sales, by id. `false`: an epoch ended meanwhile.
async fn count_taken(
    connection: &mut PgConnection,
    new: &BTreeMap<i64, i64>,
    batches: &[AcceptedBatch],
) -> Result<bool, sqlx::Error> {
    if new.is_empty() {
        return Ok(true);
    }
    let epochs: BTreeMap<i64, i64> = batches
        .iter()
        .map(|batch| (batch.sale.get(), batch.epoch))
        .collect();
    let sales: Vec<i64> = new.keys().copied().collect();
    let counts: Vec<i64> = new.values().copied().collect();
    let epochs: Vec<i64> = sales
        .iter()
        .map(|sale| epochs.get(sale).copied().unwrap_or(0))
        .collect();
    let counted = sqlx::query(
        "WITH locked AS (
             SELECT s.id, d.count
             FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[]) AS d (id, count, epoch)
             JOIN sales s ON s.id = d.id AND s.epoch = d.epoch
             ORDER BY s.id FOR NO KEY UPDATE OF s
         )
         UPDATE sales SET taken = taken + locked.count FROM locked WHERE sales.id = locked.id",
    )
    .bind(&sales)
    .bind(&counts)
    .bind(&epochs)
    .execute(connection)
    .await?;
    Ok(counted.rows_affected() == sales.len() as u64)
}

/// Writes an order that Redis accepted and Postgres will not hold live, and puts its unit into the
/// outbox. Idempotent. Returns whether it is new.
pub async fn write_rejected(
    postgres: &PgPool,
    batch: &AcceptedBatch,
    order: &crate::sale::log::AcceptedOrder,
) -> Result<bool, sqlx::Error> {
    let written = sqlx::query(
        "WITH written AS (
             INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, idempotency_hash, created_at, closed_at)
             SELECT $1, s.id, $3, NULL, 'rejected', s.price_cents, $4, $5, now() FROM sales s WHERE s.id = $2
             ON CONFLICT (id) DO NOTHING
             RETURNING id, sale_id, user_id
         )
         INSERT INTO releases (order_id, sale_id, user_id) SELECT id, sale_id, user_id FROM written",
    )
    .bind(order.id)
    .bind(batch.sale)
    .bind(order.user)
    .bind(order.key.map(crate::domain::IdempotencyKey::to_stored))
    .bind(from_ms(batch.created_ms))
    .execute(postgres)
    .await?;
    Ok(written.rows_affected() == 1)
}

/// Marks the user's order paid and records the payment. `false`: it was not payable any more.
pub async fn mark_paid(
    postgres: impl PgExecutor<'_>,
    user: UserId,
    id: OrderId,
    reference: &str,
) -> Result<bool, sqlx::Error> {
    // Postgres' clock decides, here and in the sweeper, so a payment and an expiry cannot both be
    // in time.
    let paid = sqlx::query(
        "WITH paid AS (
             UPDATE orders SET status = 'paid', paid_at = now()
             WHERE id = $1 AND user_id = $2 AND status = 'pending_payment' AND pay_by > now()
             RETURNING id, price_cents
         )
         INSERT INTO payments (order_id, amount_cents, reference) SELECT id, price_cents, $3 FROM paid",
    )
    .bind(id)
    .bind(user)
    .bind(reference)
    .execute(postgres)
    .await?;
    Ok(paid.rows_affected() == 1)
}

/// The end of the statements that close orders: `closed` names rows (id, sale_id, user_id) that were
/// live until this statement; their units go back to the sale's counter and into the outbox.
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
pub async fn mark_cancelled(
    postgres: &PgPool,
    user: UserId,
    id: OrderId,
) -> Result<bool, sqlx::Error> {
    let cancelled = sqlx::query(concat!(
        "WITH closed AS (
             UPDATE orders SET status = 'cancelled', slot = NULL, closed_at = now()
             WHERE id = $1 AND user_id = $2 AND status = 'pending_payment' AND pay_by > now()
             RETURNING id, sale_id, user_id
         )",
        return_units!()
    ))
    .bind(id)
    .bind(user)
    .execute(postgres)
    .await?;
    Ok(cancelled.rows_affected() == 1)
}

/// Expires up to `limit` orders whose time to pay is over, of any sale. Instances that sweep at once
/// skip each other's rows. Returns how many.
pub async fn expire_due(postgres: &PgPool, limit: i64) -> Result<u64, sqlx::Error> {
    let expired = sqlx::query(concat!(
        "WITH due AS (
             SELECT id FROM orders WHERE status = 'pending_payment' AND pay_by <= now()
             ORDER BY pay_by LIMIT $1 FOR UPDATE SKIP LOCKED
         ), closed AS (
             UPDATE orders SET status = 'expired', slot = NULL, closed_at = now() FROM due WHERE orders.id = due.id
             RETURNING orders.id, orders.sale_id, orders.user_id
         )",
        return_units!()
    ))
    .bind(limit)
    .execute(postgres)
    .await?;
    Ok(expired.rows_affected())
}

/// Expires one order if its time to pay is over. Waits for whoever is changing it at this moment, so
/// that the caller reads what it became and not what it was. Returns whether this call did it.
pub async fn expire_if_due(postgres: &PgPool, id: OrderId) -> Result<bool, sqlx::Error> {
    let expired = sqlx::query(concat!(
        "WITH closed AS (
             UPDATE orders SET status = 'expired', slot = NULL, closed_at = now()
             WHERE id = $1 AND status = 'pending_payment' AND pay_by <= now()
             RETURNING id, sale_id, user_id
         )",
        return_units!()
    ))
    .bind(id)
    .execute(postgres)
    .await?;
    Ok(expired.rows_affected() == 1)
}
