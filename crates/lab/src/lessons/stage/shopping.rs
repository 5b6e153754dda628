//! What clients do with the shop.

use super::{
    super::{error::Trouble, shop::Shop},
    client::{Client, Doing},
};
use locks::{
    LockError,
    fencing::{PostgresResource, Write},
};

impl Shop {
    /// How many are left.
    pub async fn read(&self, client: &Client, step: &'static str) -> Result<i32, Trouble> {
        let (sql, play) = (client.sql(), self.play.clone());
        let reading = client.does(async move {
            const READ: &str = "SELECT stock FROM lab.plays WHERE id = $1";
            let row: Option<(i32,)> = sql.optional(READ, |query| query.bind(&play)).await?;
            Ok::<_, sqlx::Error>(row.map_or(0, |(stock,)| stock))
        });
        Ok(reading.at("postgres").last(step).await??)
    }

    /// Writes what was computed from what was read, and the order.
    pub async fn sell(
        &self,
        client: &Client,
        seen: i32,
        step: &'static str,
    ) -> Result<(), Trouble> {
        const SELL: &str = "
            WITH sold AS (UPDATE lab.plays SET stock = $2 WHERE id = $1)
            INSERT INTO lab.play_orders (play, buyer) VALUES ($1, $3)";
        let (sql, play, buyer) = (client.sql(), self.play.clone(), client.id);
        let selling = client.does(async move {
            //= FLAW Nothing here asks whether the lock is still the writer's.
            sql.execute(SELL, |query| query.bind(&play).bind(seen - 1).bind(buyer)).await
        });
        selling.at("postgres").last(step).await??;
        Ok(())
    }

    /// A number from the row itself: one more than anybody before, whatever became of the lock.
    pub async fn number(&self, client: &Client, step: &'static str) -> Result<u64, Trouble> {
        const NUMBER: &str = "
            INSERT INTO lab.fenced AS resource (name, newest, value) VALUES ($1, 1, 'not sold')
            ON CONFLICT (name) DO UPDATE SET newest = resource.newest + 1 RETURNING newest";
        let (sql, phone) = (client.sql(), self.phone());
        let taking = client.does(async move {
            //= CURE The row counts its holders itself: no failover of Redis can make it forget.
            let row: Option<(i64,)> = sql.optional(NUMBER, |query| query.bind(&phone)).await?;
            Ok::<_, sqlx::Error>(row.map_or(0, |(number,)| number.unsigned_abs()))
        });
        Ok(taking.at("postgres").last(step).await??)
    }

    /// A write that carries the lock's number: the row refuses one that is too old, and then says
    /// which it has seen (step `refused`).
    pub async fn sell_fenced(
        &self,
        client: &Client,
        number: u64,
        step: &'static str,
    ) -> Result<Write, Trouble> {
        let resource = PostgresResource::new(client.sql());
        let (phone, value) = (self.phone(), format!("sold to {}", client.id));
        let selling: Doing<Result<Write, LockError>> =
            client.does(async move { resource.write(&phone, number, &value).await });
        let name = |sent: &str| if sent.starts_with("SELECT") { "refused" } else { step };
        Ok(selling.at("postgres").rest_named(name).await??)
    }
}
