//! Finding orders that Redis has accepted and Postgres does not have yet.
//!
//! An order id does not name its sale, so each sale that is known here is asked whether this user
//! holds it: one read a sale, only after Postgres has said no. An id does name its second, and
//! a sale that opened later than that cannot have it.
//!
//! "There is no such order" is only said when it is certain. While Redis is away, not approved, or
//! rebuilding a sale that was open when the id was made, an order that was answered 202 may be nowhere to
//! be seen, and the answer is 503. That goes for any unknown id of that time: which of the sales that had
//! opened by then it would belong to, nothing tells. (An end says nothing either, since operators move it.)

use crate::{
    domain::{Order, OrderId, OrderStatus, Sale, UserId},
    redis::functions,
    sale::{Shop, ShopError, board::Listing, gate::RETRY_AFTER, ids},
};
use std::sync::Arc;
use time::{Duration, OffsetDateTime};

/// How much later than its id was made an order may be admitted: a lease and a spare id live for a second
/// each, and a batch is tried for two, all by one clock, Redis'. The rest is for that clock being set.
const ID_AGE: Duration = Duration::MINUTE;

/// Whether an order whose id was made at `made_at` may belong to this sale. When a sale opens is never
/// changed, and nothing is admitted before.
fn may_belong(made_at: OffsetDateTime, listing: &Listing) -> bool {
    listing.sale().opens_at <= made_at.saturating_add(ID_AGE)
}

impl Shop {
    /// The user's order of this id, if Redis has accepted it. Unavailable if that cannot be known now.
    pub(super) async fn find_queued(
        &self,
        user: UserId,
        id: OrderId,
    ) -> Result<Option<Order>, ShopError> {
        let unknown = |why: String| {
            tracing::debug!(why, "an order cannot be looked up in redis");
            ShopError::Unavailable {
                what: "the order cannot be looked up while the sale is being checked",
                retry_after: RETRY_AFTER,
            }
        };
        let now = self.now();
        let mut candidates = self.board.listings();
        let made_at = ids::made_at(id);
        candidates.retain(|listing| !listing.is_retired(now) && may_belong(made_at, listing));
        let held = self
            .held(user, candidates)
            .await
            .map_err(|error| unknown(error.to_string()))?;
        if let Some(order) = held.orders.into_iter().find(|order| order.id == id) {
            return Ok(Some(order));
        }
        if !held.conclusive {
            return Err(unknown("a sale is in another epoch or process".to_owned()));
        }
        Ok(None)
    }

    /// The user's orders in sales that have a backlog, or sold here a moment ago; some may be
    /// written already.
    pub(super) async fn queued_orders(&self, user: UserId) -> Result<Vec<Order>, ShopError> {
        let waits = |listing: &Arc<Listing>| {
            listing.is_warm() || listing.snapshot().is_some_and(|known| known.pending > 0)
        };
        let candidates: Vec<_> = self.board.listings().into_iter().filter(waits).collect();
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        // Redis being away must not hide what Postgres has.
        Ok(self.held(user, candidates).await.unwrap_or_default().orders)
    }

    async fn held(&self, user: UserId, listings: Vec<Arc<Listing>>) -> Result<Held, ShopError> {
        let sales: Vec<_> = listings.iter().map(|listing| listing.sale()).collect();
        let mut held_orders = Held {
            conclusive: true,
            orders: Vec::new(),
        };
        if sales.is_empty() {
            return Ok(held_orders);
        }
        let ask =
            |sale: &Arc<Sale>| functions::ask_record(&self.redis.keys, sale.id, sale.epoch, user);
        let replies = self
            .redis
            .query_all(sales.iter().map(ask).collect())
            .await?;
        for (sale, reply) in sales.iter().zip(replies) {
            // A server that does not answer hides its own sales, not those of the others.
            let Some(record) = reply.ok().and_then(functions::read_record) else {
                held_orders.conclusive = false;
                continue;
            };
            for held in record {
                if held.returned {
                    continue; // only Postgres returns units, so it is a row
                }
                held_orders.orders.push(Order {
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
        Ok(held_orders)
    }
}

/// What Redis holds of a user.
#[derive(Default)]
struct Held {
    orders: Vec<Order>,
    /// Whether every sale that was asked is approved, in the epoch that this process believes in.
    conclusive: bool,
}
