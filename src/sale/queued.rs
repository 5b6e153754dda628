//! Finding orders that Redis has accepted and Postgres does not have yet.
//!
//! An order id does not name its sale, so each sale that is known here is asked whether this user
//! holds it: one pipelined HGET a sale, only after Postgres has said no.

use crate::{
    domain::{Order, OrderId, OrderStatus, UserId},
    redis::{keys::shard_of, scripts::record},
    sale::{Shop, ShopError, board::Listing, ids},
};
use std::sync::Arc;

impl Shop {
    /// The user's order of this id, if Redis has accepted it.
    pub(super) async fn find_queued(
        &self,
        user: UserId,
        id: OrderId,
    ) -> Result<Option<Order>, ShopError> {
        let candidates = self
            .board
            .listings()
            .into_iter()
            .filter(|listing| listing.is_present())
            .collect();
        Ok(self
            .held(user, candidates)
            .await?
            .into_iter()
            .find(|order| order.id == id))
    }

    /// The user's orders in sales that have a backlog, or sold here a moment ago; some may be
    /// written already.
    pub(super) async fn queued_orders(&self, user: UserId) -> Result<Vec<Order>, ShopError> {
        let waits = |listing: &Arc<Listing>| {
            listing.is_warm() || listing.tally().is_some_and(|tally| tally.pending > 0)
        };
        let candidates: Vec<_> = self.board.listings().into_iter().filter(waits).collect();
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        // Redis being away must not hide what Postgres has.
        Ok(self.held(user, candidates).await.unwrap_or_default())
    }

    async fn held(
        &self,
        user: UserId,
        listings: Vec<Arc<Listing>>,
    ) -> Result<Vec<Order>, ShopError> {
        let mut pipeline = redis::Pipeline::with_capacity(listings.len());
        for listing in &listings {
            let sale = listing.sale();
            let shard = shard_of(user, sale.buyer_shards);
            pipeline.hget(
                self.redis.keys.shard(sale.id, sale.epoch, shard),
                user.as_bytes(),
            );
        }
        let mut connection = self.redis.pooled().await?;
        let records: Vec<Option<Vec<u8>>> = pipeline.query_async(&mut *connection).await?;
        let mut orders = Vec::new();
        for (listing, found) in listings.iter().zip(records) {
            let sale = listing.sale();
            for held in record::decode(found.as_deref().unwrap_or_default()) {
                if held.returned {
                    continue; // only Postgres returns units, so it is a row
                }
                orders.push(Order {
                    id: held.order_id,
                    sale_id: sale.id,
                    sale_title: sale.title.clone(),
                    user_id: user,
                    status: OrderStatus::Queued,
                    price_cents: sale.price_cents,
                    currency: sale.currency.clone(),
                    created_at: ids::made_at(held.order_id),
                    pay_by: None,
                    paid_at: None,
                    closed_at: None,
                });
            }
        }
        Ok(orders)
    }
}
