//! The catalogue.

use super::error::HttpResult;
use super::extract::{Id, Params};
use super::openapi::refusals;
use crate::catalog::Catalog;
use crate::domain::{RoomSettings, SaleId, SaleState, SaleView};
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use web::body;

/// A sale at `server_time`.
#[derive(Serialize, ToSchema)]
#[schema(as = Sale)]
pub struct SaleBody<'a> {
    id: SaleId,
    title: &'a str,
    description: &'a str,
    image_url: &'a str,
    #[schema(example = "USD")]
    currency: &'a str,
    /// In the currency's minor unit.
    price_cents: i64,
    #[schema(required)]
    original_price_cents: Option<i64>,
    /// Units, sold ones included.
    stock: i32,
    remaining: i64,
    per_user_limit: i16,
    #[serde(with = "time::serde::rfc3339")]
    opens_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    closes_at: OffsetDateTime,
    payment_timeout_secs: i32,
    /// Null: there is none.
    #[schema(required)]
    waiting_room: Option<RoomSettings>,
    /// Whether a purchase needs a `Purchase-Pass`.
    purchase_pass: bool,
    /// Bits of the proof of work for a purchase (or for joining the waiting room); 0: none.
    challenge_bits: i32,
    state: SaleState,
    /// Redis' time, which decides the window.
    #[serde(with = "time::serde::rfc3339")]
    server_time: OffsetDateTime,
}

impl<'a> From<&'a SaleView> for SaleBody<'a> {
    fn from(view: &'a SaleView) -> Self {
        let sale = &*view.sale;
        Self {
            id: sale.id,
            title: &sale.title,
            description: &sale.description,
            image_url: &sale.image_url,
            currency: &sale.currency,
            price_cents: sale.price_cents,
            original_price_cents: sale.original_price_cents,
            stock: sale.stock,
            remaining: view.remaining,
            per_user_limit: sale.per_user_limit,
            opens_at: sale.opens_at,
            closes_at: sale.closes_at,
            payment_timeout_secs: sale.payment_timeout_secs,
            waiting_room: sale.access_policy.room(),
            purchase_pass: sale.access_policy.purchase_pass,
            challenge_bits: sale.access_policy.challenge_bits,
            state: view.state,
            server_time: view.server_time,
        }
    }
}

/// Sales, open ones first, then by opening time.
#[derive(Serialize, ToSchema)]
pub struct Sales<'a> {
    sales: Vec<SaleBody<'a>>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SalesParams {
    /// Only sales in this state.
    state: Option<SaleState>,
}

refusals!(ListRefusals: INVALID, RATE_LIMITED);
refusals!(ReadRefusals: SALE_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);

/// All sales.
#[utoipa::path(
    get, path = "/api/v1/sales", tag = "shopping", operation_id = "list_sales",
    params(SalesParams),
    responses((status = 200, description = "Open ones first, then by opening time", body = Sales),
        ListRefusals),
)]
pub async fn list(
    State(catalog): State<Arc<Catalog>>,
    Params(SalesParams { state }): Params<SalesParams>,
) -> HttpResult {
    let sales = catalog.sales(state);
    let sales = sales.iter().map(SaleBody::from).collect();
    body::json(StatusCode::OK, &Sales { sales })
}

/// One sale.
#[utoipa::path(
    get, path = "/api/v1/sales/{id}", tag = "shopping", operation_id = "get_sale",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The sale", body = SaleBody), ReadRefusals),
)]
pub async fn read(State(catalog): State<Arc<Catalog>>, Id(sale): Id<SaleId>) -> HttpResult {
    let sale = catalog.sale(sale).await?;
    body::json(StatusCode::OK, &SaleBody::from(&sale))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Sale;
    use serde_json::json;
    use std::sync::Arc;
    use time::macros::datetime;

    #[test]
    fn a_sale_is_written_as_the_contract_has_it() {
        let sale = Sale {
            id: SaleId::from_i64(7),
            title: "Phone".to_owned(),
            description: String::new(),
            image_url: "/static/img/phone.svg".to_owned(),
            currency: "USD".to_owned(),
            price_cents: 19_900,
            original_price_cents: None,
            stock: 10,
            per_user_limit: 1,
            opens_at: datetime!(2026-11-20 10:00 UTC),
            closes_at: datetime!(2026-11-21 10:00 UTC),
            payment_timeout_secs: 600,
            paused: false,
            closed: false,
            epoch: 1,
            version: 1,
            access_policy: crate::domain::AccessPolicy::default(),
        };
        let server_time = datetime!(2026-11-20 12:00:00.5 UTC);
        let view = SaleView {
            state: sale.state(server_time, 3),
            sale: Arc::new(sale),
            remaining: 3,
            server_time,
        };
        let expected = json!({
            "id": "7", "title": "Phone", "description": "", "image_url": "/static/img/phone.svg",
            "currency": "USD", "price_cents": 19_900, "original_price_cents": null, "stock": 10,
                "remaining": 3,
            "per_user_limit": 1, "opens_at": "2026-11-20T10:00:00Z",
                "closes_at": "2026-11-21T10:00:00Z",
            "payment_timeout_secs": 600, "waiting_room": null, "purchase_pass": false,
            "challenge_bits": 0, "state": "open", "server_time": "2026-11-20T12:00:00.5Z",
        });
        assert_eq!(serde_json::to_value(SaleBody::from(&view)).expect("JSON"), expected);
    }
}
