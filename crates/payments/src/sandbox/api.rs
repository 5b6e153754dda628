//! The provider's API, `/v1/…`, and its faults.

use super::faults::Faults;
use super::page;
use super::state::{Provider, Shared};
use super::store::Refusal;
use crate::provider::{ChargeRequest, CheckoutRequest};
use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use web::body::{self, Json};
use web::extract::Params;
use web::problem::{METHOD_NOT_ALLOWED, NOT_FOUND, Problem, UNAUTHENTICATED};

/// The largest amount: ten billion, so that no sum is too large.
const MOST_CENTS: i64 = 1_000_000_000_000;

web::kinds! {
    IDEMPOTENCY_KEY_MISSING = BAD_REQUEST "idempotency_key_missing", "No idempotency key",
        "A refund needs an Idempotency-Key header, of at most 200 characters.";
    IDEMPOTENCY_CONFLICT = CONFLICT "idempotency_conflict", "Used for something else",
        "This reference or key was used with another amount, currency or charge.";
    REFUND_EXCEEDS_CHARGE = CONFLICT "refund_exceeds_charge", "More than is left",
        "The charge does not hold so much money.";
    CHARGE_UNKNOWN = NOT_FOUND "charge_unknown", "No such charge", "There is no charge of this id.";
}

type Answer = Result<Response, Problem>;

pub fn router(provider: Arc<Provider>) -> Router {
    let operations = Router::new()
        .route("/v1/charges", post(charge).get(charges))
        .route("/v1/checkouts", post(checkout))
        .route("/v1/refunds", post(refund))
        .route("/v1/transactions", get(transactions))
        .route_layer(from_fn_with_state(provider.clone(), authenticate))
        .merge(page::routes())
        .route_layer(from_fn_with_state(provider.clone(), misbehave));
    Router::new()
        .route("/v1/faults", get(read_faults).put(change_faults))
        .route_layer(from_fn_with_state(provider.clone(), authenticate))
        .merge(operations)
        .fallback(async || Problem::new(&NOT_FOUND))
        .method_not_allowed_fallback(async || Problem::new(&METHOD_NOT_ALLOWED))
        .layer(DefaultBodyLimit::max(body::LIMIT))
        .with_state(provider)
}

async fn authenticate(State(provider): Shared, request: Request, next: Next) -> Response {
    let header = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    let key = header.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    match bool::from(key.ct_eq(provider.api_key.as_bytes())) {
        true => next.run(request).await,
        false => Problem::new(&UNAUTHENTICATED).into_response(),
    }
}

async fn misbehave(State(provider): Shared, request: Request, next: Next) -> Response {
    let faults = *provider.faults.borrow();
    if faults.away {
        return no_answer();
    }
    let moves_money = request.method() == Method::POST
        && matches!(request.uri().path(), "/v1/charges" | "/v1/refunds");
    let response = next.run(request).await;
    tokio::time::sleep(Duration::from_millis(faults.answer_late_ms)).await;
    let is_lost = moves_money && response.status().is_success();
    if is_lost && faults.charge_and_no_answer.happens() { no_answer() } else { response }
}

/// A body that breaks off at once: hyper closes the connection.
fn no_answer() -> Response {
    let broken = stream::iter([Err::<&[u8], _>(io::Error::other("not answered on purpose"))]);
    Response::new(Body::from_stream(broken))
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::IdempotencyConflict => Self::new(&IDEMPOTENCY_CONFLICT),
            Refusal::ChargeUnknown => Self::new(&CHARGE_UNKNOWN),
            Refusal::CheckoutUnknown | Refusal::Expired => Self::new(&NOT_FOUND),
            Refusal::RefundExceedsCharge => Self::new(&REFUND_EXCEEDS_CHARGE),
            Refusal::Broken => {
                Self::unavailable("the sandbox's file cannot be written", Duration::from_secs(1))
            }
        }
    }
}

fn ok(value: &impl Serialize) -> Answer {
    body::json(StatusCode::OK, value)
}

async fn charge(State(provider): Shared, Json(request): Json<ChargeRequest>) -> Answer {
    check(&request)?;
    ok(&provider.store.charge(&request, provider.draw_status()).await?)
}

#[derive(Deserialize)]
struct ByReference {
    reference: String,
}

async fn charges(
    State(provider): Shared,
    Params(ByReference { reference }): Params<ByReference>,
) -> Answer {
    ok(&json!({ "charges": provider.store.charges(&reference).await? }))
}

async fn checkout(State(provider): Shared, Json(request): Json<CheckoutRequest>) -> Answer {
    check(&request.charge)?;
    if request.description.chars().count() > 500 {
        return Err(Problem::invalid("description has more than 500 characters"));
    }
    if page::origin(&request.return_url).is_none() {
        return Err(Problem::invalid("return_url is no http:// or https:// URL"));
    }
    let id = provider.store.open_checkout(&request).await?;
    let url = format!("{}/pay/{id}", provider.public_url);
    ok(&json!({ "id": id, "url": url }))
}

#[derive(Deserialize)]
struct RefundRequest {
    charge: String,
    amount_cents: i64,
}

async fn refund(
    State(provider): Shared,
    headers: HeaderMap,
    Json(request): Json<RefundRequest>,
) -> Answer {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default();
    if key.is_empty() || key.len() > 200 {
        return Err(Problem::new(&IDEMPOTENCY_KEY_MISSING));
    }
    check_amount(request.amount_cents)?;
    ok(&provider.store.refund(key, &request.charge, request.amount_cents).await?)
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: u64,
}

async fn transactions(State(provider): Shared, Params(After { after }): Params<After>) -> Answer {
    ok(&json!({ "transactions": provider.store.transactions(after).await? }))
}

async fn read_faults(State(provider): Shared) -> Answer {
    ok(&*provider.faults.borrow())
}

/// Faults that are not named end.
async fn change_faults(State(provider): Shared, Json(faults): Json<Faults>) -> Answer {
    provider.faults.send_replace(faults);
    ok(&faults)
}

fn check(request: &ChargeRequest) -> Result<(), Problem> {
    let is_graphic = request.reference.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_graphic || !(1..=200).contains(&request.reference.len()) {
        return Err(Problem::invalid("reference has 1 to 200 visible ASCII characters"));
    }
    let is_upper = request.currency.bytes().all(|byte| byte.is_ascii_uppercase());
    if !is_upper || request.currency.len() != 3 {
        return Err(Problem::invalid("currency has three letters, like USD"));
    }
    check_amount(request.amount_cents)
}

fn check_amount(amount_cents: i64) -> Result<(), Problem> {
    match (1..=MOST_CENTS).contains(&amount_cents) {
        true => Ok(()),
        false => Err(Problem::invalid("amount_cents is from 1 to 10^12")),
    }
}
