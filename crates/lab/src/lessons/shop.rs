//! What the lock protects: one phone, as rows in Postgres.
//!
//! Selling is read, check, write, as in the incident of 《突击Redis重大事故现场》: right as long as one at a
//! time does it. Nothing here stops a second one; that is the lock's task, and the rows show
//! whether it did it.

use super::error::Result;
use sqlx::PgPool;
use stores::sql;

/// A name, its value, and the ms that it has left.
pub type Seen = (String, Option<String>, Option<i64>);

pub struct Shop {
    postgres: PgPool,
    /// The name of its rows.
    pub play: String,
}

/// What is in stock.
pub const READ: &str = "SELECT stock FROM lab.plays WHERE id = $1";
/// Writes what was computed from what was read, and the order.
pub const SELL: &str = "
    WITH sold AS (UPDATE lab.plays SET stock = $2 WHERE id = $1)
    INSERT INTO lab.play_orders (play, buyer) VALUES ($1, $3)";
/// Rows that another process left behind, too.
const CLEAR: &str = "
    WITH fenced AS (DELETE FROM lab.fenced WHERE name = $2)
    DELETE FROM lab.plays WHERE id = $1 OR created_at < now() - interval '15 minutes'";
const LOOK: &str = "
    SELECT stock, (SELECT count(*) FROM lab.play_orders WHERE play = id AND status = 'paid'),
        value, newest, (SELECT status FROM lab.play_orders WHERE play = id AND pay_by IS NOT NULL),
        (SELECT count(*) FROM lab.play_refunds WHERE play = id)
    FROM lab.plays LEFT JOIN lab.fenced ON name = $2 WHERE id = $1";
const OWED: &str = "
    SELECT (SELECT count(*) FROM lab.play_orders WHERE play = $1 AND status = 'expired')
        - (SELECT count(*) FROM lab.play_refunds WHERE play = $1)";

impl Shop {
    pub(super) fn new(postgres: PgPool, play: &str) -> Self {
        Self { postgres, play: play.to_owned() }
    }

    /// The row that knows fencing tokens.
    pub(super) fn phone(&self) -> String {
        format!("{}:phone", self.play)
    }

    /// One phone, no order.
    pub(super) async fn open(&self) -> Result {
        self.close().await?;
        self.run("INSERT INTO lab.plays (id) VALUES ($1)").await
    }

    pub(super) async fn close(&self) -> Result {
        sql::run(&self.postgres, CLEAR, (&self.play, self.phone())).await?;
        Ok(())
    }

    pub(super) async fn look(&self) -> Result<Vec<Seen>> {
        type Row = (i32, i64, Option<String>, Option<i64>, Option<String>, i64);
        let row = sql::row(&self.postgres, LOOK, (&self.play, self.phone())).await?;
        let (stock, orders, value, newest, alices, refunds): Row =
            row.ok_or(sqlx::Error::RowNotFound)?;
        let mut seen = vec![("phones in stock", stock.to_string()), ("orders", orders.to_string())];
        if let (Some(value), Some(newest)) = (value, newest) {
            seen.push(("phone", format!("{value} (token {newest})")));
        }
        if let Some(status) = alices {
            seen.extend([("Alice's order", status), ("refunds", refunds.to_string())]);
        }
        Ok(seen.into_iter().map(|(name, value)| (name.to_owned(), Some(value), None)).collect())
    }

    /// Orders beyond the one phone, from the rows.
    pub async fn oversold(&self) -> Result<i64> {
        let count = "SELECT count(*) FROM lab.play_orders WHERE play = $1 AND status = 'paid'";
        Ok((self.count(count).await? - 1).max(0))
    }

    /// Payments for orders that are closed, less refunds.
    pub async fn owed(&self) -> Result<i64> {
        self.count(OWED).await
    }

    async fn count(&self, count: &'static str) -> Result<i64> {
        let row: Option<(i64,)> = sql::row(&self.postgres, count, (&self.play,)).await?;
        Ok(row.map_or(0, |(count,)| count))
    }

    pub(super) async fn run(&self, statement: &'static str) -> Result {
        sql::run(&self.postgres, statement, (&self.play,)).await?;
        Ok(())
    }

    /// Whether the fenced row, which keeps its last buyer, says so of this one.
    pub(super) async fn was_sold_last_to(&self, buyer: &str) -> Result<bool> {
        let value = "SELECT 1 FROM lab.fenced WHERE name = $1 AND value = $2";
        let values = (self.phone(), format!("sold to {buyer}"));
        let row: Option<(i32,)> = sql::row(&self.postgres, value, values).await?;
        Ok(row.is_some())
    }
}
