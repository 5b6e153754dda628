//! What clients do with the shop.

use super::super::prelude::*;
use super::super::shop::{READ, SELL, Shop};
use super::super::timeline::Name;

/// One more than anybody before.
const NUMBER: &str = "
    INSERT INTO lab.fenced AS resource (name, newest, value) VALUES ($1, 1, 'not sold')
    ON CONFLICT (name) DO UPDATE SET newest = resource.newest + 1 RETURNING newest";
impl Shop {
    /// How many are left.
    pub async fn read(&self, client: &Client, step: Name) -> Result<i32> {
        let (sql, play) = (client.sql(), self.play.clone());
        let reading = client.does(async move {
            let row: Option<(i32,)> = sql.row(READ, (&play,)).await?;
            Ok::<_, sqlx::Error>(row.map_or(0, |(stock,)| stock))
        });
        let reading = reading.with_outcome(|left| match left {
            Ok(1..) => Some("left"),
            Ok(_) => Some("none"),
            Err(_) => None,
        });
        Ok(reading.at("postgres").last(step).await??)
    }

    /// Sells one of as many as were seen.
    pub async fn sell(&self, client: &Client, seen: i32, step: Name) -> Result {
        let (sql, play, buyer) = (client.sql(), self.play.clone(), client.id);
        let selling = client.does(async move {
            //= FLAW Nothing here asks whether the lock is still the writer's.
            sql.run(SELL, (&play, seen - 1, buyer)).await
        });
        selling.at("postgres").last(step).await??;
        Ok(())
    }

    /// A number from the row itself: one more than anybody before, whatever became of the lock.
    pub async fn number(&self, client: &Client, step: Name) -> Result<u64> {
        let (sql, phone) = (client.sql(), self.phone());
        let taking = client.does(async move {
            //= CURE The row counts its holders itself: no failover of Redis can make it forget.
            let row: Option<(i64,)> = sql.row(NUMBER, (&phone,)).await?;
            Ok::<_, sqlx::Error>(row.map_or(0, |(number,)| number.unsigned_abs()))
        });
        Ok(taking.at("postgres").last(step).await??)
    }

    /// A write that carries the lock's number: the row refuses one that is too old, and then says
    /// which it has seen (step `refused`).
    pub async fn sell_fenced(&self, client: &Client, number: u64, step: Name) -> Result {
        let (sql, phone, value) = (client.sql(), self.phone(), format!("sold to {}", client.id));
        let selling = client.does(async move { sql.write_fenced(&phone, number, &value).await });
        let name = |sent: &str| if sent.starts_with("SELECT") { "refused" } else { step };
        let _ = selling.at("postgres").rest_named(name).await??;
        Ok(())
    }

    /// With the lock's number, where there is one.
    pub async fn sells(
        &self,
        client: &Client,
        seen: i32,
        number: Option<u64>,
        step: Name,
    ) -> Result {
        match number {
            Some(number) => self.sell_fenced(client, number, step).await,
            None => self.sell(client, seen, step).await,
        }
    }
}
