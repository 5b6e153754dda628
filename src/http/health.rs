//! Health, readiness and metrics.

use super::error::{HttpResult, METHOD_NOT_ALLOWED, NOT_FOUND, Problem};
use super::openapi::refusals;
use super::state::{Draining, RenderMetrics};
use crate::services::Health;
use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;
use web::body;

/// Whether this instance should get requests, and what each of its dependencies says.
///
/// Of a dependency only `ok` or `down`: error messages name hosts and go to the log.
#[derive(Serialize, ToSchema)]
#[schema(as = Readiness)]
pub struct ReadinessBody {
    ready: bool,
    /// Shutting down: it finishes requests.
    draining: bool,
    #[schema(example = "ok")]
    postgres: &'static str,
    #[schema(example = "ok")]
    redis: &'static str,
    /// Whether purchases are admitted.
    #[schema(example = "ok")]
    admission: &'static str,
    /// Whether all background loops of this process run.
    #[schema(example = "ok")]
    loops: &'static str,
    /// Whether Redis keeps accepted orders over a restart (`appendonly yes`); null if it does not
    /// answer. Not needed to be ready.
    redis_durable: Option<bool>,
}

refusals!(ReadyRefusals: RATE_LIMITED);

/// Liveness: the process answers. No dependency is checked.
#[utoipa::path(
    get, path = "/healthz", tag = "machines", operation_id = "healthz",
    responses((status = 200, description = "It lives", body = str, content_type = "text/plain")),
)]
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Readiness: whether it should get requests.
#[utoipa::path(
    get, path = "/readyz", tag = "machines", operation_id = "readyz",
    responses(
        (status = 200, description = "Ready", body = ReadinessBody),
        (status = 503, description = "A dependency is down, or it is draining", body =
            ReadinessBody),
        ReadyRefusals
    ),
)]
pub async fn readyz(
    State(health): State<Arc<Health>>,
    State(draining): State<Draining>,
) -> HttpResult {
    readiness(&health, draining.is_announced()).await
}

async fn readiness(health: &Health, draining: bool) -> HttpResult {
    let readiness = health.readiness().await;
    let [postgres, redis, admission, loops] = [
        ("postgres", readiness.postgres),
        ("redis", readiness.redis),
        ("admission", readiness.admission),
        ("loops", readiness.loops),
    ]
    .map(|(dependency, state)| match state {
        Ok(()) => "ok",
        Err(why) => {
            tracing::warn!(dependency, why, "not ready");
            "down"
        }
    });
    let ready = !draining && [postgres, redis, admission, loops] == ["ok"; 4];
    let status = match ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let redis_durable = readiness.redis_durable;
    let body = ReadinessBody { ready, draining, postgres, redis, admission, loops, redis_durable };
    body::json(status, &body)
}

/// Whether a proxy should send new requests here: until the shutdown is announced. No dependency is
/// checked.
///
/// For the health check of a proxy. `/readyz` would take out every instance when Redis is away, and
/// with them the pages, which work without it; `/healthz` does not show the shutdown.
#[utoipa::path(
    get, path = "/routable", tag = "machines", operation_id = "routable",
    responses(
        (status = 200, description = "Send them", body = str, content_type = "text/plain"),
        (status = 503, description = "It is about to go, and answers what still comes", body = str,
            content_type = "text/plain"),
    ),
)]
pub async fn routable(State(draining): State<Draining>) -> (StatusCode, &'static str) {
    if draining.is_announced() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}

/// Metrics for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "machines", operation_id = "metrics",
    responses((status = 200, description = "Prometheus text format", body = str, content_type =
        "text/plain")),
)]
pub async fn metrics(State(render): State<RenderMetrics>) -> Response {
    figures(render())
}

fn figures(text: String) -> Response {
    let text_format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(CONTENT_TYPE, text_format)], text).into_response()
}

/// The routes of a worker: `/healthz`, `/readyz` and `/metrics`, without limits, for an operator's
/// own network.
pub fn of_a_worker(
    health: Arc<Health>,
    metrics: impl Fn() -> String + Clone + Send + Sync + 'static,
    draining: CancellationToken,
) -> Router {
    let is_ready = async move || readiness(&health, draining.is_cancelled()).await;
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(is_ready))
        .route("/metrics", get(async move || figures(metrics())))
        .fallback(async || Problem::new(&NOT_FOUND))
        .method_not_allowed_fallback(async || Problem::new(&METHOD_NOT_ALLOWED))
}
