//! What happens around every request: it gets an id, is counted and timed, is held to the widest
//! limit, and is answered within a bounded time, even if its handler panics. One middleware, so that a
//! purchase pays for one: the request id is a handful of lines here and would be two more layers from
//! tower-http.

use super::{
    App, HttpState, body,
    error::{Problem, RATELIMIT, RATELIMIT_POLICY, panicked},
    limits::{ADDRESS, Address},
};
use crate::telemetry::traces;
use arc_swap::ArcSwap;
use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{MatchedPath, Request},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
        header::{RETRY_AFTER, X_CONTENT_TYPE_OPTIONS},
    },
    response::{IntoResponse, Response},
};
use futures_util::{
    future::{BoxFuture, Either},
    ready,
};
use metrics::{Counter, Histogram};
use pin_project_lite::pin_project;
use std::{
    collections::HashMap,
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::time::Sleep;
use tower::{Layer, Service};

// ---- ids --------------------------------------------------------------------------------------

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACERESPONSE: HeaderName = HeaderName::from_static("traceresponse");
const LONGEST_ID: usize = 64;

/// Numbers the requests of this process; the prefix tells processes apart. No clock and no random
/// bytes per request.
struct RequestIds {
    prefix: u32,
    next: AtomicU64,
}

impl Default for RequestIds {
    fn default() -> Self {
        let [a, b, c, d, ..] = *uuid::Uuid::new_v4().as_bytes();
        Self {
            prefix: u32::from_be_bytes([a, b, c, d]),
            next: AtomicU64::new(0),
        }
    }
}

impl RequestIds {
    /// The id that the request brings, if it is plain (it goes into logs and back to the client);
    /// otherwise a new one.
    fn of(&self, headers: &HeaderMap) -> HeaderValue {
        let mut brought = headers.get_all(X_REQUEST_ID).iter();
        match (brought.next(), brought.next()) {
            (Some(id), None) if is_plain(id.as_bytes()) => id.clone(),
            _ => self.make(),
        }
    }

    fn make(&self) -> HeaderValue {
        let id = format!("{:08x}-{:x}", self.prefix, self.next.fetch_add(1, Relaxed));
        HeaderValue::from_maybe_shared(Bytes::from(id))
            .unwrap_or(const { HeaderValue::from_static("unnumbered") }) // hex digits always are one
    }
}

fn is_plain(id: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    (1..=LONGEST_ID).contains(&id.len()) && id.iter().all(plain)
}

// ---- the middleware ---------------------------------------------------------------------------

/// What happens around every request, as a layer.
///
/// A `tower` service with a future of its own rather than `middleware::from_fn` with a `CatchPanicLayer`
/// in it: those put the request's future, the service that it runs and the answer's body into boxes of
/// their own, five allocations for every request, and this none. (`docs/performance.md` has the
/// instructions that it saves.)
#[derive(Clone)]
pub struct Frame(Arc<(App, Meters, RequestIds)>);

impl Frame {
    pub fn new(app: App) -> Self {
        Self(Arc::new((app, Meters::default(), RequestIds::default())))
    }

    /// What is known of a request to this route before it is answered.
    fn begin(&self, method: &Method, headers: &HeaderMap, route: &str) -> About {
        let (_, meters, ids) = &*self.0;
        About {
            left: None,
            began: Instant::now(),
            method: method_index(method),
            id: ids.of(headers),
            meter: meters.of(route),
        }
    }
}

impl<S> Layer<S> for Frame {
    type Service = Framed<S>;

    fn layer(&self, inner: S) -> Framed<S> {
        Framed {
            frame: self.clone(),
            inner,
        }
    }
}

/// A service within the frame.
#[derive(Clone)]
pub struct Framed<S> {
    frame: Frame,
    inner: S,
}

impl<S> Service<Request> for Framed<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
    S: Clone,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<Answer<S::Future>, BoxFuture<'static, Result<Response, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let matched = request.extensions().get::<MatchedPath>();
        let route = matched.map_or("unmatched", MatchedPath::as_str);
        let mut about = self.frame.begin(request.method(), request.headers(), route);
        match admit(&self.frame.0.0, &request, &mut about.left) {
            Ok(Entry::Free) => match about.trace(request.headers()) {
                None => Either::Left(about.answer(self.inner.call(request))),
                Some(span) => {
                    let answer = about.answer(self.inner.call(request));
                    Either::Right(Box::pin(traced(span, answer)))
                }
            },
            // Boxed, because it is rare: a body where none belongs, which has to be read all the same.
            Ok(Entry::AfterItsBody) => {
                // The service that is ready is the one to call.
                let clone = self.inner.clone();
                let mut inner = std::mem::replace(&mut self.inner, clone);
                let answer = async move {
                    let (parts, body) = request.into_parts();
                    match body::read(body).await {
                        Ok(_) => inner.call(Request::from_parts(parts, Body::empty())).await,
                        Err(problem) => Ok(problem.into_response()),
                    }
                };
                Either::Right(Box::pin(about.answer(answer)))
            }
            Err(problem) => {
                let answer = std::future::ready(Ok(problem.into_response()));
                Either::Right(Box::pin(about.answer(answer)))
            }
        }
    }
}

/// What is known of a request before it is answered.
struct About {
    /// Requests that its address has left, where addresses are limited.
    left: Option<u32>,
    began: Instant,
    method: usize,
    id: HeaderValue,
    meter: Arc<Meter>,
}

impl About {
    /// The span of a request, if this process traces, and this request.
    fn trace(&self, headers: &HeaderMap) -> Option<traces::Request> {
        let route = self.meter.route.as_str();
        traces::active()
            .filter(|_| route.starts_with("/api/"))
            .and_then(|traces| traces.request(METHODS[self.method], route, headers))
    }

    fn answer<F>(self, answer: F) -> Answer<F> {
        Answer {
            answer,
            limit: self.meter.time_limit.map(tokio::time::sleep),
            about: Some(self),
        }
    }

    /// Counts the answer, and says whose it is.
    fn conclude(self, mut response: Response) -> Response {
        let Self {
            left,
            began,
            method,
            id,
            meter,
        } = self;
        let elapsed = began.elapsed();
        meter.count(method, response.status());
        meter.seconds.record(elapsed);
        tracing::debug!(
            ?id,
            method = METHODS[method],
            route = meter.route,
            status = response.status().as_u16(),
            micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            "answered"
        );
        let status = response.status();
        let headers = response.headers_mut();
        headers.insert(X_REQUEST_ID, id);
        // What a client sent may come back to it; no browser is to guess that it is a page.
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(left) = left
            && !headers.contains_key(RATELIMIT)
            && let Ok(state) = HeaderValue::try_from(ADDRESS.state(left))
        {
            headers.insert(RATELIMIT, state);
            headers.insert(RATELIMIT_POLICY, HeaderValue::from_static(ADDRESS.text));
        }
        // Whoever is told to come later is told when: nobody forgets to say so.
        if matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            headers
                .entry(RETRY_AFTER)
                .or_insert(const { HeaderValue::from_static("1") });
        }
        response
    }
}

pin_project! {
    /// An answer in the making: within its time, and whatever happens in it.
    pub struct Answer<F> {
        #[pin]
        answer: F,
        #[pin]
        limit: Option<Sleep>,
        about: Option<About>,
    }
}

impl<F: Future<Output = Result<Response, Infallible>>> Future for Answer<F> {
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // A panic is a bug, and must not end the connection. What it leaves half-done is dropped with the
        // future, which is not polled again.
        let polled = catch_unwind(AssertUnwindSafe(|| this.answer.poll(context)));
        let response = match polled {
            Ok(Poll::Ready(Ok(response))) => response,
            Ok(Poll::Ready(Err(never))) => match never {},
            Ok(Poll::Pending) => {
                let Some(limit) = this.limit.as_pin_mut() else {
                    return Poll::Pending;
                };
                ready!(limit.poll(context));
                let route = this.about.as_ref().map_or("", |about| &about.meter.route);
                too_late(route)
            }
            Err(panic) => panicked(panic),
        };
        let about = this.about.take().expect("polled once more after its end");
        Poll::Ready(Ok(about.conclude(response)))
    }
}

/// Answers within the span of the request, and tells the client where to find it.
async fn traced(
    span: traces::Request,
    answer: impl Future<Output = Result<Response, Infallible>>,
) -> Result<Response, Infallible> {
    let mut response = span.around(answer).await?;
    let headers = response.headers();
    let id = headers.get(X_REQUEST_ID).and_then(|id| id.to_str().ok());
    let found_at = span.answered(response.status().as_u16(), id.unwrap_or_default());
    if let Ok(found_at) = HeaderValue::try_from(found_at) {
        response.headers_mut().insert(TRACERESPONSE, found_at);
    }
    Ok(response)
}

/// How a request gets in.
enum Entry {
    Free,
    AfterItsBody,
}

/// Whether a request gets in at all, by its address, and whether its body has to be read first.
fn admit(app: &HttpState, request: &Request, left: &mut Option<u32>) -> Result<Entry, Problem> {
    let path = request.uri().path();
    // Besides the API, whatever asks a dependency or renders something large.
    if let Some(limits) = &app.limits
        && (path.starts_with("/api/") || path == "/readyz" || path == "/metrics")
    {
        let address = Address::of(request.extensions(), request.headers(), app.trust_proxy);
        *left = Some(limits.check_address(address)?);
    }
    // Handlers of these methods read what they want themselves; the others want nothing, and what
    // is sent regardless has to be within bounds too.
    let is_theirs = request.body().is_end_stream()
        || matches!(
            *request.method(),
            Method::POST | Method::PATCH | Method::PUT
        );
    Ok(if is_theirs {
        Entry::Free
    } else {
        Entry::AfterItsBody
    })
}

// ---- time limits ------------------------------------------------------------------------------

/// How long an answer may take; of an event stream, until it begins. Only a dependency that neither
/// answers nor fails (a frozen Postgres, a cable pulled) makes it count.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// An audit of millions of orders takes its time. As long as a statement may (see `postgres.rs`).
const OPERATORS_TIME_LIMIT: Duration = Duration::from_secs(60);
/// A slow strategy is slow on purpose, and a verdict waits for it. Longer than the lab's own limits.
const LAB_TIME_LIMIT: Duration = Duration::from_secs(35);
/// How long a client should wait before it asks what hangs once more.
const RETRY_AFTER_TIMEOUT: Duration = Duration::from_secs(5);

/// The purchase needs none: each of its waits is bounded (2 s at the gate), its body by [`body::PATIENCE`], and the
/// hottest path of the house should not pay for another timer.
fn time_limit(route: &str) -> Option<Duration> {
    match route {
        super::orders::PURCHASE => None,
        _ if route.starts_with("/api/v1/admin/") => Some(OPERATORS_TIME_LIMIT),
        _ if route.starts_with("/api/v1/lab/") => Some(LAB_TIME_LIMIT),
        _ => Some(TIME_LIMIT),
    }
}

/// The handler is dropped where it waits, as it is when its client hangs up. Transitions of orders are
/// single statements, a payment goes on in a task of its own, and what an operator's change still
/// lacks in Redis is brought there by the refresh loop.
fn too_late(route: &str) -> Response {
    tracing::warn!(route, "gave up on a request that took too long");
    Problem::unavailable("the answer took too long", RETRY_AFTER_TIMEOUT).into_response()
}

// ---- the meters -------------------------------------------------------------------------------

const METHODS: [&str; 7] = ["GET", "POST", "PATCH", "HEAD", "DELETE", "OPTIONS", "other"];
/// The statuses that this program answers; another one is counted as 0.
const STATUSES: [u16; 22] = [
    200, 201, 202, 204, 303, 304, 307, 308, 400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429,
    500, 503, 0,
];

/// A client can send any method, and every label value is kept for ever.
fn method_index(method: &Method) -> usize {
    METHODS
        .iter()
        .position(|known| *known == method.as_str())
        .unwrap_or(METHODS.len() - 1)
}

/// A route's metrics, looked up in the recorder once: a request only increments. And its time limit,
/// which is found by the same look-up.
struct Meter {
    route: String,
    time_limit: Option<Duration>,
    seconds: Histogram,
    requests: [[OnceLock<Counter>; STATUSES.len()]; METHODS.len()],
}

impl Meter {
    fn new(route: &str) -> Self {
        Self {
            route: route.to_owned(),
            time_limit: time_limit(route),
            seconds: metrics::histogram!("flash_sale_http_request_seconds", "route" => route.to_owned()),
            requests: Default::default(),
        }
    }

    fn count(&self, method: usize, status: StatusCode) {
        let status = STATUSES
            .iter()
            .position(|known| *known == status.as_u16())
            .unwrap_or(STATUSES.len() - 1);
        let counter = self.requests[method][status].get_or_init(|| {
            metrics::counter!(
                "flash_sale_http_requests_total",
                "route" => self.route.clone(), "method" => METHODS[method], "status" => STATUSES[status].to_string()
            )
        });
        counter.increment(1);
    }
}

/// The meters of all routes seen so far. Routes are few and stay, so the map is copied when one is
/// added and read without a lock.
#[derive(Default)]
pub struct Meters {
    by_route: ArcSwap<HashMap<String, Arc<Meter>>>,
}

impl Meters {
    fn of(&self, route: &str) -> Arc<Meter> {
        if let Some(meter) = self.by_route.load().get(route) {
            return meter.clone();
        }
        self.by_route.rcu(|known| {
            let mut known = HashMap::clone(known);
            known
                .entry(route.to_owned())
                .or_insert_with(|| Arc::new(Meter::new(route)));
            known
        });
        self.by_route
            .load()
            .get(route)
            .cloned()
            .unwrap_or_else(|| Arc::new(Meter::new(route)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn request_ids_are_plain_and_differ() {
        let ids = RequestIds::default();
        let (first, second) = (ids.make(), ids.make());
        assert!(is_plain(first.as_bytes()), "{first:?}");
        assert_ne!(first, second);
    }

    #[test]
    fn only_the_purchase_bounds_itself() {
        assert_eq!(time_limit("/api/v1/sales/{id}/orders"), None);
        assert_eq!(time_limit("/api/v1/sales/{id}"), Some(TIME_LIMIT));
        assert_eq!(time_limit("unmatched"), Some(TIME_LIMIT));
        let audit = time_limit("/api/v1/admin/sales/{id}/audit");
        assert_eq!(audit, Some(OPERATORS_TIME_LIMIT));
        assert!(body::PATIENCE < TIME_LIMIT);
    }

    #[test]
    fn a_route_has_one_meter() {
        let meters = Meters::default();
        let meter = meters.of("/a");
        assert!(Arc::ptr_eq(&meter, &meters.of("/a")));
        assert_eq!(meters.of("/b").route, "/b");
        assert_eq!(
            METHODS[method_index(&Method::from_bytes(b"BREW").expect("a method"))],
            "other"
        );
        meter.count(method_index(&Method::GET), StatusCode::IM_A_TEAPOT);
    }

    fn request() -> Request {
        Request::get("/").body(Body::empty()).expect("a request")
    }

    #[tokio::test]
    async fn a_handler_that_panics_is_answered_for() {
        let panics = tower::service_fn(async |_: Request| -> Result<Response, Infallible> {
            panic!("on purpose")
        });
        let mut framed = Frame::new(crate::http::testing::app()).layer(panics);
        let answer = framed.call(request()).await.expect("infallible");
        assert_eq!(answer.status(), 500);
        assert!(answer.headers().contains_key(X_REQUEST_ID));
    }

    #[tokio::test]
    async fn a_handler_that_never_answers_is_given_up() {
        let about = About {
            left: None,
            began: Instant::now(),
            method: 0,
            id: HeaderValue::from_static("1"),
            meter: Arc::new(Meter::new("/slow")),
        };
        let answer = Answer {
            limit: Some(tokio::time::sleep(Duration::from_millis(1))),
            ..about.answer(std::future::pending())
        };
        let answer = answer.await.expect("infallible");
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()[X_REQUEST_ID], "1");
    }

    proptest! {
        /// What comes back is what the request brought, if it is plain, and never anything else of it.
        #[test]
        fn any_request_id_is_plain_or_replaced(value in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                let headers = HeaderMap::from_iter([(X_REQUEST_ID, value.clone())]);
                let id = RequestIds::default().of(&headers);
                prop_assert!(is_plain(id.as_bytes()));
                prop_assert_eq!(id == value, is_plain(value.as_bytes()));
            }
        }
    }
}
