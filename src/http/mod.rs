//! HTTP: the routes and layers, one file per resource.
//!
//! A handler reads: the caller, the request, one call of a service, the answer. Refusals are
//! [`error::Problem`]s.

pub mod access_policy;
pub mod admin;
pub mod bots;
pub mod error;
pub mod events;
pub mod extract;
pub mod health;
pub mod layers;
pub mod limits;
pub mod link_preview;
pub mod openapi;
pub mod orders;
pub mod pages;
pub mod payments;
pub mod room;
pub mod sales;
pub mod session;
pub mod state;

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use error::{METHOD_NOT_ALLOWED, Problem};
use lab::http::LabState;
use layers::time_limit;
use std::time::Duration;
use tower_http::compression::CompressionLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use access_policy::AccessPolicies;
pub use health::of_a_worker;
pub use limits::Limits;
pub use state::{App, Draining, HttpState};
pub use web::server::{self, ConnectionLimits};

/// The whole server. Serve it with connect info (`SocketAddr`): limits need the address.
pub fn router(state: HttpState) -> Router {
    let (api, document) = api(state.lab.clone()).split_for_parts();
    let app = App::new(state);
    let document = openapi::without_null_bodies(document);
    let document = Bytes::from(document.to_json().expect("the document is plain data"));
    let json = HeaderValue::from_static("application/json");

    let document = get(async move || ([(CONTENT_TYPE, json)], document));
    let routes = api
        .merge(pages::router())
        .route("/openapi.json", document.layer(CompressionLayer::new()))
        .method_not_allowed_fallback(async || Problem::new(&METHOD_NOT_ALLOWED));
    layers::wrap(routes, app.clone()).with_state(app)
}

/// The API as an OpenAPI document.
pub fn openapi() -> utoipa::openapi::OpenApi {
    openapi::without_null_bodies(api(LabState::default()).into_openapi())
}

/// The time limit of an answer, for dependencies that neither answer nor fail.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// An audit of millions of orders may take as long as a statement (see `stores/pool.rs`).
const OPERATORS_TIME_LIMIT: Duration = Duration::from_secs(60);
/// Longer than the lab's own limits: some strategies are slow on purpose.
const LAB_TIME_LIMIT: Duration = Duration::from_secs(35);

/// Every documented route. The paths are at the handlers.
fn api(the_lab: LabState) -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::Head::openapi())
        .merge(shopping().layer(time_limit(TIME_LIMIT)))
        .merge(operating().layer(time_limit(OPERATORS_TIME_LIMIT)))
        .merge(lab::http::routes(the_lab).layer(time_limit(LAB_TIME_LIMIT)))
        .merge(health_routes().layer(time_limit(TIME_LIMIT)))
        // Without a time limit: each of its steps has its own (2 s for admission).
        .routes(routes!(orders::purchase))
}

/// /api/v1/session, /api/v1/sales, /api/v1/orders and /api/v1/webhooks
fn shopping() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(session::open, session::read))
        .routes(routes!(sales::list))
        .routes(routes!(sales::read))
        .routes(routes!(events::sale))
        .routes(routes!(room::join, room::place))
        .routes(routes!(room::events))
        .routes(routes!(bots::pass))
        .routes(routes!(bots::challenge))
        .routes(routes!(orders::list))
        .routes(routes!(orders::read))
        .routes(routes!(events::order))
        .routes(routes!(orders::cancel))
        .routes(routes!(payments::pay))
        .routes(routes!(payments::checkout))
        .routes(routes!(payments::webhook))
}

/// /api/v1/admin
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
        .routes(routes!(payments::refund))
        .routes(routes!(payments::books))
}

/// /healthz, /readyz, /routable and /metrics
fn health_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::routable))
        .merge(OpenApiRouter::new().routes(routes!(health::metrics)).layer(CompressionLayer::new()))
}

/// A server for tests that need no stores: its pools never connect.
#[cfg(test)]
pub mod testing {
    use super::{AccessPolicies, App, Draining, HttpState};
    use crate::{
        admission::AdmissionSettings,
        auth::{AdminToken, TokenSigner},
        databases::Databases,
        payments::provider::SimulatedPayments,
        services::Services,
        telemetry::instruments::Metrics,
    };
    use axum::{
        Router,
        body::Body,
        http::{Method, Request, header::CONTENT_TYPE},
        response::Response,
    };
    use lab::http::LabState;
    use serde_json::Value;
    use std::sync::Arc;
    use tokio_util::sync::CancellationToken;
    use tower::ServiceExt;
    use web::events::Streams;

    pub const ADMIN: &str = "open sesame";

    fn services() -> Services {
        let settings = AdmissionSettings { high_water: 1, batch_limit: 1, handoff: None };
        let postgres = crate::postgres::pool(sqlx::postgres::PgConnectOptions::new(), 1);
        let redis = crate::redis::Redis::new("redis://127.0.0.1:1", "").expect("an address");
        Services::new(
            Databases { postgres, redis: Arc::new(redis) },
            Arc::new(SimulatedPayments),
            settings,
            Metrics::unpublished(),
            crate::fail_point::FailPoints::default(),
        )
    }

    pub fn state() -> HttpState {
        let services = services();
        let tokens = TokenSigner::new(b"a secret of at least 32 bytes....").expect("long enough");
        HttpState {
            access: Arc::new(AccessPolicies::new(&services, &tokens, None)),
            services,
            tokens: Arc::new(tokens),
            admin: Some(AdminToken::new(ADMIN)),
            limits: None,
            metrics: Arc::new(String::new),
            streams: Streams::new(false, CancellationToken::new()),
            draining: Draining::default(),
            trust_proxy: crate::config::ProxyTrust::Nobody,
            lab: LabState::default(),
        }
    }

    pub fn app() -> App {
        App::new(state())
    }

    pub fn app_with(change: impl FnOnce(&mut HttpState)) -> App {
        let mut state = state();
        change(&mut state);
        App::new(state)
    }

    pub async fn send(router: &Router, request: Request<Body>) -> (Response, Value) {
        let response = router.clone().oneshot(request).await.expect("a router never fails");
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
        (
            Response::from_parts(parts, Body::empty()),
            serde_json::from_slice(&bytes).unwrap_or_default(),
        )
    }

    pub fn request(
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

    pub async fn refusal(
        router: &Router,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, String) {
        let (response, problem) =
            send(router, request(method, path, headers, body.to_owned())).await;
        assert!(response.headers().contains_key("x-request-id"), "{path}");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json", "{path}");
        let status = response.status().as_u16();
        assert_eq!(problem["status"], status);
        (status, problem["code"].as_str().unwrap_or_default().to_owned())
    }

    pub fn is(status: u16, code: &str) -> (u16, String) {
        (status, code.to_owned())
    }

    pub fn token() -> String {
        let tomorrow = time::OffsetDateTime::now_utc() + time::Duration::DAY;
        format!("Bearer {}", state().tokens.mint(crate::domain::UserId::random(), "Ada", tomorrow))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        testing::{is, refusal, request, send, token},
        *,
    };
    use axum::http::{Method, StatusCode};

    #[tokio::test]
    async fn whatever_leads_nowhere_is_a_problem() {
        let router = router(testing::state());
        assert_eq!(refusal(&router, Method::GET, "/nothing", &[], "").await, is(404, "not_found"));
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
        assert!(allowed.contains("GET") && allowed.contains("POST"), "{allowed}");
        for bad in ["0", "abc", "01", "-1", "9223372036854775808", "%ff", "%00"] {
            assert_eq!(
                refusal(&router, Method::GET, &format!("/api/v1/sales/{bad}"), &[], "").await,
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
            ("/api/v1/orders?limit=0", vec![("authorization", token.as_str())]),
            ("/api/v1/orders?limit=101", vec![("authorization", token.as_str())]),
            ("/api/v1/orders?limit=ten", vec![("authorization", token.as_str())]),
            ("/api/v1/orders?limit=1&limit=2", vec![("authorization", token.as_str())]),
            ("/api/v1/orders?after=x", vec![("authorization", token.as_str())]),
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

    #[tokio::test]
    async fn unauthenticated_callers_learn_nothing_about_paths_and_bodies() {
        let router = router(testing::state());
        let huge = "x".repeat(web::body::LIMIT + 1);
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
        let hidden = super::router(HttpState { admin: None, ..testing::state() });
        let admin = [("authorization", "Bearer open sesame")];
        assert_eq!(
            refusal(&hidden, Method::POST, "/api/v1/admin/sales", &admin, "{").await,
            is(404, "not_found")
        );
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
            ("/docs/", "text/html; charset=utf-8"),
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
