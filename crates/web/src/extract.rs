//! Extractors: origin, ids of the path, the query.

use super::{
    body::shortened,
    problem::{CROSS_ORIGIN, Kind, NOT_FOUND, Problem},
};
use axum::{
    extract::{FromRequestParts, Path, Query},
    http::{
        HeaderMap, Uri,
        header::{HOST, ORIGIN},
        request::Parts,
    },
};
use serde::de::DeserializeOwned;
use std::str::FromStr;

/// 403 for a request by a page of another site.
///
/// Browsers send `Sec-Fetch-Site`, or at least the page's `Origin` with every POST. A client that
/// sends neither is no browser, so no page abuses its cookie.
pub fn refuse_cross_origin(parts: &Parts) -> Result<(), Problem> {
    let text =
        |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap_or("(not text)"));
    let same = match (text("sec-fetch-site"), text(ORIGIN.as_str())) {
        // "none": not caused by a page, such as a typed address.
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => {
            host(&parts.headers, &parts.uri).is_some_and(|host| is_origin_of(origin, host))
        }
        (None, None) => true,
    };
    if same { Ok(()) } else { Err(Problem::new(&CROSS_ORIGIN)) }
}

/// Whom the request was meant for.
pub fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    // HTTP/2 has the authority in the URI.
    headers
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .or_else(|| uri.authority().map(|host| host.as_str()))
}

/// Only the authority is compared: a proxy may have terminated TLS.
fn is_origin_of(origin: &str, host: &str) -> bool {
    let authority = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

/// An id that a path can name.
pub trait Named: FromStr {
    /// The problem for a missing or malformed id.
    const MISSING: &'static Kind;
}

/// An id whose form is judged by whoever looks for it.
impl Named for String {
    const MISSING: &'static Kind = &NOT_FOUND;
}

/// The `{id}` of the path.
pub struct Id<T>(pub T);

impl<T: Named, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let found = Path::<String>::from_request_parts(parts, state).await;
        // One that is no text is nobody's id either.
        let text = found.map_or_else(|_| String::new(), |Path(text)| text);
        text.parse().map(Self).map_err(|_| Problem::new(T::MISSING))
    }
}

/// The query string; an unknown or malformed parameter is 422, not ignored.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(rejection) => Err(Problem::invalid(shortened(rejection.body_text()))),
        }
    }
}
