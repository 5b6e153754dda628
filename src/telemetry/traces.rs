//! Traces of a purchase, from its request through Redis to its row in Postgres.
//!
//! Off by default: making a span is then a check of a flag.
//!
//! ```text
//! POST /api/v1/sales/{id}/orders
//! ├─ admission
//! ├─ admission batch ──links──▶ the other traced requests in it
//! │  └─ redis admit.lua
//! ├─ order written
//! └─ write orders ──links──▶ the other traced requests in it
//!    ├─ postgres transaction
//!    └─ redis ack
//! ```
//!
//! A batch belongs to its first traced request and is linked with the others. The log knows nothing
//! of traces: an order that another process writes has no `order written`.

use crate::config::TraceSettings;
use crate::domain::OrderId;
use axum::http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator;
pub use opentelemetry::trace::SpanContext;
use opentelemetry::trace::{TraceContextExt, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use std::sync::OnceLock;
use std::time::Duration;
use tracing::{Level, Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer, Registry};

/// The time at shutdown for the last spans.
const LAST_EXPORT: Duration = Duration::from_millis(400);
/// The most links of one span: a batch may have hundreds of requests in it.
const MOST_LINKS: u32 = 1_024;

static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

/// The traced request that an order came from.
pub type Traced = (OrderId, SpanContext);

#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error(
        "OTEL_EXPORTER_OTLP_ENDPOINT must be like http://127.0.0.1:4318 (OTLP over plain HTTP; for \
         TLS run a collector beside this program)"
    )]
    Endpoint,
    #[error("traces cannot be exported: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// The layer that exports spans, if a collector is configured.
pub fn layer(
    settings: &TraceSettings,
) -> Result<Option<Box<dyn Layer<Registry> + Send + Sync>>, TraceError> {
    // A compose file leaves it out by an empty value.
    let endpoint = settings.otlp_endpoint.as_deref();
    let Some(endpoint) = endpoint.filter(|url| !url.is_empty()) else {
        return Ok(None);
    };
    let host = endpoint.strip_prefix("http://");
    if host.is_none_or(|host| host.is_empty() || host.starts_with('/')) {
        return Err(TraceError::Endpoint);
    }
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .build()?;
    let instance = uuid::Uuid::new_v4().to_string();
    let resource = Resource::builder()
        .with_service_name(settings.otel_service_name.clone())
        .with_attribute(KeyValue::new("service.instance.id", instance))
        .build();
    let by_share = Sampler::TraceIdRatioBased(settings.trace_share);
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        .with_max_links_per_span(MOST_LINKS)
        .with_sampler(Sampler::ParentBased(Box::new(by_share)))
        .build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("flash-sale"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_level(false)
        .with_tracked_inactivity(false)
        .with_filter(Targets::new().with_target("otel", Level::INFO));
    let _ = PROVIDER.set(provider);
    Ok(Some(layer.boxed()))
}

/// Exports what is left. Bounded.
pub async fn end() {
    let Some(provider) = PROVIDER.get() else {
        return;
    };
    // It blocks on the exporting thread.
    let ended = tokio::task::spawn_blocking(|| provider.shutdown_with_timeout(LAST_EXPORT));
    let _ = tokio::time::timeout(LAST_EXPORT, ended).await;
}

/// The span of a request; continues the trace of its `traceparent`.
pub fn request(method: &str, route: &str, id: &str, headers: &HeaderMap) -> Span {
    if PROVIDER.get().is_none() {
        return Span::none();
    }
    let span = info_span!(
        target: "otel", parent: None, "request",
        otel.name = format!("{method} {route}"), otel.kind = "server",
        http.request.method = method, http.route = route, flash_sale.request_id = id
    );
    let _ = span.set_parent(TraceContextPropagator::new().extract(&HeaderExtractor(headers)));
    span
}

/// Records the status, and returns the value of `traceresponse` (W3C Trace Context, level 2).
/// `None`: not sampled.
pub fn answered(span: &Span, status: u16) -> Option<String> {
    span.set_attribute("http.response.status_code", i64::from(status));
    if status >= 500 {
        span.set_status(opentelemetry::trace::Status::error(status.to_string()));
    }
    let context = span.context();
    let found = sampled(&context)?;
    Some(format!("00-{}-{}-01", found.trace_id(), found.span_id()))
}

/// The context of the span, if it is sampled.
fn sampled(context: &Context) -> Option<SpanContext> {
    let found = context.span().span_context().clone();
    found.is_sampled().then_some(found)
}

/// The traced request of this task. Boxed: most are untraced, and the queue stays small.
pub fn here() -> Option<Box<SpanContext>> {
    PROVIDER.get()?;
    Context::map_current(sampled).map(Box::new)
}

/// A child of this task's span, if that is sampled.
pub fn below_here(name: &'static str) -> Span {
    let is_sampled = |context: &Context| context.span().span_context().is_sampled();
    if PROVIDER.get().is_none() || !Context::map_current(is_sampled) {
        return Span::none();
    }
    info_span!(target: "otel", "step", otel.name = name)
}

/// A span of work for several traced requests: a child of the first, linked with the others.
pub fn shared<'a>(name: &'static str, requests: impl Iterator<Item = &'a SpanContext>) -> Span {
    let mut requests = requests.cloned();
    let Some(first) = requests.next() else {
        return Span::none();
    };
    let span = below(name, first);
    requests.for_each(|request| span.add_link(request));
    span
}

fn below(name: &'static str, parent: SpanContext) -> Span {
    let span = info_span!(target: "otel", parent: None, "step", otel.name = name);
    let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    span
}

/// The spans of a write: its own, and one for each order in its request's trace.
pub fn written<'a>(traced: impl Iterator<Item = &'a Traced> + Clone) -> (Span, Vec<Span>) {
    let requests = traced.clone().map(|(_, request)| request);
    let write = shared("write orders", requests);
    let orders = traced.map(|(order, request)| {
        let span = below("order written", request.clone());
        span.set_attribute("flash_sale.order_id", order.to_string());
        span
    });
    (write, orders.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_plain_http_or_there_are_no_traces() {
        let layer_for = |endpoint: &str| {
            layer(&TraceSettings {
                otlp_endpoint: Some(endpoint.to_owned()),
                otel_service_name: "test".to_owned(),
                trace_share: 1.0,
            })
        };
        for wrong in ["127.0.0.1:4318", "https://collector:4318", "http://", "http:///x"] {
            assert!(matches!(layer_for(wrong), Err(TraceError::Endpoint)), "{wrong}");
        }
        assert!(matches!(layer_for(""), Ok(None)));
        assert!(here().is_none());
    }
}
