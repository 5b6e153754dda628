//! Returning units to Redis: the outbox table `releases`, emptied by an idempotent function.
//!
//! A row appears in the transaction that closes an order and disappears after Redis has the unit. On
//! a crash between the two it is called again and finds nothing to return.

use crate::{
    domain::{OrderId, SaleId, UserId},
    redis::{
        functions::{self, Fenced},
        is_wrong_type,
    },
    sale::{Shop, ShopError, board::Listing},
};
use futures_util::FutureExt;
use time::OffsetDateTime;

/// The most units of a sale that are returned at a time.
const STEP: i64 = 1_000;

impl Shop {
    /// Returns waiting units. Idempotent, safe to run on many instances. Answers how many rows left
    /// the outbox; those of a sale that is being rebuilt stay for the next step, and hold up no other
    /// sale's.
    pub async fn release_step(&self) -> Result<usize, ShopError> {
        let sales: Vec<SaleId> = sqlx::query_scalar("SELECT DISTINCT sale_id FROM releases")
            .fetch_all(&self.postgres)
            .await?;
        let (mut settled, mut failed) = (0, None);
        for sale in sales {
            match self.release_sale(sale).boxed().await {
                Ok(count) => settled += count,
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if settled == 0 => Err(error),
            _ => Ok(settled),
        }
    }

    async fn release_sale(&self, sale: SaleId) -> Result<usize, ShopError> {
        let rows: Vec<(UserId, OrderId, OffsetDateTime)> = sqlx::query_as(
            "SELECT user_id, order_id, created_at FROM releases WHERE sale_id = $1
             ORDER BY order_id LIMIT $2",
        )
        .bind(sale)
        .bind(STEP)
        .fetch_all(&self.postgres)
        .await?;
        let orders: Vec<(UserId, OrderId)> = rows
            .iter()
            .map(|(user, order, _)| (*user, *order))
            .collect();
        let fail_points = &self.fail_points;
        fail_points.at("release.found").await?;
        if !self.return_units(sale, &orders).await? {
            return Ok(0);
        }
        fail_points.at("release.returned").await?;
        // A row that came back meanwhile (the order was accepted again, see `orders::write_accepted`)
        // has another time, and stays for the next step.
        let (settled, times): (Vec<i64>, Vec<OffsetDateTime>) = rows
            .iter()
            .map(|(_, order, time)| (order.get(), *time))
            .unzip();
        sqlx::query(
            "DELETE FROM releases r USING UNNEST($1::bigint[], $2::timestamptz[]) AS d (order_id, created_at)
             WHERE r.order_id = d.order_id AND r.created_at = d.created_at",
        )
        .bind(&settled)
        .bind(&times)
        .execute(&self.postgres)
        .await?;
        fail_points.at("release.settled").await?;
        Ok(settled.len())
    }

    /// Steps until nothing more can be returned now.
    pub async fn release_all(&self) -> Result<(), ShopError> {
        while self.release_step().await? > 0 {}
        Ok(())
    }

    /// Whether the rows of these orders may go: Redis has the units, or the sale is so long over that
    /// it no longer keeps any.
    async fn return_units(
        &self,
        id: SaleId,
        orders: &[(UserId, OrderId)],
    ) -> Result<bool, ShopError> {
        let mut listing = self.listing(id).await?;
        for reloaded in [false, true] {
            let Some(fenced) = self.return_to_redis(&listing, orders).await? else {
                return Ok(true);
            };
            match fenced {
                Fenced::Absent if listing.is_retired(self.now()) => return Ok(true),
                Fenced::Corrupt if reloaded => listing.suspect(),
                _ if !reloaded => listing = self.refresh_row(id).await?,
                _ => {}
            }
        }
        Ok(false)
    }

    /// Answers what Redis has against it, if it does not take them.
    async fn return_to_redis(
        &self,
        listing: &Listing,
        orders: &[(UserId, OrderId)],
    ) -> Result<Option<Fenced>, ShopError> {
        let (sale, keys) = (listing.sale(), &self.redis.keys);
        let outcome = {
            let mut connection = self.redis.pooled().await?;
            functions::release(&mut connection, keys, sale.id, sale.epoch, orders).await
        };
        if outcome.as_ref().is_err_and(is_wrong_type) {
            self.suspect(sale.id);
        }
        let released = match outcome? {
            Ok(released) => released,
            Err(fenced) => return Ok(Some(fenced)),
        };
        listing.tell_remaining(sale.epoch, released.change, released.remaining, None);
        listing.pulsate(self.now());
        if released.returned > 0 && released.remaining == released.returned {
            // Elsewhere the sale may still be refused as sold out.
            self.redis.announce(sale.id).await;
        }
        Ok(None)
    }
}
