//! Refusals and errors as HTTP has them: `application/problem+json` (RFC 9457).
//!
//! Every problem is one [`Kind`], a constant with a stable `code`; the same constants document the
//! operations in OpenAPI (see `openapi.rs`). A problem without particulars is the same bytes every
//! time, so its body is written once: "sold out" is what most buyers of a flash sale hear.

use super::limit::{Policy, RATELIMIT, RATELIMIT_POLICY};
use crate::postgres;
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

impl Kind {
    pub const fn new(
        status: StatusCode,
        code: &'static str,
        uri: &'static str,
        title: &'static str,
        detail: &'static str,
    ) -> Self {
        Self {
            status,
            code,
            uri,
            title,
            detail,
            plain: OnceLock::new(),
        }
    }
}

/// Declares kinds, each as a constant: `NAME = STATUS "code", "title", "detail";`
macro_rules! kinds {
    ($($name:ident = $status:ident $code:literal, $title:literal, $detail:literal;)*) => {
        $(pub static $name: $crate::web::problem::Kind = $crate::web::problem::Kind::new(
            axum::http::StatusCode::$status, $code, concat!("/problems/", $code), $title, $detail,
        );)*

        #[cfg(test)]
        pub static ALL: &[&$crate::web::problem::Kind] = &[$(&$name),*];
    };
}
pub(crate) use kinds;

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
    UNSUPPORTED_MEDIA_TYPE = UNSUPPORTED_MEDIA_TYPE "unsupported_media_type", "Unsupported media type",
        "The body has to be JSON, with content-type application/json.";
    INVALID = UNPROCESSABLE_ENTITY "invalid", "Invalid request", "The request does not say what it should.";
    RATE_LIMITED = TOO_MANY_REQUESTS "rate_limited", "Too many requests", "Slow down and try again.";
    INTERNAL = INTERNAL_SERVER_ERROR "internal", "Internal error", "Something went wrong on our side.";
    UNAVAILABLE = SERVICE_UNAVAILABLE "unavailable", "Temporarily unavailable",
        "Nothing is known to have been decided; a retry is safe.";
}

/// A refusal or an error on its way out.
#[derive(Debug)]
pub struct Problem {
    kind: &'static Kind,
    /// `None`: the kind's own.
    detail: Option<Cow<'static, str>>,
    retry_after: Option<Duration>,
    /// The limit of which nothing is left.
    limit: Option<&'static Policy>,
    /// A member that only some problems have.
    extra: Option<(&'static str, Value)>,
}

/// How long a client should wait when a dependency fails; most failures are over by then.
const RETRY_SOON: Duration = Duration::from_secs(1);

impl Problem {
    pub const fn new(kind: &'static Kind) -> Self {
        Self {
            kind,
            detail: None,
            retry_after: None,
            limit: None,
            extra: None,
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
        Self::new(&RATE_LIMITED)
            .after(wait)
            .with("retry_after_ms", wait_ms)
    }

    /// Nothing is left of a limit for so long.
    pub fn limited(policy: &'static Policy, wait: Duration) -> Self {
        Self {
            limit: Some(policy),
            ..Self::rate_limited(wait)
        }
    }

    pub fn unavailable(what: &'static str, retry_after: Duration) -> Self {
        Self::with_detail(&UNAVAILABLE, what).after(retry_after)
    }

    /// The same with a Retry-After.
    pub fn after(self, wait: Duration) -> Self {
        Self {
            retry_after: Some(wait),
            ..self
        }
    }

    /// The same with one more member.
    pub fn with(self, member: &'static str, value: impl Into<Value>) -> Self {
        Self {
            extra: Some((member, value.into())),
            ..self
        }
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

pub fn away(dependency: &str, error: &(dyn std::error::Error + 'static)) -> Problem {
    tracing::warn!(dependency, error, "a dependency did not answer");
    Problem::new(&UNAVAILABLE).after(RETRY_SOON)
}

/// What went wrong goes to the log and not to the client.
pub fn internal(dependency: &str, error: &(dyn std::error::Error + 'static)) -> Problem {
    tracing::error!(dependency, error, "a request failed");
    Problem::new(&INTERNAL)
}

/// Whether trying again later can help: Postgres is unreachable, busy, starting, stopping, or has
/// just become a standby.
pub fn postgres_is_away(error: &sqlx::Error) -> bool {
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
pub fn redis_is_away(error: &redis::RedisError) -> bool {
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
