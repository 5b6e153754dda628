//! Writing accepted orders, many in one short transaction.
//!
//! Lock order everywhere: orders first, then sales by id, which rules out deadlocks.

use crate::domain::{IdempotencyKey, from_unix_ms};
use crate::order_log::{AcceptedBatch, AcceptedOrder};
use crate::orders::outcome::{Outcome, Refusal};
use crate::orders::service::Orders;
use sqlx::PgConnection;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use time::OffsetDateTime;
use time::macros::datetime;
use uuid::Uuid;

/// Whether the orders may be rows already. A wrong guess is only slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Just accepted.
    New,
    /// Found in the log after a while.
    PerhapsWritten,
}

/// An accepted order and the batch it came in.
type Row<'a> = (&'a AcceptedOrder, &'a AcceptedBatch);

/// All orders of these batches in id order: concurrent writers then lock in the same order.
fn rows(batches: &[AcceptedBatch]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = batches
        .iter()
        .flat_map(|batch| batch.orders.iter().map(move |order| (order, batch)))
        .collect();
    rows.sort_unstable_by_key(|(order, _)| order.id);
    rows
}

impl Orders {
    /// Writes accepted orders in one short transaction: the rows, then the counter of each sale. A
    /// violation of `sales_taken_within_stock` (I1) or `orders_one_live_per_user_slot` (I2) fails
    /// the whole batch, and the caller writes one by one.
    ///
    /// COPY costs Postgres less a row than INSERT, but has no ON CONFLICT. Orders that are rows
    /// already (another writer was faster) are rare, and written by INSERT.
    pub async fn write_accepted(
        &self,
        batches: &[AcceptedBatch],
        expect: Expect,
    ) -> sqlx::Result<Outcome> {
        let outcome = Outcome::of(self.write_in_transaction(batches, expect).await)?;
        match outcome {
            Outcome::Refused { refusal: Refusal::WrittenTwice, .. } if expect == Expect::New => {
                Outcome::of(self.write_in_transaction(batches, Expect::PerhapsWritten).await)
            }
            outcome => Ok(outcome),
        }
    }

    /// The transaction of [`write_accepted`].
    async fn write_in_transaction(
        &self,
        batches: &[AcceptedBatch],
        expect: Expect,
    ) -> sqlx::Result<Outcome> {
        self.count_round_trips(2); // BEGIN and what ends it
        let mut transaction = self.postgres.begin("BEGIN").await?;
        let filled = self.fill(&mut transaction, batches, expect).await;
        match &filled {
            Ok(Outcome::Written { .. }) => transaction.commit().await?,
            // The connection is still good.
            Ok(_) | Err(sqlx::Error::Database(_)) => transaction.rollback().await?,
            Err(_) => {}
        }
        filled
    }

    fn count_round_trips(&self, round_trips: u64) {
        self.metrics.round_trips.postgres.fetch_add(round_trips, Relaxed);
    }

    /// Everything between BEGIN and COMMIT.
    async fn fill(
        &self,
        transaction: &mut PgConnection,
        batches: &[AcceptedBatch],
        expect: Expect,
    ) -> sqlx::Result<Outcome> {
        let rows = rows(batches);
        self.count_round_trips(1);
        let Some(terms) = terms_of(transaction, batches).await? else {
            return Ok(Outcome::StaleEpoch);
        };
        self.fail_points.at("writer.begun").await?;
        let new = match expect {
            Expect::New => {
                self.count_round_trips(2); // COPY, and its end
                copy(transaction, &rows, &terms).await?;
                count_by_sale(&rows)
            }
            Expect::PerhapsWritten => {
                // Two more if some were written: rare, and not counted.
                self.count_round_trips(1);
                match insert_missing(transaction, &rows, &terms).await? {
                    Some(new) => new,
                    None => return Ok(Outcome::IdTaken),
                }
            }
        };
        self.fail_points.at("writer.rows_added").await?;
        self.count_round_trips(1);
        if !count_taken(transaction, &new, batches).await? {
            return Ok(Outcome::StaleEpoch);
        }
        self.fail_points.at("writer.counted").await?;
        Ok(Outcome::Written { new: new.values().sum::<i64>().unsigned_abs() })
    }
}

fn count_by_sale(rows: &[Row<'_>]) -> BTreeMap<i64, i64> {
    let mut counts = BTreeMap::new();
    for (_, batch) in rows {
        *counts.entry(batch.sale.get()).or_default() += 1;
    }
    counts
}

/// Price in cents, and until when an order that is written now can be paid (Postgres' clock).
#[derive(Clone, Copy)]
struct Terms(i64, OffsetDateTime);

/// The terms of every sale in these batches; `None` if one is missing or in another epoch.
/// [`count_taken`] checks the epochs again before the commit.
///
/// LATERAL keeps this an index lookup per sale.
async fn terms_of(
    connection: &mut PgConnection,
    batches: &[AcceptedBatch],
) -> sqlx::Result<Option<BTreeMap<i64, Terms>>> {
    let wanted = batches.iter().map(|batch| (batch.sale.get(), batch.epoch));
    let wanted: BTreeSet<(i64, i64)> = wanted.collect();
    let (sales, epochs): (Vec<i64>, Vec<i64>) = wanted.iter().copied().unzip();
    let found = sqlx::query_as(
        "SELECT s.id, s.price_cents, now() + make_interval(secs => s.payment_timeout_secs)
         FROM UNNEST($1::bigint[], $2::bigint[]) AS d (id, epoch)
         CROSS JOIN LATERAL (
             SELECT id, price_cents, payment_timeout_secs FROM sales
             WHERE sales.id = d.id AND sales.epoch = d.epoch LIMIT 1
         ) AS s",
    );
    let found: Vec<(i64, i64, OffsetDateTime)> =
        found.bind(sales).bind(epochs).fetch_all(connection).await?;
    let all_live = found.len() == wanted.len();
    let found = found.into_iter();
    let terms = found.map(|(sale, price_cents, pay_by)| (sale, Terms(price_cents, pay_by)));
    Ok(all_live.then(|| terms.collect()))
}

/// Adds the rows by COPY in its binary format: fixed-width big-endian fields, each behind its
/// length (PostgreSQL documentation, "COPY", "Binary Format").
async fn copy(
    connection: &mut PgConnection,
    rows: &[Row<'_>],
    terms: &BTreeMap<i64, Terms>,
) -> sqlx::Result<()> {
    const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
    const FIELDS: i16 = 9;
    const BYTES_PER_ROW: usize = 128;
    let mut data = Vec::with_capacity(SIGNATURE.len() + rows.len() * BYTES_PER_ROW + 2);
    data.extend_from_slice(SIGNATURE);
    for (order, batch) in rows {
        let sale = batch.sale.get();
        let Terms(price_cents, pay_by) = terms.get(&sale).ok_or(sqlx::Error::RowNotFound)?;
        data.extend_from_slice(&FIELDS.to_be_bytes());
        field(&mut data, &order.id.get().to_be_bytes());
        field(&mut data, &sale.to_be_bytes());
        field(&mut data, order.user.as_bytes());
        field(&mut data, &i16::from(order.slot).to_be_bytes());
        field(&mut data, b"pending_payment");
        field(&mut data, &price_cents.to_be_bytes());
        match order.key {
            Some(key) => field(&mut data, &key.get().to_be_bytes()),
            None => data.extend_from_slice(&(-1i32).to_be_bytes()), // null
        }
        field(&mut data, &timestamp_of_ms(batch.created_ms));
        field(&mut data, &timestamp(*pay_by));
    }
    data.extend_from_slice(&(-1i16).to_be_bytes()); // the end
    let mut copying = connection
        .copy_in_raw(
            "COPY orders (id, sale_id, user_id, slot, status, price_cents, idempotency_hash,
                          created_at, pay_by)
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

/// The `timestamptz` of Unix ms, by arithmetic alone: it runs for every order.
fn timestamp_of_ms(ms: i64) -> [u8; 8] {
    const Y2K_MS: i64 = datetime!(2000-01-01 00:00 UTC).unix_timestamp() * 1_000;
    ms.saturating_sub(Y2K_MS).saturating_mul(1_000).to_be_bytes()
}

/// Postgres' `timestamptz`: microseconds since 2000.
fn timestamp(time: OffsetDateTime) -> [u8; 8] {
    let micros = (time - datetime!(2000-01-01 00:00 UTC)).whole_microseconds();
    i64::try_from(micros).unwrap_or(i64::MAX).to_be_bytes()
}

/// Adds missing rows and answers how many of each sale, or `None` if an id is another order's.
async fn insert_missing(
    connection: &mut PgConnection,
    rows: &[Row<'_>],
    terms: &BTreeMap<i64, Terms>,
) -> sqlx::Result<Option<BTreeMap<i64, i64>>> {
    let written = insert(connection, rows, terms).await?;
    if written.values().sum::<i64>() == i64::try_from(rows.len()).unwrap_or(i64::MAX) {
        return Ok(Some(written));
    }
    if some_id_is_taken(connection, rows).await? {
        return Ok(None);
    }
    release_closed(connection, rows).await?;
    Ok(Some(written))
}

/// Only `id` may conflict silently: a bare ON CONFLICT would hide a violation of I2.
async fn insert(
    connection: &mut PgConnection,
    rows: &[Row<'_>],
    terms: &BTreeMap<i64, Terms>,
) -> sqlx::Result<BTreeMap<i64, i64>> {
    let number = |of: fn(&Row<'_>) -> i64| rows.iter().map(of).collect::<Vec<_>>();
    let ids = number(|(order, _)| order.id.get());
    let sales = number(|(_, batch)| batch.sale.get());
    let users: Vec<Uuid> = rows.iter().map(|(order, _)| order.user.uuid()).collect();
    let slots: Vec<i16> = rows.iter().map(|(order, _)| order.slot.into()).collect();
    let keys = rows.iter().map(|(order, _)| order.key);
    let keys: Vec<Option<i64>> = keys.map(|key| key.map(IdempotencyKey::get)).collect();
    let created = rows.iter().map(|(_, batch)| from_unix_ms(batch.created_ms));
    let created: Vec<OffsetDateTime> = created.collect();
    let terms = sales.iter().map(|sale| terms.get(sale));
    let terms = terms.map(|terms| terms.map(|Terms(price, pay_by)| (*price, *pay_by)));
    let terms: Option<(Vec<i64>, Vec<OffsetDateTime>)> = terms.collect();
    let (prices, pay_by) = terms.ok_or(sqlx::Error::RowNotFound)?;
    let written = sqlx::query_as(
        "WITH written AS (
             INSERT INTO orders
                 (id, sale_id, user_id, slot, status, price_cents, idempotency_hash, created_at,
                     pay_by)
             SELECT id, sale_id, user_id, slot, 'pending_payment', price_cents, hash, created_at,
                 pay_by
             FROM UNNEST($1::bigint[], $2::bigint[], $3::uuid[], $4::smallint[], $5::bigint[],
                 $6::bigint[],
                         $7::timestamptz[], $8::timestamptz[])
                  AS d (id, sale_id, user_id, slot, price_cents, hash, created_at, pay_by)
             ORDER BY id
             ON CONFLICT (id) DO NOTHING
             RETURNING sale_id
         )
         SELECT sale_id, count(*) FROM written GROUP BY sale_id",
    );
    let written = written.bind(ids).bind(&sales).bind(users).bind(slots);
    let written = written.bind(prices).bind(keys).bind(created).bind(pay_by);
    let written: Vec<(i64, i64)> = written.fetch_all(connection).await?;
    Ok(written.into_iter().collect())
}

/// Whether one of these ids is the row of another user or sale.
async fn some_id_is_taken(connection: &mut PgConnection, rows: &[Row<'_>]) -> sqlx::Result<bool> {
    let ids: Vec<i64> = rows.iter().map(|(order, _)| order.id.get()).collect();
    let sales: Vec<i64> = rows.iter().map(|(_, batch)| batch.sale.get()).collect();
    let users: Vec<Uuid> = rows.iter().map(|(order, _)| order.user.uuid()).collect();
    let taken = sqlx::query_scalar(
        "SELECT EXISTS (
             SELECT FROM UNNEST($1::bigint[], $2::bigint[], $3::uuid[]) AS d (id, sale_id, user_id)
             JOIN orders o ON o.id = d.id AND (o.sale_id, o.user_id) <> (d.sale_id, d.user_id))",
    );
    taken.bind(ids).bind(sales).bind(users).fetch_one(connection).await
}

/// Puts orders that are closed already into the outbox once more: one may have been accepted a
/// second time (a lost reply, retried after it was written, cancelled and returned), and then holds
/// a unit. Returning is idempotent; the new time keeps a release under way from deleting the row.
async fn release_closed(connection: &mut PgConnection, rows: &[Row<'_>]) -> sqlx::Result<()> {
    let ids: Vec<i64> = rows.iter().map(|(order, _)| order.id.get()).collect();
    let query = sqlx::query(
        "INSERT INTO releases (order_id, sale_id, user_id)
         SELECT id, sale_id, user_id FROM orders
         WHERE id = ANY($1) AND status IN ('cancelled', 'expired', 'rejected')
         ON CONFLICT ON CONSTRAINT releases_pkey DO UPDATE SET created_at = clock_timestamp()",
    );
    query.bind(ids).execute(connection).await?;
    Ok(())
}

/// Counts new orders against their sales, by id. `false`: an epoch ended meanwhile.
async fn count_taken(
    connection: &mut PgConnection,
    new: &BTreeMap<i64, i64>,
    batches: &[AcceptedBatch],
) -> sqlx::Result<bool> {
    if new.is_empty() {
        return Ok(true);
    }
    let epochs = batches.iter().map(|batch| (batch.sale.get(), batch.epoch));
    let epochs: BTreeMap<i64, i64> = epochs.collect();
    // Locked by id, as everywhere.
    let sales: Vec<i64> = new.keys().copied().collect();
    let counts: Vec<i64> = new.values().copied().collect();
    let epochs: Vec<i64> =
        sales.iter().map(|sale| epochs.get(sale).copied().unwrap_or(0)).collect();
    let counted = sqlx::query(
        "WITH locked AS MATERIALIZED (
             SELECT s.id, d.count
             FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[]) AS d (id, count, epoch)
             CROSS JOIN LATERAL (
                 SELECT id FROM sales WHERE sales.id = d.id
                     AND sales.epoch = d.epoch FOR NO KEY UPDATE
             ) AS s
         )
         UPDATE sales SET taken = taken + locked.count FROM locked WHERE sales.id = locked.id",
    );
    let counted = counted.bind(&sales).bind(&counts).bind(&epochs);
    let counted = counted.execute(connection).await?;
    Ok(counted.rows_affected() == sales.len() as u64)
}
