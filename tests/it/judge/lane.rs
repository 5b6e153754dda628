//! A server of one's own as a lane of the lab's race.

use crate::lab::http::{assert_text, with_lab};
use crate::support::buggy_sale::{BuggySale, Manner};
use crate::support::{prelude::*, test_lab::TestLab};
use lab::{MOST_STORMS, judgement};

const JUDGEMENTS: &str = "/api/v1/lab/judgements";

fn storm(url: &str) -> Value {
    json!({"url": url, "stock": 20, "buyers": 50, "concurrency": 8, "duplicate_share": 0.5})
}

async fn judge(app: &TestApp, url: &str) -> String {
    let started = app.post(JUDGEMENTS, storm(url)).await.must_be(202);
    format!("{JUDGEMENTS}/{}", started.text("judgement_id"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_runs_to_its_verdict_in_the_members_of_an_arena() {
    let app = with_lab().await;
    let cases = [
        (Manner::Right, json!({"verdict": "held", "sold": 20, "findings": []})),
        (Manner::Oversells, json!({"verdict": "broken", "sold": 23, "oversold": 3, "broken": 0})),
        (Manner::TakesAKeyBack, json!({"verdict": "broken", "oversold": 0, "broken": 1})),
    ];
    for (manner, members) in cases {
        let sale = BuggySale::start(manner);
        let judgement = judge(&app, &sale.url()).await;
        let events = format!("{judgement}/events");
        let (progress, verdict) = app.told(&events).await;
        assert_has(&verdict, members);
        assert_has(&verdict, json!({"stock": 20, "lost": 0, "undersold": 0}));
        let last = progress.last().expect("progress");
        assert_has(last, json!({"of": last["attempts"], "duplicates": 0}));
        assert!(last["attempts"].as_u64() > Some(50), "some click twice: {last:#}");
        assert!(last["latency_ms"]["p99"].as_f64() > Some(0.0), "{last:#}");

        let named = &verdict["findings"][0]["requests"][0]["user"];
        assert_eq!(named.is_string(), manner != Manner::Right, "{verdict:#}");
        let page = app.get(&format!("{judgement}/report")).await.must_be(200);
        assert!(page.header("content-type").starts_with("text/html"));
        assert!(page.header("content-security-policy").starts_with("default-src 'none'"));
        // What is over can be followed again, and is forgotten on demand.
        assert_eq!(app.told(&events).await.1, verdict);
        app.ask("DELETE", &judgement).await.assert(204);
        app.get(&format!("{judgement}/report")).await.assert_problem(404, "judgement_not_found");
    }
    // Where nothing answers, the call that failed is named.
    let judgement = judge(&app, &format!("http://localhost:{}/shop", free_port())).await;
    let (_, verdict) = app.told(&format!("{judgement}/events")).await;
    assert_has(&verdict, json!({"verdict": "undecided", "sold": 0, "findings": []}));
    assert_text(&verdict["doubts"][0], "POST /shop/reset");
    app.get(&format!("{judgement}/report")).await.assert_problem(404, "judgement_not_found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_refused_and_nothing_is_sent() {
    let app = with_lab().await;
    let server = BuggySale::start(Manner::Hangs);
    let good = storm(&server.url());
    let postgres = format!("http://[::1]:{}", app.database.options().get_port());
    let long = format!("{}/{}", server.url(), "x".repeat(200));
    let bad = "http://192.0.2.1:9000 http://example.com https://127.0.0.1:9000 \
               http://127.0.0.1:22 http://a@127.0.0.1:9000 http://127.0.0.1:9000/?a ftp://[::1] x";
    let urls = bad.split_whitespace().chain([&*postgres, &app.base, &long]);
    let others = json!([
        {"stock": 0}, {"stock": 10_001}, {"buyers": 0}, {"buyers": 100_001}, {"concurrency": 0},
        {"concurrency": 1_001}, {"duplicate_share": -0.1}, {"duplicate_share": 2}, {"more": 1},
        {"url": null}, {"stock": "5"}, {"kill": "true"}, {"allow_remote": true},
    ]);
    let bad = urls.map(|url| json!({"url": url})).chain(others.as_array().expect("bodies").clone());
    app.refuses(JUDGEMENTS, &good, bad.collect()).await;
    let nobody = format!("{JUDGEMENTS}/{}", "0".repeat(32));
    for (method, path) in [("GET", "/events"), ("GET", "/report"), ("DELETE", "")] {
        let reply = app.ask(method, &format!("{nobody}{path}")).await;
        reply.assert_problem(404, "judgement_not_found");
    }
    assert!(!server.was_asked(), "somebody was asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_from_elsewhere_has_a_server_of_this_machine_judged() {
    let app = with_lab().await;
    let server = BuggySale::start(Manner::Hangs);
    let from = async |app: &TestApp, name: &str, value: &str| {
        app.ask("POST", JUDGEMENTS).header(name, value).json(storm(&server.url())).await
    };
    for (name, value, code) in [
        ("host", "evil.example", "local_only"),
        ("host", "localhost.evil.example:8080", "local_only"),
        ("host", "192.0.2.1", "local_only"),
        ("x-forwarded-for", "127.0.0.1", "local_only"),
        ("forwarded", "for=127.0.0.1", "local_only"),
        ("origin", "http://evil.example", "cross_origin"),
        ("sec-fetch-site", "cross-site", "cross_origin"),
    ] {
        from(&app, name, value).await.assert_problem_at(value, 403, code);
    }
    let behind = app.another(Options { trust_proxy: true, ..Options::with_lab() }).await;
    from(&behind, "accept", "*/*").await.assert_problem(403, "local_only");
    let without = app.another(Options::default()).await;
    from(&without, "accept", "*/*").await.assert_problem(404, "not_found");
    tokio::join!(behind.finish(), without.finish());
    assert!(!server.was_asked(), "somebody was asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_stopped_leaves_no_request_behind_and_makes_room() {
    let app = with_lab().await;
    let server = BuggySale::start(Manner::Hangs);
    let others: Vec<_> = (0..MOST_STORMS).map(|_| BuggySale::start(Manner::Hangs)).collect();
    let servers = [&server].into_iter().chain(&others[1..]);
    let all = join_all(servers.map(async |server| judge(&app, &server.url()).await)).await;
    let one_more = app.post(JUDGEMENTS, storm(&others[0].url())).await;
    one_more.assert_told_when(429, "too_many_storms");
    wait_for!(server.hanging() > 0);
    let mut stream = Events::of(app.ask("GET", &format!("{}/events", all[0]))).await;
    stream.next().await.expect("progress");
    for judgement in &all {
        app.ask("DELETE", judgement).await.assert(204);
        app.ask("DELETE", judgement).await.assert_problem(404, "judgement_not_found");
    }
    while let Some((name, _)) = stream.try_next().await.expect("an orderly end") {
        assert_eq!(name, "progress", "there is no verdict over what was stopped");
    }
    wait_for!(others.iter().chain([&server]).all(|server| server.hanging() == 0));
    let right = BuggySale::start(Manner::Right);
    wait_for!(app.post(JUDGEMENTS, storm(&right.url())).await.status == 202);
    assert_eq!(server.hanging(), 0);
}

/// Two storms at once would be taken for one, and accuse a right server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_is_judged_once_at_a_time() {
    let app = with_lab().await;
    let server = BuggySale::start(Manner::Hangs);
    let running = judge(&app, &server.url()).await;
    wait_for!(server.hanging() > 0);
    let here = server.url();
    for url in [&here, &format!("{}/shop", here.replace("127.0.0.1", "localhost"))] {
        let again = app.post(JUDGEMENTS, storm(url)).await;
        again.assert_problem_at(url, 409, "judgement_running");
        let named = again.text("judgement_id");
        assert!(running.ends_with(named) && again.text("detail").contains(named), "{again:?}");
    }
    let other = BuggySale::start(Manner::Hangs);
    judge(&app, &other.url()).await;
    // With the answer of a stop the last request has ended, and the server is free at once.
    app.ask("DELETE", &running).await.assert(204);
    judge(&app, &server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_nobody_follows_is_stopped() {
    let mut lab = TestLab::start("unfollowed:").await;
    let alone = Arc::get_mut(&mut lab.lab).expect("nobody else has it");
    alone.judgements.unfollowed = Duration::from_secs(2);
    let [server, other] = [(); 2].map(|()| BuggySale::start(Manner::Hangs));
    let judge = |server: &BuggySale| {
        let wanted: judgement::Wanted = serde_json::from_value(storm(&server.url())).expect("one");
        lab.judge(None, &wanted, &[]).expect("room")
    };
    let followed = judge(&server);
    let _follower = followed.end.subscribe();
    let unfollowed = judge(&other);
    wait_for!(lab.judgements.find(&unfollowed.id).is_none());
    assert!(lab.judgements.find(&followed.id).is_some());
    lab.finish().await;
    wait_for!(server.hanging() == 0);
}
