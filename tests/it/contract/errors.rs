//! Whatever a client sends, and as whom: it gets a 4xx with a code, and nothing has changed.

use super::*;
use reqwest::Body;
use std::io;

const LIMIT: usize = 16 * 1024;
const KIND: &str = "content-type";
const JSON: &str = "application/json";

fn chunked(bytes: &[u8]) -> Body {
    let chunk = |chunk: &[u8]| io::Result::Ok(chunk.to_vec());
    let chunks: Vec<_> = bytes.chunks(1_000).map(chunk).collect();
    Body::wrap_stream(stream::iter(chunks))
}

fn numbers(wrong: Value) -> Value {
    both(wrong, json!(["5", 1.5, 1e30, u64::MAX, true, [5], {}, ""]))
}

fn texts(wrong: Value) -> Value {
    both(wrong, json!([5, true, ["x"], {"x": 1}]))
}

fn both(one: Value, other: Value) -> Value {
    [one, other].iter().flat_map(|list| list.as_array().expect("a list").clone()).collect()
}

/// An object for each value of each member.
fn each(table: Value) -> Value {
    let mut objects = Vec::new();
    for (member, values) in table.as_object().expect("an object") {
        let values = values.as_array().expect("a list").iter();
        objects.extend(values.map(|value| json!({ member: value })));
    }
    objects.into()
}

/// What neither a new sale takes nor a change, and more.
fn wrong_members(more: Value) -> Value {
    let shared = json!({
        "title": texts(json!(["", "   ", "x".repeat(201), "a\u{0}b", "a\u{7}b", "a\u{1b}[31mb"])),
        "description": texts(json!(["x".repeat(4_001), "a\u{0}b"])),
        "image_url": texts(json!([
            "x".repeat(501), "/a\u{0}", "javascript:alert(1)", "JaVaScRiPt:alert(1)",
            " javascript:alert(1)", "data:text/html,<script>alert(1)</script>", "vbscript:x",
            "//evil.example/a.png", "/\\evil.example/a.png",
            "ftp://evil.example/a.png", "file:///etc/passwd", "a.png",
        ])),
        "closes_at": texts(json!([
            "1969-12-31T23:59:59Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-10:00",
            "9999-12-31T23:59:59Z", "", "now", "yesterday", "2026-13-45T00:00:00Z",
            "2026-02-30T00:00:00Z", "2026-01-01", "10:00", "2026-01-01T25:00:00Z",
            "+275760-09-13T00:00:00Z", "2026-01-01T00:00:00",
        ])),
        "payment_timeout_secs": numbers(json!([0, -1, 604_801, i64::MAX])),
        "waiting_room": [[], [600, 1, 1, 1], 1, "on"],
    });
    both(each(shared), each(more))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_sale_is_not_created() {
    let (app, _) = TestApp::selling(5, json!({})).await;
    let before = app.snapshot().await;
    let good = json!({"title": "a thing", "price_cents": 100, "stock": 5});
    let wrong = wrong_members(json!({
        "title": [null], "price_cents": numbers(json!([null, -1, i64::MIN, i64::MAX])),
        "original_price_cents": numbers(json!([-1, 99, i64::MAX])),
        "stock": numbers(json!([null, 0, -1, i64::MIN, i64::MAX, 2_147_483_648_i64, 100_000_001])),
        "per_user_limit": numbers(json!([0, -1, 65_536, i64::MAX])),
        "opens_at": ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "tomorrow", 1_800_000_000],
        "closes_at": [in_secs(-10)],
        "currency": ["", "usd", "US", "USDT", "U$D", "ＵＳＤ", "123", 840],
        // Members that a client does not set, and members that do not exist.
        "id": [1], "remaining": [1], "taken": [1], "paused": [1], "closed": [1], "state": [1],
        "epoch": [1], "version": [1], "seed_key": [1], "Title": [1], "__proto__": [1], "": [1],
    }));
    let wrong = wrong.as_array().expect("a list").iter();
    let mut bodies: Vec<Value> = wrong.map(|member| with(good.clone(), member)).collect();
    for missing in ["title", "price_cents", "stock"] {
        let mut body = good.clone();
        body.as_object_mut().expect("an object").remove(missing);
        bodies.push(body);
    }
    for [opens_at, closes_at] in [
        ["2030-01-01T00:00:00Z", "2029-12-31T23:59:59Z"],
        ["2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z"],
        ["2030-01-01T00:00:00Z", "2030-01-01T08:00:00+08:00"],
        ["2030-01-01T00:00:00-01:00", "2030-01-01T00:30:00Z"],
    ] {
        bodies.push(with(good.clone(), &json!({"opens_at": opens_at, "closes_at": closes_at})));
    }
    for body in bodies {
        let reply = app.admin("POST", SALES, Some(body.clone())).await;
        reply.assert_problem_at(&body.to_string(), 422, "invalid");
    }
    assert_eq!(app.snapshot().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_change_changes_nothing() {
    let window = json!({"opens_at": "2030-01-01T00:00:00Z", "closes_at": "2030-01-02T00:00:00Z"});
    let (app, sale) = TestApp::selling(5, window).await;
    let closed = app.sale(5, json!({})).await;
    app.steer(&closed, "close").await;
    let before = app.snapshot().await;
    let wrong = wrong_members(json!({
        "closes_at":
            ["2030-01-01T00:00:00Z", "2029-12-31T23:59:59Z", "2030-01-01T00:00:00.0005Z"],
        // Members that cannot be changed are refused like unknown ones.
        "price_cents": [7], "original_price_cents": [7], "stock": [7], "remaining": [7],
        "per_user_limit": [7], "currency": [7], "paused": [7], "id": [7], "x": [7],
        "opens_at": ["2029-01-01T00:00:00Z"],
    }));
    for member in wrong.as_array().expect("a list") {
        // A good change beside it must not be made either.
        let body = with(json!({"description": "changed"}), member);
        app.change(&sale, body.clone()).await.assert_problem_at(&body.to_string(), 422, "invalid");
    }
    app.change(&sale, json!(["a", "b", null, null, null])).await.assert_problem(422, "invalid");
    assert_refused(&app.change(&closed, json!({"closes_at": in_secs(9_000)})).await, "reopening");

    let adds = numbers(json!([0, null, i64::MAX, i64::MIN, 100_000_000, 99_999_996, i32::MAX]));
    let others = json!([{}, {"ADD": 1}, {"add": 1, "x": 1}, {"add": 1, "stock": 9}, [1], 1]);
    for body in both(each(json!({ "add": adds })), others).as_array().expect("a list") {
        let reply = app.admin_sale("POST", &sale, "/stock", Some(body.clone())).await;
        reply.assert_problem_at(&body.to_string(), 422, "invalid");
    }
    // Nor does that answer depend on Redis.
    let (alone, _) = services_without_tasks(&app.database, "redis://127.0.0.1:1", &app.prefix);
    let added = alone.catalog.add_stock(sale.parse().expect("an id"), 100_000_000).await;
    assert!(matches!(added, Err(ServiceError::Invalid { field: "add", .. })), "{added:?}");
    assert_eq!(app.snapshot().await, before);
    app.assert_sound(&sale).await;
}

struct Stage {
    app: TestApp,
    sale: String,
    shopper: Shopper,
    order: String,
    before: String,
}

impl Stage {
    async fn new() -> Self {
        let (app, sale) = TestApp::selling(5, json!({"per_user_limit": 9})).await;
        let (shopper, order) = app.buyer(&sale).await;
        let before = app.snapshot().await;
        Self { app, sale, shopper, order, before }
    }

    fn changing(&self) -> impl Iterator<Item = (&str, Route)> {
        let routes = Route::all(&self.sale, &self.order).filter(|route| route.method != "GET");
        routes.map(|route| (route.token(&self.shopper), route))
    }

    async fn assert_unchanged(&self) {
        assert_eq!(self.app.snapshot().await, self.before);
    }
}

// On one thread the server does not hang up on a body that is still being sent.
#[tokio::test]
async fn a_body_that_is_too_large_is_refused_however_it_comes() {
    let stage = Stage::new().await;
    let app = &stage.app;
    for (token, Route { method, path, body, .. }) in stage.changing() {
        let post = |body| app.ask(method, &path).bearer(token).header(KIND, JSON).body(body);
        for size in [LIMIT + 1, 60 * LIMIT] {
            let mut large = body.as_bytes().to_vec();
            large.resize(size, b' ');
            for body in [chunked(&large), Body::from(large)] {
                let reply = post(body).await;
                let what = format!("{size} bytes: {method} {path}");
                reply.assert_problem_at(&what, 413, "too_large");
                // Its body is left unread: the next request needs another connection.
                assert_eq!(reply.header("connection"), "close");
            }
        }
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\
             authorization: Bearer {token}\r\ncontent-type: application/json\r\n\
             content-length: 100000000000\r\n\r\n"
        );
        let answer = app.raw(head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{method} {path}: {answer}");
    }
    stage.assert_unchanged().await;

    let mut exact = br#"{"title":"b","price_cents":1,"stock":1}"#.to_vec();
    exact.resize(LIMIT, b' ');
    for body in [chunked(&exact), Body::from(exact)] {
        app.ask("POST", SALES).bearer(ADMIN_TOKEN).header(KIND, JSON).body(body).await.assert(201);
    }
    stage.app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_has_to_be_json_and_to_be_called_so() {
    let stage = Stage::new().await;
    let app = &stage.app;
    for (token, Route { method, path, body, .. }) in stage.changing() {
        let post = |body| app.ask(method, &path).bearer(token).body(body);
        if body.is_empty() {
            for unwanted in [r#"{"quantity":5}"#, "[]", "null", "quantity=5"] {
                for body in [Body::from(unwanted), chunked(unwanted.as_bytes())] {
                    assert_refused(&post(body).header(KIND, JSON).await, &path);
                }
            }
            continue;
        }
        let post = || post(Body::from(body));
        post().await.assert_problem_at(&path, 415, "unsupported_media_type");
        for kind in ["text/plain", "application/x-www-form-urlencoded"] {
            let what = format!("{kind}: {method} {path}");
            post().header(KIND, kind).await.assert_problem_at(&what, 415, "unsupported_media_type");
        }
    }
    stage.assert_unchanged().await;
    for kind in [JSON, "Application/JSON; charset=utf-8"] {
        let add = app.ask("POST", &format!("{SALES}/{}/stock", stage.sale)).bearer(ADMIN_TOKEN);
        add.header(KIND, kind).body(r#"{"add":1}"#).await.assert(200);
    }
}

/// Texts that are no ids, as parts of addresses; `SALE` and `ORDER` are ids.
const NO_IDS: &str = "abc -1 0 00 0SALE +SALE SALE.0 1e3 0x1 1_000 NaN null 99999999999999999999 \
    9223372036854775808 18446744073709551616 LONG %20 %20SALE SALE%20 SALE%00 SALE%0a %00 %ff \
    %c3%28 %27%20OR%201=1-- %3Cscript%3E ..%2f..%2fetc%2fpasswd SALE%2forders %EF%BC%91 %D9%A1 * \
    {id} SALE;x=1 SALE,ORDER";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_id_is_nothing_that_exists() {
    let stage = Stage::new().await;
    let (app, sale, shopper) = (&stage.app, &stage.sale, &stage.shopper);
    let junk = NO_IDS.replace("LONG", &"9".repeat(1_000));
    for id in junk.replace("SALE", sale).replace("ORDER", &stage.order).split(' ') {
        for route in Route::all(id, id).filter(|route| route.has_id) {
            let reply = within_timeout(route.ask(app).bearer(route.token(shopper))).await;
            assert_refused(&reply, &format!("{} {}", route.method, route.path));
        }
        if !id.contains(['{', ';']) {
            assert_refused(&shopper.get(&format!("/api/v1/orders?after={id}")).await, id);
            let rest = format!("/orders?after={id}");
            assert_refused(&app.admin_sale("GET", sale, &rest, None).await, id);
        }
    }
    stage.assert_unchanged().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_token_is_nobody_and_a_good_one_shows_no_order_of_another() {
    let stage = Stage::new().await;
    let (app, user, good) = (&stage.app, stage.shopper.user, &stage.shopper.token);
    let now = OffsetDateTime::now_utc();
    let [header, claims, signature] = good.split('.').collect::<Vec<_>>()[..] else {
        panic!("three parts")
    };
    let forged = TokenSigner::new(b"the secret of somebody else, long").expect("long enough");
    let other = app.mint(UserId::random());
    let other_claims = other.split('.').nth(1).expect("claims");
    // That no other text or header is a token: `auth::tests`, `http::extract::tests`.
    let bad = [
        app.mint_until(user, now - time::Duration::SECOND),
        forged.mint(user, "tester", now + time::Duration::HOUR),
        format!("{header}.{other_claims}.{signature}"),
        format!("eyJhbGciOiJub25lIn0.{claims}."), // {"alg":"none"}
    ];
    let mut headers = vec![("accept", "*/*".to_owned())]; // no token at all
    for token in &bad {
        headers.push(("authorization", format!("Bearer {token}")));
        headers.push(("cookie", format!("session={token}")));
    }
    for route in Route::all(&stage.sale, &stage.order).filter(|route| route.who == "shopper") {
        for (name, value) in &headers {
            let reply = within_timeout(route.ask(app).header(name, value)).await;
            let what = format!("{} {} {value}", route.method, route.path);
            reply.assert_problem_at(&what, 401, "unauthenticated");
            assert!(reply.headers.contains_key("www-authenticate"));
        }
    }
    let thief = app.shopper();
    for id in [stage.order.as_str(), "1", UNKNOWN] {
        for route in Route::all("", id).filter(|route| route.path.contains("/orders/")) {
            let stolen = route.ask(app).bearer(&thief.token);
            within_timeout(stolen).await.assert_problem(404, "order_not_found");
            within_timeout(route.ask(app)).await.assert_problem(401, "unauthenticated");
        }
    }
    stage.assert_unchanged().await;
}
