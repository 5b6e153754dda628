//! The lab over HTTP: the life of an arena, storms and their events, bad input, and `LAB=off`.

use crate::security::sites::documented;
use crate::support::{prelude::*, test_lab::ARENAS};
use lab::STRATEGIES;
use lab::strategy::Language::{En, Zh};

pub async fn with_lab() -> TestApp {
    TestApp::start_with(Options::with_lab()).await
}

impl TestApp {
    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.ask("POST", path).json(body).await
    }

    async fn arena(&self, body: Value) -> String {
        format!("{ARENAS}/{}", self.post(ARENAS, body).await.must_be(201).text("arena_id"))
    }

    async fn buy(&self, arena: &str, user: &str, node: usize) -> String {
        let body = json!({"user": user, "node": node});
        let reply = self.post(&format!("{arena}/orders"), body).await.must_be(200);
        let outcome = reply.text("outcome").to_owned();
        assert_eq!(reply.body["order_id"].is_string(), outcome == "sold", "{:#}", reply.body);
        assert!(reply.body["waited_ms"].is_f64(), "{:#}", reply.body);
        outcome
    }

    async fn verdict(&self, arena: &str) -> Value {
        self.get(&format!("{arena}/verdict")).await.must_be(200).body
    }

    /// All that is told there: progress, and the verdict last.
    pub async fn told(&self, path: &str) -> (Vec<Value>, Value) {
        let mut told = events(self.ask("GET", path)).await;
        let (last, verdict) = told.pop().expect("events");
        assert_eq!(last, "verdict");
        assert!(told.iter().all(|(name, _)| name == "progress"), "{told:?}");
        let attempts = told.iter().map(|(_, data)| data["attempts"].as_u64());
        assert!(attempts.is_sorted(), "{told:?}");
        (told.into_iter().map(|(_, data)| data).collect(), verdict)
    }

    /// Each of these bodies is invalid here, alone or with these members.
    pub async fn refuses(&self, path: &str, members: &Value, bodies: Value) {
        for body in bodies.as_array().expect("bodies") {
            let whole = with(members.clone(), body);
            let reply = self.post(path, whole.clone()).await;
            reply.assert_problem_at(&format!("{path}: {whole}"), 422, "invalid");
        }
    }
}

fn id_of(arena: &str) -> &str {
    arena.rsplit('/').next().expect("an id")
}

pub async fn events(ask: Ask) -> Vec<(String, Value)> {
    let (mut stream, mut events) = (Events::of(ask).await, Vec::new());
    while let Some(event) = stream.try_next().await.expect("an orderly end") {
        events.push(event);
    }
    events
}

#[track_caller]
pub fn assert_text(found: &Value, part: &str) {
    assert!(found.as_str().is_some_and(|text| text.contains(part)), "no {part} in {found:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strategies_are_listed_in_the_language_of_the_reader() {
    let app = with_lab().await;
    let list = async |query: &str, language: &str| {
        let ask = app.ask("GET", &format!("/api/v1/lab/strategies{query}"));
        ask.header("accept-language", language).await
    };
    let english = list("", "").await.must_be(200);
    let chinese = list("", "zh-CN,zh;q=0.9,en;q=0.8").await.must_be(200);
    assert_eq!(list("?lang=zh", "en").await.body, chinese.body);
    list("?lang=fr", "").await.assert_problem(422, "invalid");
    assert_eq!(english.body["strategies"].as_array().map(Vec::len), Some(STRATEGIES.len()));
    // All members of one; `conformance` reads the texts of each.
    let mutex = &STRATEGIES[1];
    let promise = json!({
        "oversells": "never", "undersells": "never", "duplicates": "never", "across_nodes":
            {"oversells": "expected", "undersells": "never", "duplicates": "possible"},
    });
    let expected = json!({
        "id": "process-mutex", "number": 2, "family": mutex.family, "title": mutex.title(En),
        "lead": mutex.lead(En), "idea": mutex.says("Idea", En), "source": mutex.says("Source", En),
        "fails": mutex.says("How it fails", En), "break_it": mutex.says("Break it", En),
        "instead": mutex.says("Instead", En), "marks": mutex.marks(En), "promise": promise,
        "needs": [], "available": {"ok": true}, "code": mutex.purchase_code(),
    });
    assert_has(&english.body["strategies"][1], expected);
    assert_has(&chinese.body["strategies"][1], json!({"title": mutex.title(Zh)}));
    assert_eq!(english.body["strategies"][1]["demonstrations"][1]["mark"], 0);
    let options = english.body["options"].as_array().map(Vec::len);
    assert!(options >= Some(7), "{options:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_arena_from_creation_to_deletion() {
    let app = with_lab().await;
    let sale = app.sale(3, json!({})).await;
    for strategy in ["conditional-update", "db-lock-table", "lua-stream"] {
        let arena = app.arena(json!({"strategy": strategy, "stock": 2, "nodes": 2})).await;
        // The production path has no table of orders before a node of the arena is open.
        assert_has(&app.verdict(&arena).await, json!({"sold": 0}));
        assert_eq!(app.buy(&arena, "ann", 0).await, "sold");
        assert_eq!(app.buy(&arena, "ann", 1).await, "duplicate");
        assert_eq!(app.buy(&arena, "bob", 1).await, "sold");
        assert_eq!(app.buy(&arena, "cy", 0).await, "sold_out");
        let verdict = app.verdict(&arena).await;
        let members = json!({
            "strategy": strategy, "stock": 2, "attempts": 4, "sold": 2, "kept_promise": true,
            "quiet": true, "oversold": 0, "undersold": 0, "duplicates": 0, "lost": 0,
            "contended": 0, "failed": 0,
        });
        assert_has(&verdict, members);
        let trips = verdict["round_trips"]["redis"].as_f64();
        assert_eq!(trips > Some(0.0), strategy == "lua-stream", "{verdict:#}");
        assert_text(&verdict["explanation"], "2 orders");
        let [max, p50] = ["max", "p50"].map(|member| verdict["latency_ms"][member].as_f64());
        assert!(max >= p50, "{verdict:#}");
        app.ask("DELETE", &arena).await.assert(204);
        app.ask("DELETE", &arena).await.assert_problem(404, "arena_not_found");
        app.get(&format!("{arena}/verdict")).await.assert_problem(404, "arena_not_found");
        let mut keys = redis::cmd("KEYS");
        let keys = app.in_redis::<Vec<String>>(keys.arg(format!("*{}*", id_of(&arena)))).await;
        assert_eq!(keys, [""; 0], "{strategy}");
    }
    for table in "arenas stock orders unique_orders locks buyers tallies told".split(' ') {
        assert_eq!(app.number(&format!("SELECT count(*) FROM lab.{table}")).await, 0, "{table}");
    }
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'lab\\_%'";
    assert_eq!(app.number(schemas).await, 0);
    assert_eq!(app.number("SELECT count(*) FROM public.orders").await, 0);
    app.shopper().must_buy(&sale).await;
    app.assert_sound(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_streams_its_events_and_ends_in_a_verdict() {
    let app = with_lab().await;
    let options = json!({"work_ms": 200});
    let wanted = json!({"strategy": "naive", "stock": 5, "nodes": 2, "options": options});
    let arena = app.arena(wanted).await;
    let path = format!("{arena}/storm");
    let storm = json!({"buyers": 40, "concurrency": 10, "duplicate_share": 0.5});
    assert_eq!(app.post(&path, storm.clone()).await.must_be(202).body["attempts"], 60);
    app.post(&path, storm).await.assert_problem(409, "storm_running");
    let (progress, verdict) = app.told(&format!("{arena}/events?lang=zh")).await;
    assert_eq!(progress[0]["of"], 60);
    assert_eq!(progress.last().expect("progress")["attempts"], 60);
    assert!(verdict["oversold"].as_i64() > Some(0), "{verdict:#}");
    assert_has(&verdict, json!({"outcome": "oversold", "kept_promise": true}));
    assert_text(&verdict["explanation"], "超卖");
    let collision = &verdict["collision"];
    let [a, b] = ["a", "b"].map(|side| collision[side]["order_id"].as_str());
    assert!(a.is_some() && b.is_some() && a != b, "{collision:#}");
    assert_eq!(collision["place"], "the stock is read");
    let [a, b] = ["a", "b"].map(|side| collision[side]["read"].as_i64());
    assert!(a.is_some() && b.is_some(), "{collision:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_takes_a_node_away_and_it_comes_back() {
    let app = with_lab().await;
    let options = json!({"crash_at": "the stock is written", "crash_node": 1, "restart_ms": 8_000});
    let wanted = json!({"strategy": "naive", "stock": 5, "nodes": 2, "options": options});
    let arena = app.arena(wanted).await;
    assert_eq!(app.buy(&arena, "a", 0).await, "sold");
    assert_eq!(app.buy(&arena, "b", 1).await, "failed");
    assert_eq!(app.buy(&arena, "c", 1).await, "failed", "it is down");
    assert_eq!(app.buy(&arena, "d", 0).await, "sold", "the other is not");
    wait_for!(app.buy(&arena, "e", 1).await == "sold");
    let verdict = app.verdict(&arena).await;
    assert_eq!(verdict["sold"], 3, "{verdict:#}");
    assert_eq!(verdict["notes"]["node crashed"], 1, "{verdict:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_refused_and_nothing_is_created() {
    let app = with_lab().await;
    let good = json!({"strategy": "naive", "stock": 5});
    let bad = json!([
        {"strategy": "no-such"}, {"strategy": 1}, {"strategy": null},
        {"stock": 0}, {"stock": 10_001}, {"stock": "5"}, {"stock": 9_223_372_036_854_775_807_u64},
        {"nodes": 0}, {"nodes": 9}, {"per_user_limit": 0}, {"per_user_limit": 101},
        {"work_ms": -1}, {"work_ms": 2_001}, {"nonsense": 1},
        {"options": []}, {"options": {"nonsense": 1}}, {"options": {"retries": 1}},
        {"options": {"interleave": "maybe"}}, {"options": {"crash_at": "nowhere"}},
        {"options": {"pause_ms": 1.5}}, {"options": {"work_ms": {}}},
    ]);
    app.refuses(ARENAS, &good, bad).await;
    assert_eq!(app.number("SELECT count(*) FROM lab.arenas").await, 0);
    let arena = app.arena(good).await;
    let bad = json!([
        {}, {"user": ""}, {"user": "x".repeat(101)}, {"user": "a\u{0}b"}, {"user": 1},
        {"user": "a", "node": 1}, {"user": "a", "node": -1}, {"user": "a", "more": 1},
    ]);
    app.refuses(&format!("{arena}/orders"), &json!({}), bad).await;
    let path = format!("{arena}/storm");
    app.refuses(&path, &json!({}), json!([{}])).await;
    let bad = json!([
        {"buyers": 0}, {"concurrency": 0}, {"buyers": 100_001}, {"concurrency": 1_001},
        {"duplicate_share": 1.1}, {"buyers": -1},
    ]);
    app.refuses(&path, &json!({"buyers": 1, "concurrency": 1}), bad).await;
    assert_eq!(app.verdict(&arena).await["attempts"], 0);
    let user = "  '; DROP TABLE lab.orders; -- 张三 🛒 ";
    assert_eq!(app.buy(&arena, user, 0).await, "sold");
    for bad in ["0", "x", &"0".repeat(32), &"F".repeat(32), "%00", "%FF", "..%2f.."] {
        for (method, path, body) in [
            ("GET", "/verdict", None),
            ("GET", "/events", None),
            ("POST", "/orders", Some(json!({"user": "a"}))),
            ("POST", "/storm", Some(json!({"buyers": 1, "concurrency": 1}))),
            ("DELETE", "", None),
        ] {
            let path = format!("{ARENAS}/{bad}{path}");
            let reply = app.ask(method, &path).maybe_json(body).await;
            reply.assert_problem_at(&path, 404, "arena_not_found");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_lab_none_of_its_routes_is_there() {
    let app = TestApp::start().await;
    let mut routes = documented("", "0123456789abcdef0123456789abcdef");
    routes.retain(|(_, path)| path.starts_with("/api/v1/lab/"));
    assert!(routes.len() >= 12, "{routes:?}");
    for (method, path) in routes {
        for body in [None, Some(json!({"nonsense": 1}))] {
            let reply = app.ask(&method, &path).maybe_json(body).await;
            reply.assert_problem_at(&path, 404, "not_found");
        }
    }
    for page in "/lab /lab/lessons /lab/lessons/b03 /lab/locks /lab/ids".split(' ') {
        assert_eq!(app.get(page).await.status, 404, "{page}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_is_a_page_that_runs_nothing() {
    let app = with_lab().await;
    let mut ids = Vec::new();
    for strategy in ["naive", "lua-sync"] {
        let arena = json!({"strategy": strategy, "stock": 1, "options": {"interleave": "off"}});
        let arena = app.arena(arena).await;
        assert_eq!(app.buy(&arena, "<b>ann</b>", 0).await, "sold");
        ids.push(id_of(&arena).to_owned());
    }
    let path = |query: &str| format!("/api/v1/lab/report?{query}");
    let query = format!("arenas={}&alone={}&lang=zh", ids.join(","), ids[1]);
    let report = app.get(&path(&query)).await.must_be(200);
    assert!(report.header("content-type").starts_with("text/html"));
    assert!(report.header("content-security-policy").starts_with("default-src 'none'"));
    for part in r#"lang="zh-CN"|id="naive"|id="lua-sync"|id="latency"|<svg|1 / 1"#.split('|') {
        assert_text(&report.body, part);
    }
    let (unknown, too_many) = ("0".repeat(32), vec!["a"; 65].join(","));
    for (query, status) in [
        (format!("arenas={unknown}"), 404),
        ("arenas=x".to_owned(), 404),
        ("lang=en".to_owned(), 422),
        (format!("arenas={too_many}"), 422),
    ] {
        app.get(&path(&query)).await.assert(status);
    }
}

/// A name of a page that somebody has pointed at this machine (DNS rebinding).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_calls_this_machine_by_its_own_name_does_not_reach_the_lab() {
    let app = with_lab().await;
    for (host, more, status) in [
        ("evil.example", "origin: http://evil.example\r\n", 403),
        ("localhost", "", 200),
        // A proxy in front says whose request it is.
        ("shop.example", "x-forwarded-for: 192.0.2.1\r\n", 200),
    ] {
        let head = format!("GET /api/v1/lab/lessons HTTP/1.1\r\nhost: {host}\r\n{more}");
        let answer = app.raw(format!("{head}connection: close\r\n\r\n").as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer:.200}");
    }
}
