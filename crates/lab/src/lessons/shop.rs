//! What the lock protects: one phone, as rows in Postgres.
//!
//! Selling is read, check, write, as in the incident of 《突击Redis重大事故现场》: right as long as one at a
//! time does it. Nothing here stops a second one; that is the lock's task, and the rows show
//! whether it did it.

use super::error::Result;
use super::timeline::{KeyState, Keys};
use sqlx::PgPool;
use stores::sql;

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
    WITH gone AS (DELETE FROM lab.plays
                  WHERE id = $1 OR created_at < now() - interval '15 minutes' RETURNING id)
    DELETE FROM lab.fenced WHERE name = $2 OR name IN (SELECT id || ':phone' FROM gone)";
/// Stock, orders that are paid, what the fenced row says and its newest number, Alice's order, the
/// refunds, orders that are expired.
const LOOK: &str = "
    SELECT stock, (SELECT count(*) FROM lab.play_orders WHERE play = id AND status = 'paid'),
        value, newest, (SELECT status FROM lab.play_orders WHERE play = id AND pay_by IS NOT NULL),
        (SELECT count(*) FROM lab.play_refunds WHERE play = id),
        (SELECT count(*) FROM lab.play_orders WHERE play = id AND status = 'expired')
    FROM lab.plays LEFT JOIN lab.fenced ON name = $2 WHERE id = $1";
type Rows = (i32, i64, Option<String>, Option<i64>, Option<String>, i64, i64);

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

    async fn rows(&self) -> Result<Rows> {
        let row = sql::row(&self.postgres, LOOK, (&self.play, self.phone())).await?;
        Ok(row.ok_or(sqlx::Error::RowNotFound)?)
    }

    pub(super) async fn look(&self) -> Result<Keys> {
        let (stock, orders, value, newest, alices, refunds, _) = self.rows().await?;
        let mut seen = vec![("phones in stock", stock.to_string()), ("orders", orders.to_string())];
        if let (Some(value), Some(newest)) = (value, newest) {
            seen.push(("phone", format!("{value} (token {newest})")));
        }
        if let Some(status) = alices {
            seen.extend([("Alice's order", status), ("refunds", refunds.to_string())]);
        }
        let state = |(name, value): (&str, _)| (name.to_owned(), KeyState::of(Some(value), None));
        Ok(seen.into_iter().map(state).collect())
    }

    /// Whether there are orders beyond the one phone.
    pub async fn is_oversold(&self) -> Result<bool> {
        let (_, orders, ..) = self.rows().await?;
        Ok(orders > 1)
    }

    /// Whether payments for orders that are closed and refunds differ in number.
    pub async fn owes(&self) -> Result<bool> {
        let (.., refunds, expired) = self.rows().await?;
        Ok(expired != refunds)
    }

    /// Whether the fenced row, which keeps its last buyer, says so of this one.
    pub(super) async fn was_sold_last_to(&self, buyer: &str) -> Result<bool> {
        let (_, _, value, ..) = self.rows().await?;
        Ok(value.is_some_and(|value| value == format!("sold to {buyer}")))
    }

    pub(super) async fn run(&self, statement: &'static str) -> Result {
        sql::run(&self.postgres, statement, (&self.play,)).await?;
        Ok(())
    }
}
