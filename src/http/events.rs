//! What a shopper can follow: a sale's changing part, an order's life.
//!
//! Every subscriber reads a `watch` channel that the shop feeds once for all of them, so a subscriber
//! costs a write, never a query; a slow one skips what is no longer current.

use super::{
    App,
    error::Problem,
    extract::{Caller, Id, Shopper},
    openapi::refusals,
};
use crate::{
    domain::{Order, OrderId, SaleId, SaleState},
    sale::SalePulse,
    web::events::{event, follow},
};
use axum::{extract::State, response::Response};
use serde::Serialize;
use std::time::Duration;
use time::OffsetDateTime;
use utoipa::ToSchema;

/// A sale tells a subscriber at most this often.
const SALE_PACE: Duration = Duration::from_millis(200);

/// The part of a sale that changes while one looks at it.
#[derive(Serialize, ToSchema)]
pub struct SaleEvent {
    remaining: i64,
    state: SaleState,
    #[serde(with = "time::serde::rfc3339")]
    server_time: OffsetDateTime,
}

impl From<&SalePulse> for SaleEvent {
    fn from(pulse: &SalePulse) -> Self {
        Self {
            remaining: pulse.remaining,
            state: pulse.state,
            server_time: pulse.server_time,
        }
    }
}

refusals!(SaleRefusals: SALE_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);
refusals!(OrderRefusals: UNAUTHENTICATED, ORDER_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);

/// Follow a sale: event `sale`, at once and on every change, at most 5 a second.
#[utoipa::path(
    get, path = "/api/v1/sales/{id}/events", tag = "shopping", operation_id = "follow_sale",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "Server-sent events", body = SaleEvent, content_type = "text/event-stream"), SaleRefusals),
)]
pub async fn sale(
    State(app): State<App>,
    Caller(address): Caller,
    Id(sale): Id<SaleId>,
) -> Result<Response, Problem> {
    let gauge = metrics::gauge!("flash_sale_sse_subscribers", "stream" => "sale");
    let place = app.streams.take_place(address, gauge)?;
    let pulses = app.shop.watch_sale(sale).await?;
    let events = follow(
        pulses,
        SALE_PACE,
        |_| false,
        |pulse| event("sale", &SaleEvent::from(pulse)),
    );
    Ok(place.respond(events))
}

/// Follow one of my orders: event `order`, at once and on every change, until a terminal state.
#[utoipa::path(
    get, path = "/api/v1/orders/{id}/events", tag = "shopping", operation_id = "follow_order",
    params(("id" = OrderId, Path, description = "The order")),
    responses((status = 200, description = "Server-sent events", body = Order, content_type = "text/event-stream"), OrderRefusals),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn order(
    State(app): State<App>,
    Shopper(shopper): Shopper,
    Caller(address): Caller,
    Id(order): Id<OrderId>,
) -> Result<Response, Problem> {
    let gauge = metrics::gauge!("flash_sale_sse_subscribers", "stream" => "order");
    let place = app.streams.take_place(address, gauge)?;
    let states = app.shop.watch_order(shopper.user_id, order).await?;
    let ends = |order: &Order| order.status.is_terminal();
    let events = follow(states, Duration::ZERO, ends, |order| event("order", order));
    Ok(place.respond(events))
}
