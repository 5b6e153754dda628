//! Sessions: a name and a signed token. There are no accounts: a new session is a new shopper.

use super::error::{HttpResult, Problem};
use super::extract::{SESSION_COOKIE, Shopper, refuse_cross_origin};
use super::openapi::refusals;
use super::state::App;
use crate::auth::TokenSigner;
use crate::catalog::Catalog;
use crate::config::ProxyTrust;
use crate::domain::UserId;
use axum::extract::{FromRequestParts, State};
use axum::http::header::SET_COOKIE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum_extra::extract::cookie::{Cookie, SameSite};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use time::{Duration, OffsetDateTime};
use utoipa::ToSchema;
use web::address::Address;
use web::body::{self, OptionalJson};

const LIFE: Duration = Duration::days(7);
const LONGEST_NAME: usize = 40;

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSession {
    /// 1 to 40 characters; a generated name if absent.
    #[schema(min_length = 1, max_length = 40)]
    name: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct OpenedSession<'a> {
    user_id: UserId,
    name: &'a str,
    /// For `Authorization: Bearer`; browsers get it as a cookie too.
    token: &'a str,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
}

#[derive(Serialize, ToSchema)]
pub struct Session<'a> {
    user_id: UserId,
    name: &'a str,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
}

refusals!(OpenRefusals: CROSS_ORIGIN, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED);
refusals!(ReadRefusals: UNAUTHENTICATED, RATE_LIMITED);

/// A request that may open a session: not from another site, and within the limit of its address.
///
/// Another site must not replace a visitor's session.
pub struct Newcomer;

impl FromRequestParts<App> for Newcomer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let address = Address::of(&parts.extensions, &parts.headers, app.trust_proxy);
        let limits = app.limits.as_deref();
        limits.map_or(Ok(()), |limits| limits.check_session(address))?;
        refuse_cross_origin(parts)?;
        Ok(Self)
    }
}

/// Open a session.
#[utoipa::path(
    post, path = "/api/v1/session", tag = "shopping", operation_id = "open_session",
    request_body(content = Option<NewSession>, description = "May be left out"),
    responses(
        (status = 201, description = "The session; its token is also set as the `session` cookie",
            body = OpenedSession,
         headers(("Set-Cookie" = String, description = "session=TOKEN; HttpOnly; SameSite=Lax"))),
        OpenRefusals
    ),
)]
pub async fn open(
    State(catalog): State<Arc<Catalog>>,
    State(tokens): State<Arc<TokenSigner>>,
    State(trust_proxy): State<ProxyTrust>,
    _: Newcomer,
    headers: HeaderMap,
    OptionalJson(wanted): OptionalJson<NewSession>,
) -> HttpResult {
    let user_id = UserId::random();
    let name = match wanted.name {
        Some(name) => checked_name(&name)?,
        None => guest_name(user_id),
    };
    let now = catalog.now();
    let expires_at = now.replace_nanosecond(0).expect("0 is a nanosecond") + LIFE;
    let token = tokens.mint(user_id, &name, expires_at);

    let opened = OpenedSession { user_id, name: &name, token: &token, expires_at };
    let mut response = body::json(StatusCode::CREATED, &opened)?;
    let cookie = session_cookie(&token, is_over_tls(trust_proxy, &headers));
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Whether the caller came by TLS, as a trusted proxy says.
pub fn is_over_tls(trust_proxy: ProxyTrust, headers: &HeaderMap) -> bool {
    let proto = headers.get("x-forwarded-proto").map(HeaderValue::as_bytes);
    trust_proxy.is_on() && proto.is_some_and(|proto| proto.eq_ignore_ascii_case(b"https"))
}

/// Whose session this is.
#[utoipa::path(
    get, path = "/api/v1/session", tag = "shopping", operation_id = "get_session",
    responses((status = 200, description = "The caller's session", body = Session), ReadRefusals),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn read(Shopper(shopper): Shopper) -> HttpResult {
    let session =
        Session { user_id: shopper.user_id, name: &shopper.name, expires_at: shopper.expires_at };
    body::json(StatusCode::OK, &session)
}

fn checked_name(name: &str) -> Result<String, Problem> {
    let name = name.trim();
    if name.is_empty() || name.chars().count() > LONGEST_NAME || name.chars().any(char::is_control)
    {
        let why = "name: must be 1 to 40 characters, without control characters";
        return Err(Problem::invalid(why));
    }
    Ok(name.to_owned())
}

fn guest_name(user_id: UserId) -> String {
    let [a, b, ..] = user_id.as_bytes();
    format!("guest-{a:02x}{b:02x}")
}

/// HttpOnly: no script reads it. Lax: other sites cannot send it with a POST. `Secure` only on TLS,
/// or the browser would not send it back.
fn session_cookie(token: &str, over_tls: bool) -> String {
    Cookie::build((SESSION_COOKIE, token))
        .path("/")
        .http_only(true)
        .same_site(SameSite::Lax)
        .max_age(LIFE)
        .secure(over_tls)
        .build()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing::{self, is, refusal, request, send};
    use crate::http::{HttpState, router};
    use axum::http::Method;

    #[test]
    fn names_are_trimmed_and_checked() {
        assert_eq!(checked_name("  Ada L. ").ok().as_deref(), Some("Ada L."));
        assert!(checked_name(&"名".repeat(40)).is_ok());
        for bad in ["", "   ", "a\nb", "a\u{0}b", &"x".repeat(41)] {
            assert!(checked_name(bad).is_err(), "{bad:?}");
        }
        assert_eq!(guest_name(UserId::from_bytes([0xab; 16])), "guest-abab");
    }

    #[test]
    fn the_cookie_is_out_of_reach_for_scripts_and_other_sites() {
        let plain = session_cookie("t.o.k", false);
        for part in ["session=t.o.k", "HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=604800"] {
            assert!(plain.contains(part), "{plain}");
        }
        assert!(!plain.contains("Secure"));
        assert!(session_cookie("t.o.k", true).contains("Secure"));
    }

    #[tokio::test]
    async fn only_a_known_proxy_says_that_it_was_tls() {
        let trust_proxy = "10.0.0.0/8".parse().expect("networks");
        let router = router(HttpState { trust_proxy, ..testing::state() });
        let over_tls = [("x-forwarded-proto", "https")];
        for (peer, is_secure) in [([10, 0, 0, 1], true), ([192, 0, 2, 1], false)] {
            let mut request = request(Method::POST, "/api/v1/session", &over_tls, "");
            let peer = std::net::SocketAddr::from((peer, 1));
            request.extensions_mut().insert(axum::extract::ConnectInfo(peer));
            let (response, _) = send(&router, request).await;
            let cookie = response.headers()["set-cookie"].to_str().expect("ascii");
            assert_eq!(cookie.contains("Secure"), is_secure, "{cookie}");
        }
    }

    #[tokio::test]
    async fn a_session_opens_with_and_without_a_body() {
        let router = router(testing::state());
        let json = [("content-type", "application/json")];
        let mut users = std::collections::HashSet::new();
        for (headers, body, name) in [
            (&[][..], "", None),
            (&json[..], "{}", None),
            (&json[..], r#"{"name":" Ada "}"#, Some("Ada")),
        ] {
            let (response, session) =
                send(&router, request(Method::POST, "/api/v1/session", headers, body)).await;
            assert_eq!(response.status(), StatusCode::CREATED);
            assert_eq!(session.as_object().map(serde_json::Map::len), Some(4));
            let user = session["user_id"].as_str().expect("a user").parse::<uuid::Uuid>();
            assert!(users.insert(user.expect("a UUID")), "a user of their own");
            let told = session["name"].as_str().expect("a name");
            assert!(name.map_or(told.starts_with("guest-"), |name| name == told), "{told}");
            let cookie = response.headers()["set-cookie"]
                .to_str()
                .expect("ascii")
                .split(';')
                .next()
                .expect("a cookie")
                .to_owned();
            let bearer = format!("Bearer {}", session["token"].as_str().expect("a token"));
            for (header, value) in [("authorization", &bearer), ("cookie", &cookie)] {
                let (response, same) =
                    send(&router, request(Method::GET, "/api/v1/session", &[(header, value)], ""))
                        .await;
                assert_eq!(response.status(), StatusCode::OK);
                for member in ["user_id", "name", "expires_at"] {
                    assert_eq!(same[member], session[member]);
                }
                assert_eq!(same.as_object().map(serde_json::Map::len), Some(3));
            }
        }
        for (headers, body, expected) in [
            (&json[..], r#"{"name":""}"#, is(422, "invalid")),
            (&json[..], r#"{"name":7}"#, is(422, "invalid")),
            (&json[..], r#"{"nick":"x"}"#, is(422, "invalid")),
            (&[("content-type", "text/plain")][..], "{}", is(415, "unsupported_media_type")),
            (&[("sec-fetch-site", "cross-site")][..], "", is(403, "cross_origin")),
        ] {
            assert_eq!(
                refusal(&router, Method::POST, "/api/v1/session", headers, body).await,
                expected,
                "{body}"
            );
        }
    }
}
