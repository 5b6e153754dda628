//! What clients do with the shop.

use super::{
    super::shop::Shop,
    client::{Client, Doing},
};
use locks::{
    LockError,
    fencing::{PostgresResource, Write},
};

impl Shop {
    /// How many are left.
    pub fn reads(&self, client: &Client) -> Doing<Result<i32, sqlx::Error>> {
        let (sql, play) = (client.sql(), self.play.clone());
        client
            .does(async move {
                let row: Option<(i32,)> = sql
                    .optional("SELECT stock FROM lab.plays WHERE id = $1", |query| {
                        query.bind(&play)
                    })
                    .await?;
                Ok(row.map_or(0, |(stock,)| stock))
            })
            .at("postgres")
    }

    /// Writes what it has computed from what it has read, and the order.
    pub fn sells(&self, client: &Client, seen: i32) -> Doing<Result<(), sqlx::Error>> {
        const SELL: &str = "
            WITH sold AS (UPDATE lab.plays SET stock = $2 WHERE id = $1)
            INSERT INTO lab.play_orders (play, buyer) VALUES ($1, $3)";
        let (sql, play, buyer) = (client.sql(), self.play.clone(), client.id);
        client
            .does(async move {
                let bound = sql.execute(SELL, |query| query.bind(&play).bind(seen - 1).bind(buyer));
                bound.await.map(|_| ())
            })
            .at("postgres")
    }

    /// A number from the row itself: one more than anybody before, whatever became of the lock.
    pub fn numbers(&self, client: &Client) -> Doing<Result<u64, sqlx::Error>> {
        const NUMBER: &str = "
            INSERT INTO lab.fenced AS resource (name, newest, value) VALUES ($1, 1, 'not sold')
            ON CONFLICT (name) DO UPDATE SET newest = resource.newest + 1 RETURNING newest";
        let (sql, phone) = (client.sql(), self.phone());
        client
            .does(async move {
                let row: Option<(i64,)> = sql.optional(NUMBER, |query| query.bind(&phone)).await?;
                Ok(row.map_or(0, |(number,)| number.unsigned_abs()))
            })
            .at("postgres")
    }

    /// The same as a write that carries the lock's number: the row refuses one that is too old.
    pub fn sells_fenced(&self, client: &Client, fencing: u64) -> Doing<Result<Write, LockError>> {
        let resource = PostgresResource::new(client.sql());
        let (phone, value) = (self.phone(), format!("sold to {}", client.id));
        client.does(async move { resource.write(&phone, fencing, &value).await }).at("postgres")
    }
}
