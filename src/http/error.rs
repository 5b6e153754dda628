//! The problems of the shop (see `web/problem.rs`).

use crate::domain::{OrderId, OrderStatus, PurchaseResult};
use crate::error::ServiceError;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use web::kinds;
use web::problem::{away, internal};

pub use ::payments::problem::{
    AMOUNT_MISMATCH, CHARGE_UNKNOWN, WEBHOOK_EXPIRED, WEBHOOK_MALFORMED, WEBHOOK_SIGNATURE_INVALID,
};
pub use web::problem::{
    CROSS_ORIGIN, INTERNAL, INVALID, Kind, METHOD_NOT_ALLOWED, NOT_FOUND, Problem, RATE_LIMITED,
    REQUEST_TIMEOUT, TOO_LARGE, UNAUTHENTICATED, UNAVAILABLE, UNSUPPORTED_MEDIA_TYPE,
};

/// The answer of a handler.
pub type HttpResult = Result<axum::response::Response, Problem>;

kinds! {
    SALE_NOT_FOUND = NOT_FOUND "sale_not_found", "No such sale", "There is no sale with this id.";
    ORDER_NOT_FOUND = NOT_FOUND "order_not_found", "No such order",
        "You have no order with this id.";
    NOT_OPEN = CONFLICT "not_open", "Not open yet", "The sale has not opened yet.";
    PAUSED = CONFLICT "paused", "Paused", "The sale is paused.";
    ENDED = CONFLICT "ended", "Ended", "The sale has ended.";
    SOLD_OUT = CONFLICT "sold_out", "Sold out", "Nothing is left at this moment.";
    ALREADY_ORDERED = CONFLICT "already_ordered", "Already ordered",
        "You hold as many orders of this sale as it allows.";
    PASS_NOT_FOUND = NOT_FOUND "pass_not_found", "No pass",
        "This sale asks for no pass: buy without one.";
    CHALLENGE_NOT_FOUND = NOT_FOUND "challenge_not_found", "No challenge",
        "This sale asks for no proof of work: buy without one.";
    WAITING_ROOM_NOT_FOUND = NOT_FOUND "waiting_room_not_found", "No waiting room",
        "This sale has no waiting room: buy without one.";
    WAITING_ROOM_NOT_OPEN = CONFLICT "waiting_room_not_open", "Waiting room not open yet",
        "The waiting room cannot be joined yet.";
    NOT_IN_WAITING_ROOM = NOT_FOUND "not_in_waiting_room", "Not in the waiting room",
        "You have no place in this waiting room: join it.";
    ADMISSION_REQUIRED = CONFLICT "admission_required", "Admission required",
        "This sale has a waiting room: join it, and buy with the admission that your turn brings.";
    ADMISSION_INVALID = FORBIDDEN "admission_invalid", "Admission not valid",
        "This admission was not given to you for this sale.";
    ADMISSION_EXPIRED = CONFLICT "admission_expired", "Turn over",
        "Your turn is over: join the waiting room again. If you did buy, the order is among yours.";
    ADMISSION_USED = CONFLICT "admission_used", "Admission used",
        "An order has come of this admission already.";
    PASS_REQUIRED = CONFLICT "pass_required", "Pass required",
        "This sale asks for a pass with the purchase; it is given out from the opening on.";
    PASS_INVALID = FORBIDDEN "pass_invalid", "Pass not valid",
        "This pass was not given to you for this sale.";
    PASS_EXPIRED = CONFLICT "pass_expired", "Pass expired",
        "The pass has expired: ask for a new one.";
    CHALLENGE_REQUIRED = CONFLICT "challenge_required", "Challenge required",
        "This sale asks for a solved challenge.";
    CHALLENGE_FAILED = FORBIDDEN "challenge_failed", "Challenge not solved",
        "This is no solution of a challenge that was given to you for this sale.";
    CHALLENGE_EXPIRED = CONFLICT "challenge_expired", "Challenge expired",
        "The challenge has expired or was used: ask for a new one.";
    NOT_PAYABLE = CONFLICT "not_payable", "Not payable", "The order cannot be paid any more.";
    STILL_QUEUED = CONFLICT "still_queued", "Still queued",
        "The order is accepted and being written down; try again in a moment.";
    PAYMENT_DECLINED = CONFLICT "payment_declined", "Payment declined", "The payment was declined.";
    PAYMENT_PENDING = SERVICE_UNAVAILABLE "payment_pending", "Payment pending",
        "The payment provider has not answered yet. Nothing is paid twice: pay again, or wait.";
    NO_PAYMENT_PAGE = NOT_FOUND "no_payment_page", "No page to pay on",
        "Payment is simulated here: pay at once.";
    NOT_REFUNDABLE = CONFLICT "not_refundable", "Not refundable",
        "Nothing was paid for this order.";
    NOT_CANCELLABLE = CONFLICT "not_cancellable", "Not cancellable",
        "The order cannot be cancelled any more.";
    NOT_ENOUGH_REMAINING = CONFLICT "not_enough_remaining", "Not enough remaining",
        "At most what remains can be taken away.";
}

/// The problem of a refused purchase; `now` is Redis' time.
///
/// `None` for [`PurchaseResult::Accepted`], which is no refusal.
pub fn of_refusal(refusal: PurchaseResult, now: OffsetDateTime) -> Option<Problem> {
    Some(match refusal {
        PurchaseResult::Accepted { .. } => return None,
        PurchaseResult::AlreadyOrdered { order_id } => about(&ALREADY_ORDERED, order_id),
        PurchaseResult::SoldOut => Problem::new(&SOLD_OUT),
        PurchaseResult::NotOpen { opens_at } => not_before(&NOT_OPEN, opens_at, now),
        PurchaseResult::Paused => Problem::new(&PAUSED),
        PurchaseResult::Ended => Problem::new(&ENDED),
    })
}

/// A refusal that passes at `opens_at`.
pub fn not_before(kind: &'static Kind, opens_at: OffsetDateTime, now: OffsetDateTime) -> Problem {
    let problem = Problem::new(kind).after((opens_at - now).try_into().unwrap_or_default());
    match opens_at.format(&Rfc3339) {
        Ok(text) => problem.with("opens_at", text),
        // Only years past 9999 cannot be formatted.
        Err(_) => problem,
    }
}

/// A refusal that names an order.
pub fn about(kind: &'static Kind, order_id: OrderId) -> Problem {
    Problem::new(kind).with("order_id", order_id.to_string())
}

impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::SaleNotFound => Self::new(&SALE_NOT_FOUND),
            ServiceError::OrderNotFound => Self::new(&ORDER_NOT_FOUND),
            ServiceError::Invalid { field, why } => Self::invalid(format!("{field}: {why}")),
            ServiceError::Unavailable { what, retry_after } => Self::unavailable(what, retry_after),
            ServiceError::NotPayable { status } => about_order(&NOT_PAYABLE, status),
            ServiceError::NotCancellable { status } => about_order(&NOT_CANCELLABLE, status),
            ServiceError::StillQueued { retry_after } => {
                Self::new(&STILL_QUEUED).after(retry_after)
            }
            ServiceError::PaymentDeclined { reason } => {
                Self::with_detail(&PAYMENT_DECLINED, reason)
            }
            ServiceError::PaymentPending { retry_after } => {
                Self::new(&PAYMENT_PENDING).after(retry_after)
            }
            ServiceError::NoPaymentPage => Self::new(&NO_PAYMENT_PAGE),
            ServiceError::NotRefundable { status } => about_order(&NOT_REFUNDABLE, status),
            ServiceError::NotEnoughRemaining { remaining } => {
                Self::new(&NOT_ENOUGH_REMAINING).with("remaining", remaining)
            }
            ServiceError::Postgres(error) if stores::postgres::is_away(&error) => {
                away("postgres", &error)
            }
            ServiceError::Redis(error) if stores::redis::is_away(&error) => away("redis", &error),
            ServiceError::Injected(error) => away("a fail point", &error),
            ServiceError::Postgres(error) => internal("postgres", &error),
            ServiceError::Redis(error) => internal("redis", &error),
            error @ ServiceError::Ids(_) => internal("ids", &error),
        }
    }
}

/// Not in `status`, which RFC 9457 takes for the HTTP status.
fn about_order(kind: &'static Kind, status: OrderStatus) -> Problem {
    let status = status.as_str();
    Problem::with_detail(kind, format!("The order is {status}.")).with("order_status", status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{
        body::Body,
        response::{IntoResponse, Response},
    };
    use serde_json::{Value, json};
    use std::time::Duration;
    use time::macros::datetime;

    async fn answer(problem: Problem) -> (Response, Value) {
        let (parts, body) = problem.into_response().into_parts();
        let body = axum::body::to_bytes(body, 4096).await.expect("a body");
        let json = serde_json::from_slice(&body).expect("JSON");
        (Response::from_parts(parts, Body::empty()), json)
    }

    fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
        response.headers().get(name).map(|value| value.to_str().expect("ascii"))
    }

    #[tokio::test]
    async fn every_kind_has_all_members_and_its_own_code() {
        let mut codes = std::collections::HashSet::new();
        let kinds = [ALL, web::problem::ALL, lab::http::ALL_KINDS, ::payments::problem::ALL];
        for kind in kinds.concat() {
            assert!(codes.insert(kind.code), "{} twice", kind.code);
            let (response, body) = answer(Problem::new(kind)).await;
            assert_eq!(response.status(), kind.status);
            assert_eq!(header(&response, "content-type"), Some("application/problem+json"));
            let expected = json!({
                "type": format!("/problems/{}", kind.code), "title": kind.title,
                "status": kind.status.as_u16(), "detail": kind.detail, "code": kind.code,
            });
            assert_eq!(body, expected);
        }
    }

    #[tokio::test]
    async fn refusals_say_what_helps() {
        let now = datetime!(2026-11-20 10:00 UTC);
        let refused = |refusal| of_refusal(refusal, now).expect("a refusal");

        let opens_at = now + Duration::from_millis(1_500);
        let (response, body) = answer(refused(PurchaseResult::NotOpen { opens_at })).await;
        assert_eq!(
            (response.status().as_u16(), header(&response, "retry-after")),
            (409, Some("2"))
        );
        assert_eq!(
            (&body["code"], &body["opens_at"]),
            (&json!("not_open"), &json!("2026-11-20T10:00:01.5Z"))
        );

        // The clock passed the opening in between.
        let (response, _) =
            answer(refused(PurchaseResult::NotOpen { opens_at: now - Duration::from_secs(9) }))
                .await;
        assert_eq!(header(&response, "retry-after"), Some("1"));

        let order_id = OrderId::from_i64(7);
        let (_, body) = answer(refused(PurchaseResult::AlreadyOrdered { order_id })).await;
        assert_eq!((&body["code"], &body["order_id"]), (&json!("already_ordered"), &json!("7")));

        assert!(of_refusal(PurchaseResult::Accepted { order_id, replayed: false }, now).is_none());
    }

    #[tokio::test]
    async fn an_order_that_cannot_be_paid_says_where_it_stands() {
        let (response, body) =
            answer(ServiceError::NotPayable { status: OrderStatus::Expired }.into()).await;
        assert_eq!(response.status(), 409);
        assert_eq!((&body["status"], &body["order_status"]), (&json!(409), &json!("expired")));
    }

    #[tokio::test]
    async fn waiting_is_rounded_up() {
        let (response, body) = answer(Problem::rate_limited(Duration::from_micros(50_001))).await;
        assert_eq!(
            (header(&response, "retry-after"), &body["retry_after_ms"]),
            (Some("1"), &json!(51))
        );
        let (response, _) = answer(Problem::rate_limited(Duration::from_millis(2_001))).await;
        assert_eq!(header(&response, "retry-after"), Some("3"));
    }

    #[tokio::test]
    async fn a_dependency_that_is_away_is_503_and_anything_else_500_without_its_words() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        for error in [
            ServiceError::Postgres(sqlx::Error::PoolTimedOut),
            ServiceError::Postgres(sqlx::Error::Protocol("broken off".to_owned())),
            ServiceError::Postgres(sqlx::Error::Io(std::io::Error::from(refused.kind()))),
            ServiceError::Redis(refused.into()),
        ] {
            let (response, body) = answer(error.into()).await;
            assert_eq!(
                (response.status().as_u16(), header(&response, "retry-after")),
                (503, Some("1"))
            );
            assert_eq!(body["code"], "unavailable");
        }
        let (response, body) =
            answer(ServiceError::Postgres(sqlx::Error::RowNotFound).into()).await;
        assert_eq!(response.status(), 500);
        assert_eq!(body["detail"], INTERNAL.detail);
        let wrong_type =
            redis::RedisError::from((redis::ErrorKind::UnexpectedReturnType, "secret words"));
        let (response, body) = answer(ServiceError::Redis(wrong_type).into()).await;
        assert_eq!(response.status(), 500);
        assert_eq!(body["detail"], INTERNAL.detail);
    }
}
