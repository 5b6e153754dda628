//! What happens around every request, outermost first: its id, its metrics and headers, its span,
//! panics, the size of its body. Time limits stand beside the routes they are for (`mod.rs`).

use super::{
    App, HttpState,
    error::{Problem, TOO_LARGE},
    limits::ADDRESS,
};
use crate::{
    telemetry::traces,
    web::{
        address::Address,
        body::LIMIT,
        limit::{RATELIMIT, RATELIMIT_POLICY},
        problem::panicked,
    },
};
use axum::{
    BoxError, Router,
    body::{Body, Bytes, HttpBody},
    extract::{MatchedPath, Request},
    http::{
        HeaderName, HeaderValue, Method, StatusCode,
        header::{CONNECTION, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS},
    },
    response::{IntoResponse, Response},
};
use futures_util::future::BoxFuture;
use metrics::{Counter, Histogram};
use std::{
    convert::Infallible,
    sync::{Arc, OnceLock, PoisonError, RwLock, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tower::{Service, ServiceBuilder, layer::layer_fn, util::MapRequestLayer};
use tower_http::{
    catch_panic::CatchPanicLayer,
    limit::RequestBodyLimitLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
    timeout::TimeoutLayer,
    trace::TraceLayer,
};
use tracing::{Instrument, Span};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACERESPONSE: HeaderName = HeaderName::from_static("traceresponse");
const LONGEST_ID: usize = 64;
/// How long a client should wait before it asks again for what took too long.
const RETRY_AFTER_TIMEOUT: Duration = Duration::from_secs(5);

/// Puts the layers around all routes and fallbacks.
pub fn around(router: Router<App>, app: App) -> Router<App> {
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
            .layer(layer_fn(move |inner| Observe {
                app: app.clone(),
                meters: Arc::default(),
                inner,
            }))
            .layer(trace)
            .layer(CatchPanicLayer::custom(panicked))
            .layer(RequestBodyLimitLayer::new(LIMIT)),
    )
}

/// Gives up on an answer after `limit`; on an event stream, if it has not begun by then.
///
/// The handler is dropped where it waits, as when its client hangs up. [`Observe`] tells why.
pub fn time_limit(limit: Duration) -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, limit)
}

/// An id that a request brings goes into logs and back to the client, so it has to be plain.
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

/// A client can send any method, and every label of a metric is kept for ever.
fn method_label(method: &Method) -> &'static str {
    const KNOWN: [&str; 6] = ["GET", "POST", "PATCH", "HEAD", "DELETE", "OPTIONS"];
    let known = KNOWN.iter().find(|known| **known == method.as_str());
    known.copied().unwrap_or("other")
}

/// Limits, counts and times a request, and completes the headers of its answer.
#[derive(Clone)]
struct Observe<S> {
    app: App,
    meters: Arc<Meters>,
    inner: S,
}

/// The metrics of one route: their names and labels are looked up once, not with each request.
#[derive(Default)]
struct Meters {
    seconds: OnceLock<Histogram>,
    requests: RwLock<Vec<(&'static str, StatusCode, Counter)>>,
}

impl Meters {
    fn count(&self, route: &str, method: &'static str, status: StatusCode, took: Duration) {
        let seconds = self.seconds.get_or_init(
            || metrics::histogram!("flash_sale_http_request_seconds", "route" => route.to_owned()),
        );
        seconds.record(took);
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
        let mut known = self
            .requests
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        known.push((method, status, counter));
    }
}

impl<S, B> Service<Request> for Observe<S>
where
    S: Service<Request, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let began = Instant::now();
        let (app, meters) = (self.app.clone(), self.meters.clone());
        let route = request.extensions().get::<MatchedPath>().cloned();
        let method = method_label(request.method());
        let checked = check_address(&app, &request).map(|left| {
            let span = span(method, label(route.as_ref()), &request);
            (left, span, self.inner.call(request))
        });
        Box::pin(async move {
            let route = label(route.as_ref());
            let (response, left) = match checked {
                Ok((left, span, answer)) => (traced(answer, span).await, left),
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
            Ok(response)
        })
    }
}

/// How many requests its address has left, where addresses are limited.
fn check_address(app: &HttpState, request: &Request) -> Result<Option<u32>, Problem> {
    let path = request.uri().path();
    match &app.limits {
        // Besides the API, whatever asks a dependency or renders something large.
        Some(limits) if path.starts_with("/api/") || path == "/readyz" || path == "/metrics" => {
            let address = Address::of(request.extensions(), request.headers(), app.trust_proxy);
            limits.check_address(address).map(Some)
        }
        _ => Ok(None),
    }
}

fn complete(app: &HttpState, response: &mut Response, left: Option<u32>) {
    let status = response.status();
    let headers = response.headers_mut();
    // What a client sent may come back to it; no browser is to guess that it is a page.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(left) = left
        && !headers.contains_key(RATELIMIT)
        && let Ok(state) = HeaderValue::try_from(ADDRESS.state(left))
    {
        headers.insert(RATELIMIT, state);
        headers.insert(RATELIMIT_POLICY, HeaderValue::from_static(ADDRESS.text));
    }
    // Every 429 and 503 carries Retry-After.
    if [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ]
    .contains(&status)
    {
        let soon = headers.entry(RETRY_AFTER);
        soon.or_insert(const { HeaderValue::from_static("1") });
    }
    // A client that keeps the connection would send its next request while the port closes, or to a
    // connection that ends because its body was not read.
    if app.leaving.load(Relaxed) || status == StatusCode::PAYLOAD_TOO_LARGE {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// The span of a trace, if this request is traced.
fn span(method: &'static str, route: &str, request: &Request) -> Span {
    if !route.starts_with("/api/") {
        return Span::none();
    }
    let id = request.headers().get(X_REQUEST_ID);
    let id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
    traces::request(method, route, id, request.headers())
}

/// Answers within the span, and says where the trace is found.
async fn traced<B>(
    answer: impl Future<Output = Result<Response<B>, Infallible>>,
    span: Span,
) -> Response
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    if span.is_disabled() {
        let Ok(response) = answer.await;
        return response.map(Body::new);
    }
    let Ok(response) = answer.instrument(span.clone()).await;
    let mut response = response.map(Body::new);
    let found_at = traces::answered(&span, response.status().as_u16());
    if let Some(Ok(found_at)) = found_at.map(HeaderValue::try_from) {
        response.headers_mut().insert(TRACERESPONSE, found_at);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::Body, routing::get};
    use proptest::prelude::*;
    use tower::ServiceExt;

    #[tokio::test]
    async fn a_handler_that_never_answers_is_given_up() {
        let app = crate::http::testing::app();
        let slow = get(std::future::pending::<()>).layer(time_limit(Duration::from_millis(1)));
        let router = around(Router::new().route("/slow", slow), app.clone()).with_state(app);
        let request = Request::get("/slow")
            .body(Body::empty())
            .expect("a request");
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
}
