//! Returning units to Redis: the outbox table `releases`, emptied by an idempotent script.
//!
//! A row appears in the transaction that closes an order and disappears after Redis has the unit. On
//! a crash between the two the script runs again and finds nothing to return.

use crate::{
    domain::{OrderId, SaleId, UserId},
    redis::scripts::{self, Fenced},
    sale::{Shop, ShopError},
};
use std::collections::BTreeMap;

/// The most units that one step returns.
const STEP: i64 = 1_000;

impl Shop {
    /// Returns waiting units. Idempotent, safe to run on many instances. Answers how many rows left
    /// the outbox; those of a sale that is being rebuilt stay for the next step.
    pub async fn release_step(&self) -> Result<usize, ShopError> {
        let waiting: Vec<(OrderId, SaleId, UserId)> = sqlx::query_as(
            "SELECT order_id, sale_id, user_id FROM releases ORDER BY created_at LIMIT $1",
        )
        .bind(STEP)
        .fetch_all(&self.postgres)
        .await?;
        let mut by_sale: BTreeMap<SaleId, Vec<(UserId, OrderId)>> = BTreeMap::new();
        for (order, sale, user) in waiting {
            by_sale.entry(sale).or_default().push((user, order));
        }
        let mut settled = Vec::new();
        for (sale, orders) in by_sale {
            if self.return_units(sale, &orders).await? {
                settled.extend(orders.iter().map(|(_, order)| order.get()));
            }
        }
        sqlx::query("DELETE FROM releases WHERE order_id = ANY($1)")
            .bind(&settled)
            .execute(&self.postgres)
            .await?;
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
            .await?;
            match outcome {
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
                Err(_) if !reloaded => listing = self.refresh(id).await?,
                Err(_) => {}
            }
        }
        Ok(false)
    }
}
