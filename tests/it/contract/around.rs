//! Around the API: health, metrics, the OpenAPI document, request ids, rate limits, and what is said
//! while a dependency is away.

use super::{assert_members, assert_refused, retry_after};
use crate::support::{
    Servers,
    app::{Options, Reply, Shopper, TestApp, all_at_once, eventually},
};
use flash_sale::app::Role;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use reqwest::{Method, StatusCode, header::HeaderValue};
use serde_json::{Value, json};
use std::{
    collections::{BTreeSet, HashSet},
    time::{Duration, Instant},
};

#[tokio::test]
async fn it_says_that_it_lives_and_is_ready() {
    let app = TestApp::start().await;
    app.get("/healthz").await.assert(StatusCode::OK);
    let ready = app.get("/readyz").await;
    ready.assert(StatusCode::OK);
    assert_eq!((ready.text("postgres"), ready.text("redis")), ("ok", "ok"));
    app.finish().await;
}

#[tokio::test]
async fn the_metrics_have_these_names() {
    let app = TestApp::start().await;
    let sale = app.sale(1, json!({})).await;
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&sale).await;
    shopper.pay(&order).await.assert(StatusCode::OK);
    app.shopper()
        .buy(&sale)
        .await
        .assert_problem(409, "sold_out");
    let stream = app
        .client
        .get(app.url(&format!("/api/v1/sales/{sale}/events")))
        .send()
        .await
        .expect("an answer");

    eventually("every metric is there", async || {
        let reply = app.get("/metrics").await;
        reply.assert(StatusCode::OK);
        assert!(reply.header("content-type").starts_with("text/plain"));
        let text = reply.body.as_str().expect("text").to_owned();
        let named = |name: &str| {
            // A sample of this name; a histogram's are its buckets, sum and count.
            let samples = text.lines().filter_map(|line| line.strip_prefix(name));
            samples
                .filter_map(|rest| rest.chars().next())
                .any(|next| "{ _".contains(next))
        };
        let missing: Vec<_> = [
            "flash_sale_admissions_total",
            "flash_sale_admission_batch_size",
            "flash_sale_gate_seconds",
            "flash_sale_backlog_orders",
            "flash_sale_writer_seconds",
            "flash_sale_writer_orders_total",
            "flash_sale_orders_total",
            "flash_sale_pool_connections",
            "flash_sale_sse_subscribers",
            "flash_sale_http_requests_total",
            "flash_sale_http_request_seconds",
        ]
        .into_iter()
        .filter(|name| !named(name))
        .collect();
        let labelled = [
            "verdict=\"accepted\"",
            "verdict=\"sold_out\"",
            "status=\"paid\"",
        ]
        .iter()
        .all(|label| text.contains(label));
        (missing.is_empty() && labelled).then_some(())
    })
    .await;
    drop(stream);
    app.finish().await;
}

/// Every route of the contract but the lab's, with its methods.
const ROUTES: [(&str, &str); 28] = [
    ("/api/v1/lab/strategies", "get"),
    ("/api/v1/lab/arenas", "post"),
    ("/api/v1/lab/arenas/{id}", "delete"),
    ("/api/v1/lab/arenas/{id}/orders", "post"),
    ("/api/v1/lab/arenas/{id}/storm", "post"),
    ("/api/v1/lab/arenas/{id}/verdict", "get"),
    ("/api/v1/lab/report", "get"),
    ("/api/v1/session", "get post"),
    ("/api/v1/sales", "get"),
    ("/api/v1/sales/{id}", "get"),
    ("/api/v1/sales/{id}/events", "get"),
    ("/api/v1/sales/{id}/orders", "post"),
    ("/api/v1/orders", "get"),
    ("/api/v1/orders/{id}", "get"),
    ("/api/v1/orders/{id}/events", "get"),
    ("/api/v1/orders/{id}/pay", "post"),
    ("/api/v1/orders/{id}/cancel", "post"),
    ("/api/v1/admin/sales", "post"),
    ("/api/v1/admin/sales/{id}", "patch"),
    ("/api/v1/admin/sales/{id}/pause", "post"),
    ("/api/v1/admin/sales/{id}/resume", "post"),
    ("/api/v1/admin/sales/{id}/close", "post"),
    ("/api/v1/admin/sales/{id}/stock", "post"),
    ("/api/v1/admin/sales/{id}/audit", "get"),
    ("/api/v1/admin/sales/{id}/orders", "get"),
    ("/healthz", "get"),
    ("/readyz", "get"),
    ("/metrics", "get"),
];

#[tokio::test]
async fn the_openapi_document_lists_every_route() {
    let app = TestApp::start().await;
    let reply = app.get("/openapi.json").await;
    reply.assert(StatusCode::OK);
    assert!(reply.header("content-type").starts_with("application/json"));
    let document = reply.body;
    assert!(
        document["openapi"]
            .as_str()
            .is_some_and(|version| version.starts_with("3.")),
        "{}",
        document["openapi"]
    );
    for (path, methods) in ROUTES {
        assert_members(&document["paths"][path], methods);
    }

    // Whatever the document refers to is in it.
    let mut open = vec![&document];
    let mut references = BTreeSet::new();
    while let Some(value) = open.pop() {
        match value {
            Value::Array(values) => open.extend(values),
            Value::Object(members) => {
                references.extend(members.get("$ref").and_then(Value::as_str));
                open.extend(members.values());
            }
            _ => {}
        }
    }
    assert!(!references.is_empty());
    for reference in references {
        let pointer = reference
            .strip_prefix('#')
            .unwrap_or_else(|| panic!("{reference} is elsewhere"));
        assert!(
            document.pointer(pointer).is_some(),
            "{reference} is missing"
        );
    }
    app.finish().await;
}

#[tokio::test]
async fn a_method_that_a_route_does_not_have_is_405_with_allow() {
    let app = TestApp::start().await;
    let sale = app.sale(5, json!({})).await;
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&sale).await;
    let before = app.snapshot().await;
    let others = [
        ("/openapi.json", "get"),
        ("/", "get"),
        ("/orders", "get"),
        ("/static/css/app.css", "get"),
    ];
    for (path, methods) in ROUTES.into_iter().chain(others) {
        let id = if path.contains("/orders/{id}") {
            &order
        } else {
            &sale
        };
        let path = path.replace("{id}", id);
        let allowed: Vec<String> = methods.split(' ').map(str::to_ascii_uppercase).collect();
        for method in [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ] {
            if allowed.iter().any(|allowed| allowed == method.as_str()) {
                continue;
            }
            let reply = if path.contains("/admin") {
                app.admin(method.clone(), &path, None).await
            } else {
                shopper.call(method.clone(), &path).await
            };
            assert_eq!(
                (reply.status.as_u16(), reply.code()),
                (405, "method_not_allowed"),
                "{method} {path}"
            );
            assert_refused(&reply, &path);
            let listed: Vec<&str> = reply
                .header("allow")
                .split(',')
                .map(str::trim)
                .filter(|method| *method != "HEAD")
                .collect();
            let (listed, allowed): (BTreeSet<&str>, BTreeSet<&str>) = (
                listed.into_iter().collect(),
                allowed.iter().map(String::as_str).collect(),
            );
            assert_eq!(listed, allowed, "Allow of {method} {path}");
        }
    }
    assert_eq!(app.snapshot().await, before);
    app.finish().await;
}

#[tokio::test]
async fn what_is_not_there_is_404_with_a_code() {
    let app = TestApp::start().await;
    let sale = app.sale(5, json!({})).await;
    for path in [
        "/nothing",
        "/api",
        "/api/v1",
        "/api/v1/",
        "/api/v1/nothing",
        "/api/v2/sales",
        "/api/v1/sales/",
        "/API/V1/SALES",
        &format!("/api/v1/sales/{sale}/nothing"),
        &format!("/api/v1/sales/{sale}/orders/1"),
        "/api/v1/admin",
        "/api/v1/admin/nothing",
        "/static/nothing.js",
        "/static/",
        "/static/..%2f..%2fCargo.toml",
        "/static/%2e%2e/Cargo.toml",
        "/static//etc/passwd",
        "/static/%00",
        "/index.html",
        "//",
        "/%ff",
    ] {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            if path.starts_with("/static/") && method != Method::GET {
                continue;
            }
            let reply = app.admin(method.clone(), path, None).await;
            assert_eq!(
                reply.status,
                StatusCode::NOT_FOUND,
                "{method} {path}: {:#}",
                reply.body
            );
            assert_refused(&reply, path);
        }
    }
    app.finish().await;
}

#[tokio::test]
async fn every_answer_has_a_request_id_and_a_sound_one_is_kept() {
    let app = TestApp::start().await;
    let ask = async |path: &str, id: Option<&[u8]>| {
        let mut request = app.client.get(app.url(path));
        if let Some(id) = id {
            request = request.header(
                "x-request-id",
                HeaderValue::from_bytes(id).expect("a header's value"),
            );
        }
        let reply = Reply::of(request.send().await.expect("an answer")).await;
        assert_eq!(reply.headers.get_all("x-request-id").iter().count(), 1);
        reply.headers["x-request-id"].as_bytes().to_vec()
    };
    let paths = [
        "/healthz",
        "/api/v1/sales",
        "/api/v1/orders",
        "/nothing",
        "/",
        "/static/css/app.css",
        "/docs/",
        "/metrics",
    ];
    let mut made = HashSet::new();
    for path in paths {
        for sound in ["a", "4bf92f35-77b3-4da6-a3ce-929d0e0e4736", "A.b_c-9"] {
            assert_eq!(
                ask(path, Some(sound.as_bytes())).await,
                sound.as_bytes(),
                "{path}"
            );
        }
        assert!(made.insert(ask(path, None).await), "{path}: an id twice");
        let long = vec![b'x'; 1_000];
        for strange in [
            &b""[..],
            b"two words",
            b"<script>",
            b"a;b",
            b"\"",
            b"\xc3\xa9",
            b"\xff",
            b"a\tb",
            &long,
        ] {
            let given = ask(path, Some(strange)).await;
            assert!(
                given != strange && !given.is_empty(),
                "{path}: {strange:?} came back"
            );
            assert!(
                given.iter().all(u8::is_ascii_graphic) && made.insert(given),
                "{path}"
            );
        }
    }
    app.finish().await;
}

// ---- rate limits ------------------------------------------------------------------------------

fn count(replies: &[Reply], status: StatusCode) -> usize {
    replies
        .iter()
        .filter(|reply| reply.status == status)
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_buys_too_often_is_slowed_down_and_nobody_else() {
    let app = TestApp::start_with(Options {
        rate_limit: true,
        ..Options::default()
    })
    .await;
    let sale = app.sale(100, json!({})).await;
    let (hasty, calm) = (app.shopper(), app.shopper());
    hasty.must_buy(&sale).await;
    let replies = all_at_once((0..100).map(|_| {
        let (shopper, sale) = (hasty.clone(), sale.clone());
        async move { shopper.buy(&sale).await }
    }))
    .await;
    assert!(count(&replies, StatusCode::TOO_MANY_REQUESTS) > 0);
    for reply in replies {
        if reply.status == StatusCode::TOO_MANY_REQUESTS {
            reply.assert_problem(429, "rate_limited");
            retry_after(&reply);
        } else {
            reply.assert_problem(409, "already_ordered");
        }
    }
    let order = calm.order_to_pay(&sale).await;
    calm.pay(&order).await.assert(StatusCode::OK);
    eventually("the hasty one may ask again", async || {
        (hasty.buy(&sale).await.code() == "already_ordered").then_some(())
    })
    .await;
    assert_eq!(app.assert_sound(&sale).await.live, 2);
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_opens_sessions_by_the_hundred_is_slowed_down_and_no_other() {
    let app = TestApp::start_with(Options {
        rate_limit: true,
        trust_proxy: true,
        ..Options::default()
    })
    .await;
    let open = |address: &'static str| {
        let request = app
            .client
            .post(app.url("/api/v1/session"))
            .header("x-forwarded-for", address)
            .json(&json!({}));
        async move { Reply::of(request.send().await.expect("an answer")).await }
    };
    let replies = all_at_once((0..300).map(|_| open("203.0.113.7"))).await;
    assert!(count(&replies, StatusCode::CREATED) > 0);
    let refused = replies
        .iter()
        .find(|reply| reply.status == StatusCode::TOO_MANY_REQUESTS)
        .expect("a refusal");
    refused.assert_problem(429, "rate_limited");
    retry_after(refused);
    open("203.0.113.8").await.assert(StatusCode::CREATED);
    // Who has a session shops on, whatever the address.
    let sale = app.sale(1, json!({})).await;
    app.shopper().must_buy(&sale).await;
    app.finish().await;
}

// ---- dependencies that are away ---------------------------------------------------------------

#[tokio::test]
async fn a_full_backlog_refuses_before_stock_is_touched() {
    let options = Options {
        backlog_limit: 1,
        role: Role::ServerWithoutWriter,
        ..Options::default()
    };
    let app = TestApp::start_with(options).await;
    let sale = app.sale(10, json!({})).await;
    let first = app.shopper();
    let order = first.must_buy(&sale).await;
    for _ in 0..3 {
        let refused = app.shopper().buy(&sale).await;
        refused.assert_problem(503, "unavailable");
        retry_after(&refused);
        let again = first.buy(&sale).await;
        again.assert_problem(409, "already_ordered");
        assert_eq!(again.text("order_id"), order);
    }
    assert_eq!(app.sale_now(&sale).await["remaining"], 9);
    let audit = app.audit(&sale).await;
    assert_eq!((audit.ok, audit.backlog, audit.remaining), (true, 1, 9));

    let writer = app.another(Options::default()).await;
    eventually("there is room again", async || {
        (app.shopper().buy(&sale).await.status == StatusCode::ACCEPTED).then_some(())
    })
    .await;
    assert_eq!(app.assert_sound(&sale).await.live, 2);
    writer.stop().await;
    app.finish().await;
}

/// Stops a process in its tracks: it keeps its connections and answers nothing until it is dropped.
struct Frozen(Pid);

impl Frozen {
    fn process(pid: Option<u32>) -> Self {
        let pid = Pid::from_raw(
            pid.and_then(|pid| i32::try_from(pid).ok())
                .expect("it runs"),
        );
        kill(pid, Signal::SIGSTOP).expect("SIGSTOP");
        Self(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_away_buyers_are_told_to_come_back() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let sale = app.sale(10, json!({})).await;
    let settled = app.shopper();
    let order = settled.order_to_pay(&sale).await;

    let frozen = Frozen::process(servers.redis.pid());
    let buyers: Vec<Shopper> = (0..5).map(|_| app.shopper()).collect();
    let began = Instant::now();
    let replies = all_at_once(buyers.clone().into_iter().map(|buyer| {
        let sale = sale.clone();
        async move { buyer.buy(&sale).await }
    }))
    .await;
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    for refused in &replies {
        refused.assert_problem(503, "unavailable");
        retry_after(refused);
    }
    app.get("/healthz").await.assert(StatusCode::OK);
    let readiness = app.get("/readyz").await;
    readiness.assert(StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(readiness.text("postgres"), "ok");
    assert_ne!(readiness.text("redis"), "ok");
    // What Postgres and this process know does not depend on Redis.
    settled.pay(&order).await.assert(StatusCode::OK);
    assert_eq!(settled.order(&order).await.text("status"), "paid");
    assert_eq!(app.sale_now(&sale).await["stock"], 10);
    assert_eq!(app.get("/api/v1/sales").await.body["sales"][0]["id"], sale);
    drop(frozen);

    // Whether the lost attempts counted or not, a retry ends with one order.
    for buyer in buyers {
        eventually("the sale sells again", async || {
            let reply = buyer.buy(&sale).await;
            (reply.status == StatusCode::ACCEPTED || reply.code() == "already_ordered")
                .then_some(())
        })
        .await;
    }
    assert_eq!(app.assert_sound(&sale).await.live, 6);
    eventually("it is ready again", async || {
        (app.get("/readyz").await.status == StatusCode::OK).then_some(())
    })
    .await;
    app.finish().await;
}
