//! The lab from outside, over HTTP: arenas from birth to death, storms and their events, bad input, and
//! that with `LAB=off` nothing of it is there.

use crate::support::app::{Options, Reply, TestApp};
use futures_util::{StreamExt, future::join_all};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const ARENAS: &str = "/api/v1/lab/arenas";

async fn with_lab() -> TestApp {
    TestApp::start_with(Options::with_lab()).await
}

impl TestApp {
    async fn arena(&self, body: Value) -> String {
        let reply = self.call(Method::POST, ARENAS, Some(body)).await;
        reply.assert(StatusCode::CREATED);
        format!("{ARENAS}/{}", reply.text("arena_id"))
    }

    async fn buy(&self, arena: &str, user: &str, node: usize) -> String {
        let body = json!({"user": user, "node": node});
        let reply = self
            .call(Method::POST, &format!("{arena}/orders"), Some(body))
            .await;
        reply.assert(StatusCode::OK);
        assert_eq!(
            reply.body["order_id"].is_string(),
            reply.text("outcome") == "sold",
            "{:#}",
            reply.body
        );
        assert!(reply.body["waited_ms"].is_f64(), "{:#}", reply.body);
        reply.text("outcome").to_owned()
    }

    async fn verdict(&self, arena: &str) -> Value {
        let reply = self.get(&format!("{arena}/verdict")).await;
        reply.assert(StatusCode::OK);
        reply.body
    }

    async fn keys_of(&self, arena: &str) -> Vec<String> {
        let id = arena.rsplit('/').next().expect("an id");
        let mut redis = self.redis().await;
        let pattern = format!("*{id}*");
        redis::cmd("KEYS")
            .arg(pattern)
            .query_async(&mut redis)
            .await
            .expect("KEYS")
    }
}

#[tokio::test]
async fn strategies_are_told_in_the_language_of_the_reader() {
    let app = with_lab().await;
    let list = async |query: &str, header: &str| {
        let request = app
            .client
            .get(app.url(&format!("/api/v1/lab/strategies{query}")));
        Reply::of(
            request
                .header("accept-language", header)
                .send()
                .await
                .expect("an answer"),
        )
        .await
    };
    let english = list("", "").await;
    english.assert(StatusCode::OK);
    let chinese = list("", "zh-CN,zh;q=0.9,en;q=0.8").await;
    assert_eq!(list("?lang=zh", "en").await.body, chinese.body);
    assert_ne!(english.body, chinese.body);
    list("?lang=fr", "").await.assert_problem(422, "invalid");
    let strategies = english.body["strategies"].as_array().expect("strategies");
    assert!(strategies.len() >= 13);
    for strategy in strategies {
        for text in [
            "id", "title", "family", "idea", "source", "fails", "break_it", "instead", "code",
        ] {
            assert!(
                strategy[text].as_str().is_some_and(|text| !text.is_empty()),
                "{text}: {strategy:#}"
            );
        }
        let promise = &strategy["promise"];
        for harm in ["oversells", "undersells", "duplicates"] {
            for said in [&promise[harm], &promise["across_nodes"][harm]] {
                assert!(
                    ["never", "possible", "expected"]
                        .iter()
                        .any(|known| said == known),
                    "{strategy:#}"
                );
            }
        }
        assert!(strategy["available"]["ok"].is_boolean());
        assert!(strategy["needs"].is_array() && strategy["number"].is_u64());
    }
    assert!(
        english.body["options"]
            .as_array()
            .is_some_and(|options| options.len() >= 7)
    );
    app.finish().await;
}

#[tokio::test]
async fn an_arena_from_birth_to_death() {
    let app = with_lab().await;
    let sale = app.sale(3, json!({})).await;
    for strategy in ["conditional-update", "db-lock-table", "lua-stream"] {
        let arena = app
            .arena(json!({"strategy": strategy, "stock": 2, "nodes": 2}))
            .await;
        assert_eq!(app.buy(&arena, "ann", 0).await, "sold");
        assert_eq!(app.buy(&arena, "ann", 1).await, "duplicate");
        assert_eq!(app.buy(&arena, "bob", 1).await, "sold");
        assert_eq!(app.buy(&arena, "cy", 0).await, "sold_out");
        let verdict = app.verdict(&arena).await;
        for (member, expected) in [
            ("strategy", json!(strategy)),
            ("stock", json!(2)),
            ("attempts", json!(4)),
            ("sold", json!(2)),
            ("oversold", json!(0)),
            ("undersold", json!(0)),
            ("duplicates", json!(0)),
            ("lost", json!(0)),
            ("contended", json!(0)),
            ("failed", json!(0)),
            ("kept_promise", json!(true)),
            ("quiet", json!(true)),
        ] {
            assert_eq!(
                verdict[member], expected,
                "{strategy} {member}: {verdict:#}"
            );
        }
        assert!(
            verdict["explanation"]
                .as_str()
                .is_some_and(|text| text.contains("2 orders")),
            "{verdict:#}"
        );
        let latency = &verdict["latency_ms"];
        assert!(
            latency["max"].as_f64() >= latency["p50"].as_f64(),
            "{verdict:#}"
        );

        let gone = app.call(Method::DELETE, &arena, None).await;
        assert_eq!(gone.status, StatusCode::NO_CONTENT);
        app.call(Method::DELETE, &arena, None)
            .await
            .assert_problem(404, "arena_not_found");
        app.get(&format!("{arena}/verdict"))
            .await
            .assert_problem(404, "arena_not_found");
        assert_eq!(
            app.keys_of(&arena).await,
            Vec::<String>::new(),
            "{strategy}"
        );
    }
    // Nothing is left, and the sale has seen nothing.
    let left = app.number(
        "SELECT (SELECT count(*) FROM lab.arenas) + (SELECT count(*) FROM lab.stock) + (SELECT count(*) FROM lab.orders)
              + (SELECT count(*) FROM lab.unique_orders) + (SELECT count(*) FROM lab.locks) + (SELECT count(*) FROM lab.buyers)
              + (SELECT count(*) FROM lab.tallies) + (SELECT count(*) FROM lab.told)
              + (SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'lab\\_%')",
    );
    assert_eq!(left.await, 0);
    assert_eq!(app.number("SELECT count(*) FROM public.orders").await, 0);
    app.shopper().must_buy(&sale).await;
    app.assert_sound(&sale).await;
    app.finish().await;
}

#[tokio::test]
async fn a_storm_is_told_of_and_judged() {
    let app = with_lab().await;
    let arena = app
        .arena(json!({"strategy": "naive", "stock": 5, "nodes": 2, "options": {"work_ms": 20}}))
        .await;
    let storm = json!({"buyers": 40, "concurrency": 10, "duplicate_share": 0.5});
    let begun = app
        .call(Method::POST, &format!("{arena}/storm"), Some(storm.clone()))
        .await;
    begun.assert(StatusCode::ACCEPTED);
    assert_eq!(begun.body["attempts"], 60);
    app.call(Method::POST, &format!("{arena}/storm"), Some(storm))
        .await
        .assert_problem(409, "storm_running");

    let response = app
        .client
        .get(app.url(&format!("{arena}/events?lang=zh")))
        .send()
        .await
        .expect("an answer");
    assert_eq!(response.status(), StatusCode::OK);
    let mut chunks = response.bytes_stream();
    let mut text = String::new();
    while let Some(chunk) = chunks.next().await {
        text += std::str::from_utf8(&chunk.expect("a chunk")).expect("text");
    }
    // The stream has ended by itself.
    let events: Vec<(&str, Value)> = text
        .split("\n\n")
        .filter_map(|block| {
            let (name, data) = block.strip_prefix("event: ")?.split_once("\ndata: ")?;
            Some((name, serde_json::from_str(data).expect("JSON")))
        })
        .collect();
    let (last, before) = events.split_last().expect("events");
    assert!(
        !before.is_empty() && before.iter().all(|(name, _)| *name == "progress"),
        "{text}"
    );
    let attempts: Vec<u64> = before
        .iter()
        .filter_map(|(_, data)| data["attempts"].as_u64())
        .collect();
    assert!(
        attempts.is_sorted() && attempts.last() == Some(&60),
        "{attempts:?}"
    );
    assert_eq!(before[0].1["of"], 60);
    assert_eq!(last.0, "verdict");
    assert!(
        last.1["oversold"].as_i64() > Some(0) && last.1["kept_promise"] == true,
        "{:#}",
        last.1
    );
    assert!(
        last.1["explanation"]
            .as_str()
            .is_some_and(|text| text.contains("超卖")),
        "{:#}",
        last.1
    );
    app.call(Method::DELETE, &arena, None).await;
    app.finish().await;
}

#[tokio::test]
async fn a_crash_takes_a_node_away_and_it_comes_back() {
    let app = with_lab().await;
    let options = json!({"crash_at": "the stock is written", "crash_node": 1, "restart_ms": 100});
    let arena = app
        .arena(json!({"strategy": "naive", "stock": 5, "nodes": 2, "options": options}))
        .await;
    assert_eq!(app.buy(&arena, "a", 0).await, "sold");
    assert_eq!(app.buy(&arena, "b", 1).await, "failed");
    assert_eq!(app.buy(&arena, "c", 1).await, "failed", "it is down");
    assert_eq!(app.buy(&arena, "d", 0).await, "sold", "the other is not");
    wait_for!(app.buy(&arena, "e", 1).await == "sold");
    let verdict = app.verdict(&arena).await;
    assert_eq!(
        (&verdict["sold"], &verdict["notes"]["node crashed"]),
        (&json!(3), &json!(1)),
        "{verdict:#}"
    );
    app.finish().await;
}

#[tokio::test]
async fn bad_input_is_refused_and_nothing_is_made() {
    let app = with_lab().await;
    let good = json!({"strategy": "naive", "stock": 5});
    for (member, value) in [
        ("strategy", json!("no-such")),
        ("strategy", json!(1)),
        ("strategy", Value::Null),
        ("stock", json!(0)),
        ("stock", json!(10_001)),
        ("stock", json!("5")),
        ("stock", json!(9_223_372_036_854_775_807_u64)),
        ("nodes", json!(0)),
        ("nodes", json!(9)),
        ("per_user_limit", json!(0)),
        ("per_user_limit", json!(101)),
        ("work_ms", json!(-1)),
        ("work_ms", json!(2_001)),
        ("nonsense", json!(1)),
        ("options", json!([])),
        ("options", json!({"nonsense": 1})),
        ("options", json!({"retries": 1})),
        ("options", json!({"interleave": "maybe"})),
        ("options", json!({"crash_at": "nowhere"})),
        ("options", json!({"pause_ms": 1.5})),
        ("options", json!({"work_ms": {}})),
    ] {
        let mut body = good.clone();
        body[member] = value;
        let reply = app.call(Method::POST, ARENAS, Some(body.clone())).await;
        reply.assert_problem_at(&format!("{body}"), 422, "invalid");
    }
    assert_eq!(app.number("SELECT count(*) FROM lab.arenas").await, 0);

    let arena = app.arena(good).await;
    for body in [
        json!({}),
        json!({"user": ""}),
        json!({"user": "x".repeat(101)}),
        json!({"user": "a\u{0}b"}),
        json!({"user": 1}),
        json!({"user": "a", "node": 1}),
        json!({"user": "a", "node": -1}),
        json!({"user": "a", "more": 1}),
    ] {
        let reply = app
            .call(Method::POST, &format!("{arena}/orders"), Some(body.clone()))
            .await;
        reply.assert_problem_at(&format!("{body}"), 422, "invalid");
    }
    for body in [
        json!({}),
        json!({"buyers": 0, "concurrency": 1}),
        json!({"buyers": 1, "concurrency": 0}),
        json!({"buyers": 100_001, "concurrency": 1}),
        json!({"buyers": 1, "concurrency": 1_001}),
        json!({"buyers": 1, "concurrency": 1, "duplicate_share": 1.1}),
        json!({"buyers": -1, "concurrency": 1}),
    ] {
        let reply = app
            .call(Method::POST, &format!("{arena}/storm"), Some(body.clone()))
            .await;
        reply.assert_problem_at(&format!("{body}"), 422, "invalid");
    }
    assert_eq!(app.verdict(&arena).await["attempts"], 0);
    // Any text is somebody.
    assert_eq!(
        app.buy(&arena, "  '; DROP TABLE lab.orders; -- 张三 🛒 ", 0)
            .await,
        "sold"
    );
    let all_bad =
        "0 x 00000000000000000000000000000000 %00 ..%2f.. 0123456789abcdef0123456789abcdeF";
    for bad in all_bad.split(' ') {
        for (method, path, body) in [
            (Method::GET, "/verdict", None),
            (Method::GET, "/events", None),
            (Method::POST, "/orders", Some(json!({"user": "a"}))),
            (
                Method::POST,
                "/storm",
                Some(json!({"buyers": 1, "concurrency": 1})),
            ),
            (Method::DELETE, "", None),
        ] {
            app.call(method, &format!("{ARENAS}/{bad}{path}"), body)
                .await
                .assert_problem(404, "arena_not_found");
        }
    }
    app.finish().await;
}

#[tokio::test]
async fn arenas_are_bounded_and_too_old_ones_go() {
    let app = with_lab().await;
    let body = json!({"strategy": "naive", "stock": 1});
    let create = async || app.call(Method::POST, ARENAS, Some(body.clone())).await;
    let made = join_all((0..70).map(|_| create())).await;
    let created = made
        .iter()
        .filter(|reply| reply.status == StatusCode::CREATED)
        .count();
    assert_eq!(created, 64);
    for refused in made
        .iter()
        .filter(|reply| reply.status != StatusCode::CREATED)
    {
        refused.assert_problem(409, "too_many_arenas");
    }
    // One that is too old is not served, makes room at once, and is removed.
    let old = made
        .iter()
        .find(|reply| reply.status == StatusCode::CREATED)
        .expect("one")
        .text("arena_id");
    app.execute(&format!(
        "UPDATE lab.arenas SET expires_at = now() - interval '1 second' WHERE id = '{old}'"
    ))
    .await;
    create().await.assert(StatusCode::CREATED);
    wait_for!(
        app.number(&format!(
            "SELECT count(*) FROM lab.arenas WHERE id = '{old}'"
        ))
        .await
            == 0
    );
    app.get(&format!("{ARENAS}/{old}/verdict"))
        .await
        .assert_problem(404, "arena_not_found");
    app.finish().await;
}

#[tokio::test]
async fn without_a_lab_nothing_of_it_is_there() {
    let app = TestApp::start().await;
    let id = "0123456789abcdef0123456789abcdef";
    let mut called = BTreeSet::new();
    for (method, path) in [
        (Method::GET, "/api/v1/lab/strategies".to_owned()),
        (Method::POST, ARENAS.to_owned()),
        (Method::DELETE, format!("{ARENAS}/{id}")),
        (Method::POST, format!("{ARENAS}/{id}/orders")),
        (Method::POST, format!("{ARENAS}/{id}/storm")),
        (Method::GET, format!("{ARENAS}/{id}/events")),
        (Method::GET, format!("{ARENAS}/{id}/verdict")),
        (Method::GET, "/api/v1/lab/report".to_owned()),
        (Method::GET, "/api/v1/lab/lessons".to_owned()),
        (Method::POST, "/api/v1/lab/lessons/b03/play".to_owned()),
        (Method::GET, "/api/v1/lab/ids".to_owned()),
        (Method::GET, "/api/v1/lab/locks".to_owned()),
    ] {
        called.insert(path.replace(id, "{id}").replace("b03", "{id}"));
        for body in [None, Some(json!({"nonsense": 1}))] {
            app.call(method.clone(), &path, body)
                .await
                .assert_problem(404, "not_found");
        }
    }
    // None is forgotten.
    let described = flash_sale::http::openapi();
    let described = serde_json::to_value(&described).expect("JSON");
    let paths = described["paths"].as_object().expect("paths").keys();
    let of_the_lab: BTreeSet<String> = paths
        .filter(|path| path.starts_with("/api/v1/lab"))
        .cloned()
        .collect();
    assert_eq!(called, of_the_lab);
    for page in "/lab /lab/lessons /lab/lessons/b03 /lab/locks /lab/ids".split(' ') {
        assert_eq!(app.get(page).await.status, StatusCode::NOT_FOUND, "{page}");
    }
    app.finish().await;
}

#[tokio::test]
async fn a_report_is_a_page_that_runs_nothing() {
    let app = with_lab().await;
    let mut ids = Vec::new();
    for strategy in ["naive", "lua-sync"] {
        let arena = app.arena(json!({"strategy": strategy, "stock": 1})).await;
        assert_eq!(app.buy(&arena, "<b>ann</b>", 0).await, "sold");
        ids.push(arena.rsplit('/').next().expect("an id").to_owned());
    }
    let page = async |query: String| {
        let url = app.url(&format!("/api/v1/lab/report?{query}"));
        app.client.get(url).send().await.expect("an answer")
    };
    let report = page(format!("arenas={}&lang=zh", ids.join(","))).await;
    assert_eq!(report.status(), StatusCode::OK);
    let header = |name: &str| report.headers()[name].to_str().expect("text").to_owned();
    assert!(header("content-type").starts_with("text/html"));
    assert!(header("content-security-policy").starts_with("default-src 'none'"));
    let text = report.text().await.expect("a page");
    for part in [
        "lang=\"zh-CN\"",
        "id=\"naive\"",
        "id=\"lua-sync\"",
        "<svg",
        "1 / 1",
    ] {
        assert!(text.contains(part), "{part}");
    }
    for (query, status) in [
        (format!("arenas={}", "0".repeat(32)), StatusCode::NOT_FOUND),
        ("arenas=x".to_owned(), StatusCode::NOT_FOUND),
        ("lang=en".to_owned(), StatusCode::UNPROCESSABLE_ENTITY),
        (
            format!("arenas={}", vec!["a"; 65].join(",")),
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
    ] {
        assert_eq!(page(query.clone()).await.status(), status, "{query}");
    }
    app.finish().await;
}
