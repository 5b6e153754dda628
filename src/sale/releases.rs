//! Returning units to Redis: the outbox table `releases`, emptied by an idempotent script.
//!
//! A row appears in the transaction that closes an order and disappears after Redis has the unit. On
//! a crash between the two the script runs again and finds nothing to return.

use crate::{
    domain::{OrderId, SaleId, UserId},
    redis::{
        is_wrong_type,
        scripts::{self, Fenced},
    },
    sale::{Shop, ShopError},
};

/// The most units of a sale that one step returns.
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
            match self.release_sale(sale).await {
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
        let orders: Vec<(UserId, OrderId)> = sqlx::query_as(
            "SELECT user_id, order_id FROM releases WHERE sale_id = $1 ORDER BY order_id LIMIT $2",
        )
        .bind(sale)
        .bind(STEP)
        .fetch_all(&self.postgres)
        .await?;
        if orders.is_empty() {
            return Ok(0);
        }
        let fail_points = &self.fail_points;
        fail_points
            .at("release.found")
            .await
            .map_err(sqlx::Error::Io)?;
        if !fail_points.planted("bug.forget_a_release") && !self.return_units(sale, &orders).await?
        {
            return Ok(0);
        }
        fail_points
            .at("release.returned")
            .await
            .map_err(sqlx::Error::Io)?;
        let settled: Vec<i64> = orders.iter().map(|(_, order)| order.get()).collect();
        sqlx::query("DELETE FROM releases WHERE order_id = ANY($1)")
            .bind(&settled)
            .execute(&self.postgres)
            .await?;
        fail_points
            .at("release.settled")
            .await
            .map_err(sqlx::Error::Io)?;
        Ok(settled.len())
    }

    /// Steps until nothing more can be returned now.
    pub async fn release_all(&self) -> Result<(), ShopError> {
        while self.release_step().await? > 0 {}
        Ok(())
    }

    /// Whether the rows may go: Redis has the units, or the sale is so long over that it no longer
    /// keeps any.
    async fn return_units(
        &self,
        id: SaleId,
        orders: &[(UserId, OrderId)],
    ) -> Result<bool, ShopError> {
        let mut listing = self.listing(id).await?;
        for reloaded in [false, true] {
            let sale = listing.sale();
            let mut connection = self.redis.pooled().await?;
            let outcome = scripts::release(
                &mut *connection,
                &self.redis.keys,
                id,
                sale.epoch,
                sale.buyer_shards,
                orders,
            )
            .await;
            if let Err(error) = &outcome
                && is_wrong_type(error)
            {
                self.suspect(id);
            }
            match outcome? {
                Ok(released) => {
                    let was_empty = released.remaining == released.returned;
                    listing.tell_remaining(sale.epoch, released.change, released.remaining, None);
                    listing.pulsate(self.now());
                    if released.returned > 0 && was_empty {
                        // Elsewhere the sale may still be refused as sold out.
                        self.redis.announce(id).await;
                    }
                    return Ok(true);
                }
                Err(Fenced::Absent) if listing.is_retired(self.now()) => return Ok(true),
                Err(Fenced::Corrupt) if reloaded => listing.suspect(),
                Err(_) if !reloaded => listing = self.refresh(id).await?,
                Err(_) => {}
            }
        }
        Ok(false)
    }
}
