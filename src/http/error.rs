//! The one place where refusals and errors become HTTP: `application/problem+json` (RFC 9457).
//!
//! Every problem is one [`Kind`], a constant with a stable `code`; the same constants document the
//! operations in OpenAPI (see `openapi.rs`). A problem without particulars is the same bytes every
//! time, so its body is written once: "sold out" is what most buyers of a flash sale hear.

use super::limits::Policy;
use crate::{
    domain::{Admission, OrderId, OrderStatus},
    lab::LabError,
    postgres,
    sale::ShopError,
};
use axum::{
    body::{Body, Bytes},
    http::{
        HeaderName, HeaderValue, StatusCode,
        header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use serde::Serialize;
use std::{any::Any, borrow::Cow, sync::OnceLock, time::Duration};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// What can be wrong, as far as a program needs to know.
#[derive(Debug)]
pub struct Kind {
    pub status: StatusCode,
    /// Stable; the last segment of the problem's `type`.
    pub code: &'static str,
    pub uri: &'static str,
    pub title: &'static str,
    /// Said where there is nothing more particular to say.
    pub detail: &'static str,
    /// The body of this problem without particulars.
    plain: OnceLock<Bytes>,
}

macro_rules! kinds {
    ($($name:ident = $status:ident $code:literal, $title:literal, $detail:literal;)*) => {
        $(pub static $name: Kind = Kind {
            status: StatusCode::$status,
            code: $code,
            uri: concat!("/problems/", $code),
            title: $title,
            detail: $detail,
            plain: OnceLock::new(),
        };)*

        #[cfg(test)]
        pub static ALL: &[&Kind] = &[$(&$name),*];
    };
}

kinds! {
    UNAUTHENTICATED = UNAUTHORIZED "unauthenticated", "Not authenticated",
        "A valid token is needed and was not sent.";
    CROSS_ORIGIN = FORBIDDEN "cross_origin", "Cross-origin request",
        "This counts only for requests from this site's own pages.";
    NOT_FOUND = NOT_FOUND "not_found", "Not found", "There is nothing at this address.";
    SALE_NOT_FOUND = NOT_FOUND "sale_not_found", "No such sale", "There is no sale with this id.";
    ORDER_NOT_FOUND = NOT_FOUND "order_not_found", "No such order", "You have no order with this id.";
    ARENA_NOT_FOUND = NOT_FOUND "arena_not_found", "No such arena", "There is no arena with this id (any more).";
    LESSON_NOT_FOUND = NOT_FOUND "lesson_not_found", "No such lesson", "There is no lesson with this id.";
    METHOD_NOT_ALLOWED = METHOD_NOT_ALLOWED "method_not_allowed", "Method not allowed",
        "This address does not answer to this method.";
    REQUEST_TIMEOUT = REQUEST_TIMEOUT "request_timeout", "Request timeout",
        "The request did not arrive in time.";
    NOT_OPEN = CONFLICT "not_open", "Not open yet", "The sale has not opened yet.";
    PAUSED = CONFLICT "paused", "Paused", "The sale is paused.";
    ENDED = CONFLICT "ended", "Ended", "The sale has ended.";
    SOLD_OUT = CONFLICT "sold_out", "Sold out", "Nothing is left at this moment.";
    ALREADY_ORDERED = CONFLICT "already_ordered", "Already ordered",
        "You hold as many orders of this sale as it allows.";
    PASS_NOT_FOUND = NOT_FOUND "pass_not_found", "No pass", "This sale asks for no pass: buy without one.";
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
    PASS_INVALID = FORBIDDEN "pass_invalid", "Pass not valid", "This pass was not given to you for this sale.";
    PASS_EXPIRED = CONFLICT "pass_expired", "Pass expired", "The pass has expired: ask for a new one.";
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
    NOT_CANCELLABLE = CONFLICT "not_cancellable", "Not cancellable", "The order cannot be cancelled any more.";
    NOT_ENOUGH_REMAINING = CONFLICT "not_enough_remaining", "Not enough remaining",
        "At most what remains can be taken away.";
    TOO_MANY_ARENAS = CONFLICT "too_many_arenas", "Too many arenas",
        "The lab has as many arenas as it may; delete one, or wait until one is too old.";
    TOO_MANY_STORMS = TOO_MANY_REQUESTS "too_many_storms", "Too many storms",
        "As many storms are going on as the lab allows; try again in a moment.";
    STORM_RUNNING = CONFLICT "storm_running", "A storm is running", "One storm at a time in each arena.";
    STRATEGY_UNAVAILABLE = CONFLICT "strategy_unavailable", "Strategy unavailable",
        "This strategy needs a server that is not there.";
    LESSON_UNAVAILABLE = CONFLICT "lesson_unavailable", "Lesson unavailable",
        "This lesson needs a server that is not there.";
    TOO_LARGE = PAYLOAD_TOO_LARGE "too_large", "Too large", "A request's body has at most 16 KiB.";
    UNSUPPORTED_MEDIA_TYPE = UNSUPPORTED_MEDIA_TYPE "unsupported_media_type", "Unsupported media type",
        "The body has to be JSON, with content-type application/json.";
    INVALID = UNPROCESSABLE_ENTITY "invalid", "Invalid request", "The request does not say what it should.";
    RATE_LIMITED = TOO_MANY_REQUESTS "rate_limited", "Too many requests", "Slow down and try again.";
    INTERNAL = INTERNAL_SERVER_ERROR "internal", "Internal error", "Something went wrong on our side.";
    UNAVAILABLE = SERVICE_UNAVAILABLE "unavailable", "Temporarily unavailable",
        "Nothing is known to have been decided; a retry is safe.";
}

/// Members that some problems add.
#[derive(Debug, Clone, Copy)]
enum Extra {
    None,
    OrderId(OrderId),
    OpensAt(OffsetDateTime),
    OrderStatus(OrderStatus),
    Remaining(i64),
    RetryAfterMs(u64),
}

/// How much is left of a limit (draft-ietf-httpapi-ratelimit-headers-10), and what the limit is.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// A refusal or an error on its way out.
#[derive(Debug)]
pub struct Problem {
    kind: &'static Kind,
    /// `None`: the kind's own.
    detail: Option<Cow<'static, str>>,
    retry_after: Option<Duration>,
    /// The limit of which nothing is left.
    limit: Option<&'static Policy>,
    extra: Extra,
}

/// How long a client should wait while others' storms go on.
const RETRY_STORM: Duration = Duration::from_secs(5);
/// How long a client should wait when a dependency fails; most failures are over by then.
const RETRY_SOON: Duration = Duration::from_secs(1);

impl Problem {
    pub const fn new(kind: &'static Kind) -> Self {
        Self {
            kind,
            detail: None,
            retry_after: None,
            limit: None,
            extra: Extra::None,
        }
    }

    pub fn with_detail(kind: &'static Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            detail: Some(detail.into()),
            ..Self::new(kind)
        }
    }

    pub fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::with_detail(&INVALID, detail)
    }

    pub fn rate_limited(wait: Duration) -> Self {
        let wait_ms = u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
        Self {
            retry_after: Some(wait),
            extra: Extra::RetryAfterMs(wait_ms),
            ..Self::new(&RATE_LIMITED)
        }
    }

    /// Nothing is left of a limit for so long.
    pub fn limited(policy: &'static Policy, wait: Duration) -> Self {
        Self {
            limit: Some(policy),
            ..Self::rate_limited(wait)
        }
    }

    pub fn unavailable(what: &'static str, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::with_detail(&UNAVAILABLE, what)
        }
    }

    /// A purchase that did not become an order; `now` is the clock that judges the window.
    ///
    /// `None` for [`Admission::Accepted`], which is no refusal.
    pub fn of_refusal(refusal: Admission, now: OffsetDateTime) -> Option<Self> {
        Some(match refusal {
            Admission::Accepted { .. } => return None,
            Admission::AlreadyOrdered { order_id } => Self::about(&ALREADY_ORDERED, order_id),
            Admission::SoldOut => Self::new(&SOLD_OUT),
            Admission::NotOpen { opens_at } => Self::not_before(&NOT_OPEN, opens_at, now),
            Admission::Paused => Self::new(&PAUSED),
            Admission::Ended => Self::new(&ENDED),
        })
    }

    /// A refusal that passes at `opens_at`.
    pub fn not_before(kind: &'static Kind, opens_at: OffsetDateTime, now: OffsetDateTime) -> Self {
        Self {
            retry_after: Some((opens_at - now).try_into().unwrap_or(Duration::ZERO)),
            extra: Extra::OpensAt(opens_at),
            ..Self::new(kind)
        }
    }

    /// A refusal because of an order that there is.
    pub fn about(kind: &'static Kind, order_id: OrderId) -> Self {
        Self {
            extra: Extra::OrderId(order_id),
            ..Self::new(kind)
        }
    }

    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// The body, for an event of a stream.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body()).unwrap_or_default()
    }

    fn body(&self) -> Bytes {
        match (&self.detail, self.extra) {
            (None, Extra::None) => self.kind.plain.get_or_init(|| self.write_body()).clone(),
            _ => self.write_body(),
        }
    }

    fn write_body(&self) -> Bytes {
        let mut body = ProblemBody {
            uri: self.kind.uri,
            title: self.kind.title,
            status: self.kind.status.as_u16(),
            detail: self.detail.as_deref().unwrap_or(self.kind.detail),
            code: self.kind.code,
            order_id: None,
            opens_at: None,
            order_status: None,
            remaining: None,
            retry_after_ms: None,
        };
        match self.extra {
            Extra::None => {}
            Extra::OrderId(order_id) => body.order_id = Some(order_id),
            Extra::OpensAt(opens_at) => body.opens_at = Some(opens_at),
            Extra::OrderStatus(status) => body.order_status = Some(status),
            Extra::Remaining(remaining) => body.remaining = Some(remaining),
            Extra::RetryAfterMs(wait) => body.retry_after_ms = Some(wait),
        }
        let mut bytes = Vec::with_capacity(320);
        if let Err(error) = serde_json::to_writer(&mut bytes, &body) {
            // Only a year past 9999 could do it.
            tracing::error!(%error, code = self.kind.code, "a problem could not be written");
        }
        bytes.into()
    }
}

/// An error as RFC 9457 has it. Programs branch on `code`; the other members are for people, or
/// belong to some codes only.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody<'a> {
    /// A relative reference that identifies the kind of problem.
    #[serde(rename = "type")]
    #[schema(example = "/problems/sold_out")]
    uri: &'a str,
    #[schema(example = "Sold out")]
    title: &'a str,
    /// The HTTP status.
    #[schema(example = 409)]
    status: u16,
    detail: &'a str,
    #[schema(example = "sold_out")]
    code: &'a str,
    /// With `already_ordered` and `admission_used`: the order you hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    order_id: Option<OrderId>,
    /// With `not_open` and `waiting_room_not_open`.
    #[serde(
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    opens_at: Option<OffsetDateTime>,
    /// With `not_payable` and `not_cancellable`: where the order stands. (`status` is taken: RFC 9457
    /// has it be the HTTP status.)
    #[serde(skip_serializing_if = "Option::is_none")]
    order_status: Option<OrderStatus>,
    /// With `not_enough_remaining`: how many units do remain.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<i64>,
    /// With `rate_limited`: what Retry-After says, unrounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body()));
        *response.status_mut() = self.kind.status;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        if let (Some(policy), Some(wait)) = (self.limit, self.retry_after) {
            let state = format!(r#""{}";r=0;t={}"#, policy.name, whole_seconds(wait));
            headers.insert(RATELIMIT_POLICY, HeaderValue::from_static(policy.text));
            if let Ok(state) = HeaderValue::try_from(state) {
                headers.insert(RATELIMIT, state);
            }
        }
        if self.kind.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Retry-After has no fractions, and a client that comes too early is only refused again.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

impl From<ShopError> for Problem {
    fn from(error: ShopError) -> Self {
        match error {
            ShopError::SaleNotFound => Self::new(&SALE_NOT_FOUND),
            ShopError::OrderNotFound => Self::new(&ORDER_NOT_FOUND),
            ShopError::Invalid { field, why } => Self::invalid(format!("{field}: {why}")),
            ShopError::Unavailable { what, retry_after } => Self::unavailable(what, retry_after),
            ShopError::NotPayable { status } => about_order(&NOT_PAYABLE, status),
            ShopError::NotCancellable { status } => about_order(&NOT_CANCELLABLE, status),
            ShopError::StillQueued { retry_after } => Self {
                retry_after: Some(retry_after),
                ..Self::new(&STILL_QUEUED)
            },
            ShopError::PaymentDeclined { reason } => Self::with_detail(&PAYMENT_DECLINED, reason),
            ShopError::NotEnoughRemaining { remaining } => Self {
                extra: Extra::Remaining(remaining),
                ..Self::new(&NOT_ENOUGH_REMAINING)
            },
            ShopError::Postgres(error) if postgres_is_away(&error) => away("postgres", &error),
            ShopError::Redis(error) if redis_is_away(&error) => away("redis", &error),
            ShopError::Injected(error) => away("a fail point", &error),
            ShopError::Postgres(error) => internal("postgres", &error),
            ShopError::Redis(error) => internal("redis", &error),
            ShopError::Ids(error) => internal("ids", &error),
        }
    }
}

impl From<LabError> for Problem {
    fn from(error: LabError) -> Self {
        match error {
            LabError::ArenaNotFound => Self::new(&ARENA_NOT_FOUND),
            LabError::TooManyArenas => Self::new(&TOO_MANY_ARENAS),
            LabError::TooManyArenasOfAddress => {
                Self::with_detail(&TOO_MANY_ARENAS, error.to_string())
            }
            LabError::TooManyStorms => Self {
                retry_after: Some(RETRY_STORM),
                ..Self::new(&TOO_MANY_STORMS)
            },
            LabError::StormIsRunning => Self::new(&STORM_RUNNING),
            LabError::StrategyUnavailable(why) => Self::with_detail(&STRATEGY_UNAVAILABLE, why.en),
            LabError::Invalid { .. } | LabError::BadOption(_) => Self::invalid(error.to_string()),
            LabError::Postgres(error) if postgres_is_away(&error) => away("postgres", &error),
            LabError::Redis(error) if redis_is_away(&error) => away("redis", &error),
            LabError::Postgres(error) => internal("postgres", &error),
            LabError::Redis(error) => internal("redis", &error),
        }
    }
}

fn about_order(kind: &'static Kind, status: OrderStatus) -> Problem {
    Problem {
        extra: Extra::OrderStatus(status),
        ..Problem::with_detail(kind, format!("The order is {}.", status.as_str()))
    }
}

fn away(dependency: &str, error: &(dyn std::error::Error + 'static)) -> Problem {
    tracing::warn!(dependency, error, "a dependency did not answer");
    Problem {
        retry_after: Some(RETRY_SOON),
        ..Problem::new(&UNAVAILABLE)
    }
}

/// What went wrong goes to the log and not to the client.
pub(super) fn internal(dependency: &str, error: &(dyn std::error::Error + 'static)) -> Problem {
    tracing::error!(dependency, error, "a request failed");
    Problem::new(&INTERNAL)
}

/// Whether trying again later can help: Postgres is unreachable, busy, starting, stopping, or has
/// just become a standby.
pub(super) fn postgres_is_away(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => error.code().is_some_and(|code| is_passing_sqlstate(&code)),
        error => postgres::is_unreachable(error),
    }
}

/// PostgreSQL's appendix A: 08 connection exception, 28 it does not let us in, 3D there is no such database, 40
/// transaction rollback, 53 insufficient resources, 57P operator intervention (shutdown), 57014 statement timeout,
/// 55P03 lock timeout, 55000 the database takes no connections, 25006 read-only. Some take an operator to
/// mend; but a shopper who comes again later is served then.
fn is_passing_sqlstate(code: &str) -> bool {
    ["08", "28", "3D", "40", "53", "57P"]
        .iter()
        .any(|class| code.starts_with(class))
        || ["57014", "55P03", "55000", "25006"].contains(&code)
}

/// The same of Redis: unreachable, loading its data, not the primary (any more), or kept from its work.
pub(super) fn redis_is_away(error: &redis::RedisError) -> bool {
    use redis::{ErrorKind, ServerErrorKind};
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_connection_refusal()
        || matches!(
            error.kind(),
            ErrorKind::AuthenticationFailed
                | ErrorKind::ClusterConnectionNotFound
                | ErrorKind::MasterNameNotFoundBySentinel
                | ErrorKind::Server(
                    ServerErrorKind::BusyLoading
                        | ServerErrorKind::Moved
                        | ServerErrorKind::Ask
                        | ServerErrorKind::TryAgain
                        | ServerErrorKind::ClusterDown
                        | ServerErrorKind::MasterDown
                        | ServerErrorKind::ReadOnly
                )
        )
        || refuses_everything(error)
}

/// Whether Redis answers whoever asks, or whoever writes, like this: its disk or its memory is full, it lacks replicas,
/// its password has changed, a script does not end, it has too many clients. An operator's to mend, and passing.
fn refuses_everything(error: &redis::RedisError) -> bool {
    // The first that failed, where many commands went together.
    let answers = error.clone().into_server_errors();
    let Some((_, answer)) = answers.as_deref().and_then(<[_]>::first) else {
        return false;
    };
    match answer.code() {
        "MISCONF" | "OOM" | "NOREPLICAS" | "NOAUTH" | "WRONGPASS" | "NOPERM" | "BUSY" => true,
        // "unauthenticated multibulk length" is about a password too.
        "ERR" => answer.details().is_some_and(|details| {
            details.starts_with("Protocol error") || details.starts_with("max number of clients")
        }),
        _ => false,
    }
}

/// What a handler's panic is answered with: its message goes to the log (the panic hook has told where).
pub fn panicked(message: Box<dyn Any + Send>) -> Response {
    let message = message
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| message.downcast_ref::<&str>().copied())
        .unwrap_or("(no message)");
    tracing::error!(message, "a handler panicked");
    Problem::new(&INTERNAL).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use time::macros::datetime;

    async fn answer(problem: Problem) -> (Response, Value) {
        let (parts, body) = problem.into_response().into_parts();
        let body = axum::body::to_bytes(body, 4096).await.expect("a body");
        let json = serde_json::from_slice(&body).expect("JSON");
        (Response::from_parts(parts, Body::empty()), json)
    }

    fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
        response
            .headers()
            .get(name)
            .map(|value| value.to_str().expect("ascii"))
    }

    #[tokio::test]
    async fn every_kind_has_all_members_and_its_own_code() {
        let mut codes = std::collections::HashSet::new();
        for kind in ALL {
            assert!(codes.insert(kind.code), "{} twice", kind.code);
            let (response, body) = answer(Problem::new(kind)).await;
            assert_eq!(response.status(), kind.status);
            assert_eq!(
                header(&response, "content-type"),
                Some("application/problem+json")
            );
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
        let refused = |refusal| Problem::of_refusal(refusal, now).expect("a refusal");

        let opens_at = now + Duration::from_millis(1_500);
        let (response, body) = answer(refused(Admission::NotOpen { opens_at })).await;
        assert_eq!(
            (response.status().as_u16(), header(&response, "retry-after")),
            (409, Some("2"))
        );
        assert_eq!(
            (&body["code"], &body["opens_at"]),
            (&json!("not_open"), &json!("2026-11-20T10:00:01.5Z"))
        );

        // The clock passed the opening in between.
        let (response, _) = answer(refused(Admission::NotOpen {
            opens_at: now - Duration::from_secs(9),
        }))
        .await;
        assert_eq!(header(&response, "retry-after"), Some("1"));

        let order_id = OrderId::from_i64(7);
        let (_, body) = answer(refused(Admission::AlreadyOrdered { order_id })).await;
        assert_eq!(
            (&body["code"], &body["order_id"]),
            (&json!("already_ordered"), &json!("7"))
        );

        assert!(
            Problem::of_refusal(
                Admission::Accepted {
                    order_id,
                    replayed: false
                },
                now
            )
            .is_none()
        );
    }

    #[tokio::test]
    async fn an_order_that_cannot_be_paid_says_where_it_stands() {
        let (response, body) = answer(
            ShopError::NotPayable {
                status: OrderStatus::Expired,
            }
            .into(),
        )
        .await;
        assert_eq!(response.status(), 409);
        assert_eq!(
            (&body["status"], &body["order_status"]),
            (&json!(409), &json!("expired"))
        );
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
            ShopError::Postgres(sqlx::Error::PoolTimedOut),
            ShopError::Postgres(sqlx::Error::Protocol("broken off".to_owned())),
            ShopError::Postgres(sqlx::Error::Io(std::io::Error::from(refused.kind()))),
            ShopError::Redis(refused.into()),
        ] {
            let (response, body) = answer(error.into()).await;
            assert_eq!(
                (response.status().as_u16(), header(&response, "retry-after")),
                (503, Some("1"))
            );
            assert_eq!(body["code"], "unavailable");
        }
        let (response, body) = answer(ShopError::Postgres(sqlx::Error::RowNotFound).into()).await;
        assert_eq!(response.status(), 500);
        assert_eq!(body["detail"], INTERNAL.detail);
        let wrong_type =
            redis::RedisError::from((redis::ErrorKind::UnexpectedReturnType, "secret words"));
        let (response, body) = answer(ShopError::Redis(wrong_type).into()).await;
        assert_eq!(response.status(), 500);
        assert_eq!(body["detail"], INTERNAL.detail);
    }

    #[test]
    fn passing_troubles_of_postgres_are_told_by_their_state() {
        for code in [
            "08006", "28P01", "3D000", "57P01", "57P03", "53300", "55000", "40001", "25006",
        ] {
            assert!(is_passing_sqlstate(code), "{code}");
        }
        for code in ["23505", "42P01", "22003"] {
            assert!(!is_passing_sqlstate(code), "{code}");
        }
    }
}
