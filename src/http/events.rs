//! Event streams: a sale's changing part, an order.
//!
//! Subscribers read a `watch` channel that is fed once for all of them: a subscriber costs writes
//! but no queries, and a slow one skips old values.

use super::error::HttpResult;
use super::extract::{Caller, Id, Shopper};
use super::openapi::refusals;
use crate::catalog::Catalog;
use crate::catalog::cached_sale::SaleUpdate;
use crate::domain::{Order, OrderId, SaleId, SaleState};
use crate::orders::Orders;
use axum::extract::State;
use futures_util::StreamExt;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use utoipa::ToSchema;
use web::events::{Streams, event, follow};

/// The shortest interval between two events of a sale.
const SALE_PACE: Duration = Duration::from_millis(200);

/// The changing part of a sale.
#[derive(Serialize, ToSchema)]
pub struct SaleEvent {
    remaining: i64,
    state: SaleState,
    #[serde(with = "time::serde::rfc3339")]
    server_time: OffsetDateTime,
}

impl From<&SaleUpdate> for SaleEvent {
    fn from(updates: &SaleUpdate) -> Self {
        Self {
            remaining: updates.remaining,
            state: updates.state,
            server_time: updates.server_time,
        }
    }
}

refusals!(SaleRefusals: SALE_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);
refusals!(OrderRefusals: UNAUTHENTICATED, ORDER_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);

/// Follow a sale: event `sale`, at once and on every change, at most 5 a second.
#[utoipa::path(
    get, path = "/api/v1/sales/{id}/events", tag = "shopping", operation_id = "follow_sale",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "Server-sent events", body = SaleEvent, content_type =
        "text/event-stream"), SaleRefusals),
)]
pub async fn sale(
    State(catalog): State<Arc<Catalog>>,
    State(streams): State<Streams>,
    Caller(from): Caller,
    Id(id): Id<SaleId>,
) -> HttpResult {
    let gauge = metrics::gauge!("flash_sale_sse_subscribers", "stream" => "sale");
    let place = streams.take_place(from, gauge)?;
    let updates = catalog.watch_sale(id).await?;
    let write = |update: &SaleUpdate| event("sale", &SaleEvent::from(update));
    let events = follow(updates, SALE_PACE, |_| false, write);
    Ok(place.respond(events))
}

/// Follow one of my orders: event `order`, at once and on every change, until a terminal state or
/// the end of the token.
#[utoipa::path(
    get, path = "/api/v1/orders/{id}/events", tag = "shopping", operation_id = "follow_order",
    params(("id" = OrderId, Path, description = "The order")),
    responses((status = 200, description = "Server-sent events", body = Order, content_type =
        "text/event-stream"), OrderRefusals),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn order(
    State(orders): State<Arc<Orders>>,
    State(catalog): State<Arc<Catalog>>,
    State(streams): State<Streams>,
    Shopper(shopper): Shopper,
    Caller(address): Caller,
    Id(order): Id<OrderId>,
) -> HttpResult {
    let gauge = metrics::gauge!("flash_sale_sse_subscribers", "stream" => "order");
    let place = streams.take_place(address, gauge)?;
    let states = orders.watch_order(shopper.user_id, order).await?;
    let ends = |order: &Order| order.status.is_terminal();
    let events = follow(states, Duration::ZERO, ends, |order| event("order", order));
    let valid_for = Duration::try_from(shopper.expires_at - catalog.now()).unwrap_or_default();
    Ok(place.respond(events.take_until(tokio::time::sleep(valid_for))))
}
