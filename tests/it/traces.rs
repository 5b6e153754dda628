//! The traces of real processes, as a collector gets them: this test is the collector.

use crate::{
    cli::{Home, Program, json_of, settings_of},
    support::{
        Database, Servers,
        app::{ADMIN_TOKEN, eventually},
    },
};
use axum::{Router, body::Bytes, extract::State, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    trace::v1::Span,
};
use prost::Message;
use reqwest::{Client, Response};
use serde_json::json;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};
use tokio::net::TcpListener;

const CALLER_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER_SPAN: &str = "00f067aa0ba902b7";

/// Takes OTLP over HTTP, as protobuf, and keeps the spans.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

impl Collector {
    /// Where it listens.
    async fn start(&self) -> String {
        let take = async |State(collector): State<Self>, body: Bytes| {
            let request = ExportTraceServiceRequest::decode(body).expect("OTLP");
            let mut spans = collector.0.lock().expect("no panic");
            for resource in request.resource_spans {
                let attributes = resource.resource.expect("a resource").attributes;
                assert!(attributes.iter().any(|one| one.key == "service.name"));
                for scope in resource.scope_spans {
                    spans.extend(scope.spans);
                }
            }
            ExportTraceServiceResponse::default().encode_to_vec()
        };
        let router = Router::new()
            .route("/v1/traces", post(take))
            .with_state(self.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}")
    }

    fn spans(&self) -> Vec<Span> {
        self.0.lock().expect("no panic").clone()
    }

    /// The spans once this one has come; spans come in batches, seconds later.
    async fn until(&self, name: &str, wanted: impl Fn(&Span) -> bool) -> (Span, Vec<Span>) {
        eventually(&format!("the span {name:?}"), async || {
            let spans = self.spans();
            let found = spans.iter().find(|span| span.name == name && wanted(span));
            found.cloned().map(|found| (found, spans))
        })
        .await
    }
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text<'a>(span: &'a Span, key: &str) -> &'a str {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    let found = span.attributes.iter().find(|one| one.key == key);
    match found.and_then(|one| one.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        _ => "",
    }
}

/// The only span of this name below this one.
fn below<'a>(spans: &'a [Span], parent: &Span, name: &str) -> &'a Span {
    let is_below =
        |span: &&Span| span.trace_id == parent.trace_id && span.parent_span_id == parent.span_id;
    let found: Vec<&Span> = spans
        .iter()
        .filter(is_below)
        .filter(|span| span.name == name)
        .collect();
    let [only] = found[..] else {
        let names: Vec<&str> = spans
            .iter()
            .filter(is_below)
            .map(|span| &*span.name)
            .collect();
        panic!(
            "{} of {name:?} below {:?}, but {names:?}",
            found.len(),
            parent.name
        );
    };
    only
}

fn links_to(span: &Span, other: &Span) -> bool {
    let links = span.links.iter();
    let mut ids = links.map(|link| (&link.trace_id, &link.span_id));
    ids.any(|ids| ids == (&other.trace_id, &other.span_id))
}

fn is_inside(span: &Span, other: &Span) {
    assert!(
        other.start_time_unix_nano <= span.start_time_unix_nano
            && span.start_time_unix_nano <= span.end_time_unix_nano
            && span.end_time_unix_nano <= other.end_time_unix_nano,
        "{:?} {}..{} is not inside {:?} {}..{}",
        span.name,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        other.name,
        other.start_time_unix_nano,
        other.end_time_unix_nano
    );
}

/// Processes on one database, and a sale.
struct Stage {
    home: Home,
    database: Database,
    settings: Vec<(&'static str, String)>,
    client: Client,
}

impl Stage {
    async fn new(prefix: &str, more: &[(&'static str, &str)]) -> Self {
        let servers = Servers::shared().await;
        let database = servers.database().await;
        let mut settings = settings_of(servers, &database, prefix).to_vec();
        settings.extend(
            more.iter()
                .map(|(name, value)| (*name, (*value).to_owned())),
        );
        Self {
            home: Home::new(),
            database,
            settings,
            client: Client::new(),
        }
    }

    async fn serve(&self) -> Program {
        let mut command = self.home.command(&["serve"]);
        command.envs(self.settings.iter().cloned());
        Program::serve_by(&self.home, command).await
    }

    async fn sale(&self, program: &Program) -> String {
        let body = json!({"title": "a thing", "price_cents": 100, "stock": 1_000});
        let request = self
            .client
            .post(program.url("/api/v1/admin/sales"))
            .bearer_auth(ADMIN_TOKEN);
        let sale = json_of(request.json(&body)).await;
        sale["id"].as_str().expect("an id").to_owned()
    }

    async fn token(&self, program: &Program) -> String {
        let request = self
            .client
            .post(program.url("/api/v1/session"))
            .json(&json!({}));
        let session = json_of(request).await;
        session["token"].as_str().expect("a token").to_owned()
    }

    /// A purchase that was accepted: its answer and its order id.
    async fn buy(&self, program: &Program, sale: &str, traceparent: &str) -> (Response, String) {
        let token = self.token(program).await;
        let url = program.url(&format!("/api/v1/sales/{sale}/orders"));
        let request = self
            .client
            .post(url)
            .bearer_auth(token)
            .header("traceparent", traceparent);
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), 202);
        let location = answer.headers()["location"].to_str().expect("text");
        let order = location.rsplit('/').next().expect("an id").to_owned();
        (answer, order)
    }
}

fn traceparent(span: &str, sampled: bool) -> String {
    format!("00-{CALLER_TRACE}-{span}-0{}", u8::from(sampled))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_is_traced_from_its_request_through_redis_to_postgres() {
    let collector = Collector::default();
    let endpoint = collector.start().await;
    let stage = Stage::new("traces:", &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]).await;
    let program = stage.serve().await;
    let sale = stage.sale(&program).await;
    let (answer, order) = stage
        .buy(&program, &sale, &traceparent(CALLER_SPAN, true))
        .await;
    let is_ours = |span: &Span| text(span, "flash_sale.order_id") == order;
    // The last span to end; it comes in the same batch as the others, or in a later one.
    collector.until("write orders", |_| true).await;
    let (written, spans) = collector.until("order written", is_ours).await;

    // The request goes on where its caller was, and its client can find it.
    let request = spans
        .iter()
        .find(|span| span.span_id == written.parent_span_id);
    let request = request.expect("the order was written for a request");
    assert_eq!(request.name, "POST /api/v1/sales/{id}/orders");
    assert_eq!(hex(&request.trace_id), CALLER_TRACE);
    assert_eq!(hex(&request.parent_span_id), CALLER_SPAN);
    assert_eq!(
        answer.headers()["traceresponse"],
        format!("00-{CALLER_TRACE}-{}-01", hex(&request.span_id))
    );
    assert_eq!(
        text(request, "flash_sale.request_id"),
        answer.headers()["x-request-id"]
    );

    // Through the gate and Redis.
    is_inside(below(&spans, request, "admission"), request);
    let batch = below(&spans, request, "admission batch");
    assert!(batch.links.is_empty(), "it was alone");
    let script = below(&spans, batch, "redis admit.lua");
    is_inside(script, batch);

    // Into Postgres, and out of the log.
    let write = below(&spans, request, "write orders");
    is_inside(below(&spans, write, "postgres transaction"), write);
    is_inside(below(&spans, write, "redis ack.lua"), write);
    assert!(write.start_time_unix_nano >= script.end_time_unix_nano);
    program.terminate().await;
    stage.database.drop().await;
}

/// Many purchases in few batches: each has its own spans, and each batch is linked with every request in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_linked_with_every_request_in_it() {
    const CROWD: usize = 40;
    let collector = Collector::default();
    let endpoint = collector.start().await;
    let stage = Stage::new("traced:", &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]).await;
    let program = stage.serve().await;
    let sale = stage.sale(&program).await;
    let caller = |number: usize| format!("{:016x}", number + 1);
    let callers: Vec<String> = (0..CROWD)
        .map(|number| traceparent(&caller(number), true))
        .collect();
    let bought = callers
        .iter()
        .map(|caller| stage.buy(&program, &sale, caller));
    let orders: BTreeSet<String> = futures_util::future::join_all(bought)
        .await
        .into_iter()
        .map(|(_, order)| order)
        .collect();
    assert_eq!(orders.len(), CROWD);
    // The end exports what is left, so nothing is waited for.
    program.terminate().await;
    let spans = collector.spans();
    let named = |name: &str| {
        spans
            .iter()
            .filter(|span| span.name == name)
            .collect::<Vec<_>>()
    };
    let written: BTreeSet<String> = named("order written")
        .iter()
        .map(|span| text(span, "flash_sale.order_id").to_owned())
        .collect();
    assert_eq!(written, orders);
    // Each request is what a batch is below, or linked with.
    let batches = named("admission batch");
    for number in 0..CROWD {
        let request = spans
            .iter()
            .find(|span| hex(&span.parent_span_id) == caller(number));
        let request = request.expect("every purchase has a span");
        below(&spans, request, "admission");
        let judged_by = batches
            .iter()
            .filter(|batch| batch.parent_span_id == request.span_id || links_to(batch, request));
        assert_eq!(judged_by.count(), 1);
    }
    let linked: usize = batches.iter().map(|batch| batch.links.len()).sum();
    assert_eq!(linked + batches.len(), CROWD);
    stage.database.drop().await;
}

/// A caller who is not sampled is not traced, nobody is with a share of 0, and without a collector there is nothing at
/// all. One that is away changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_sampled_leaves_no_trace() {
    let collector = Collector::default();
    let endpoint = collector.start().await;
    let nobody = format!("http://127.0.0.1:{}", crate::support::proxy::free_port());
    for (number, (settings, sampled)) in [
        (vec![("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint)], false),
        (vec![], true),
        (vec![("OTEL_EXPORTER_OTLP_ENDPOINT", "")], true),
        (vec![("OTEL_EXPORTER_OTLP_ENDPOINT", &*nobody)], true),
    ]
    .into_iter()
    .enumerate()
    {
        let is_away = settings.iter().any(|(_, value)| *value == nobody);
        let mut settings = settings;
        settings.push(("OTEL_TRACES_SAMPLER_ARG", "0"));
        // A database of its own each, and so keys of its own: its first sale has the number of the one before.
        let stage = Stage::new(&format!("untraced{number}:"), &settings).await;
        let program = stage.serve().await;
        let sale = stage.sale(&program).await;
        let (answer, _) = stage
            .buy(&program, &sale, &traceparent(CALLER_SPAN, sampled))
            .await;
        assert_eq!(answer.headers().contains_key("traceresponse"), is_away);
        program.terminate().await;
        stage.database.drop().await;
    }
    assert!(collector.spans().is_empty());
}
