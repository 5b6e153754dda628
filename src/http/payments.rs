//! Payment: at once or on the provider's page, its webhooks, refunds, the books.

use super::error::{HttpResult, NOT_FOUND, Problem};
use super::extract::{Admin, Id, PacedShopper};
use super::link_preview::origin;
use super::openapi::refusals;
use crate::catalog::Catalog;
use crate::config::ProxyTrust;
use crate::domain::{Order, OrderId};
use crate::payments::Payments;
use ::payments::ledger::LedgerError;
use ::payments::ledger::books::Books;
use ::payments::signature::{HEADER, SignatureError};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;
use web::body::{self, Json, NoBody, Raw};

/// Where to pay.
#[derive(Serialize, ToSchema)]
pub struct Checkout {
    /// The provider's page. It leads back to *My orders*.
    url: String,
}

/// A refund by an operator.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OperatorsRefund {
    /// The order is cancelled, and its unit can be bought again.
    return_unit: bool,
}

refusals!(PayRefusals:
    UNAUTHENTICATED, CROSS_ORIGIN, ORDER_NOT_FOUND, NOT_PAYABLE, STILL_QUEUED, PAYMENT_DECLINED,
    TOO_LARGE, INVALID, RATE_LIMITED, PAYMENT_PENDING, UNAVAILABLE
);
refusals!(CheckoutRefusals:
    UNAUTHENTICATED, CROSS_ORIGIN, ORDER_NOT_FOUND, NO_PAYMENT_PAGE, NOT_PAYABLE, STILL_QUEUED,
    TOO_LARGE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(WebhookRefusals:
    WEBHOOK_MALFORMED, WEBHOOK_SIGNATURE_INVALID, WEBHOOK_EXPIRED, NOT_FOUND, TOO_LARGE,
    CHARGE_UNKNOWN, AMOUNT_MISMATCH, RATE_LIMITED, UNAVAILABLE
);
refusals!(RefundRefusals:
    UNAUTHENTICATED, ORDER_NOT_FOUND, NOT_FOUND, NOT_REFUNDABLE, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE,
    INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(BooksRefusals: UNAUTHENTICATED, NOT_FOUND, RATE_LIMITED, UNAVAILABLE);

/// Pay an order. Paying a paid order again changes nothing and answers the same.
#[utoipa::path(
    post, path = "/api/v1/orders/{id}/pay", tag = "shopping", operation_id = "pay_order",
    params(("id" = OrderId, Path, description = "The order")),
    responses((status = 200, description = "The paid order", body = Order), PayRefusals),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn pay(
    State(payments): State<Arc<Payments>>,
    PacedShopper(user): PacedShopper,
    Id(order): Id<OrderId>,
    _: NoBody,
) -> HttpResult {
    let order = payments.pay(user, order).await?;
    body::json(StatusCode::OK, &order)
}

/// Pay an order on the provider's page.
#[utoipa::path(
    post, path = "/api/v1/orders/{id}/checkout", tag = "shopping", operation_id = "checkout_order",
    params(("id" = OrderId, Path, description = "The order")),
    responses((status = 200, description = "The page to go to", body = Checkout), CheckoutRefusals),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn checkout(
    State(payments): State<Arc<Payments>>,
    State(trust_proxy): State<ProxyTrust>,
    PacedShopper(user): PacedShopper,
    Id(order): Id<OrderId>,
    headers: HeaderMap,
    _: NoBody,
) -> HttpResult {
    let origin = origin(trust_proxy, &headers);
    let origin = origin.ok_or_else(|| Problem::invalid("host: is no host"))?;
    let return_url = format!("{origin}/orders?order={order}");
    let url = payments.checkout(user, order, return_url).await?;
    body::json(StatusCode::OK, &Checkout { url })
}

/// An event of the payment provider, signed: applied once, whenever and in whatever order it comes.
#[utoipa::path(
    post, path = "/api/v1/webhooks/payments", tag = "machines", operation_id = "payment_webhook",
    params(("Webhook-Signature" = String, Header, description = "`t=UNIX,v1=HEX`: HMAC-SHA256 of \
        `UNIX.BODY`")),
    responses((status = 204, description = "Applied, now or before"), WebhookRefusals),
    security(("webhook" = [])),
)]
pub async fn webhook(
    State(payments): State<Arc<Payments>>,
    State(catalog): State<Arc<Catalog>>,
    headers: HeaderMap,
    Raw(body): Raw,
) -> HttpResult {
    let signature = headers.get(HEADER).and_then(|signature| signature.to_str().ok());
    let signature = signature.ok_or(LedgerError::Signature(SignatureError::Invalid))?;
    let secret = payments.link.webhooks.as_ref().ok_or(Problem::new(&NOT_FOUND))?;
    payments.ledger.receive(secret, signature, &body, catalog.now()).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Return the money of a paid order. Repeatable: money and unit go back once, and what the provider
/// has refused is tried again.
#[utoipa::path(
    post, path = "/api/v1/admin/orders/{id}/refund", tag = "operating",
    operation_id = "refund_order", params(("id" = OrderId, Path, description = "The order")),
    request_body = OperatorsRefund,
    responses((status = 200, description = "Its `payment` is `refunding`; without `return_unit` it \
        stays paid", body = Order), RefundRefusals),
    security(("admin" = [])),
)]
pub async fn refund(
    State(payments): State<Arc<Payments>>,
    _: Admin,
    Id(order): Id<OrderId>,
    Json(OperatorsRefund { return_unit }): Json<OperatorsRefund>,
) -> HttpResult {
    let order = payments.refund(order, return_unit).await?;
    body::json(StatusCode::OK, &order)
}

/// The books: the provider's transactions, the ledger and the orders, compared.
#[utoipa::path(
    get, path = "/api/v1/admin/books", tag = "operating", operation_id = "books",
    responses((status = 200, description = "What agrees and what does not", body = Books),
        BooksRefusals),
    security(("admin" = [])),
)]
pub async fn books(State(payments): State<Arc<Payments>>, _: Admin) -> HttpResult {
    body::json(StatusCode::OK, &payments.ledger.books().await?)
}
