//! The traces of real processes, as a collector gets them: this test is the collector.

use crate::{front::Deployment, support::prelude::*};
use axum::{Router, body::Bytes, extract::State, routing::post};
use opentelemetry_proto::tonic::collector::trace::v1::*;
use opentelemetry_proto::tonic::trace::v1::{Span, span::Link};
use prost::Message;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const CALLER_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER_SPAN: &str = "00f067aa0ba902b7";

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

impl Collector {
    async fn start() -> (Self, String) {
        let collector = Self::default();
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
        let router = Router::new().route("/v1/traces", post(take)).with_state(collector.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, router).await });
        (collector, format!("http://{address}"))
    }

    fn spans(&self) -> Vec<Span> {
        self.0.lock().expect("no panic").clone()
    }

    async fn until(&self, name: &str, wanted: impl Fn(&Span) -> bool) -> (Span, Vec<Span>) {
        wait_for!(&format!("the span {name:?}"), {
            let spans = self.spans();
            let found = spans.iter().find(|span| span.name == name && wanted(span));
            found.cloned().map(|found| (found, spans))
        })
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

fn below<'a>(spans: &'a [Span], parent: &Span, name: &str) -> &'a Span {
    let is_below =
        |span: &&Span| span.trace_id == parent.trace_id && span.parent_span_id == parent.span_id;
    let found: Vec<&Span> = spans.iter().filter(is_below).collect();
    let mut named = found.iter().filter(|span| span.name == name);
    match (named.next(), named.next()) {
        (Some(only), None) => only,
        _ => panic!("not one {name:?} below {:?}: {found:?}", parent.name),
    }
}

fn is_inside(span: &Span, other: &Span) {
    let [inner, outer] = [span, other].map(|one| one.start_time_unix_nano..=one.end_time_unix_nano);
    let is_inside = outer.contains(inner.start()) && outer.contains(inner.end());
    assert!(is_inside, "{span:?} is not inside {other:?}");
}

async fn buy(program: &Program, sale: &str, caller: &str, sampled: bool) -> Reply {
    let traceparent = format!("00-{CALLER_TRACE}-{caller}-0{}", u8::from(sampled));
    let buying = program.entrance(SECRET).shopper().buying(sale);
    buying.header("traceparent", traceparent).await.must_be(202)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_is_traced_from_its_request_through_redis_to_postgres() {
    let (collector, endpoint) = Collector::start().await;
    let deployment = Deployment::start(1, &[(ENDPOINT, &endpoint)]).await;
    let program = deployment.running();
    let answer = buy(program, &program.sale(1_000).await, CALLER_SPAN, true).await;
    let order = answer.text("order_id");
    let is_ours = |span: &Span| text(span, "flash_sale.order_id") == order;
    // The last span to end; it comes in the same batch as the others, or in a later one.
    collector.until("write orders", |_| true).await;
    let (written, spans) = collector.until("order written", is_ours).await;

    let request = spans.iter().find(|span| span.span_id == written.parent_span_id);
    let request = request.expect("the order was written for a request");
    assert_eq!(request.name, "POST /api/v1/sales/{id}/orders");
    assert_eq!(hex(&request.trace_id), CALLER_TRACE);
    assert_eq!(hex(&request.parent_span_id), CALLER_SPAN);
    let expected = format!("00-{CALLER_TRACE}-{}-01", hex(&request.span_id));
    assert_eq!(answer.header("traceresponse"), expected);
    assert_eq!(text(request, "flash_sale.request_id"), answer.header("x-request-id"));

    is_inside(below(&spans, request, "admission"), request);
    let batch = below(&spans, request, "admission batch");
    assert!(batch.links.is_empty(), "it was alone");
    let script = below(&spans, batch, "redis admit.lua");
    is_inside(script, batch);

    let write = below(&spans, request, "write orders");
    is_inside(below(&spans, write, "postgres transaction"), write);
    is_inside(below(&spans, write, "redis ack"), write);
    assert!(write.start_time_unix_nano >= script.end_time_unix_nano);
}

/// Many purchases in few batches: each has its spans, each batch is linked with all its requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_linked_with_every_request_in_it() {
    const CROWD: usize = 40;
    let (collector, endpoint) = Collector::start().await;
    let deployment = Deployment::start(1, &[(ENDPOINT, &endpoint)]).await;
    let program = deployment.running();
    let sale = program.sale(1_000).await;
    let caller = |number: usize| format!("{:016x}", number + 1);
    let bought = (0..CROWD).map(async |number| {
        buy(program, &sale, &caller(number), true).await.text("order_id").to_owned()
    });
    let orders = BTreeSet::from_iter(join_all(bought).await);
    assert_eq!(orders.len(), CROWD);
    // The end exports what is left, so nothing is waited for.
    drop(deployment);
    let spans = collector.spans();
    let named = |name: &'static str| spans.iter().filter(move |span| span.name == name);
    let order_of = |span| text(span, "flash_sale.order_id").to_owned();
    assert_eq!(named("order written").map(order_of).collect::<BTreeSet<_>>(), orders);
    // Each request is what a batch is below, or linked with.
    let batches: Vec<_> = named("admission batch").collect();
    for number in 0..CROWD {
        let is_its = |span: &&Span| hex(&span.parent_span_id) == caller(number);
        let request = spans.iter().find(is_its).expect("every purchase has a span");
        below(&spans, request, "admission");
        let of_it = (&request.trace_id, &request.span_id);
        let is_it = |link: &Link| (&link.trace_id, &link.span_id) == of_it;
        let has_it = |batch: &&&Span| {
            batch.parent_span_id == request.span_id || batch.links.iter().any(is_it)
        };
        assert_eq!(batches.iter().filter(has_it).count(), 1);
    }
    let linked: usize = batches.iter().map(|batch| batch.links.len()).sum();
    assert_eq!(linked + batches.len(), CROWD);
}

/// Not when unsampled, nor with a share of 0, nor without a collector; one may be away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_sampled_leaves_no_trace() {
    let (collector, endpoint) = Collector::start().await;
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let none = ("OTEL_TRACES_SAMPLER_ARG", "0");
    for (settings, sampled, is_answered) in [
        (vec![none, (ENDPOINT, &*endpoint)], false, false),
        (vec![none], true, false),
        (vec![none, (ENDPOINT, "")], true, false),
        (vec![none, (ENDPOINT, &*nobody)], true, true),
    ] {
        let deployment = Deployment::start(1, &settings).await;
        let program = deployment.running();
        let answer = buy(program, &program.sale(1_000).await, CALLER_SPAN, sampled).await;
        assert_eq!(answer.headers.contains_key("traceresponse"), is_answered, "{settings:?}");
    }
    assert!(collector.spans().is_empty());
}
