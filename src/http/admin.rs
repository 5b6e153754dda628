//! What an operator does. Every handler names [`Admin`] first: without the token neither the path's
//! id nor the body is looked at.

use super::{
    App,
    error::Problem,
    extract::{Admin, Id, Params, page},
    openapi::refusals,
    sales::SaleBody,
};
use crate::{
    domain::{Order, OrderId, OrderStatus, SaleId, SaleView, UserId},
    sale::{Audit, NewSale, SaleChange, orders::Wanted},
    web::body::{self, Json, NoBody},
};
use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use time::{OffsetDateTime, UtcOffset};
use utoipa::{IntoParams, ToSchema};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddStock {
    /// Not 0; negative takes away, at most what remains.
    #[schema(minimum = -100_000_000, maximum = 100_000_000)]
    add: i64,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SaleOrdersParams {
    /// Only orders that stand there.
    status: Option<OrderStatus>,
    /// Only orders of this user.
    user: Option<UserId>,
    /// 1 to 1000, 100 if absent.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u16>,
    /// Only orders older than this one.
    after: Option<OrderId>,
}

/// An order, and whose it is.
#[derive(Serialize, ToSchema)]
pub struct OwnedOrder {
    #[serde(flatten)]
    order: Order,
    user_id: UserId,
}

/// Orders of a sale, newest first.
#[derive(Serialize, ToSchema)]
pub struct SaleOrders {
    orders: Vec<OwnedOrder>,
}

// 404 is also what every admin route answers while no admin token is set.
refusals!(CreateRefusals:
    UNAUTHENTICATED, NOT_FOUND, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(ChangeRefusals:
    UNAUTHENTICATED, NOT_FOUND, SALE_NOT_FOUND, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(SteerRefusals:
    UNAUTHENTICATED, NOT_FOUND, SALE_NOT_FOUND, TOO_LARGE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(StockRefusals:
    UNAUTHENTICATED, NOT_FOUND, SALE_NOT_FOUND, NOT_ENOUGH_REMAINING, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID,
    RATE_LIMITED, UNAVAILABLE
);
refusals!(AuditRefusals: UNAUTHENTICATED, NOT_FOUND, SALE_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);
refusals!(OrdersRefusals: UNAUTHENTICATED, NOT_FOUND, SALE_NOT_FOUND, INVALID, RATE_LIMITED, UNAVAILABLE);

/// Create a sale; it can be bought from as soon as this answers.
#[utoipa::path(
    post, path = "/api/v1/admin/sales", tag = "operating", operation_id = "create_sale",
    request_body = NewSale,
    responses((status = 201, description = "The sale", body = SaleBody), CreateRefusals),
    security(("admin" = [])),
)]
pub async fn create(
    State(app): State<App>,
    _: Admin,
    Json(mut new): Json<NewSale>,
) -> Result<Response, Problem> {
    new.opens_at = in_utc("opens_at", new.opens_at)?;
    new.closes_at = in_utc("closes_at", new.closes_at)?;
    sale(StatusCode::CREATED, &app.shop.create_sale(new).await?)
}

/// Change a sale.
#[utoipa::path(
    patch, path = "/api/v1/admin/sales/{id}", tag = "operating", operation_id = "change_sale",
    params(("id" = SaleId, Path, description = "The sale")), request_body = SaleChange,
    responses((status = 200, description = "The sale as it is now", body = SaleBody), ChangeRefusals),
    security(("admin" = [])),
)]
pub async fn change(
    State(app): State<App>,
    _: Admin,
    Id(id): Id<SaleId>,
    Json(mut change): Json<SaleChange>,
) -> Result<Response, Problem> {
    change.closes_at = in_utc("closes_at", change.closes_at)?;
    sale(StatusCode::OK, &app.shop.change_sale(id, change).await?)
}

/// Pause a sale: no order is accepted after this answers, on any instance.
#[utoipa::path(
    post, path = "/api/v1/admin/sales/{id}/pause", tag = "operating", operation_id = "pause_sale",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The paused sale", body = SaleBody), SteerRefusals),
    security(("admin" = [])),
)]
pub async fn pause(
    State(app): State<App>,
    _: Admin,
    Id(id): Id<SaleId>,
    NoBody: NoBody,
) -> Result<Response, Problem> {
    sale(StatusCode::OK, &app.shop.pause_sale(id).await?)
}

/// Resume a paused sale.
#[utoipa::path(
    post, path = "/api/v1/admin/sales/{id}/resume", tag = "operating", operation_id = "resume_sale",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The resumed sale", body = SaleBody), SteerRefusals),
    security(("admin" = [])),
)]
pub async fn resume(
    State(app): State<App>,
    _: Admin,
    Id(id): Id<SaleId>,
    NoBody: NoBody,
) -> Result<Response, Problem> {
    sale(StatusCode::OK, &app.shop.resume_sale(id).await?)
}

/// End a sale for good: no order is accepted after this answers, on any instance.
#[utoipa::path(
    post, path = "/api/v1/admin/sales/{id}/close", tag = "operating", operation_id = "close_sale",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The ended sale", body = SaleBody), SteerRefusals),
    security(("admin" = [])),
)]
pub async fn close(
    State(app): State<App>,
    _: Admin,
    Id(id): Id<SaleId>,
    NoBody: NoBody,
) -> Result<Response, Problem> {
    sale(StatusCode::OK, &app.shop.close_sale(id).await?)
}

/// Add stock to a sale, or take some away.
#[utoipa::path(
    post, path = "/api/v1/admin/sales/{id}/stock", tag = "operating", operation_id = "add_stock",
    params(("id" = SaleId, Path, description = "The sale")), request_body = AddStock,
    responses((status = 200, description = "The sale as it is now", body = SaleBody), StockRefusals),
    security(("admin" = [])),
)]
pub async fn stock(
    State(app): State<App>,
    _: Admin,
    Id(id): Id<SaleId>,
    Json(AddStock { add }): Json<AddStock>,
) -> Result<Response, Problem> {
    sale(StatusCode::OK, &app.shop.add_stock(id, add).await?)
}

/// Compute every invariant of a sale from what Postgres and Redis hold.
#[utoipa::path(
    get, path = "/api/v1/admin/sales/{id}/audit", tag = "operating", operation_id = "audit_sale",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The verdict", body = Audit), AuditRefusals),
    security(("admin" = [])),
)]
pub async fn audit(
    State(app): State<App>,
    _: Admin,
    Id(id): Id<SaleId>,
) -> Result<Response, Problem> {
    body::json(StatusCode::OK, &app.shop.audit(id).await?)
}

/// The orders of a sale, newest first.
#[utoipa::path(
    get, path = "/api/v1/admin/sales/{id}/orders", tag = "operating", operation_id = "list_sale_orders",
    params(("id" = SaleId, Path, description = "The sale"), SaleOrdersParams),
    responses((status = 200, description = "Its orders and whose they are", body = SaleOrders), OrdersRefusals),
    security(("admin" = [])),
)]
pub async fn orders(
    State(app): State<App>,
    _: Admin,
    Id(id): Id<SaleId>,
    Params(SaleOrdersParams {
        status,
        user,
        limit,
        after,
    }): Params<SaleOrdersParams>,
) -> Result<Response, Problem> {
    let found = app
        .shop
        .sale_orders(id, Wanted { status, user }, page(limit, after, 100, 1_000)?)
        .await?;
    let orders = found
        .into_iter()
        .map(|order| OwnedOrder {
            user_id: order.user_id,
            order,
        })
        .collect();
    body::json(StatusCode::OK, &SaleOrders { orders })
}

fn sale(status: StatusCode, view: &SaleView) -> Result<Response, Problem> {
    body::json(status, &SaleBody::from(view))
}

/// A client may write a time with any offset; everything from here on is UTC.
fn in_utc(field: &str, at: Option<OffsetDateTime>) -> Result<Option<OffsetDateTime>, Problem> {
    let Some(at) = at else { return Ok(None) };
    let at = at
        .checked_to_offset(UtcOffset::UTC)
        .filter(|at| (0..=9999).contains(&at.year()));
    at.map(Some)
        .ok_or_else(|| Problem::invalid(format!("{field}: is no time of years 0 to 9999")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn times_become_utc_or_are_refused() {
        let found = in_utc("opens_at", Some(datetime!(2026-11-20 18:00 +8)));
        let at = found.ok().flatten().expect("a time");
        assert_eq!(
            (at, at.offset()),
            (datetime!(2026-11-20 10:00 UTC), UtcOffset::UTC)
        );
        assert!(in_utc("opens_at", Some(datetime!(9999-12-31 23:59 -10))).is_err());
        assert!(in_utc("opens_at", None).is_ok_and(|at| at.is_none()));
    }

    #[test]
    fn a_new_sale_needs_three_members_and_takes_no_unknown_ones() {
        let parse = serde_json::from_str::<NewSale>;
        assert!(parse(r#"{"title":"a","price_cents":1,"stock":1}"#).is_ok());
        assert!(parse(r#"{"title":"a","price_cents":1,"stock":1,"opens_at":null}"#).is_ok());
        assert!(parse(r#"{"title":"a","price_cents":1}"#).is_err());
        assert!(parse(r#"{"title":"a","price_cents":1,"stock":1,"paused":true}"#).is_err());
        assert!(parse(r#"{"title":"a","price_cents":1,"stock":1,"opens_at":"tomorrow"}"#).is_err());
    }
}
