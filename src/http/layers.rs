//! The layers of every request, outermost first: id, metrics and headers, span, panics, body size.
//! Time limits are set beside the routes (`mod.rs`).

use super::error::{Problem, TOO_LARGE};
use super::limits::ADDRESS;
use super::state::{App, HttpState};
use crate::telemetry::traces;
use axum::Router;
use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::header::{CONNECTION, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use metrics::{Counter, Histogram};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tower::layer::layer_fn;
use tower::util::MapRequestLayer;
use tower::{Layer, ServiceBuilder};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;
use tracing::{Instrument, Span};
use web::address::Address;
use web::body::LIMIT;
use web::limit::{RATELIMIT, RATELIMIT_POLICY};
use web::problem::panicked;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACERESPONSE: HeaderName = HeaderName::from_static("traceresponse");
/// Counts only from a trusted proxy.
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const LONGEST_ID: usize = 64;
/// Retry-After of an answer that took too long.
const RETRY_AFTER_TIMEOUT: Duration = Duration::from_secs(5);

/// Wraps all routes and fallbacks.
pub fn wrap(router: Router<App>, app: App) -> Router<App> {
    let trace = TraceLayer::new_for_http()
        .make_span_with(|request: &Request| {
            let id = request.headers().get(X_REQUEST_ID);
            tracing::debug_span!("request", ?id, method = %request.method(), route = route(request))
        })
        .on_request(())
        .on_failure(()); // a failure is logged where it arises
    router.layer(
        ServiceBuilder::new()
            .layer(MapRequestLayer::new(drop_odd_id))
            .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
            .layer(PropagateRequestIdLayer::x_request_id())
            // Called once for each route, so that each has its own meters.
            .layer(layer_fn(move |inner| {
                let state = (app.clone(), Arc::<Meters>::default());
                from_fn_with_state(state, observe).layer(inner)
            }))
            .layer(trace)
            .layer(CatchPanicLayer::custom(panicked))
            .layer(RequestBodyLimitLayer::new(LIMIT)),
    )
}

/// Gives up on an answer, or on the start of an event stream, after `limit`.
///
/// The handler is cancelled, as when its client hangs up. [`observe`] writes the answer.
pub fn time_limit(limit: Duration) -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, limit)
}

/// A client's id goes into logs and answers, so it must be plain.
fn drop_odd_id(mut request: Request) -> Request {
    let mut ids = request.headers().get_all(X_REQUEST_ID).iter();
    let is_odd = match (ids.next(), ids.next()) {
        (None, _) => false,
        (Some(id), None) => !is_plain(id.as_bytes()),
        _ => true,
    };
    if is_odd {
        request.headers_mut().remove(X_REQUEST_ID);
    }
    request
}

fn is_plain(id: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    (1..=LONGEST_ID).contains(&id.len()) && id.iter().all(plain)
}

fn route(request: &Request) -> &str {
    label(request.extensions().get())
}

fn label(route: Option<&MatchedPath>) -> &str {
    route.map_or("unmatched", MatchedPath::as_str)
}

/// Clients can send any method, and every label of a metric is kept for ever.
fn method_label(method: &Method) -> &'static str {
    const KNOWN: [&str; 6] = ["GET", "POST", "PATCH", "HEAD", "DELETE", "OPTIONS"];
    let known = KNOWN.iter().find(|known| **known == method.as_str());
    known.copied().unwrap_or("other")
}

/// The metrics of one route, registered once.
#[derive(Default)]
struct Meters {
    seconds: OnceLock<Histogram>,
    requests: RwLock<Vec<(&'static str, StatusCode, Counter)>>,
}

impl Meters {
    fn count(&self, route: &str, method: &'static str, status: StatusCode, took: Duration) {
        let register =
            || metrics::histogram!("flash_sale_http_request_seconds", "route" => route.to_owned());
        self.seconds.get_or_init(register).record(took);
        let known = self.requests.read().unwrap_or_else(PoisonError::into_inner);
        let of = |counter: &&(_, _, _)| (counter.0, counter.1) == (method, status);
        if let Some((_, _, counter)) = known.iter().find(of) {
            return counter.increment(1);
        }
        drop(known);
        let counter = metrics::counter!(
            "flash_sale_http_requests_total",
            "route" => route.to_owned(), "method" => method, "status" => status.as_str().to_owned()
        );
        counter.increment(1);
        let known = self.requests.write();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        known.push((method, status, counter));
    }
}

/// Limits, counts and times a request, and completes its headers.
async fn observe(
    State((app, meters)): State<(App, Arc<Meters>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    if !app.trust_proxy.trusts(peer.map(|ConnectInfo(peer)| peer.ip())) {
        request.headers_mut().remove(X_FORWARDED_PROTO);
    }
    let route = request.extensions().get::<MatchedPath>().cloned();
    let (route, method) = (label(route.as_ref()), method_label(request.method()));
    let (response, left) = match check_address(&app, &request) {
        Ok(left) => {
            let span = span(method, route, &request);
            (traced(next.run(request), span).await, left)
        }
        Err(problem) => (problem.into_response(), None),
    };
    let mut response = match response.status() {
        // The layers that answer these do not know problem documents.
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(&TOO_LARGE).into_response(),
        StatusCode::GATEWAY_TIMEOUT => {
            tracing::warn!(route, "gave up on a request that took too long");
            let wait = RETRY_AFTER_TIMEOUT;
            Problem::unavailable("the answer took too long", wait).into_response()
        }
        _ => response,
    };
    complete(&app, &mut response, left);
    meters.count(route, method, response.status(), began.elapsed());
    response
}

/// The requests that the address has left, where addresses are limited.
fn check_address(app: &HttpState, request: &Request) -> Result<Option<u32>, Problem> {
    let path = request.uri().path();
    match &app.limits {
        // All but files, and what proxies and orchestrators ask.
        Some(limits)
            if !path.starts_with("/static/") && !["/healthz", "/routable"].contains(&path) =>
        {
            let address = Address::of(request.extensions(), request.headers(), app.trust_proxy);
            limits.check_address(address).map(Some)
        }
        _ => Ok(None),
    }
}

fn complete(app: &HttpState, response: &mut Response, left: Option<u32>) {
    let status = response.status();
    let headers = response.headers_mut();
    // Answers may repeat what a client sent: browsers must not guess a content type.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(left) = left
        && !headers.contains_key(RATELIMIT)
        && let Ok(state) = HeaderValue::try_from(ADDRESS.state(left))
    {
        headers.insert(RATELIMIT, state);
        headers.insert(RATELIMIT_POLICY, HeaderValue::from_static(ADDRESS.text));
    }
    // Every 429 and 503 carries Retry-After.
    if matches!(status.as_u16(), 429 | 503) {
        let soon = headers.entry(RETRY_AFTER);
        soon.or_insert(const { HeaderValue::from_static("1") });
    }
    // On a kept connection the next request would meet a closing port, or the rest of an unread
    // body.
    if app.draining.is_announced() || status == StatusCode::PAYLOAD_TOO_LARGE {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// The span of a traced request.
fn span(method: &'static str, route: &str, request: &Request) -> Span {
    if !route.starts_with("/api/") {
        return Span::none();
    }
    let id = request.headers().get(X_REQUEST_ID);
    let id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
    traces::request(method, route, id, request.headers())
}

/// Answers within the span, and names the trace in a header.
async fn traced(answer: impl Future<Output = Response>, span: Span) -> Response {
    if span.is_disabled() {
        return answer.await;
    }
    let mut response = answer.instrument(span.clone()).await;
    let found_at = traces::answered(&span, response.status().as_u16());
    if let Some(Ok(found_at)) = found_at.map(HeaderValue::try_from) {
        response.headers_mut().insert(TRACERESPONSE, found_at);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::router;
    use crate::http::testing::{self, is, refusal, request, send, token};
    use axum::{body::Body, routing::get};
    use proptest::prelude::*;
    use tower::ServiceExt;

    #[tokio::test]
    async fn a_handler_that_never_answers_is_given_up() {
        let app = crate::http::testing::app();
        let slow = get(std::future::pending::<()>).layer(time_limit(Duration::from_millis(1)));
        let router = wrap(Router::new().route("/slow", slow), app.clone()).with_state(app);
        let request = Request::get("/slow").body(Body::empty()).expect("a request");
        let answer = router.oneshot(request).await.expect("infallible");
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()[RETRY_AFTER], "5");
        assert!(answer.headers().contains_key(X_REQUEST_ID));
    }

    #[test]
    fn odd_methods_have_one_label() {
        assert_eq!(method_label(&Method::PATCH), "PATCH");
        let odd = Method::from_bytes(b"BREW").expect("a method");
        assert_eq!(method_label(&odd), "other");
    }

    proptest! {
        /// Only a plain id is kept of what the request brought.
        #[test]
        fn any_request_id_is_plain_or_dropped(value in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                let request = Request::get("/").header(X_REQUEST_ID, value.clone());
                let request = drop_odd_id(request.body(Body::empty()).expect("a request"));
                let kept = request.headers().get(X_REQUEST_ID);
                prop_assert_eq!(kept == Some(&value), is_plain(value.as_bytes()));
            }
        }
    }

    #[tokio::test]
    async fn bodies_are_bounded_on_every_route() {
        let router = router(testing::state());
        let token = token();
        let huge = "x".repeat(web::body::LIMIT + 1);
        for (method, path) in [
            (Method::POST, "/api/v1/session"),
            (Method::GET, "/api/v1/session"),
            (Method::POST, "/api/v1/sales/1/orders"),
            (Method::POST, "/api/v1/orders/1/pay"),
            (Method::GET, "/api/v1/sales"),
            (Method::GET, "/healthz"),
        ] {
            let length = huge.len().to_string();
            let headers = [("authorization", token.as_str()), ("content-length", &length)];
            // A body that comes in chunks is only counted where it is read.
            let sent = if method == Method::GET { 0 } else { 1 };
            for headers in &[&headers[..], &headers[..1]][..=sent] {
                let refused = refusal(&router, method.clone(), path, headers, &huge).await;
                assert_eq!(refused, is(413, "too_large"), "{path}");
            }
        }
    }

    #[tokio::test]
    async fn pages_count_and_their_files_do_not() {
        let limits = Some(Arc::default());
        let router = router(HttpState { limits, ..testing::state() });
        for (path, is_counted) in [
            ("/orders", true),
            ("/openapi.json", true),
            ("/static/css/app.css", false),
            ("/healthz", false),
        ] {
            let (response, _) = send(&router, request(Method::GET, path, &[], "")).await;
            assert_eq!(response.headers().contains_key(RATELIMIT), is_counted, "{path}");
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_too() {
        let router = router(HttpState {
            metrics: Arc::new(|| panic!("no figures today")),
            ..testing::state()
        });
        assert_eq!(refusal(&router, Method::GET, "/metrics", &[], "").await, is(500, "internal"));
    }

    #[tokio::test]
    async fn every_answer_has_an_id_and_only_a_plain_one_comes_back() {
        let router = router(testing::state());
        let id_of = async |headers: &[(&str, &str)]| {
            let (response, _) = send(&router, request(Method::GET, "/healthz", headers, "")).await;
            assert_eq!(response.status(), StatusCode::OK);
            response.headers()["x-request-id"].to_str().expect("ascii").to_owned()
        };
        assert_eq!(id_of(&[("x-request-id", "trace-1.a_b")]).await, "trace-1.a_b");
        assert_ne!(id_of(&[]).await, id_of(&[]).await);
        let long = "x".repeat(65);
        for strange in ["a b", "a\tb", "", &long, "a;b"] {
            assert_ne!(id_of(&[("x-request-id", strange)]).await, strange);
        }
        assert!(!id_of(&[("x-request-id", "one"), ("x-request-id", "two")]).await.contains("one"));
    }
}
