//! All SQL about orders: reading them, writing accepted ones, and the transitions of their life.
//!
//! Transitions are single statements, so that a handler dropped half-way leaves nothing open, and
//! each begins with `UPDATE orders … WHERE status = 'pending_payment'`, which gives every race one
//! winner. Lock order everywhere: orders first, then sales by id, so that no two transactions
//! can wait for each other.

use crate::{
    domain::{IdempotencyKey, Order, OrderId, OrderStatus, SaleId, UserId},
    postgres::{Pool, Transaction},
    sale::{
        Page, Shop,
        board::from_ms,
        log::{AcceptedBatch, AcceptedOrder},
    },
};
use sqlx::{PgConnection, PgExecutor};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::atomic::Ordering::Relaxed,
};
use time::{OffsetDateTime, macros::datetime};
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
    postgres: &Pool,
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

/// The same for many at once: those of these orders that belong to the user who stands beside them.
///
/// Whose is whose is compared here, and nobody else's leaves this function (I12). The query could do it,
/// by a join with the pairs or a second condition, but Postgres then expects a row or none, plans for
/// that, and reads `sales` anew for every row: three times the time for 256 orders.
pub async fn of_users(
    postgres: &Pool,
    wanted: &HashSet<(UserId, OrderId)>,
) -> Result<Vec<Order>, sqlx::Error> {
    let ids: Vec<i64> = wanted.iter().map(|(_, id)| id.get()).collect();
    let mut found = by_ids(postgres, &ids).await?;
    found.retain(|order| wanted.contains(&(order.user_id, order.id)));
    Ok(found)
}

/// A shopper's listing.
///
/// Sorted only after it was found: while nobody has counted the rows of a table that a sale has just filled,
/// Postgres takes each user to have hundreds of orders, and would rather walk all orders backwards in
/// search of the first few.
pub async fn list_of_user(
    postgres: &Pool,
    user: UserId,
    page: Page,
) -> Result<Vec<Order>, sqlx::Error> {
    sqlx::query_as(concat!(
        "WITH o AS MATERIALIZED (SELECT * FROM orders WHERE user_id = $1 AND id < $2)
         SELECT ",
        order_columns!(),
        " FROM o JOIN sales s ON s.id = o.sale_id ORDER BY o.id DESC LIMIT $3"
    ))
    .bind(user)
    .bind(page.after.map_or(i64::MAX, OrderId::get))
    .bind(i64::from(page.limit))
    .fetch_all(postgres)
    .await
}

/// What an operator asks for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Those that stand there; `None`: wherever they stand.
    pub status: Option<OrderStatus>,
    /// Those of this user; `None`: everybody's.
    pub user: Option<UserId>,
}

/// An operator's listing. Of everybody, it walks the primary key backwards and leaves other sales' orders
/// out: no index of its own, since every index costs each purchase and this page is opened by hand. Of
/// one user, it is found as a shopper's is.
pub async fn list_of_sale(
    postgres: &Pool,
    sale: SaleId,
    Wanted { status, user }: Wanted,
    page: Page,
) -> Result<Vec<Order>, sqlx::Error> {
    let before = page.after.map_or(i64::MAX, OrderId::get);
    let query = match user {
        None => sqlx::query_as(concat!(
            "SELECT ",
            order_columns!(),
            " FROM orders o JOIN sales s ON s.id = o.sale_id
             WHERE o.sale_id = $1 AND o.id < $2 AND ($3::order_status IS NULL OR o.status = $3)
             ORDER BY o.id DESC LIMIT $4"
        )),
        Some(_) => sqlx::query_as(concat!(
            "WITH o AS MATERIALIZED (
                 SELECT * FROM orders
                 WHERE sale_id = $1 AND id < $2 AND ($3::order_status IS NULL OR status = $3) AND user_id = $5)
             SELECT ",
            order_columns!(),
            " FROM o JOIN sales s ON s.id = o.sale_id ORDER BY o.id DESC LIMIT $4"
        )),
    };
    let query = query
        .bind(sale)
        .bind(before)
        .bind(status)
        .bind(i64::from(page.limit));
    let query = match user {
        None => query,
        Some(user) => query.bind(user),
    };
    query.fetch_all(postgres).await
}

/// The orders with these ids that exist, whoever owns them.
pub async fn by_ids(postgres: &Pool, ids: &[i64]) -> Result<Vec<Order>, sqlx::Error> {
    sqlx::query_as(concat!(
        "SELECT ",
        order_columns!(),
        " FROM orders o JOIN sales s ON s.id = o.sale_id WHERE o.id = ANY($1)"
    ))
    .bind(ids)
    .fetch_all(postgres)
    .await
}

/// Which of these orders are rows, live or not.
pub async fn existing(postgres: &Pool, ids: &[i64]) -> Result<HashSet<OrderId>, sqlx::Error> {
    let found: Vec<OrderId> = sqlx::query_scalar("SELECT id FROM orders WHERE id = ANY($1)")
        .bind(ids)
        .fetch_all(postgres)
        .await?;
    Ok(found.into_iter().collect())
}

/// How a batch of accepted orders fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// All are rows now; `new` of them were not before.
    All { new: u64 },
    /// At least one belongs to an epoch that is over, or to no sale. Nothing was written.
    StaleEpoch,
    /// At least one has the id of somebody else's order, which no order of this program has. Nothing
    /// was written.
    IdTaken,
}

/// Whether orders are rows already, as far as the caller can guess; wrong is only slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Just accepted.
    New,
    /// Found in the log after a while.
    PerhapsWritten,
}

/// An accepted order and the batch it came in.
type Row<'a> = (&'a AcceptedOrder, &'a AcceptedBatch);

/// All orders of these batches in id order, so that two writers of the same orders meet in the same
/// sequence.
fn rows(batches: &[AcceptedBatch]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = batches
        .iter()
        .flat_map(|batch| batch.orders.iter().map(move |order| (order, batch)))
        .collect();
    rows.sort_unstable_by_key(|(order, _)| order.id);
    rows
}

/// Writes accepted orders in one short transaction: add the rows, then count them against the stock
/// of each sale. The constraints decide: `sales_taken_within_stock` (I1) and
/// `orders_one_live_per_user_slot` (I2) fail the whole batch, and the caller goes one by one.
///
/// By COPY, which costs Postgres less for each row than INSERT, but knows no ON CONFLICT. That an
/// order is a row already is rare (another writer was faster), and then INSERT is what is left.
pub async fn write_accepted(
    shop: &Shop,
    batches: &[AcceptedBatch],
    expect: Expect,
) -> Result<Written, sqlx::Error> {
    match write(shop, batches, expect).await {
        Err(error) if expect == Expect::New && is_written_twice(&error) => {
            write(shop, batches, Expect::PerhapsWritten).await
        }
        written => written,
    }
}

/// The transaction of [`write_accepted`].
async fn write(
    shop: &Shop,
    batches: &[AcceptedBatch],
    expect: Expect,
) -> Result<Written, sqlx::Error> {
    sent(shop, 2); // BEGIN and what ends it
    let mut transaction = Transaction::begin(&shop.postgres, "BEGIN").await?;
    match fill(shop, &mut transaction, batches, expect).await {
        Ok(written @ Written::All { .. }) => {
            transaction.commit().await?;
            Ok(written)
        }
        Ok(nothing) => {
            transaction.rollback().await?;
            Ok(nothing)
        }
        Err(refusal @ sqlx::Error::Database(_)) => {
            // Postgres is well and said no: the connection can be used again.
            transaction.rollback().await?;
            Err(refusal)
        }
        Err(error) => Err(error),
    }
}

fn sent(shop: &Shop, round_trips: u64) {
    shop.round_trips.postgres.fetch_add(round_trips, Relaxed);
}

/// Everything between BEGIN and COMMIT.
async fn fill(
    shop: &Shop,
    transaction: &mut PgConnection,
    batches: &[AcceptedBatch],
    expect: Expect,
) -> Result<Written, sqlx::Error> {
    let fail_points = &shop.fail_points;
    let rows = rows(batches);
    sent(shop, 1);
    let Some(terms) = terms_of(transaction, batches).await? else {
        return Ok(Written::StaleEpoch);
    };
    fail_points.at("writer.begun").await?;
    let new = match expect {
        Expect::New => {
            sent(shop, 2); // COPY, and its end
            copy(transaction, &rows, &terms).await?;
            count_by_sale(&rows)
        }
        Expect::PerhapsWritten => {
            sent(shop, 1); // and two more if some were written: rare, and not counted
            match insert_missing(transaction, &rows, &terms).await? {
                Some(new) => new,
                None => return Ok(Written::IdTaken),
            }
        }
    };
    fail_points.at("writer.rows_added").await?;
    sent(shop, 1);
    if !count_taken(transaction, &new, batches).await? {
        return Ok(Written::StaleEpoch);
    }
    fail_points.at("writer.counted").await?;
    Ok(Written::All {
        new: new.values().sum::<i64>().unsigned_abs(),
    })
}

fn count_by_sale(rows: &[Row<'_>]) -> BTreeMap<i64, i64> {
    let mut counts = BTreeMap::new();
    for (_, batch) in rows {
        *counts.entry(batch.sale.get()).or_default() += 1;
    }
    counts
}

fn is_written_twice(error: &sqlx::Error) -> bool {
    let constraint = error
        .as_database_error()
        .and_then(|error| error.constraint());
    constraint == Some("orders_pkey")
}

/// What an order of a sale is sold at.
struct Terms {
    price_cents: i64,
    /// Until when an order that is written now can be paid, by Postgres' clock.
    pay_by: OffsetDateTime,
}

/// The terms of every sale in these batches; `None` if one of them is in another epoch, or is not
/// there. That it stays so until the commit is [`count_taken`]'s to check.
///
/// A lateral question, here and there, cannot become a scan of all sales, which a thousand of them would make dear for
/// a transaction of ten orders.
async fn terms_of(
    connection: &mut PgConnection,
    batches: &[AcceptedBatch],
) -> Result<Option<BTreeMap<i64, Terms>>, sqlx::Error> {
    let wanted: BTreeSet<(i64, i64)> = batches
        .iter()
        .map(|batch| (batch.sale.get(), batch.epoch))
        .collect();
    let (sales, epochs): (Vec<i64>, Vec<i64>) = wanted.iter().copied().unzip();
    let found: Vec<(i64, i64, OffsetDateTime)> = sqlx::query_as(
        "SELECT s.id, s.price_cents, now() + make_interval(secs => s.payment_timeout_secs)
         FROM UNNEST($1::bigint[], $2::bigint[]) AS d (id, epoch)
         CROSS JOIN LATERAL (
             SELECT id, price_cents, payment_timeout_secs FROM sales
             WHERE sales.id = d.id AND sales.epoch = d.epoch LIMIT 1
         ) AS s",
    )
    .bind(sales)
    .bind(epochs)
    .fetch_all(connection)
    .await?;
    let all_live = found.len() == wanted.len();
    let terms = found.into_iter().map(|(sale, price_cents, pay_by)| {
        (
            sale,
            Terms {
                price_cents,
                pay_by,
            },
        )
    });
    Ok(all_live.then(|| terms.collect()))
}

/// Adds the rows by COPY in its binary format: fixed-width big-endian fields, each behind its length
/// (PostgreSQL documentation, "COPY", "Binary Format").
async fn copy(
    connection: &mut PgConnection,
    rows: &[Row<'_>],
    terms: &BTreeMap<i64, Terms>,
) -> Result<(), sqlx::Error> {
    const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
    const FIELDS: i16 = 9;
    const BYTES_PER_ROW: usize = 128;
    let mut data = Vec::with_capacity(SIGNATURE.len() + rows.len() * BYTES_PER_ROW + 2);
    data.extend_from_slice(SIGNATURE);
    let mut sold_at = None;
    for (order, batch) in rows {
        let sale = batch.sale.get();
        // Neighbours are mostly of one sale, so this looks up once for many.
        let (terms, pay_by) = match sold_at {
            Some((known, terms, pay_by)) if known == sale => (terms, pay_by),
            _ => {
                let terms = terms.get(&sale).ok_or(sqlx::Error::RowNotFound)?;
                (terms, timestamp(terms.pay_by))
            }
        };
        sold_at = Some((sale, terms, pay_by));
        data.extend_from_slice(&FIELDS.to_be_bytes());
        field(&mut data, &order.id.get().to_be_bytes());
        field(&mut data, &sale.to_be_bytes());
        field(&mut data, order.user.as_bytes());
        field(&mut data, &i16::from(order.slot).to_be_bytes());
        field(&mut data, b"pending_payment");
        field(&mut data, &terms.price_cents.to_be_bytes());
        match order.key {
            Some(key) => field(&mut data, &key.to_stored().to_be_bytes()),
            None => data.extend_from_slice(&(-1i32).to_be_bytes()), // null
        }
        field(&mut data, &timestamp_of_ms(batch.created_ms));
        field(&mut data, &pay_by);
    }
    data.extend_from_slice(&(-1i16).to_be_bytes()); // the end
    let mut copying = connection
        .copy_in_raw(
            "COPY orders (id, sale_id, user_id, slot, status, price_cents, idempotency_hash, created_at, pay_by)
             FROM STDIN (FORMAT binary)",
        )
        .await?;
    copying.send(data).await?;
    copying.finish().await?;
    Ok(())
}

fn field(data: &mut Vec<u8>, value: &[u8]) {
    let length = i32::try_from(value.len()).unwrap_or(i32::MAX); // at most 16 bytes
    data.extend_from_slice(&length.to_be_bytes());
    data.extend_from_slice(value);
}

/// The same of a time from Redis, Unix ms, by arithmetic alone: it is done for every order.
fn timestamp_of_ms(ms: i64) -> [u8; 8] {
    const Y2K_MS: i64 = datetime!(2000-01-01 00:00 UTC).unix_timestamp() * 1_000;
    ms.saturating_sub(Y2K_MS)
        .saturating_mul(1_000)
        .to_be_bytes()
}

/// Postgres' `timestamptz`: microseconds since 2000.
fn timestamp(time: OffsetDateTime) -> [u8; 8] {
    let micros = (time - datetime!(2000-01-01 00:00 UTC)).whole_microseconds();
    i64::try_from(micros).unwrap_or(i64::MAX).to_be_bytes()
}

/// Adds the rows that are not there yet and answers how many of each sale, or `None` if an id is
/// somebody else's. Only `id` may conflict silently: the same order written
/// twice. A bare ON CONFLICT would hide a violation of I2.
///
/// An order that is there and closed goes into the outbox once more: it may have been accepted a
/// second time (a lost reply, asked again after the first acceptance was written, cancelled and
/// returned), and then it holds a unit that nobody else would return. Returning is idempotent. A row
/// that is in the outbox already gets a new time, so that a release under way does not delete it.
async fn insert_missing(
    connection: &mut PgConnection,
    rows: &[Row<'_>],
    terms: &BTreeMap<i64, Terms>,
) -> Result<Option<BTreeMap<i64, i64>>, sqlx::Error> {
    let mut columns = Columns::default();
    for (order, batch) in rows {
        let terms = terms
            .get(&batch.sale.get())
            .ok_or(sqlx::Error::RowNotFound)?;
        columns.ids.push(order.id.get());
        columns.sales.push(batch.sale.get());
        columns.users.push(order.user.uuid());
        columns.slots.push(i16::from(order.slot));
        columns.prices.push(terms.price_cents);
        columns
            .hashes
            .push(order.key.map(IdempotencyKey::to_stored));
        columns.created.push(from_ms(batch.created_ms));
        columns.pay_by.push(terms.pay_by);
    }
    let written: Vec<(i64, i64)> = sqlx::query_as(
        "WITH written AS (
             INSERT INTO orders
                 (id, sale_id, user_id, slot, status, price_cents, idempotency_hash, created_at, pay_by)
             SELECT id, sale_id, user_id, slot, 'pending_payment', price_cents, hash, created_at, pay_by
             FROM UNNEST($1::bigint[], $2::bigint[], $3::uuid[], $4::smallint[], $5::bigint[], $6::bigint[],
                         $7::timestamptz[], $8::timestamptz[])
                  AS d (id, sale_id, user_id, slot, price_cents, hash, created_at, pay_by)
             ORDER BY id
             ON CONFLICT (id) DO NOTHING
             RETURNING sale_id
         )
         SELECT sale_id, count(*) FROM written GROUP BY sale_id",
    )
    .bind(&columns.ids)
    .bind(&columns.sales)
    .bind(&columns.users)
    .bind(columns.slots)
    .bind(columns.prices)
    .bind(columns.hashes)
    .bind(columns.created)
    .bind(columns.pay_by)
    .fetch_all(&mut *connection)
    .await?;
    let written: BTreeMap<i64, i64> = written.into_iter().collect();
    if written.values().sum::<i64>() == i64::try_from(rows.len()).unwrap_or(i64::MAX) {
        return Ok(Some(written));
    }
    let foreign: bool = sqlx::query_scalar(
        "SELECT EXISTS (
             SELECT FROM UNNEST($1::bigint[], $2::bigint[], $3::uuid[]) AS d (id, sale_id, user_id)
             JOIN orders o ON o.id = d.id AND (o.sale_id, o.user_id) <> (d.sale_id, d.user_id))",
    )
    .bind(&columns.ids)
    .bind(&columns.sales)
    .bind(&columns.users)
    .fetch_one(&mut *connection)
    .await?;
    if foreign {
        return Ok(None);
    }
    sqlx::query(
        "INSERT INTO releases (order_id, sale_id, user_id)
         SELECT id, sale_id, user_id FROM orders
         WHERE id = ANY($1) AND status IN ('cancelled', 'expired', 'rejected')
         ON CONFLICT ON CONSTRAINT releases_pkey DO UPDATE SET created_at = clock_timestamp()",
    )
    .bind(&columns.ids)
    .execute(connection)
    .await?;
    Ok(Some(written))
}

/// Columns of a batch insert, one element an order.
#[derive(Default)]
struct Columns {
    ids: Vec<i64>,
    sales: Vec<i64>,
    users: Vec<Uuid>,
    slots: Vec<i16>,
    prices: Vec<i64>,
    hashes: Vec<Option<i64>>,
    created: Vec<OffsetDateTime>,
    pay_by: Vec<OffsetDateTime>,
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
    // Locked in this order: by id, as everywhere.
    let sales: Vec<i64> = new.keys().copied().collect();
    let counts: Vec<i64> = new.values().copied().collect();
    let epochs: Vec<i64> = sales
        .iter()
        .map(|sale| epochs.get(sale).copied().unwrap_or(0))
        .collect();
    let counted = sqlx::query(
        "WITH locked AS MATERIALIZED (
             SELECT s.id, d.count
             FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[]) AS d (id, count, epoch)
             CROSS JOIN LATERAL (
                 SELECT id FROM sales WHERE sales.id = d.id AND sales.epoch = d.epoch FOR NO KEY UPDATE
             ) AS s
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

/// How an order that cannot be live fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    New,
    Before,
    /// Its id is somebody else's order: it cannot be a row at all.
    IdTaken,
}

/// Writes an order that Redis accepted and Postgres will not hold live, and puts its unit into the
/// outbox. Idempotent.
pub async fn write_rejected(
    postgres: &Pool,
    batch: &AcceptedBatch,
    order: &AcceptedOrder,
) -> Result<Rejected, sqlx::Error> {
    let written = sqlx::query(
        "WITH written AS (
             INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, idempotency_hash, created_at, closed_at)
             SELECT $1, s.id, $3, NULL, 'rejected', s.price_cents, $4, $5, now() FROM sales s
             WHERE s.id = $2
             ON CONFLICT (id) DO NOTHING
             RETURNING id, sale_id, user_id
         )
         INSERT INTO releases (order_id, sale_id, user_id) SELECT id, sale_id, user_id FROM written",
    )
    .bind(order.id)
    .bind(batch.sale)
    .bind(order.user)
    .bind(order.key.map(IdempotencyKey::to_stored))
    .bind(from_ms(batch.created_ms))
    .execute(postgres)
    .await?;
    if written.rows_affected() == 1 {
        return Ok(Rejected::New);
    }
    let same: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM orders WHERE id = $1 AND sale_id = $2 AND user_id = $3)",
    )
    .bind(order.id)
    .bind(batch.sale)
    .bind(order.user)
    .fetch_one(postgres)
    .await?;
    Ok(if same {
        Rejected::Before
    } else {
        Rejected::IdTaken
    })
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
    postgres: &Pool,
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

/// Sales that have orders whose time to pay is over.
pub async fn sales_with_due(postgres: &Pool) -> Result<Vec<SaleId>, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT DISTINCT sale_id FROM orders WHERE status = 'pending_payment' AND pay_by <= now()",
    )
    .fetch_all(postgres)
    .await
}

/// Expires up to `limit` orders whose time to pay is over, of one sale or of any. Instances that sweep
/// at once skip each other's rows. Returns how many.
pub async fn expire_due(
    postgres: &Pool,
    sale: Option<SaleId>,
    limit: i64,
) -> Result<u64, sqlx::Error> {
    let expired = sqlx::query(concat!(
        "WITH due AS (
             SELECT id FROM orders
             WHERE status = 'pending_payment' AND pay_by <= now() AND ($2::bigint IS NULL OR sale_id = $2)
             ORDER BY pay_by LIMIT $1 FOR UPDATE SKIP LOCKED
         ), closed AS (
             UPDATE orders SET status = 'expired', slot = NULL, closed_at = now() FROM due WHERE orders.id = due.id
             RETURNING orders.id, orders.sale_id, orders.user_id
         )",
        return_units!()
    ))
    .bind(limit)
    .bind(sale)
    .execute(postgres)
    .await?;
    Ok(expired.rows_affected())
}

/// Expires one order if its time to pay is over. Waits for whoever is changing it at this moment, so
/// that the caller reads what it became and not what it was. Returns whether this call did it.
pub async fn expire_if_due(postgres: &Pool, id: OrderId) -> Result<bool, sqlx::Error> {
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
