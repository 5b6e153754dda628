//! Defence against bots, from outside: passes, proof of work, shared limits, and their headers.

use crate::{faults::calls_of, room::admission, support::prelude::*};
use flash_sale::access::bots::{limits::WhenAway, work};

fn of_sale(sale: &str, rest: &str) -> String {
    format!("/api/v1/sales/{sale}/{rest}")
}

async fn pass(shopper: &Shopper, sale: &str) -> String {
    shopper.get(&of_sale(sale, "pass")).await.must_be(200).text("pass").to_owned()
}

async fn challenge(shopper: &Shopper, sale: &str) -> (String, u8) {
    let reply = shopper.get(&of_sale(sale, "challenge")).await.must_be(200);
    let bits = reply.body["bits"].as_u64().and_then(|bits| u8::try_from(bits).ok());
    (reply.text("challenge").to_owned(), bits.expect("bits"))
}

async fn solution(shopper: &Shopper, sale: &str) -> String {
    let (challenge, bits) = challenge(shopper, sale).await;
    work::solve(&challenge, bits)
}

/// An instance that does not know yet what a sale asks for answers 503.
async fn until_known(app: &TestApp, sale: &str) {
    wait_for!(app.services.catalog.cache.get(sale.parse().expect("an id")).is_some());
}

/// On the opening second, not before it, also at an instance that nobody told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_is_given_out_from_the_opening_on_and_for_one_user_and_sale() {
    let (app, second) = TestApp::pair().await;
    let other = app.sale(10, json!({"purchase_pass": true})).await;
    let (ada, eve) = (app.shopper(), app.shopper());
    let sale_in =
        async |secs| app.sale(10, json!({"purchase_pass": true, "opens_at": in_secs(secs)})).await;
    let later = sale_in(3_600).await;
    ada.get(&of_sale(&later, "pass")).await.assert_told_when(409, "not_open");
    ada.refused(&later, "not_open").await;
    let sale = sale_in(2).await;
    let opens_at = time_of(&app.sale_now(&sale).await["opens_at"]);
    let path = of_sale(&sale, "pass");
    until_known(&second, &sale).await;
    wait_for!(eve.at(&second).get(&path).await.status == 200);
    assert!(OffsetDateTime::now_utc() >= opens_at);
    wait_for!(ada.get(&path).await.status == 200);
    ada.refused(&sale, "pass_required").await;
    let (mine, theirs) = (pass(&ada, &sale).await, pass(&eve, &sale).await);
    let elsewhere = pass(&ada, &other).await;
    for bad in [&theirs, &elsewhere, "", "?", &mine[..mine.len() - 1]] {
        ada.buy_with(&sale, &[("Purchase-Pass", bad)]).await.assert_problem(403, "pass_invalid");
    }
    ada.at(&second).buy_with(&sale, &[("Purchase-Pass", &mine)]).await.assert(202);
    let plain = app.sale(10, json!({})).await;
    for thing in ["pass", "challenge"] {
        ada.get(&of_sale(&plain, thing)).await.assert_problem(404, &format!("{thing}_not_found"));
    }
    ada.must_buy(&plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_is_worked_for_once() {
    let (app, second) = TestApp::pair().await;
    let sale = app.sale(10, json!({"challenge_bits": 6, "per_user_limit": 5})).await;
    until_known(&second, &sale).await;
    let (ada, eve) = (app.shopper(), app.shopper());
    ada.refused(&sale, "challenge_required").await;
    let theirs = solution(&eve, &sale).await;
    let unsolved = format!("{}:", challenge(&ada, &sale).await.0);
    for bad in [&theirs, &unsolved, "", ":", "x:1", &format!("{theirs}:1")] {
        let refused = ada.buy_with(&sale, &[("Challenge-Solution", bad)]).await;
        refused.assert_problem(403, "challenge_failed");
    }
    let solved = solution(&ada, &sale).await;
    let work = ("Challenge-Solution", solved.as_str());
    let headers = [work, ("Idempotency-Key", "one")];
    let first = ada.buy_with(&sale, &headers).await.must_be(202);
    let again = ada.at(&second).buy_with(&sale, &headers).await.must_be(202);
    assert_eq!(again.text("order_id"), first.text("order_id"));
    for other in [&[work][..], &[work, ("Idempotency-Key", "two")]] {
        ada.buy_with(&sale, other).await.assert_problem(409, "challenge_expired");
    }
    assert_eq!(app.assert_sound(&sale).await.live, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_the_waiting_room_is_worked_for() {
    let members = json!({"challenge_bits": 6, "purchase_pass": true, "waiting_room": {}});
    let (app, sale) = TestApp::selling(10, members).await;
    let room = of_sale(&sale, "waiting-room");
    let shopper = app.shopper();
    shopper.post(&room).await.assert_problem(409, "challenge_required");
    let solved = solution(&shopper, &sale).await;
    let work = [("Challenge-Solution", solved.as_str())];
    shopper.ask("POST", &room).headers(&work).await.assert(200);
    let token = admission(&shopper, &sale).await;
    shopper.buy_with(&sale, &[("Admission-Token", &token)]).await.assert(202);
    app.shopper().ask("POST", &room).headers(&work).await.assert_problem(403, "challenge_failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_switches_each_part() {
    let (app, sale) = TestApp::selling(10, json!({})).await;
    let reply = app.change(&sale, json!({"purchase_pass": true})).await;
    reply.assert_has(json!({"purchase_pass": true, "challenge_bits": 0}));
    let reply = app.change(&sale, json!({"challenge_bits": 9})).await;
    reply.assert_has(json!({"purchase_pass": true, "challenge_bits": 9}));
    for (member, bad) in [("challenge_bits", -1), ("challenge_bits", 25), ("purchase_pass", 1)] {
        app.change(&sale, json!({ member: bad })).await.assert_problem(422, "invalid");
    }
    let shopper = app.shopper();
    let solved = solution(&shopper, &sale).await;
    let work = ("Challenge-Solution", solved.as_str());
    shopper.buy_with(&sale, &[work]).await.assert_problem(409, "pass_required");
    let pass = pass(&shopper, &sale).await;
    shopper.buy_with(&sale, &[("Purchase-Pass", &pass), work]).await.assert(202);
}

fn limited(shared_limits: Option<WhenAway>) -> Options {
    Options { rate_limit: true, shared_limits, ..Options::default() }
}

/// A call that is 404 unless it is refused before it is looked at.
const PAY: &str = "/api/v1/orders/1/pay";

/// While Redis stands still, one setting lets everybody pass and the other nobody, at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_count_together_and_without_redis_they_do_as_they_were_told() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, limited(Some(WhenAway::Open))).await;
    let second = app.another(limited(Some(WhenAway::Closed))).await;
    let here = app.shopper();
    let there = here.at(&second);
    let (mut passed, began) = (0, Instant::now());
    for _ in 0..20 {
        for shopper in [&here, &there] {
            let reply = shopper.post(PAY).await;
            if reply.status == 404 {
                passed += 1;
            } else {
                reply.assert_told_when(429, "rate_limited");
                assert!(reply.header("ratelimit").starts_with(r#""user";r=0;t="#));
            }
        }
    }
    let most = 20.0 + began.elapsed().as_secs_f64() * 10.0 + 1.0;
    assert!((20.0..=most).contains(&f64::from(passed)), "{passed} passed, at most {most}");
    for app in [&app, &second] {
        app.shopper().post(PAY).await.assert_problem(404, "order_not_found");
    }
    let storm = app.shopper();
    let before = calls_of(&app, "fcall").await;
    let (mut refused, mut passed) = (0, 0);
    while refused < 100 {
        let is_refused = storm.post(PAY).await.status == 429;
        refused += u64::from(is_refused);
        passed += u64::from(!is_refused);
        assert!(passed < 2_000, "{refused} refused");
    }
    let asked = calls_of(&app, "fcall").await - before;
    // Two for each that passed, one for a refusal after the last was over, some for the tasks.
    assert!(asked <= 4 * passed + 40, "{asked}, {passed}, {refused}");
    let uncounted = json!("requests cannot be counted at the moment");
    let redis = [servers.redis.pid().expect("it runs")];
    signal(&redis, Signal::SIGSTOP);
    let refused = second.shopper().post(PAY).await;
    assert_shed(&refused);
    refused.assert_has(json!({ "detail": uncounted }));
    assert_ne!(app.shopper().post(PAY).await.body["detail"], uncounted);
    signal(&redis, Signal::SIGCONT);
}

/// Every answer tells how much is left of the widest limit; a refusal, which one is used up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_tell_how_much_is_left() {
    let app = TestApp::start_with(limited(None)).await;
    let reply = app.get("/api/v1/sales").await;
    assert_eq!(reply.header("ratelimit-policy"), r#""address";q=1000;w=2"#);
    let left = reply.header("ratelimit").strip_prefix(r#""address";r="#);
    let left = left.and_then(|rest| rest.split(';').next()?.parse().ok());
    assert!((Some(900)..Some(1_000)).contains(&left), "{left:?}");
    let shopper = app.shopper();
    // At once: one after the other, a slow machine may let all of them pass.
    let replies = all_at_once((0..100).map(|_| shopper.ask("POST", PAY).into_future())).await;
    let refused = replies.iter().find(|reply| reply.status == 429).expect("a refusal");
    assert_eq!(refused.header("ratelimit-policy"), r#""user";q=20;w=2"#);
    assert_eq!(refused.header("ratelimit"), r#""user";r=0;t=1"#);
    assert_eq!(refused.assert_told_when(429, "rate_limited"), 1);
    let free = app.another(Options::default()).await;
    assert_eq!(free.get("/api/v1/sales").await.header("ratelimit"), "");
}

/// Nothing has to be started again because Redis was: not where limits are shared, nor where a
/// purchase is worked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_and_proof_of_work_outlive_a_restart_of_redis() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, limited(Some(WhenAway::Closed))).await;
    let second = app.another(Options::default()).await;
    let sale = app.sale(1_000, json!({"challenge_bits": 6})).await;
    until_known(&second, &sale).await;
    let works = async || {
        let (here, there) = (app.shopper(), app.shopper().at(&second));
        let solved = solution(&there, &sale).await;
        let work = [("Challenge-Solution", solved.as_str())];
        here.post(PAY).await.status == 404 && there.buy_with(&sale, &work).await.status == 202
    };
    wait_for!(works().await);
    let before = servers.redis.pid();
    servers.redis.kill(); // it is started again
    wait_for!(servers.redis.pid().is_some_and(|pid| Some(pid) != before));
    wait_for!(works().await);
}
