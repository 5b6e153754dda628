//! Around the API: is it alive, is it ready, what does it measure.

use super::{
    App,
    error::{METHOD_NOT_ALLOWED, NOT_FOUND, Problem},
    openapi::refusals,
};
use crate::{sale::Shop, web::body};
use axum::{
    Router,
    extract::State,
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Serialize;
use std::sync::{Arc, atomic::Ordering::Relaxed};
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

/// Whether this instance should get requests, and what each of its dependencies says.
///
/// Only `ok` or `down`: the words of a failing dependency name hosts and go to the log.
#[derive(Serialize, ToSchema)]
#[schema(as = Readiness)]
pub struct ReadinessBody {
    ready: bool,
    /// On its way out: it finishes what it has.
    draining: bool,
    #[schema(example = "ok")]
    postgres: &'static str,
    #[schema(example = "ok")]
    redis: &'static str,
    /// Whether purchases are judged.
    #[schema(example = "ok")]
    gate: &'static str,
    /// Whether all background loops of this process run.
    #[schema(example = "ok")]
    loops: &'static str,
}

refusals!(ReadyRefusals: RATE_LIMITED);

/// Whether the process lives; asks nothing else.
#[utoipa::path(
    get, path = "/healthz", tag = "around", operation_id = "healthz",
    responses((status = 200, description = "It lives", body = str, content_type = "text/plain")),
)]
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether it should get requests.
#[utoipa::path(
    get, path = "/readyz", tag = "around", operation_id = "readyz",
    responses(
        (status = 200, description = "Ready", body = ReadinessBody),
        (status = 503, description = "A dependency is down, or it is draining", body = ReadinessBody),
        ReadyRefusals
    ),
)]
pub async fn readyz(State(app): State<App>) -> Result<Response, Problem> {
    let draining = app.leaving.load(Relaxed) || app.draining.is_cancelled();
    readiness(&app.shop, draining).await
}

async fn readiness(shop: &Shop, draining: bool) -> Result<Response, Problem> {
    let readiness = shop.readiness().await;
    let [postgres, redis, gate, loops] = [
        ("postgres", readiness.postgres),
        ("redis", readiness.redis),
        ("gate", readiness.gate),
        ("loops", readiness.loops),
    ]
    .map(|(dependency, state)| match state {
        Ok(()) => "ok",
        Err(why) => {
            tracing::warn!(dependency, why, "not ready");
            "down"
        }
    });
    let ready = !draining && [postgres, redis, gate, loops] == ["ok"; 4];
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    body::json(
        status,
        &ReadinessBody {
            ready,
            draining,
            postgres,
            redis,
            gate,
            loops,
        },
    )
}

/// Whether a proxy should send new requests here: until this instance is told to stop. Asks no dependency.
///
/// For the health check of a proxy. `/readyz` would take every instance out at once when Redis is away, and with
/// them the pages, which work without it; `/healthz` does not know that the instance is about to go.
#[utoipa::path(
    get, path = "/routable", tag = "around", operation_id = "routable",
    responses(
        (status = 200, description = "Send them", body = str, content_type = "text/plain"),
        (status = 503, description = "It is about to go, and answers what still comes", body = str, content_type = "text/plain"),
    ),
)]
pub async fn routable(State(app): State<App>) -> (StatusCode, &'static str) {
    if app.leaving.load(Relaxed) || app.draining.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "leaving\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}

/// What it measures, for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "around", operation_id = "metrics",
    responses((status = 200, description = "Prometheus text format", body = str, content_type = "text/plain")),
)]
pub async fn metrics(State(app): State<App>) -> Response {
    figures((app.metrics)())
}

fn figures(text: String) -> Response {
    let text_format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(CONTENT_TYPE, text_format)], text).into_response()
}

/// What a process that serves no shoppers says of itself: `/healthz`, `/readyz` and `/metrics`, for an operator's
/// own network. There are no limits.
pub fn of_a_worker(
    shop: Arc<Shop>,
    metrics: impl Fn() -> String + Clone + Send + Sync + 'static,
    draining: CancellationToken,
) -> Router {
    let is_ready = async move || readiness(&shop, draining.is_cancelled()).await;
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(is_ready))
        .route("/metrics", get(async move || figures(metrics())))
        .fallback(async || Problem::new(&NOT_FOUND))
        .method_not_allowed_fallback(async || Problem::new(&METHOD_NOT_ALLOWED))
}
