//! Refusals and errors in HTTP: `application/problem+json` (RFC 9457).
//!
//! Every problem has a [`Kind`], a constant with a stable `code`, which also documents operations
//! in OpenAPI (see `openapi.rs`). The body of a problem without particulars is serialized once:
//! most buyers of a flash sale get "sold out".

use crate::limit::{Policy, RATELIMIT, RATELIMIT_POLICY};
use axum::{
    body::{Body, Bytes},
    http::{
        HeaderValue, StatusCode,
        header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;
use std::{any::Any, borrow::Cow, sync::OnceLock, time::Duration};

/// A kind of problem.
#[derive(Debug)]
pub struct Kind {
    pub status: StatusCode,
    /// Stable; the last segment of the problem's `type`.
    pub code: &'static str,
    pub uri: &'static str,
    pub title: &'static str,
    /// The default detail.
    pub detail: &'static str,
    /// The body without particulars.
    plain: OnceLock<Bytes>,
}

impl Kind {
    pub const fn new(
        status: StatusCode,
        code: &'static str,
        uri: &'static str,
        title: &'static str,
        detail: &'static str,
    ) -> Self {
        Self { status, code, uri, title, detail, plain: OnceLock::new() }
    }
}

/// Declares kinds, each as a constant: `NAME = STATUS "code", "title", "detail";`
#[macro_export]
macro_rules! kinds {
    ($($name:ident = $status:ident $code:literal, $title:literal, $detail:literal;)*) => {
        $(pub static $name: $crate::problem::Kind = $crate::problem::Kind::new(
            axum::http::StatusCode::$status, $code, concat!("/problems/", $code), $title, $detail,
        );)*

        pub static ALL: &[&$crate::problem::Kind] = &[$(&$name),*];
    };
}

kinds! {
    UNAUTHENTICATED = UNAUTHORIZED "unauthenticated", "Not authenticated",
        "A valid token is needed and was not sent.";
    CROSS_ORIGIN = FORBIDDEN "cross_origin", "Cross-origin request",
        "This counts only for requests from this site's own pages.";
    NOT_FOUND = NOT_FOUND "not_found", "Not found", "There is nothing at this address.";
    METHOD_NOT_ALLOWED = METHOD_NOT_ALLOWED "method_not_allowed", "Method not allowed",
        "This address does not answer to this method.";
    REQUEST_TIMEOUT = REQUEST_TIMEOUT "request_timeout", "Request timeout",
        "The request did not arrive in time.";
    TOO_LARGE = PAYLOAD_TOO_LARGE "too_large", "Too large", "A request's body has at most 16 KiB.";
    UNSUPPORTED_MEDIA_TYPE = UNSUPPORTED_MEDIA_TYPE "unsupported_media_type",
        "Unsupported media type",
        "The body has to be JSON, with content-type application/json.";
    INVALID = UNPROCESSABLE_ENTITY "invalid", "Invalid request",
        "The request does not say what it should.";
    RATE_LIMITED = TOO_MANY_REQUESTS "rate_limited", "Too many requests",
        "Slow down and try again.";
    INTERNAL = INTERNAL_SERVER_ERROR "internal", "Internal error",
        "Something went wrong on our side.";
    UNAVAILABLE = SERVICE_UNAVAILABLE "unavailable", "Temporarily unavailable",
        "Nothing is known to have been decided; a retry is safe.";
}

/// A refusal or an error, as an answer.
#[derive(Debug)]
pub struct Problem {
    kind: &'static Kind,
    /// `None`: the kind's own.
    detail: Option<Cow<'static, str>>,
    retry_after: Option<Duration>,
    /// The limit that is used up.
    limit: Option<&'static Policy>,
    /// A member that only some problems have.
    extra: Option<(&'static str, Value)>,
}

/// Retry-After while a dependency is away; most outages are over by then.
const RETRY_SOON: Duration = Duration::from_secs(1);

impl Problem {
    pub const fn new(kind: &'static Kind) -> Self {
        Self { kind, detail: None, retry_after: None, limit: None, extra: None }
    }

    pub fn with_detail(kind: &'static Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { detail: Some(detail.into()), ..Self::new(kind) }
    }

    pub fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::with_detail(&INVALID, detail)
    }

    pub fn rate_limited(wait: Duration) -> Self {
        let wait_ms = u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
        Self::new(&RATE_LIMITED).after(wait).with("retry_after_ms", wait_ms)
    }

    /// A limit is used up for so long.
    pub fn limited(policy: &'static Policy, wait: Duration) -> Self {
        Self { limit: Some(policy), ..Self::rate_limited(wait) }
    }

    pub fn unavailable(what: &'static str, retry_after: Duration) -> Self {
        Self::with_detail(&UNAVAILABLE, what).after(retry_after)
    }

    /// The same with a Retry-After.
    pub fn after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// The same with one more member.
    pub fn with(self, member: &'static str, value: impl Into<Value>) -> Self {
        Self { extra: Some((member, value.into())), ..self }
    }

    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    fn body(&self) -> Bytes {
        match (&self.detail, &self.extra) {
            (None, None) => self.kind.plain.get_or_init(|| self.write()).clone(),
            _ => self.write(),
        }
    }

    fn write(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(320);
        serde_json::to_writer(&mut bytes, self).expect("text and numbers can be written");
        bytes.into()
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = self.kind;
        let mut members = serializer.serialize_map(None)?;
        members.serialize_entry("type", kind.uri)?;
        members.serialize_entry("title", kind.title)?;
        members.serialize_entry("status", &kind.status.as_u16())?;
        members.serialize_entry("detail", self.detail.as_deref().unwrap_or(kind.detail))?;
        members.serialize_entry("code", kind.code)?;
        if let Some((member, value)) = &self.extra {
            members.serialize_entry(member, value)?;
        }
        members.end()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body()));
        *response.status_mut() = self.kind.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
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

/// Rounded up: a client that retries too early is only refused again.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

pub fn away(dependency: &str, error: &(dyn std::error::Error + 'static)) -> Problem {
    tracing::warn!(dependency, error, "a dependency did not answer");
    Problem::new(&UNAVAILABLE).after(RETRY_SOON)
}

/// The error goes to the log, not to the client.
pub fn internal(dependency: &str, error: &(dyn std::error::Error + 'static)) -> Problem {
    tracing::error!(dependency, error, "a request failed");
    Problem::new(&INTERNAL)
}

/// The answer to a panic of a handler. The message is logged here, its place by the panic hook.
pub fn panicked(message: Box<dyn Any + Send>) -> Response {
    let message = message
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| message.downcast_ref::<&str>().copied())
        .unwrap_or("(no message)");
    tracing::error!(message, "a handler panicked");
    Problem::new(&INTERNAL).into_response()
}
