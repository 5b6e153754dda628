//! What the lock protects: one phone, as rows in Postgres.
//!
//! Selling is read, check, write, as in the incident of 《突击Redis重大事故现场》: right as long as one at a
//! time does it. Nothing here stops a second one; that is the lock's task, and the rows show
//! whether it did it.

use super::error::Trouble;
use sqlx::PgPool;

/// How long rows of a play may stay that its process did not remove.
const OLDEST: &str = "15 minutes";

pub struct Shop {
    postgres: PgPool,
    pub(super) play: String,
}

impl Shop {
    pub(super) fn new(postgres: PgPool, play: &str) -> Self {
        Self { postgres, play: play.to_owned() }
    }

    /// The row that knows fencing tokens.
    pub(super) fn phone(&self) -> String {
        format!("{}:phone", self.play)
    }

    /// The name of its rows.
    pub fn play(&self) -> String {
        self.play.clone()
    }

    /// One phone, no order.
    pub(super) async fn open(&self) -> Result<(), Trouble> {
        let mut transaction = stores::postgres::Transaction::begin(&self.postgres, "BEGIN").await?;
        sqlx::query("DELETE FROM lab.plays WHERE id = $1 OR created_at < now() - $2::interval")
            .bind(&self.play)
            .bind(OLDEST)
            .execute(&mut *transaction)
            .await?;
        sqlx::query("DELETE FROM lab.fenced WHERE name = $1")
            .bind(self.phone())
            .execute(&mut *transaction)
            .await?;
        sqlx::query("INSERT INTO lab.plays (id) VALUES ($1)")
            .bind(&self.play)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    pub(super) async fn close(&self) -> Result<(), Trouble> {
        sqlx::query("DELETE FROM lab.plays WHERE id = $1")
            .bind(&self.play)
            .execute(&self.postgres)
            .await?;
        sqlx::query("DELETE FROM lab.fenced WHERE name = $1")
            .bind(self.phone())
            .execute(&self.postgres)
            .await?;
        Ok(())
    }

    pub(super) async fn look(&self) -> Result<Vec<(String, Option<String>, Option<i64>)>, Trouble> {
        let (stock, orders): (i32, i64) = sqlx::query_as(
            "SELECT stock, (SELECT count(*) FROM lab.play_orders WHERE play = id) FROM lab.plays \
             WHERE id = $1",
        )
        .bind(&self.play)
        .fetch_one(&self.postgres)
        .await?;
        let fenced: Option<(String, i64)> =
            sqlx::query_as("SELECT value, newest FROM lab.fenced WHERE name = $1")
                .bind(self.phone())
                .fetch_optional(&self.postgres)
                .await?;
        let mut seen = vec![
            ("phones in stock".to_owned(), Some(stock.to_string()), None),
            ("orders".to_owned(), Some(orders.to_string()), None),
        ];
        if let Some((value, newest)) = fenced {
            seen.push(("phone".to_owned(), Some(format!("{value} (token {newest})")), None));
        }
        Ok(seen)
    }

    /// Orders beyond the one phone, from the rows.
    pub async fn oversold(&self) -> Result<i64, Trouble> {
        let orders: i64 =
            sqlx::query_scalar("SELECT count(*) FROM lab.play_orders WHERE play = $1")
                .bind(&self.play)
                .fetch_one(&self.postgres)
                .await?;
        Ok((orders - 1).max(0))
    }

    /// To whom the fenced row says that the phone was sold.
    pub async fn sold_to(&self) -> Result<Option<String>, Trouble> {
        let value = sqlx::query_scalar("SELECT value FROM lab.fenced WHERE name = $1")
            .bind(self.phone())
            .fetch_optional(&self.postgres)
            .await?;
        Ok(value)
    }
}
