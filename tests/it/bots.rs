//! Defence against bots, from outside: passes, proof of work, limits that instances share, and the headers that
//! tell how much is left.

use crate::support::{
    Servers,
    app::{Options, Reply, Shopper, TestApp, eventually},
};
use flash_sale::bots::{limits::WhenAway, work};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

fn orders(sale: &str) -> String {
    format!("/api/v1/sales/{sale}/orders")
}

fn in_an_hour() -> String {
    let at = OffsetDateTime::now_utc() + time::Duration::HOUR;
    at.format(&Rfc3339).expect("a time")
}

async fn pass(shopper: &Shopper, sale: &str) -> String {
    let reply = shopper.get(&format!("/api/v1/sales/{sale}/pass")).await;
    reply.assert(StatusCode::OK);
    reply.text("pass").to_owned()
}

async fn challenge(shopper: &Shopper, sale: &str) -> Value {
    let reply = shopper
        .get(&format!("/api/v1/sales/{sale}/challenge"))
        .await;
    reply.assert(StatusCode::OK);
    reply.body
}

/// A challenge, solved.
async fn solution(shopper: &Shopper, sale: &str) -> String {
    let asked = challenge(shopper, sale).await;
    let bits = asked["bits"].as_u64().expect("bits");
    let text = asked["challenge"].as_str().expect("a challenge");
    work::solve(text, u8::try_from(bits).expect("few"))
}

async fn buy(shopper: &Shopper, sale: &str, headers: &[(&str, &str)]) -> Reply {
    shopper.post_with(&orders(sale), headers).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_is_given_out_from_the_opening_on_and_for_one_user_and_sale() {
    let app = TestApp::start().await;
    let second = app.another(Options::default()).await;
    let sale = app.sale(10, json!({"purchase_pass": true})).await;
    let other = app.sale(10, json!({"purchase_pass": true})).await;
    let (ada, eve) = (app.shopper(), app.shopper());
    ada.refused(&sale, "pass_required").await;
    let (mine, theirs) = (pass(&ada, &sale).await, pass(&eve, &sale).await);
    let elsewhere = pass(&ada, &other).await;
    for bad in [
        theirs.as_str(),
        &elsewhere,
        "",
        "?",
        &mine[..mine.len() - 1],
    ] {
        let refused = buy(&ada, &sale, &[("Purchase-Pass", bad)]).await;
        refused.assert_problem(403, "pass_invalid");
    }
    let there = second.as_shopper(&ada);
    buy(&there, &sale, &[("Purchase-Pass", &mine)])
        .await
        .assert(StatusCode::ACCEPTED);

    let later = app
        .sale(10, json!({"purchase_pass": true, "opens_at": in_an_hour()}))
        .await;
    let early = ada.get(&format!("/api/v1/sales/{later}/pass")).await;
    early.assert_problem(409, "not_open");
    assert!(!early.header("retry-after").is_empty());
    ada.refused(&later, "not_open").await;
    // Where nobody asks for one there is none.
    let plain = app.sale(10, json!({})).await;
    ada.get(&format!("/api/v1/sales/{plain}/pass"))
        .await
        .assert_problem(404, "pass_not_found");
    ada.get(&format!("/api/v1/sales/{plain}/challenge"))
        .await
        .assert_problem(404, "challenge_not_found");
    ada.buy(&plain).await.assert(StatusCode::ACCEPTED);
    second.stop().await;
    app.finish().await;
}

/// The pass opens on the opening second, not before it, at an instance that nobody told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_appears_with_the_opening() {
    let app = TestApp::start().await;
    let opens_at = OffsetDateTime::now_utc() + time::Duration::seconds(2);
    let text = opens_at.format(&Rfc3339).expect("a time");
    let sale = app
        .sale(10, json!({"purchase_pass": true, "opens_at": text}))
        .await;
    let shopper = app.shopper();
    let path = format!("/api/v1/sales/{sale}/pass");
    shopper.get(&path).await.assert_problem(409, "not_open");
    let found = eventually("a pass", async || {
        let reply = shopper.get(&path).await;
        (reply.status == StatusCode::OK).then_some(reply)
    })
    .await;
    assert!(OffsetDateTime::now_utc() >= opens_at);
    let pass = found.text("pass").to_owned();
    buy(&shopper, &sale, &[("Purchase-Pass", &pass)])
        .await
        .assert(StatusCode::ACCEPTED);
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_is_worked_for_once() {
    let app = TestApp::start().await;
    let second = app.another(Options::default()).await;
    let members = json!({"challenge_bits": 6, "per_user_limit": 5});
    let sale = app.sale(10, members).await;
    let (ada, eve) = (app.shopper(), app.shopper());
    ada.refused(&sale, "challenge_required").await;
    let theirs = solution(&eve, &sale).await;
    let asked = challenge(&ada, &sale).await;
    let unsolved = format!("{}:", asked["challenge"].as_str().expect("text"));
    for bad in [
        theirs.as_str(),
        &unsolved,
        "",
        ":",
        "x:1",
        &format!("{theirs}:1"),
    ] {
        let refused = buy(&ada, &sale, &[("Challenge-Solution", bad)]).await;
        refused.assert_problem(403, "challenge_failed");
    }
    let solved = solution(&ada, &sale).await;
    let headers = [
        ("Challenge-Solution", solved.as_str()),
        ("Idempotency-Key", "one"),
    ];
    let first = buy(&ada, &sale, &headers).await;
    first.assert(StatusCode::ACCEPTED);
    // A retry of the same purchase needs no new work, at no instance; another purchase does.
    let again = buy(&second.as_shopper(&ada), &sale, &headers).await;
    again.assert(StatusCode::ACCEPTED);
    assert_eq!(again.text("order_id"), first.text("order_id"));
    for other in [
        vec![("Challenge-Solution", solved.as_str())],
        vec![
            ("Challenge-Solution", solved.as_str()),
            ("Idempotency-Key", "two"),
        ],
    ] {
        buy(&ada, &sale, &other)
            .await
            .assert_problem(409, "challenge_expired");
    }
    assert_eq!(app.assert_sound(&sale).await.live, 1);
    second.stop().await;
    app.finish().await;
}

/// With a waiting room the work is done once, for the place; other tabs need none, and neither does the purchase.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_the_waiting_room_is_worked_for() {
    let app = TestApp::start().await;
    let members = json!({"challenge_bits": 6, "purchase_pass": true, "waiting_room": {}});
    let sale = app.sale(10, members).await;
    let room = format!("/api/v1/sales/{sale}/waiting-room");
    let shopper = app.shopper();
    shopper
        .post(&room)
        .await
        .assert_problem(409, "challenge_required");
    let solved = solution(&shopper, &sale).await;
    let joined = shopper
        .post_with(&room, &[("Challenge-Solution", &solved)])
        .await;
    joined.assert(StatusCode::OK);
    shopper.post(&room).await.assert(StatusCode::OK);
    let place = eventually("the turn", async || {
        let place = shopper.get(&room).await;
        (place.text("state") == "turn").then_some(place)
    })
    .await;
    let token = place.text("admission_token").to_owned();
    buy(&shopper, &sale, &[("Admission-Token", &token)])
        .await
        .assert(StatusCode::ACCEPTED);
    // The work is for one place: somebody else's, or a second use, makes none.
    let other = app.shopper();
    let refused = other
        .post_with(&room, &[("Challenge-Solution", &solved)])
        .await;
    refused.assert_problem(403, "challenge_failed");
    app.finish().await;
}

/// Where an operator switches them, what is not switched stays.
#[tokio::test]
async fn an_operator_switches_each_part() {
    let app = TestApp::start().await;
    let sale = app.sale(10, json!({})).await;
    let path = format!("/api/v1/admin/sales/{sale}");
    let change = async |body: Value| app.admin(Method::PATCH, &path, Some(body)).await;
    let reply = change(json!({"purchase_pass": true})).await;
    assert_eq!(
        (&reply.body["purchase_pass"], &reply.body["challenge_bits"]),
        (&json!(true), &json!(0))
    );
    let reply = change(json!({"challenge_bits": 9})).await;
    assert_eq!(
        (&reply.body["purchase_pass"], &reply.body["challenge_bits"]),
        (&json!(true), &json!(9))
    );
    for bad in [
        json!({"challenge_bits": -1}),
        json!({"challenge_bits": 25}),
        json!({"purchase_pass": 1}),
    ] {
        change(bad).await.assert_problem(422, "invalid");
    }
    let shopper = app.shopper();
    let solved = solution(&shopper, &sale).await;
    buy(&shopper, &sale, &[("Challenge-Solution", &solved)])
        .await
        .assert_problem(409, "pass_required");
    let pass = pass(&shopper, &sale).await;
    let both = [
        ("Purchase-Pass", pass.as_str()),
        ("Challenge-Solution", solved.as_str()),
    ];
    buy(&shopper, &sale, &both)
        .await
        .assert(StatusCode::ACCEPTED);
    app.finish().await;
}

fn limited(when_away: WhenAway) -> Options {
    Options {
        rate_limit: true,
        shared_limits: Some(when_away),
        ..Options::default()
    }
}

/// How many functions this Redis has run.
async fn scripts_run(app: &TestApp) -> u64 {
    let statistics: String = app.in_redis(redis::cmd("INFO").arg("commandstats")).await;
    let line = statistics
        .lines()
        .find(|line| line.starts_with("cmdstat_fcall:"));
    let calls = line.and_then(|line| line.split_once("calls=")?.1.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// A user who asks at two instances has one allowance, and being refused costs no question.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_count_together_and_the_refused_cost_nothing() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, limited(WhenAway::Open)).await;
    let second = app.another(limited(WhenAway::Open)).await;
    let here = app.shopper();
    let there = second.as_shopper(&here);
    let pay = "/api/v1/orders/1/pay";
    let (mut passed, began) = (0, Instant::now());
    // Each instance alone would let twenty pass at once.
    for _ in 0..20 {
        for shopper in [&here, &there] {
            let reply = shopper.post(pay).await;
            if reply.status == StatusCode::NOT_FOUND {
                passed += 1;
            } else {
                reply.assert_problem(429, "rate_limited");
                assert!(reply.header("ratelimit").starts_with(r#""user";r=0;t="#));
                assert!(!reply.header("retry-after").is_empty());
            }
        }
    }
    let most = 20.0 + began.elapsed().as_secs_f64() * 10.0 + 1.0;
    assert!(
        passed >= 20 && f64::from(passed) <= most,
        "{passed} passed, at most {most}"
    );
    // Somebody else is not concerned.
    app.shopper()
        .post(pay)
        .await
        .assert_problem(404, "order_not_found");

    let storm = app.shopper();
    let mut refused = 0;
    let before = scripts_run(&app).await;
    let mut answers = Vec::new();
    for _ in 0..200 {
        answers.push(storm.post(pay).await.status);
    }
    refused += answers
        .iter()
        .filter(|status| **status == StatusCode::TOO_MANY_REQUESTS)
        .count();
    let asked = scripts_run(&app).await - before;
    let passed = answers.len() - refused;
    assert!(refused >= 50, "{refused} refused");
    // Two for each that passed, and for a refusal only after the last one was over; some for the rest of the house.
    assert!(
        asked <= 4 * passed as u64 + 40,
        "{asked} scripts for {passed} that passed and {refused} refused"
    );
    second.stop().await;
    app.finish().await;
}

/// While Redis stands still: one way lets everybody pass, the other nobody, as it was set; neither waits long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_the_limits_fail_as_they_were_told_to() {
    let servers = Servers::own().await;
    let open = TestApp::start_on(&servers, limited(WhenAway::Open)).await;
    let closed = open.another(limited(WhenAway::Closed)).await;
    for app in [&open, &closed] {
        app.shopper()
            .post("/api/v1/orders/1/pay")
            .await
            .assert_problem(404, "order_not_found");
    }
    open.in_redis::<()>(redis::cmd("CLIENT").arg("PAUSE").arg(4_000).arg("ALL"))
        .await;
    let began = Instant::now();
    let refused = closed.shopper().post("/api/v1/orders/1/pay").await;
    refused.assert_problem(503, "unavailable");
    assert_eq!(
        refused.body["detail"],
        "requests cannot be counted at the moment"
    );
    assert!(!refused.header("retry-after").is_empty());
    assert!(
        began.elapsed() < Duration::from_millis(1_500),
        "{:?}",
        began.elapsed()
    );
    let passed = open.shopper().post("/api/v1/orders/1/pay").await;
    assert_ne!(
        passed.body["detail"],
        "requests cannot be counted at the moment"
    );
    // Redis still stands still, and these servers go with the test.
    closed.stop().await;
    open.stop().await;
}

/// Every answer of the API tells how much is left of the widest limit, and every refusal of which one nothing is.
#[tokio::test]
async fn answers_tell_how_much_is_left() {
    let app = TestApp::start_with(Options {
        rate_limit: true,
        ..Options::default()
    })
    .await;
    let reply = app.get("/api/v1/sales").await;
    assert_eq!(reply.header("ratelimit-policy"), r#""address";q=1000;w=2"#);
    let left = reply.header("ratelimit");
    let left = left
        .strip_prefix(r#""address";r="#)
        .and_then(|rest| rest.split(';').next());
    let left: u32 = left.expect("what is left").parse().expect("a number");
    assert!((900..1_000).contains(&left), "{left}");
    let shopper = app.shopper();
    let refused = eventually("a refusal", async || {
        let reply = shopper.post("/api/v1/orders/1/pay").await;
        (reply.status == StatusCode::TOO_MANY_REQUESTS).then_some(reply)
    })
    .await;
    assert_eq!(refused.header("ratelimit-policy"), r#""user";q=20;w=2"#);
    assert_eq!(refused.header("ratelimit"), r#""user";r=0;t=1"#);
    assert_eq!(refused.header("retry-after"), "1");
    // Without limits nobody is told anything.
    let free = app.another(Options::default()).await;
    assert_eq!(free.get("/api/v1/sales").await.header("ratelimit"), "");
    free.stop().await;
    app.finish().await;
}
