//! HTTP: the routes and layers of the shop on this screen, one file per resource.
//!
//! A handler reads: who is asking, what they want, one call of the [`Shop`], the answer. What it
//! refuses is a [`error::Problem`].

pub mod admin;
pub mod bots;
pub mod door;
pub mod error;
pub mod events;
pub mod extract;
pub mod health;
pub mod layers;
pub mod limits;
pub mod openapi;
pub mod orders;
pub mod pages;
pub mod room;
pub mod sales;
pub mod server;
pub mod session;

use crate::{
    auth::{AdminToken, TokenSigner},
    bots::Bots,
    config::ProxyTrust,
    lab::{self, http::LabState},
    room::Rooms,
    sale::Shop,
    web::events::Streams,
};
use axum::{
    Router,
    body::Bytes,
    http::{HeaderValue, header::CONTENT_TYPE},
    routing::get,
};
use error::{METHOD_NOT_ALLOWED, NOT_FOUND, Problem};
use layers::time_limit;
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

pub use {health::of_a_worker, limits::Limits, server::ConnectionLimits};

/// What the handlers work with.
#[derive(Clone)]
pub struct HttpState {
    pub shop: Arc<Shop>,
    pub rooms: Arc<Rooms>,
    pub bots: Arc<Bots>,
    pub tokens: Arc<TokenSigner>,
    /// `None`: there is no admin API.
    pub admin: Option<AdminToken>,
    /// `None`: everybody may ask as often as they like.
    pub limits: Option<Arc<Limits>>,
    /// Renders all metrics as Prometheus text.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// The places for event streams.
    pub streams: Streams,
    /// Cancelled when the server is on its way out: event streams end, `/readyz` says no.
    pub draining: CancellationToken,
    /// Set when it is about to be: `/readyz` and `/routable` say no, and everything else is answered.
    pub leaving: Arc<AtomicBool>,
    /// Which proxies in front say who is asking (X-Forwarded-For, X-Forwarded-Proto).
    pub trust_proxy: ProxyTrust,
    pub lab: LabState,
}

/// The state as handlers get it: cloned for every request, so it is one pointer.
pub type App = Arc<HttpState>;

/// The whole server. Serve it with connect info (`SocketAddr`): limits go by address.
pub fn router(state: HttpState) -> Router {
    let (api, document) = api(state.lab.clone()).split_for_parts();
    let app: App = Arc::new(state);
    let document = openapi::without_null_bodies(document);
    let document = Bytes::from(document.to_json().expect("the document is plain data"));
    let json = HeaderValue::from_static("application/json");

    let document = get(async move || ([(CONTENT_TYPE, json)], document));
    let routes = api
        .merge(pages::router().route("/openapi.json", document))
        .fallback(async || Problem::new(&NOT_FOUND))
        .method_not_allowed_fallback(async || Problem::new(&METHOD_NOT_ALLOWED));
    layers::around(routes, app.clone()).with_state(app)
}

/// The API as an OpenAPI document.
pub fn openapi() -> utoipa::openapi::OpenApi {
    openapi::without_null_bodies(api(LabState::default()).into_openapi())
}

/// How long an answer may take. Only a dependency that neither answers nor fails makes it count.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// An audit of millions of orders takes as long as a statement may (see `postgres.rs`).
const OPERATORS_TIME_LIMIT: Duration = Duration::from_secs(60);
/// A slow strategy is slow on purpose, and a verdict waits for it. Longer than the lab's own limits.
const LAB_TIME_LIMIT: Duration = Duration::from_secs(35);

/// Every documented route; the paths stand at the handlers.
fn api(the_lab: LabState) -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::Head::openapi())
        .merge(shopping().layer(time_limit(TIME_LIMIT)))
        .merge(operating().layer(time_limit(OPERATORS_TIME_LIMIT)))
        .merge(lab::http::routes(the_lab).layer(time_limit(LAB_TIME_LIMIT)))
        .merge(around_it().layer(time_limit(TIME_LIMIT)))
        // Without a time limit: each of its waits has its own (2 s at the gate).
        .routes(routes!(orders::purchase))
}

/// /api/v1/session, /api/v1/sales and /api/v1/orders
fn shopping() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(session::open, session::read))
        .routes(routes!(sales::list))
        .routes(routes!(sales::read))
        .routes(routes!(events::sale))
        .routes(routes!(room::join, room::look))
        .routes(routes!(room::events))
        .routes(routes!(bots::pass))
        .routes(routes!(bots::challenge))
        .routes(routes!(orders::list))
        .routes(routes!(orders::read))
        .routes(routes!(events::order))
        .routes(routes!(orders::pay))
        .routes(routes!(orders::cancel))
}

/// /api/v1/admin/sales
fn operating() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(admin::create))
        .routes(routes!(admin::change))
        .routes(routes!(admin::pause))
        .routes(routes!(admin::resume))
        .routes(routes!(admin::close))
        .routes(routes!(admin::stock))
        .routes(routes!(admin::audit))
        .routes(routes!(admin::orders))
}

/// /healthz, /readyz, /routable and /metrics
fn around_it() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::routable))
        .routes(routes!(health::metrics))
}

#[cfg(test)]
mod testing;

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{
        body::Body,
        http::{Method, Request, StatusCode},
        response::Response,
    };
    use serde_json::Value;
    use std::collections::BTreeSet;
    use tower::ServiceExt;

    async fn send(router: &Router, request: Request<Body>) -> (Response, Value) {
        let response = router
            .clone()
            .oneshot(request)
            .await
            .expect("a router never fails");
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
        (
            Response::from_parts(parts, Body::empty()),
            serde_json::from_slice(&bytes).unwrap_or_default(),
        )
    }

    fn request(
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Request<Body> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(body.into()).expect("a request")
    }

    async fn refusal(
        router: &Router,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, String) {
        let (response, problem) =
            send(router, request(method, path, headers, body.to_owned())).await;
        assert!(response.headers().contains_key("x-request-id"), "{path}");
        assert_eq!(
            response.headers()[CONTENT_TYPE],
            "application/problem+json",
            "{path}"
        );
        let status = response.status().as_u16();
        assert_eq!(problem["status"], status);
        (
            status,
            problem["code"].as_str().unwrap_or_default().to_owned(),
        )
    }

    fn is(status: u16, code: &str) -> (u16, String) {
        (status, code.to_owned())
    }

    /// Every route that clients may rely on.
    const CONTRACT: &[(&str, &str)] = &[
        ("post", "/api/v1/session"),
        ("get", "/api/v1/session"),
        ("get", "/api/v1/sales"),
        ("get", "/api/v1/sales/{id}"),
        ("get", "/api/v1/sales/{id}/events"),
        ("post", "/api/v1/sales/{id}/orders"),
        ("post", "/api/v1/sales/{id}/waiting-room"),
        ("get", "/api/v1/sales/{id}/waiting-room"),
        ("get", "/api/v1/sales/{id}/waiting-room/events"),
        ("get", "/api/v1/sales/{id}/pass"),
        ("get", "/api/v1/sales/{id}/challenge"),
        ("get", "/api/v1/orders/{id}"),
        ("get", "/api/v1/orders"),
        ("get", "/api/v1/orders/{id}/events"),
        ("post", "/api/v1/orders/{id}/pay"),
        ("post", "/api/v1/orders/{id}/cancel"),
        ("post", "/api/v1/admin/sales"),
        ("patch", "/api/v1/admin/sales/{id}"),
        ("post", "/api/v1/admin/sales/{id}/pause"),
        ("post", "/api/v1/admin/sales/{id}/resume"),
        ("post", "/api/v1/admin/sales/{id}/close"),
        ("post", "/api/v1/admin/sales/{id}/stock"),
        ("get", "/api/v1/admin/sales/{id}/audit"),
        ("get", "/api/v1/admin/sales/{id}/orders"),
        ("get", "/api/v1/lab/strategies"),
        ("post", "/api/v1/lab/arenas"),
        ("delete", "/api/v1/lab/arenas/{id}"),
        ("post", "/api/v1/lab/arenas/{id}/orders"),
        ("post", "/api/v1/lab/arenas/{id}/storm"),
        ("get", "/api/v1/lab/arenas/{id}/events"),
        ("get", "/api/v1/lab/arenas/{id}/verdict"),
        ("get", "/api/v1/lab/report"),
        ("get", "/api/v1/lab/lessons"),
        ("post", "/api/v1/lab/lessons/{id}/play"),
        ("get", "/api/v1/lab/ids"),
        ("get", "/api/v1/lab/locks"),
        ("get", "/healthz"),
        ("get", "/readyz"),
        ("get", "/routable"),
        ("get", "/metrics"),
    ];

    fn operations(document: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
        let paths = document["paths"].as_object().expect("paths").iter();
        paths.flat_map(|(path, item)| {
            let operations = item.as_object().expect("a path item").iter();
            operations.map(move |(method, operation)| (method.as_str(), path.as_str(), operation))
        })
    }

    #[test]
    fn the_document_has_every_route_of_the_contract_and_no_other() {
        let document = serde_json::to_value(openapi()).expect("JSON");
        let documented: BTreeSet<_> = operations(&document)
            .map(|(method, path, _)| (method, path))
            .collect();
        assert_eq!(documented, CONTRACT.iter().copied().collect());
    }

    #[test]
    fn the_document_is_consistent() {
        let document = serde_json::to_value(openapi()).expect("JSON");
        let mut ids = BTreeSet::new();
        for (method, path, operation) in operations(&document) {
            let place = format!("{method} {path}");
            assert!(
                ids.insert(operation["operationId"].as_str().expect("an id")),
                "{place}"
            );
            assert!(operation["summary"].is_string(), "{place}");
            let statuses: BTreeSet<&str> = operation["responses"]
                .as_object()
                .expect("responses")
                .keys()
                .map(String::as_str)
                .collect();
            for (status, response) in operation["responses"].as_object().expect("responses") {
                let problem = &response["content"]["application/problem+json"]["schema"]["$ref"];
                if status.starts_with('4') {
                    assert_eq!(problem, "#/components/schemas/Problem", "{place} {status}");
                }
            }
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            assert!(
                body.is_null() || body["$ref"].is_string(),
                "{place}: {body}"
            );
            let secured = operation["security"].is_array();
            assert_eq!(secured, statuses.contains("401"), "{place}");
            if path.starts_with("/api/") {
                assert!(statuses.contains("429"), "{place}");
            }
            if path.contains("{id}") {
                assert!(statuses.contains("404"), "{place}");
                assert!(
                    operation["parameters"]
                        .as_array()
                        .is_some_and(|all| all.iter().any(|one| one["name"] == "id")),
                    "{place}"
                );
            }
        }
        // Every reference leads somewhere.
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1) {
            let pointer = reference.split('"').next().expect("a pointer");
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
        for scheme in ["bearer", "cookie", "admin"] {
            assert!(
                document["components"]["securitySchemes"][scheme].is_object(),
                "{scheme}"
            );
        }
    }

    #[tokio::test]
    async fn whatever_leads_nowhere_is_a_problem() {
        let router = router(testing::state());
        assert_eq!(
            refusal(&router, Method::GET, "/nothing", &[], "").await,
            is(404, "not_found")
        );
        assert_eq!(
            refusal(&router, Method::GET, "/api/v1/nothing", &[], "").await,
            is(404, "not_found")
        );
        assert_eq!(
            refusal(&router, Method::GET, "/static/nothing.js", &[], "").await,
            is(404, "not_found")
        );
        assert_eq!(
            refusal(&router, Method::PUT, "/api/v1/sales", &[], "").await,
            is(405, "method_not_allowed")
        );
        let (response, _) =
            send(&router, request(Method::DELETE, "/api/v1/session", &[], "")).await;
        let allowed = response.headers()["allow"].to_str().expect("ascii");
        assert!(
            allowed.contains("GET") && allowed.contains("POST"),
            "{allowed}"
        );
        for bad in ["0", "abc", "01", "-1", "9223372036854775808", "%ff", "%00"] {
            assert_eq!(
                refusal(
                    &router,
                    Method::GET,
                    &format!("/api/v1/sales/{bad}"),
                    &[],
                    ""
                )
                .await,
                is(404, "sale_not_found")
            );
        }
    }

    #[tokio::test]
    async fn queries_are_exact() {
        let router = router(testing::state());
        let token = token();
        for (path, headers) in [
            ("/api/v1/sales?state=opened", vec![]),
            ("/api/v1/sales?stat=open", vec![]),
            (
                "/api/v1/orders?limit=0",
                vec![("authorization", token.as_str())],
            ),
            (
                "/api/v1/orders?limit=101",
                vec![("authorization", token.as_str())],
            ),
            (
                "/api/v1/orders?limit=ten",
                vec![("authorization", token.as_str())],
            ),
            (
                "/api/v1/orders?limit=1&limit=2",
                vec![("authorization", token.as_str())],
            ),
            (
                "/api/v1/orders?after=x",
                vec![("authorization", token.as_str())],
            ),
            (
                "/api/v1/admin/sales/1/orders?limit=1001",
                vec![("authorization", "Bearer open sesame")],
            ),
            (
                "/api/v1/admin/sales/1/orders?status=lost",
                vec![("authorization", "Bearer open sesame")],
            ),
        ] {
            assert_eq!(
                refusal(&router, Method::GET, path, &headers, "").await,
                is(422, "invalid"),
                "{path}"
            );
        }
    }

    fn token() -> String {
        let tomorrow = time::OffsetDateTime::now_utc() + time::Duration::DAY;
        format!(
            "Bearer {}",
            testing::state()
                .tokens
                .mint(crate::domain::UserId::random(), "Ada", tomorrow)
        )
    }

    #[tokio::test]
    async fn strangers_hear_nothing_about_paths_and_bodies() {
        let router = router(testing::state());
        let huge = "x".repeat(crate::web::body::LIMIT + 1);
        for path in [
            "/api/v1/admin/sales",
            "/api/v1/admin/sales/abc/stock",
            "/api/v1/sales/abc/orders",
            "/api/v1/orders/abc/pay",
        ] {
            for body in ["", "{", &huge] {
                assert_eq!(
                    refusal(&router, Method::POST, path, &[], body).await,
                    is(401, "unauthenticated"),
                    "{path}"
                );
            }
        }
        let hidden = super::router(HttpState {
            admin: None,
            ..testing::state()
        });
        let admin = [("authorization", "Bearer open sesame")];
        assert_eq!(
            refusal(&hidden, Method::POST, "/api/v1/admin/sales", &admin, "{").await,
            is(404, "not_found")
        );
    }

    #[tokio::test]
    async fn bodies_are_bounded_on_every_route() {
        let router = router(testing::state());
        let token = token();
        let huge = "x".repeat(crate::web::body::LIMIT + 1);
        for (method, path) in [
            (Method::POST, "/api/v1/session"),
            (Method::GET, "/api/v1/session"),
            (Method::POST, "/api/v1/sales/1/orders"),
            (Method::POST, "/api/v1/orders/1/pay"),
            (Method::GET, "/api/v1/sales"),
            (Method::GET, "/healthz"),
        ] {
            let length = huge.len().to_string();
            let headers = [
                ("authorization", token.as_str()),
                ("content-length", &length),
            ];
            // A body that comes in chunks is only counted where it is read.
            let sent = if method == Method::GET { 0 } else { 1 };
            for headers in &[&headers[..], &headers[..1]][..=sent] {
                let refused = refusal(&router, method.clone(), path, headers, &huge).await;
                assert_eq!(refused, is(413, "too_large"), "{path}");
            }
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_too() {
        let router = router(HttpState {
            metrics: Arc::new(|| panic!("no figures today")),
            ..testing::state()
        });
        assert_eq!(
            refusal(&router, Method::GET, "/metrics", &[], "").await,
            is(500, "internal")
        );
    }

    #[tokio::test]
    async fn every_answer_has_an_id_and_only_a_plain_one_comes_back() {
        let router = router(testing::state());
        let id_of = async |headers: &[(&str, &str)]| {
            let (response, _) = send(&router, request(Method::GET, "/healthz", headers, "")).await;
            assert_eq!(response.status(), StatusCode::OK);
            response.headers()["x-request-id"]
                .to_str()
                .expect("ascii")
                .to_owned()
        };
        assert_eq!(
            id_of(&[("x-request-id", "trace-1.a_b")]).await,
            "trace-1.a_b"
        );
        assert_ne!(id_of(&[]).await, id_of(&[]).await);
        let long = "x".repeat(65);
        for strange in ["a b", "a\tb", "", &long, "a;b"] {
            assert_ne!(id_of(&[("x-request-id", strange)]).await, strange);
        }
        assert!(
            !id_of(&[("x-request-id", "one"), ("x-request-id", "two")])
                .await
                .contains("one")
        );
    }

    #[tokio::test]
    async fn a_session_opens_with_and_without_a_body() {
        let router = router(testing::state());
        let json = [("content-type", "application/json")];
        for (headers, body, name) in [
            (&[][..], "", None),
            (&json[..], "{}", None),
            (&json[..], r#"{"name":" Ada "}"#, Some("Ada")),
        ] {
            let (response, session) = send(
                &router,
                request(Method::POST, "/api/v1/session", headers, body),
            )
            .await;
            assert_eq!(response.status(), StatusCode::CREATED);
            let told = session["name"].as_str().expect("a name");
            assert!(
                name.map_or(told.starts_with("guest-"), |name| name == told),
                "{told}"
            );
            let cookie = response.headers()["set-cookie"]
                .to_str()
                .expect("ascii")
                .split(';')
                .next()
                .expect("a cookie")
                .to_owned();
            let bearer = format!("Bearer {}", session["token"].as_str().expect("a token"));
            for (header, value) in [("authorization", &bearer), ("cookie", &cookie)] {
                let (response, same) = send(
                    &router,
                    request(Method::GET, "/api/v1/session", &[(header, value)], ""),
                )
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
            (
                &[("content-type", "text/plain")][..],
                "{}",
                is(415, "unsupported_media_type"),
            ),
            (
                &[("sec-fetch-site", "cross-site")][..],
                "",
                is(403, "cross_origin"),
            ),
        ] {
            assert_eq!(
                refusal(&router, Method::POST, "/api/v1/session", headers, body).await,
                expected,
                "{body}"
            );
        }
    }

    #[tokio::test]
    async fn limits_answer_429_with_a_wait() {
        let router = router(HttpState {
            limits: Some(Arc::new(Limits::new())),
            ..testing::state()
        });
        let mut refused = None;
        for _ in 0..200 {
            let (response, body) =
                send(&router, request(Method::POST, "/api/v1/session", &[], "")).await;
            if response.status() == StatusCode::TOO_MANY_REQUESTS {
                refused = Some((response, body));
                break;
            }
        }
        let (response, body) = refused.expect("a refusal");
        assert_eq!(
            (&body["code"], &response.headers()["retry-after"]),
            (&"rate_limited".into(), &HeaderValue::from(1))
        );
        assert!(
            body["retry_after_ms"]
                .as_u64()
                .is_some_and(|wait| (1..=1_000).contains(&wait))
        );
        // Another address is not affected; neither is what is not the API.
        let mut other = request(Method::POST, "/api/v1/session", &[], "");
        other
            .extensions_mut()
            .insert(axum::extract::ConnectInfo(std::net::SocketAddr::from((
                [10, 0, 0, 9],
                1,
            ))));
        assert_eq!(send(&router, other).await.0.status(), StatusCode::CREATED);
    }

    #[tokio::test]
    async fn pages_and_docs_come_from_here_with_their_guards() {
        let router = router(testing::state());
        for (path, content_type) in [
            ("/", "text/html; charset=utf-8"),
            ("/sales/7", "text/html; charset=utf-8"),
            ("/sales/7/live", "text/html; charset=utf-8"),
            ("/orders", "text/html; charset=utf-8"),
            ("/admin", "text/html; charset=utf-8"),
            ("/static/favicon.svg", "image/svg+xml"),
            ("/docs/", "text/html"),
        ] {
            let (response, _) = send(&router, request(Method::GET, path, &[], "")).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_eq!(response.headers()[CONTENT_TYPE], content_type, "{path}");
            assert_eq!(response.headers()["x-content-type-options"], "nosniff");
            assert_eq!(response.headers()["referrer-policy"], "same-origin");
            assert!(
                response.headers()["content-security-policy"]
                    .to_str()
                    .is_ok_and(|policy| policy.contains("default-src 'self'"))
            );
        }
        // A part of a page is under the page's policy; a worker is under its own.
        for (path, has_policy) in [
            ("/static/js/work-thread.js", true),
            ("/static/js/api.js", false),
            ("/static/css/app.css", false),
        ] {
            let (response, _) = send(&router, request(Method::GET, path, &[], "")).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            let policy = response.headers().get("content-security-policy");
            assert_eq!(policy.is_some(), has_policy, "{path}");
            assert_eq!(response.headers()["x-content-type-options"], "nosniff");
        }
        let (response, document) =
            send(&router, request(Method::GET, "/openapi.json", &[], "")).await;
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        assert_eq!(document, serde_json::to_value(openapi()).expect("JSON"));
    }
}
