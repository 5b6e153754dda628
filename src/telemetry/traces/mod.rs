//! Traces: the way of one purchase, from its request through Redis to its row in Postgres, as OpenTelemetry spans.
//!
//! Off by default. Off, a purchase pays for a few loads of a flag that never changes: no span, no clock reading, no
//! allocation. On, a request that is sampled makes these:
//!
//! ```text
//! the purchase's trace                                  traces of what many purchases share
//! POST /api/v1/sales/{id}/orders                        admission batch ──links──▶ every traced request in it
//! ├─ wait for the gate                                  └─ redis admit.lua
//! ├─ admission ──link──▶ admission batch
//! │              └─link─▶ the order's own trace         write orders ──links──▶ every traced request in it
//! └─ order written ──link──▶ write orders               ├─ postgres transaction
//!                                                       └─ redis ack.lua
//! ```
//!
//! A batch serves many requests and belongs to none of them, so it is a trace of its own, and spans are linked both
//! ways.
//!
//! **How the writer knows the trace of an order**: the gate leaves it here, by order id ([`Traces::carry`]), in the
//! process that writes the order. If that process dies, or has no writer, another one finds the order in the log, which
//! knows nothing of traces. So an order has a trace id of its own that anybody can compute from its id, and a span with
//! a computed id in it, `order recovered`: the purchase's trace links to it before it exists.
//!
//! Most spans are made when they are over, from times noted on the way; only a request's is open while it lasts. A
//! thread of their own exports them in batches. If the collector is away or slow, they are thrown away.

mod purchase;

use crate::domain::OrderId;
use axum::http::HeaderMap;
use dashmap::DashMap;
use opentelemetry::{
    Context, KeyValue, SpanId, TraceId,
    propagation::{Extractor, TextMapPropagator},
    trace::{
        Link, Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer as _,
        TracerProvider as _,
    },
};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{
        IdGenerator, RandomIdGenerator, Sampler, SamplingResult, SdkTracer, SdkTracerProvider,
        ShouldSample, Span as SdkSpan,
    },
};
use std::{
    cell::Cell,
    sync::OnceLock,
    time::{Duration, Instant, SystemTime},
};

pub use purchase::{Batch, Call, Joined, Writing};

/// How long the last spans may take to reach the collector when the process ends.
const LAST_EXPORT: Duration = Duration::from_millis(400);

/// The most links of one span: a batch may have hundreds of requests in it.
const MOST_LINKS: u32 = 1_024;

static TRACES: OnceLock<Traces> = OnceLock::new();

tokio::task_local! {
    /// The span below which whatever this task does belongs.
    static HERE: SpanContext;
}

/// The tracer of this process.
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    share: f64,
    /// Orders on their way to the writer of this process.
    carried: DashMap<OrderId, purchase::Carried>,
}

#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error(
        "OTEL_EXPORTER_OTLP_ENDPOINT must be like http://127.0.0.1:4318 (OTLP over plain HTTP; for TLS run a collector \
         beside this program)"
    )]
    Endpoint,
    #[error("traces cannot be exported: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// Starts exporting to a collector (OTLP over HTTP, protobuf; `endpoint` without `/v1/traces`). Of the requests whose
/// caller has decided nothing, `share` are sampled, from 0 to 1. The first call of a process counts.
pub fn start(endpoint: &str, service: &str, share: f64) -> Result<(), TraceError> {
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
        .with_service_name(service.to_owned())
        .with_attribute(KeyValue::new("service.instance.id", instance))
        .build();
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        .with_id_generator(Ids::default())
        .with_max_links_per_span(MOST_LINKS)
        .with_sampler(Requests(Sampler::ParentBased(Box::new(
            Sampler::TraceIdRatioBased(share),
        ))))
        .build();
    let tracer = provider.tracer("flash-sale");
    let _ = TRACES.set(Traces {
        provider,
        tracer,
        share,
        carried: DashMap::new(),
    });
    Ok(())
}

/// Exports what is left. Bounded.
pub async fn end() {
    let Some(traces) = active() else { return };
    let provider = traces.provider.clone();
    // It waits for the thread that exports.
    let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(LAST_EXPORT));
    let _ = tokio::time::timeout(LAST_EXPORT, ended).await;
}

/// The tracer, if this process traces.
#[inline]
pub fn active() -> Option<&'static Traces> {
    TRACES.get()
}

/// Who asks is sampled or not; what the program does for several of them is, if one of them was.
#[derive(Debug, Clone)]
struct Requests(Sampler);

impl ShouldSample for Requests {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let is_shared = *kind == SpanKind::Internal
            && !parent.is_some_and(|parent| parent.span().span_context().is_valid());
        let sampler = if is_shared {
            &Sampler::AlwaysOn
        } else {
            &self.0
        };
        sampler.should_sample(parent, trace_id, name, kind, attributes, links)
    }
}

thread_local! {
    /// The ids of the span that this thread makes next, if they are computed.
    static COMPUTED: Cell<Option<(TraceId, SpanId)>> = const { Cell::new(None) };
}

/// Random ids, unless they are computed.
#[derive(Debug, Default)]
struct Ids(RandomIdGenerator);

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        COMPUTED
            .get()
            .map_or_else(|| self.0.new_trace_id(), |(trace, _)| trace)
    }

    fn new_span_id(&self) -> SpanId {
        COMPUTED
            .get()
            .map_or_else(|| self.0.new_span_id(), |(_, span)| span)
    }
}

/// What is known of a span when it is over.
struct Over<'a> {
    name: &'static str,
    began: SystemTime,
    /// `None`: the root of a trace of its own.
    parent: Option<&'a SpanContext>,
    links: Vec<Link>,
    attributes: Vec<KeyValue>,
}

impl Traces {
    /// Opens a span that began earlier.
    fn open(&self, span: Over<'_>) -> SdkSpan {
        let above = span.parent.map_or_else(Context::new, |parent| {
            Context::new().with_remote_span_context(parent.clone())
        });
        let builder = SpanBuilder::from_name(span.name)
            .with_kind(SpanKind::Internal)
            .with_start_time(span.began)
            .with_links(span.links)
            .with_attributes(span.attributes);
        self.tracer.build_with_context(builder, &above)
    }

    /// Opens the span of a request; the trace of its caller goes on, if it has a `traceparent`. `None`: it is not
    /// sampled.
    pub fn request(
        &self,
        method: &'static str,
        route: &str,
        headers: &HeaderMap,
    ) -> Option<Request> {
        let caller = TraceContextPropagator::new().extract(&Headers(headers));
        let builder = SpanBuilder::from_name(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", method),
                KeyValue::new("http.route", route.to_owned()),
            ]);
        let span = self.tracer.build_with_context(builder, &caller);
        span.is_recording().then_some(Request { span })
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        Vec::new() // the propagator asks for what it knows
    }
}

/// The open span of a request.
pub struct Request {
    span: SdkSpan,
}

impl Request {
    /// Does what answers the request; what it does on the way belongs to this span.
    pub async fn around<T>(&self, answer: impl Future<Output = T>) -> T {
        HERE.scope(self.span.span_context().clone(), answer).await
    }

    /// Ends the span. The value of a `traceresponse` header (W3C Trace Context, level 2), by which the client finds the
    /// trace.
    pub fn answered(mut self, status: u16, request_id: &str) -> String {
        self.span.set_attribute(KeyValue::new(
            "http.response.status_code",
            i64::from(status),
        ));
        self.span.set_attribute(KeyValue::new(
            "flash_sale.request_id",
            request_id.to_owned(),
        ));
        if status >= 500 {
            self.span.set_status(Status::error(status.to_string()));
        }
        self.span.end();
        let context = self.span.span_context();
        format!("00-{}-{}-01", context.trace_id(), context.span_id())
    }
}

/// When this was, by the wall clock of now.
fn wall(then: Instant) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(then.elapsed()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_plain_http() {
        for wrong in [
            "",
            "127.0.0.1:4318",
            "https://collector:4318",
            "http://",
            "http:///x",
        ] {
            let refused = start(wrong, "test", 1.0);
            assert!(matches!(refused, Err(TraceError::Endpoint)), "{wrong}");
        }
        assert!(active().is_none());
    }

    #[tokio::test]
    async fn nothing_is_traced_by_default() {
        assert!(Joined::here().is_none());
        end().await;
    }
}
