//! Purchases and orders.

use super::access_policy::AccessPolicies;
use super::error::{HttpResult, of_refusal};
use super::extract::{Id, MaybeCredentials, PacedShopper, Params, RetryKey, Shopper, page};
use super::openapi::refusals;
use crate::domain::{Order, OrderId, OrderStatus, PurchaseResult, SaleId};
use crate::orders;
use axum::extract::State;
use axum::http::header::{HeaderName, LOCATION};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};
use web::body::{self, NoBody};

/// Orders, newest first.
#[derive(Serialize, ToSchema)]
pub struct Orders {
    orders: Vec<Order>,
}

/// A purchase that was accepted: it will become an order to pay, or an explicit `rejected`.
#[derive(Serialize, ToSchema)]
pub struct Purchased {
    order_id: OrderId,
    sale_id: SaleId,
    /// Always `queued`: the row is written after this answer.
    status: OrderStatus,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OrdersParams {
    /// 1 to 100, 20 if absent.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u16>,
    /// Only orders older than this one.
    after: Option<OrderId>,
}

refusals!(PurchaseRefusals:
    UNAUTHENTICATED, CROSS_ORIGIN, SALE_NOT_FOUND, NOT_OPEN, PAUSED, ENDED, SOLD_OUT,
        ALREADY_ORDERED,
    ADMISSION_REQUIRED, ADMISSION_INVALID, ADMISSION_EXPIRED, ADMISSION_USED,
    PASS_REQUIRED, PASS_INVALID, PASS_EXPIRED, CHALLENGE_REQUIRED, CHALLENGE_FAILED,
        CHALLENGE_EXPIRED, TOO_LARGE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(ListRefusals: UNAUTHENTICATED, INVALID, RATE_LIMITED, UNAVAILABLE);
refusals!(ReadRefusals: UNAUTHENTICATED, ORDER_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);
refusals!(CancelRefusals:
    UNAUTHENTICATED, CROSS_ORIGIN, ORDER_NOT_FOUND, NOT_CANCELLABLE,
    TOO_LARGE, INVALID, RATE_LIMITED, UNAVAILABLE
);

const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Buy one unit.
///
/// A retry with the same `Idempotency-Key` gets the first answer, marked `Idempotent-Replayed:
/// true`. A sale with a waiting room asks for the `Admission-Token` of the turn, with which only
/// one order is made, whatever the key.
#[utoipa::path(
    post, path = "/api/v1/sales/{id}/orders", tag = "shopping", operation_id = "purchase",
    params(
        ("id" = SaleId, Path, description = "The sale"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 64 printable ASCII \
            characters", min_length = 1, max_length = 64, pattern = "^[ -~]*$"),
        ("Admission-Token" = Option<String>, Header, description = "From the waiting room, where \
            the sale has one"),
        ("Purchase-Pass" = Option<String>, Header, description = "Where the sale asks for a pass"),
        ("Challenge-Solution" = Option<String>, Header, description = "Where the sale asks for \
            work: `CHALLENGE:NUMBER`"),
    ),
    responses(
        (status = 202, description = "Accepted and logged: in a moment it is an order to pay, or \
            an explicit `rejected` one", body = Purchased,
         headers(("Location" = String, description = "The order"), ("Idempotent-Replayed" = String,
             description = "`true` for a replay"))),
        PurchaseRefusals
    ),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn purchase(
    State(access): State<Arc<AccessPolicies>>,
    PacedShopper(user): PacedShopper,
    Id(sale): Id<SaleId>,
    RetryKey(key): RetryKey,
    MaybeCredentials(credentials): MaybeCredentials,
    _: NoBody,
) -> HttpResult {
    let result = match &credentials {
        None => access.admission.purchase(sale, user, key).await?,
        // Boxed to keep the hot future small.
        Some(given) => Box::pin(access.purchase(sale, user, key, given)).await?,
    };
    if let PurchaseResult::Accepted { order_id, replayed } = result {
        return Ok(accepted(sale, order_id, replayed));
    }
    Err(of_refusal(result, access.catalog.now()).expect("only Accepted is no refusal"))
}

/// The most frequent answer, written by hand: two numbers and a constant.
pub fn accepted(sale_id: SaleId, order_id: OrderId, replayed: bool) -> Response {
    let mut body = Vec::with_capacity(96);
    let mut location = Vec::with_capacity(40);
    // Writing to a Vec cannot fail.
    let (order, sale) = (order_id, sale_id);
    let _ = write!(body, r#"{{"order_id":"{order}","sale_id":"{sale}","status":"queued"}}"#);
    let _ = write!(location, "/api/v1/orders/{order_id}");
    let mut response = body::json_bytes(StatusCode::ACCEPTED, body);
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::from_maybe_shared(axum::body::Bytes::from(location)) {
        headers.insert(LOCATION, location);
    }
    if replayed {
        headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// My orders, newest first.
#[utoipa::path(
    get, path = "/api/v1/orders", tag = "shopping", operation_id = "list_orders",
    params(OrdersParams),
    responses((status = 200, description = "The caller's own orders", body = Orders), ListRefusals),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn list(
    State(orders): State<Arc<orders::Orders>>,
    Shopper(shopper): Shopper,
    Params(OrdersParams { limit, after }): Params<OrdersParams>,
) -> HttpResult {
    let page = page(limit, after, 20, 100)?;
    let orders = orders.orders(shopper.user_id, page).await?;
    body::json(StatusCode::OK, &Orders { orders })
}

/// One of my orders.
#[utoipa::path(
    get, path = "/api/v1/orders/{id}", tag = "shopping", operation_id = "get_order",
    params(("id" = OrderId, Path, description = "The order")),
    responses((status = 200, description = "The order", body = Order), ReadRefusals),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn read(
    State(orders): State<Arc<orders::Orders>>,
    Shopper(shopper): Shopper,
    Id(order): Id<OrderId>,
) -> HttpResult {
    let order = orders.order(shopper.user_id, order).await?;
    body::json(StatusCode::OK, &order)
}

/// Cancel an order that is not paid; its unit can be bought again at once.
#[utoipa::path(
    post, path = "/api/v1/orders/{id}/cancel", tag = "shopping", operation_id = "cancel_order",
    params(("id" = OrderId, Path, description = "The order")),
    responses((status = 200, description = "The cancelled order", body = Order), CancelRefusals),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn cancel(
    State(orders): State<Arc<orders::Orders>>,
    PacedShopper(user): PacedShopper,
    Id(order): Id<OrderId>,
    _: NoBody,
) -> HttpResult {
    let order = orders.cancel(user, order).await?;
    body::json(StatusCode::OK, &order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use time::macros::datetime;

    async fn json_of(response: Response) -> Value {
        let bytes = axum::body::to_bytes(response.into_body(), 4096).await.expect("a body");
        serde_json::from_slice(&bytes).expect("JSON")
    }

    #[tokio::test]
    async fn the_answer_written_by_hand_is_the_documented_one() {
        let (sale_id, order_id) = (SaleId::from_i64(7), OrderId::from_i64(i64::MAX));
        let response = accepted(sale_id, order_id, true);
        assert_eq!(response.status(), 202);
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers()["location"], "/api/v1/orders/9223372036854775807");
        assert_eq!(response.headers()["idempotent-replayed"], "true");
        let documented = Purchased { order_id, sale_id, status: OrderStatus::Queued };
        assert_eq!(json_of(response).await, serde_json::to_value(documented).expect("JSON"));
        assert!(!accepted(sale_id, order_id, false).headers().contains_key("idempotent-replayed"));
    }

    #[test]
    fn an_order_is_written_as_the_contract_has_it() {
        let order = Order {
            id: OrderId::from_i64(5),
            sale_id: SaleId::from_i64(7),
            sale_title: "Phone".to_owned(),
            user_id: crate::domain::UserId::random(),
            status: OrderStatus::PendingPayment,
            price_cents: 19_900,
            currency: "USD".to_owned(),
            created_at: datetime!(2026-11-20 10:00:00.25 UTC),
            pay_by: Some(datetime!(2026-11-20 10:10 UTC)),
            paid_at: None,
            closed_at: None,
            payment: None,
        };
        let expected = json!({
            "order_id": "5", "sale_id": "7", "sale_title": "Phone", "status": "pending_payment",
            "price_cents": 19_900, "currency": "USD", "created_at": "2026-11-20T10:00:00.25Z",
            "pay_by": "2026-11-20T10:10:00Z", "paid_at": null, "closed_at": null,
        });
        assert_eq!(serde_json::to_value(&order).expect("JSON"), expected);
    }
}
