//! The admin API. Every handler takes [`Admin`] first: without the token neither path nor body is
//! read.

use super::error::{HttpResult, Problem};
use super::extract::{Admin, Id, Params, page};
use super::openapi::refusals;
use super::sales::SaleBody;
use crate::audit::{Audit, Auditor};
use crate::catalog::Catalog;
use crate::catalog::changes::{NewSale, SaleChange};
use crate::domain::{Order, OrderId, OrderStatus, SaleId, SaleView, UserId};
use crate::orders::Orders;
use crate::orders::queries::Wanted;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use time::{OffsetDateTime, UtcOffset};
use utoipa::{IntoParams, ToSchema};
use web::body::{self, Json, NoBody};

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
    /// Only orders of this status.
    status: Option<OrderStatus>,
    /// Only orders of this user.
    user: Option<UserId>,
    /// 1 to 1000, 100 if absent.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u16>,
    /// Only orders older than this one.
    after: Option<OrderId>,
}

/// An order with its owner.
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

// All admin routes answer 404 while no admin token is set.
refusals!(CreateRefusals:
    UNAUTHENTICATED, NOT_FOUND, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED,
        UNAVAILABLE
);
refusals!(ChangeRefusals:
    UNAUTHENTICATED, NOT_FOUND, SALE_NOT_FOUND, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID,
        RATE_LIMITED, UNAVAILABLE
);
refusals!(SteerRefusals:
    UNAUTHENTICATED, NOT_FOUND, SALE_NOT_FOUND, TOO_LARGE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(StockRefusals:
    UNAUTHENTICATED, NOT_FOUND, SALE_NOT_FOUND, NOT_ENOUGH_REMAINING, TOO_LARGE,
        UNSUPPORTED_MEDIA_TYPE, INVALID,
    RATE_LIMITED, UNAVAILABLE
);
refusals!(AuditRefusals: UNAUTHENTICATED, NOT_FOUND, SALE_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);
refusals!(OrdersRefusals: UNAUTHENTICATED, NOT_FOUND, SALE_NOT_FOUND, INVALID, RATE_LIMITED,
    UNAVAILABLE);

/// Create a sale; it can be bought from as soon as this answers.
#[utoipa::path(
    post, path = "/api/v1/admin/sales", tag = "operating", operation_id = "create_sale",
    request_body = NewSale,
    responses((status = 201, description = "The sale", body = SaleBody), CreateRefusals),
    security(("admin" = [])),
)]
pub async fn create(
    State(catalog): State<Arc<Catalog>>,
    _: Admin,
    Json(mut new): Json<NewSale>,
) -> HttpResult {
    new.opens_at = in_utc("opens_at", new.opens_at)?;
    new.closes_at = in_utc("closes_at", new.closes_at)?;
    sale(StatusCode::CREATED, &catalog.create_sale(new).await?)
}

/// Change a sale.
#[utoipa::path(
    patch, path = "/api/v1/admin/sales/{id}", tag = "operating", operation_id = "change_sale",
    params(("id" = SaleId, Path, description = "The sale")), request_body = SaleChange,
    responses((status = 200, description = "The sale as it is now", body = SaleBody),
        ChangeRefusals),
    security(("admin" = [])),
)]
pub async fn change(
    State(catalog): State<Arc<Catalog>>,
    _: Admin,
    Id(id): Id<SaleId>,
    Json(mut change): Json<SaleChange>,
) -> HttpResult {
    change.closes_at = in_utc("closes_at", change.closes_at)?;
    sale(StatusCode::OK, &catalog.change_sale(id, change).await?)
}

/// Pause a sale: no order is accepted after this answers, on any instance.
#[utoipa::path(
    post, path = "/api/v1/admin/sales/{id}/pause", tag = "operating", operation_id = "pause_sale",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The paused sale", body = SaleBody), SteerRefusals),
    security(("admin" = [])),
)]
pub async fn pause(
    State(catalog): State<Arc<Catalog>>,
    _: Admin,
    Id(id): Id<SaleId>,
    _: NoBody,
) -> HttpResult {
    sale(StatusCode::OK, &catalog.pause_sale(id).await?)
}

/// Resume a paused sale.
#[utoipa::path(
    post, path = "/api/v1/admin/sales/{id}/resume", tag = "operating", operation_id = "resume_sale",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The resumed sale", body = SaleBody), SteerRefusals),
    security(("admin" = [])),
)]
pub async fn resume(
    State(catalog): State<Arc<Catalog>>,
    _: Admin,
    Id(id): Id<SaleId>,
    _: NoBody,
) -> HttpResult {
    sale(StatusCode::OK, &catalog.resume_sale(id).await?)
}

/// End a sale for good: no order is accepted after this answers, on any instance.
#[utoipa::path(
    post, path = "/api/v1/admin/sales/{id}/close", tag = "operating", operation_id = "close_sale",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The ended sale", body = SaleBody), SteerRefusals),
    security(("admin" = [])),
)]
pub async fn close(
    State(catalog): State<Arc<Catalog>>,
    _: Admin,
    Id(id): Id<SaleId>,
    _: NoBody,
) -> HttpResult {
    sale(StatusCode::OK, &catalog.close_sale(id).await?)
}

/// Add stock to a sale, or take some away.
#[utoipa::path(
    post, path = "/api/v1/admin/sales/{id}/stock", tag = "operating", operation_id = "add_stock",
    params(("id" = SaleId, Path, description = "The sale")), request_body = AddStock,
    responses((status = 200, description = "The sale as it is now", body = SaleBody),
        StockRefusals),
    security(("admin" = [])),
)]
pub async fn stock(
    State(catalog): State<Arc<Catalog>>,
    _: Admin,
    Id(id): Id<SaleId>,
    Json(AddStock { add }): Json<AddStock>,
) -> HttpResult {
    sale(StatusCode::OK, &catalog.add_stock(id, add).await?)
}

/// Recompute the invariants I1 to I4 of a sale from what Postgres and Redis hold.
#[utoipa::path(
    get, path = "/api/v1/admin/sales/{id}/audit", tag = "operating", operation_id = "audit_sale",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The verdict", body = Audit), AuditRefusals),
    security(("admin" = [])),
)]
pub async fn audit(
    State(auditor): State<Arc<Auditor>>,
    _: Admin,
    Id(id): Id<SaleId>,
) -> HttpResult {
    body::json(StatusCode::OK, &auditor.audit(id).await?)
}

/// The orders of a sale, newest first.
#[utoipa::path(
    get, path = "/api/v1/admin/sales/{id}/orders", tag = "operating", operation_id =
        "list_sale_orders",
    params(("id" = SaleId, Path, description = "The sale"), SaleOrdersParams),
    responses((status = 200, description = "Its orders and whose they are", body = SaleOrders),
        OrdersRefusals),
    security(("admin" = [])),
)]
pub async fn orders(
    State(orders): State<Arc<Orders>>,
    _: Admin,
    Id(id): Id<SaleId>,
    Params(params): Params<SaleOrdersParams>,
) -> HttpResult {
    let (status, user) = (params.status, params.user);
    let page = page(params.limit, params.after, 100, 1_000)?;
    let found = orders.sale_orders(id, Wanted { status, user }, page);
    let owned = |order: Order| OwnedOrder { user_id: order.user_id, order };
    let orders = found.await?.into_iter().map(owned).collect();
    body::json(StatusCode::OK, &SaleOrders { orders })
}

fn sale(status: StatusCode, view: &SaleView) -> HttpResult {
    body::json(status, &SaleBody::from(view))
}

/// Clients may send any offset; from here on times are UTC.
fn in_utc(field: &str, at: Option<OffsetDateTime>) -> Result<Option<OffsetDateTime>, Problem> {
    let Some(at) = at else { return Ok(None) };
    let at = at.checked_to_offset(UtcOffset::UTC);
    let at = at.filter(|at| (0..=9999).contains(&at.year()));
    let why = || Problem::invalid(format!("{field}: is no time of years 0 to 9999"));
    at.map(Some).ok_or_else(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::session::NewSession;
    use proptest::prelude::*;
    use time::macros::datetime;
    use web::body::{LIMIT, parse};

    #[test]
    fn times_become_utc_or_are_refused() {
        let found = in_utc("opens_at", Some(datetime!(2026-11-20 18:00 +8)));
        let at = found.ok().flatten().expect("a time");
        assert_eq!((at, at.offset()), (datetime!(2026-11-20 10:00 UTC), UtcOffset::UTC));
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

    /// Reads these bytes as every type of body that the API takes. Whether any of them was content.
    fn read_as_everything(bytes: &[u8]) -> bool {
        let found = [
            parse::<NewSession>(bytes).err(),
            parse::<NewSale>(bytes).err(),
            parse::<SaleChange>(bytes).err(),
            parse::<AddStock>(bytes).err(),
        ];
        let all_said_why = found.iter().flatten().all(|problem| problem.kind().code == "invalid");
        assert!(all_said_why);
        found.iter().any(Option::is_none)
    }

    /// JSON of any shape, with the names that the bodies know among its members.
    fn json_of_any_shape() -> impl Strategy<Value = String> {
        let name = "title|name|stock|add|price_cents|opens_at|closes_at|per_user_limit|[a-z]{0,5}";
        let leaf = prop_oneof![
            Just("null".to_owned()),
            any::<bool>().prop_map(|value| value.to_string()),
            any::<i64>().prop_map(|value| value.to_string()),
            "-?[0-9]{1,60}(\\.[0-9]{1,40})?([eE][+-]?[0-9]{1,5})?",
            "[ -~]{0,20}".prop_map(|text| format!("{text:?}")),
            "\"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})\"",
        ];
        leaf.prop_recursive(6, 40, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6)
                    .prop_map(|all| format!("[{}]", all.join(","))),
                prop::collection::vec((name, inner), 0..6).prop_map(|all| {
                    let members: Vec<String> =
                        all.into_iter().map(|(name, value)| format!("{name:?}:{value}")).collect();
                    format!("{{{}}}", members.join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_body_or_invalid(bytes: Vec<u8>) {
            read_as_everything(&bytes);
            read_as_everything(&[b"{", &bytes[..]].concat());
        }

        #[test]
        fn any_json_is_a_body_or_invalid(text in json_of_any_shape()) {
            read_as_everything(text.as_bytes());
        }
    }

    #[test]
    fn deep_nesting_is_refused_before_the_stack_ends() {
        for (open, close) in [("[", "]"), (r#"{"title":"#, "}")] {
            for depth in [100, 1_000, LIMIT] {
                let text = format!("{{\"title\":{}1{}}}", open.repeat(depth), close.repeat(depth));
                assert!(!read_as_everything(text.as_bytes()));
            }
        }
    }
}
