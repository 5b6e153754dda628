//! Finding orders that Redis has accepted and Postgres does not have yet.
//!
//! An order id does not name its sale, so every known sale is asked for this user's record, after
//! Postgres has found nothing. An id names its second: sales that opened later are skipped.
//!
//! "No such order" is only answered when it is certain. While Redis is away, not approved, or
//! rebuilding a sale that was open when the id was made, the order may exist, and the answer is
//! 503. (The end of a sale says nothing: operators move it.)

use crate::admission::ids;
use crate::catalog::cached_sale::CachedSale;
use crate::domain::{Order, OrderId, OrderStatus, Sale, UserId};
use crate::error::{ServiceError, ServiceResult};
use crate::orders::service::Orders;
use crate::redis::functions;
use std::sync::Arc;
use time::{Duration, OffsetDateTime};

/// How much later than its id an order may be admitted: a lease and a spare id live a second each,
/// and a batch is retried for two; the rest is for steps of Redis' clock.
const ID_AGE: Duration = Duration::MINUTE;

/// Whether an order with an id of `made_at` may be of this sale: `opens_at` never changes, and
/// nothing is admitted before.
fn may_belong(made_at: OffsetDateTime, cached: &CachedSale) -> bool {
    cached.sale().opens_at <= made_at.saturating_add(ID_AGE)
}

impl Orders {
    /// The user's order, if Redis has accepted it. Unavailable if that cannot be known now.
    pub async fn find_queued(&self, user: UserId, id: OrderId) -> ServiceResult<Option<Order>> {
        let unknown = |why: String| {
            tracing::debug!(why, "an order cannot be looked up in redis");
            ServiceError::unavailable(
                "the order cannot be looked up while the sale is being checked",
            )
        };
        let now = self.catalog.now();
        let mut candidates = self.catalog.cache.cached_sales();
        let made_at = ids::made_at(id);
        candidates.retain(|cached| !cached.is_evictable(now) && may_belong(made_at, cached));
        let held = self.held(user, candidates).await;
        let held = held.map_err(|error| unknown(error.to_string()))?;
        if let Some(order) = held.orders.into_iter().find(|order| order.id == id) {
            return Ok(Some(order));
        }
        if !held.conclusive {
            return Err(unknown("a sale is in another epoch or process".to_owned()));
        }
        Ok(None)
    }

    /// The user's orders in sales with a backlog or recent sales; some may be written already.
    pub(crate) async fn queued_orders(&self, user: UserId) -> ServiceResult<Vec<Order>> {
        let waits = |cached: &Arc<CachedSale>| {
            cached.is_warm() || cached.snapshot().is_some_and(|known| known.pending > 0)
        };
        let candidates = self.catalog.cache.cached_sales().into_iter();
        let candidates: Vec<_> = candidates.filter(waits).collect();
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        // Redis being away must not hide what Postgres has.
        Ok(self.held(user, candidates).await.unwrap_or_default().orders)
    }

    async fn held(&self, user: UserId, cached_sales: Vec<Arc<CachedSale>>) -> ServiceResult<Held> {
        let sales: Vec<_> = cached_sales.iter().map(|cached| cached.sale()).collect();
        let mut held_orders = Held { conclusive: true, orders: Vec::new() };
        if sales.is_empty() {
            return Ok(held_orders);
        }
        let ask =
            |sale: &Arc<Sale>| functions::ask_record(&self.redis.keys, sale.id, sale.epoch, user);
        let replies = self.redis.query_all(sales.iter().map(ask).collect()).await?;
        for (sale, reply) in sales.iter().zip(replies) {
            // A silent server hides its own sales only.
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
                    payment: None,
                });
            }
        }
        Ok(held_orders)
    }
}

/// The orders of a user in Redis.
#[derive(Default)]
struct Held {
    orders: Vec<Order>,
    /// Whether all sales are approved, in the epoch that this process knows.
    conclusive: bool,
}
