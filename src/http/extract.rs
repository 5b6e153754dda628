//! Extractors: the caller, ids, pages, idempotency keys.
//!
//! Extractors run in the order of a handler's arguments, and the first refusal is the answer. So
//! handlers that take [`Shopper`] or [`Admin`] first tell unauthenticated callers nothing else.

use super::access_policy::Credentials;
use super::error::{Kind, NOT_FOUND, ORDER_NOT_FOUND, Problem, SALE_NOT_FOUND, UNAUTHENTICATED};
use super::limits::{ADDRESS, USER};
use super::state::App;
use crate::access::bots::limits::Refused;
use crate::auth::Identity;
use crate::domain::{IdempotencyKey, OrderId, SaleId, UserId};
use crate::orders::queries::Page;
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum_extra::extract::CookieJar;
use std::convert::Infallible;
use std::time::Duration;
use web::address::Address;

pub use web::extract::{Id, Named, Params, refuse_cross_origin};

/// The cookie that holds a browser's token.
pub const SESSION_COOKIE: &str = "session";

/// A shopper with a token that is valid by Redis' clock: steps of the local clock do not matter.
pub struct Shopper(pub Identity);

impl FromRequestParts<App> for Shopper {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let verify = |token: &str| app.tokens.verify(token, app.services.catalog.now());
        // A header takes precedence over a cookie.
        let identity = if parts.headers.contains_key(AUTHORIZATION) {
            bearer(&parts.headers).and_then(verify)
        } else {
            let cookies = CookieJar::from_headers(&parts.headers);
            let cookie = cookies.get(SESSION_COOKIE);
            let identity = cookie.and_then(|cookie| verify(cookie.value()));
            if identity.is_some() && !parts.method.is_safe() {
                refuse_cross_origin(parts)?;
            }
            identity
        };
        identity.map(Self).ok_or(Problem::new(&UNAUTHENTICATED))
    }
}

/// Retry-After while shared limits cannot be checked.
const UNCOUNTED_WAIT: Duration = Duration::from_secs(1);

/// The client's address, for limits.
fn address_of(parts: &Parts, app: &App) -> Address {
    Address::of(&parts.extensions, &parts.headers, app.trust_proxy)
}

/// A shopper within the limits of changing requests.
pub struct PacedShopper(pub UserId);

impl FromRequestParts<App> for PacedShopper {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Shopper(Identity { user_id, .. }) = Shopper::from_request_parts(parts, app).await?;
        if let Some(limits) = &app.limits {
            limits.check_user(user_id)?;
        }
        if let Some(shared) = &app.access.bots.limits {
            let address = address_of(parts, app).to_string();
            // Boxed to keep the hot future small.
            let checked = Box::pin(shared.check(user_id, address)).await;
            checked.map_err(|refused| match refused {
                Refused::TooMany { limit, wait } => {
                    Problem::limited(if limit == USER.name { &USER } else { &ADDRESS }, wait)
                }
                Refused::Uncounted => {
                    Problem::unavailable("requests cannot be counted at the moment", UNCOUNTED_WAIT)
                }
            })?;
        }
        Ok(Self(user_id))
    }
}

/// A caller with the admin token. Without a configured one the admin API answers 404.
pub struct Admin;

impl FromRequestParts<App> for Admin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Some(admin) = &app.admin else {
            return Err(Problem::new(&NOT_FOUND));
        };
        let (limits, address) = (app.limits.as_deref(), address_of(parts, app));
        if bearer(&parts.headers).is_some_and(|token| admin.matches(token.as_bytes())) {
            return Ok(Self);
        }
        tracing::warn!(%address, "a request without the right admin token");
        limits.map_or(Ok(()), |limits| limits.admin_failed(address))?;
        Err(Problem::new(&UNAUTHENTICATED))
    }
}

/// The token of `Authorization: Bearer TOKEN`; the scheme's case does not matter (RFC 9110 §11.1).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The client's address.
pub struct Caller(pub Address);

impl FromRequestParts<App> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        Ok(Self(address_of(parts, app)))
    }
}

impl Named for SaleId {
    const MISSING: &'static Kind = &SALE_NOT_FOUND;
}

impl Named for OrderId {
    const MISSING: &'static Kind = &ORDER_NOT_FOUND;
}

/// The page of the query's `limit` and `after`.
pub fn page(
    limit: Option<u16>,
    after: Option<OrderId>,
    usual: u16,
    most: u16,
) -> Result<Page, Problem> {
    let limit = limit.unwrap_or(usual);
    if limit == 0 || limit > most {
        return Err(Problem::invalid(format!("limit: must be from 1 to {most}")));
    }
    Ok(Page { limit, after })
}

/// Access credentials, read only if a sale might ask for them.
pub struct MaybeCredentials(pub Option<Credentials>);

impl FromRequestParts<App> for MaybeCredentials {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        let asked_for = app.services.catalog.cache.asks_for_access();
        Ok(Self(asked_for.then(|| Credentials::of(&parts.headers))))
    }
}

/// `Idempotency-Key`, if there is one.
pub struct RetryKey(pub Option<IdempotencyKey>);

impl<S: Send + Sync> FromRequestParts<S> for RetryKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut keys = parts.headers.get_all("idempotency-key").iter();
        let Some(key) = keys.next() else {
            return Ok(Self(None));
        };
        match IdempotencyKey::parse(key.as_bytes()) {
            Some(key) if keys.next().is_none() => Ok(Self(Some(key))),
            _ => {
                let why = "must be one value of 1 to 64 printable ASCII characters";
                Err(Problem::invalid(format!("Idempotency-Key: {why}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing;
    use axum::http::{Method, Request, StatusCode, Uri};
    use proptest::prelude::*;
    use serde::de::DeserializeOwned;
    use time::{Duration, OffsetDateTime};

    fn parts(method: Method, headers: &[(&str, &str)]) -> Parts {
        let mut request =
            Request::builder().method(method).uri("/").header("host", "shop.example:8080");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    async fn who(
        app: &App,
        method: Method,
        headers: &[(&str, &str)],
    ) -> Result<UserId, &'static str> {
        let found = Shopper::from_request_parts(&mut parts(method, headers), app).await;
        found.map(|Shopper(identity)| identity.user_id).map_err(|problem| problem.kind().code)
    }

    /// A query is read, or refused as `invalid` and nothing else; `None`: no URI can have it.
    fn is_read_or_invalid<T: DeserializeOwned>(text: &str) -> bool {
        matches!(query::<T>(text), None | Some(Ok(_) | Err("invalid")))
    }

    #[tokio::test]
    async fn a_shopper_comes_by_header_or_by_cookie() {
        let app = testing::app();
        let user = UserId::random();
        let token = app.tokens.mint(user, "Ada", OffsetDateTime::now_utc() + Duration::HOUR);
        let (header, cookie) = (format!("Bearer {token}"), format!("a=b; session={token}"));

        assert_eq!(who(&app, Method::POST, &[("authorization", &header)]).await, Ok(user));
        assert_eq!(
            who(&app, Method::GET, &[("authorization", &header.replace("Bearer", "bearer"))]).await,
            Ok(user)
        );
        assert_eq!(who(&app, Method::GET, &[("cookie", &cookie)]).await, Ok(user));
        for headers in [
            &[][..],
            &[("authorization", "Bearer nonsense")],
            &[("authorization", "Basic YTpi")],
            &[("authorization", token.as_str())],
            &[("cookie", "session=nonsense")],
            // The header decides.
            &[("authorization", "Bearer nonsense"), ("cookie", &cookie)],
        ] {
            assert_eq!(
                who(&app, Method::GET, headers).await,
                Err("unauthenticated"),
                "{headers:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_cookie_counts_only_for_this_sites_own_pages() {
        let app = testing::app();
        let user = UserId::random();
        let token = app.tokens.mint(user, "Ada", OffsetDateTime::now_utc() + Duration::HOUR);
        let (header, cookie) = (format!("Bearer {token}"), format!("session={token}"));
        let with = |name: &'static str, value: &'static str| {
            [("cookie", cookie.clone()), (name, value.to_owned())]
        };
        let ask = async |method: Method, headers: [(&str, String); 2]| {
            let headers: Vec<_> =
                headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            who(&app, method, &headers).await
        };
        for (name, value, expected) in [
            ("sec-fetch-site", "same-origin", Ok(user)),
            ("sec-fetch-site", "none", Ok(user)),
            ("sec-fetch-site", "same-site", Err("cross_origin")),
            ("sec-fetch-site", "cross-site", Err("cross_origin")),
            ("origin", "http://shop.example:8080", Ok(user)),
            ("origin", "https://SHOP.example:8080", Ok(user)),
            ("origin", "http://shop.example", Err("cross_origin")),
            ("origin", "http://evil.example:8080", Err("cross_origin")),
            ("origin", "null", Err("cross_origin")),
            ("accept", "*/*", Ok(user)),
        ] {
            for method in [Method::POST, Method::PATCH, Method::DELETE] {
                assert_eq!(ask(method, with(name, value)).await, expected, "{name}: {value}");
            }
            assert_eq!(ask(Method::GET, with(name, value)).await, Ok(user));
        }
        // A bearer token is nothing a browser sends by itself.
        let by_header = [("authorization", header), ("sec-fetch-site", "cross-site".to_owned())];
        assert_eq!(ask(Method::POST, by_header).await, Ok(user));
    }

    #[tokio::test]
    async fn the_shops_clock_says_whether_a_token_is_valid() {
        let app = testing::app();
        let user = UserId::random();
        let wall = OffsetDateTime::now_utc();
        let header = format!("Bearer {}", app.tokens.mint(user, "Ada", wall + Duration::HOUR));
        let ask = async || who(&app, Method::GET, &[("authorization", &header)]).await;
        // Redis was never asked here: until then the estimate is this machine's clock.
        assert_eq!(ask().await, Ok(user));
        // As if this machine's clock were a day behind Redis', and then a day ahead of it.
        for (days, expected) in [(1, Err("unauthenticated")), (-1, Ok(user))] {
            let redis_ms = (wall + Duration::days(days)).unix_timestamp() * 1_000;
            app.services.catalog.cache.clock.read(redis_ms, std::time::Instant::now());
            assert_eq!(ask().await, expected, "{days}");
        }
    }

    #[tokio::test]
    async fn the_admin_api_is_hidden_shut_or_open() {
        let ask = async |app: &App, value: &str| {
            let found = Admin::from_request_parts(
                &mut parts(Method::GET, &[("authorization", value)]),
                app,
            )
            .await;
            found.map(|_| ()).map_err(|problem| problem.kind().status)
        };
        let app = testing::app();
        assert_eq!(ask(&app, &format!("Bearer {}", testing::ADMIN)).await, Ok(()));
        assert_eq!(ask(&app, "Bearer wrong").await, Err(StatusCode::UNAUTHORIZED));
        assert_eq!(ask(&app, "").await, Err(StatusCode::UNAUTHORIZED));
        let hidden = testing::app_with(|state| state.admin = None);
        assert_eq!(
            ask(&hidden, &format!("Bearer {}", testing::ADMIN)).await,
            Err(StatusCode::NOT_FOUND)
        );
    }

    #[test]
    fn a_page_has_its_bounds() {
        assert_eq!(page(None, None, 20, 100).map(|page| page.limit).ok(), Some(20));
        assert_eq!(page(Some(100), None, 20, 100).map(|page| page.limit).ok(), Some(100));
        assert!(page(Some(0), None, 20, 100).is_err());
        assert!(page(Some(101), None, 20, 100).is_err());
    }

    #[tokio::test]
    async fn an_idempotency_key_is_good_or_refused() {
        let ask = async |headers: &[(&str, &str)]| {
            let found = RetryKey::from_request_parts(&mut parts(Method::POST, headers), &()).await;
            found.map(|RetryKey(key)| key.is_some()).map_err(|problem| problem.kind().code)
        };
        let long = "k".repeat(65);
        assert_eq!(ask(&[]).await, Ok(false));
        assert_eq!(ask(&[("idempotency-key", "my key")]).await, Ok(true));
        assert_eq!(ask(&[("idempotency-key", "")]).await, Err("invalid"));
        assert_eq!(ask(&[("idempotency-key", &long)]).await, Err("invalid"));
        assert_eq!(
            ask(&[("idempotency-key", "a"), ("idempotency-key", "a")]).await,
            Err("invalid")
        );
    }

    fn with_header(name: &'static str, value: &[u8]) -> Option<Parts> {
        let mut parts = parts(Method::POST, &[]);
        let value = axum::http::HeaderValue::from_bytes(value).ok()?;
        parts.headers.insert(name, value);
        Some(parts)
    }

    fn query<T: DeserializeOwned>(query: &str) -> Option<Result<T, &'static str>> {
        let uri = format!("/?{query}").parse::<Uri>().ok()?;
        let mut parts = parts(Method::GET, &[]);
        parts.uri = uri;
        let found = futures_util::FutureExt::now_or_never(Params::<T>::from_request_parts(
            &mut parts,
            &(),
        ))?;
        Some(found.map(|Params(params)| params).map_err(|problem| problem.kind().code))
    }

    proptest! {
        #[test]
        fn any_header_is_a_shopper_or_unauthenticated(
            name in prop::sample::select(vec!["authorization", "cookie"]),
            value in prop::collection::vec(any::<u8>(), 0..80),
            prefix in prop::sample::select(vec!["", "Bearer ", "bearer\t", "session=",
                "a=b; session=", "session=%", "session=\"a"]),
        ) {
            let value = [prefix.as_bytes(), &value].concat();
            if let Some(mut parts) = with_header(name, &value) {
                // The pools of this app belong to a runtime; nothing here waits for anything.
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = runtime.enable_all().build().expect("a runtime");
                runtime.block_on(async {
                    let app = testing::app();
                    assert!(Shopper::from_request_parts(&mut parts, &app).await.is_err());
                    assert!(Admin::from_request_parts(&mut parts, &app).await.is_err());
                });
            }
        }

        #[test]
        fn any_origin_is_ours_or_refused(
            name in prop::sample::select(vec!["origin", "sec-fetch-site"]),
            value in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            if let Some(parts) = with_header(name, &value) {
                let ours = ["same-origin", "none", "http://shop.example:8080",
                    "https://shop.example:8080"];
                let is_ours = ours.iter().any(|ours| value.eq_ignore_ascii_case(ours.as_bytes()));
                prop_assert!(is_ours || refuse_cross_origin(&parts).is_err());
            }
        }

        #[test]
        fn any_idempotency_key_is_good_or_refused(
            value in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            if let Some(mut parts) = with_header("idempotency-key", &value) {
                let asked = RetryKey::from_request_parts(&mut parts, &());
                let found = futures_util::FutureExt::now_or_never(asked);
                let key = found.expect("it waits for nothing").ok().and_then(|RetryKey(key)| key);
                let sent = parts.headers["idempotency-key"].as_bytes();
                prop_assert_eq!(key, IdempotencyKey::parse(sent));
            }
        }

        #[test]
        fn any_query_is_read_or_invalid(
            text in "(limit|after|status|state|[a-z%]{1,4})?=?[0-9a-z%+&=._-]{0,30}|[ -~]{0,40}",
        ) {
            use crate::http::{admin::SaleOrdersParams, orders::OrdersParams, sales::SalesParams};
            prop_assert!(is_read_or_invalid::<OrdersParams>(&text));
            prop_assert!(is_read_or_invalid::<SaleOrdersParams>(&text));
            prop_assert!(is_read_or_invalid::<SalesParams>(&text));
        }

        #[test]
        fn a_page_is_within_its_bounds(limit: Option<u16>, most in 1u16..2_000) {
            match page(limit, None, 1, most) {
                Ok(page) => prop_assert!((1..=most).contains(&page.limit)),
                Err(_) => prop_assert!(limit.is_some_and(|limit| limit == 0 || limit > most)),
            }
        }
    }
}
