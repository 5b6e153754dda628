//! What a request says about itself: where it was sent from, the id in its path, its query.

use super::{
    body::shortened,
    problem::{CROSS_ORIGIN, Kind, Problem},
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

/// 403 for a request that a page of another site made this browser send.
///
/// Browsers say so in `Sec-Fetch-Site`, or at least name the page's `Origin` with every POST. A
/// client that sends neither is no browser, and its cookie is not being abused by a page.
pub fn refuse_cross_origin(parts: &Parts) -> Result<(), Problem> {
    let text = |name: &str| {
        parts
            .headers
            .get(name)
            .map(|value| value.to_str().unwrap_or("(not text)"))
    };
    let same = match (text("sec-fetch-site"), text(ORIGIN.as_str())) {
        // "none": the user's own doing, such as a typed address.
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => {
            host(&parts.headers, &parts.uri).is_some_and(|host| is_origin_of(origin, host))
        }
        (None, None) => true,
    };
    if same {
        Ok(())
    } else {
        Err(Problem::new(&CROSS_ORIGIN))
    }
}

fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    // HTTP/2 has the authority in the URI.
    headers
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .or_else(|| uri.authority().map(|host| host.as_str()))
}

/// Only the authority counts: a proxy may have taken the TLS off, so the scheme is not known here.
fn is_origin_of(origin: &str, host: &str) -> bool {
    let authority = origin
        .strip_prefix("https://")
        .or_else(|| origin.strip_prefix("http://"));
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

/// An id that a path can name.
pub trait Named: FromStr {
    /// What is said when there is no such thing, which goes for a malformed id too.
    const MISSING: &'static Kind;
}

/// The `{id}` of the path.
pub struct Id<T>(pub T);

impl<T: Named, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let found = Path::<String>::from_request_parts(parts, state).await;
        let id = found.ok().and_then(|Path(text)| text.parse().ok());
        id.map(Self).ok_or(Problem::new(T::MISSING))
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
