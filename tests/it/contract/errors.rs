//! Bad input, table by table: whatever a client sends, it gets a 4xx with a code, never a 5xx, and
//! nothing has changed.

use super::{assert_refused, in_secs, within_patience};
use crate::support::app::{ADMIN_TOKEN, PATIENCE, Reply, TestApp};
use flash_sale::{auth::TokenSigner, domain::UserId};
use futures_util::stream;
use reqwest::{Body, Method, StatusCode, header::HeaderValue};
use serde_json::{Value, json};
use std::io;
use time::OffsetDateTime;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const LIMIT: usize = 16 * 1024;

/// A call with whatever body and content type, as an operator or as a shopper.
async fn send(
    app: &TestApp,
    token: &str,
    method: &Method,
    path: &str,
    kind: &str,
    body: impl Into<Body>,
) -> Reply {
    let mut request = app
        .client
        .request(method.clone(), app.url(path))
        .bearer_auth(token)
        .body(body);
    if !kind.is_empty() {
        request = request.header("content-type", kind);
    }
    Reply::of(
        request
            .send()
            .await
            .unwrap_or_else(|error| panic!("{method} {path}: {error:?}")),
    )
    .await
}

/// A body that does not say how long it is.
fn chunked(bytes: Vec<u8>) -> Body {
    let chunks: Vec<io::Result<Vec<u8>>> = bytes
        .chunks(1_000)
        .map(|chunk| Ok(chunk.to_vec()))
        .collect();
    Body::wrap_stream(stream::iter(chunks))
}

/// Bodies that are no JSON object of anything.
fn malformed() -> Vec<Vec<u8>> {
    let deep = "[".repeat(LIMIT - 2);
    let nested = format!("{{\"title\":{}", "{\"a\":".repeat(3_000));
    let texts = [
        "",
        " ",
        "{",
        "}",
        "[]",
        "null",
        "true",
        "5",
        "\"text\"",
        "[{}]",
        "{} {}",
        "{}x",
        "{\"title\"}",
        "{'title':'a'}",
        "{\"\":1}",
        "NaN",
        "{\"title\":\"a\",}",
        "{\"title\":\"\\ud800\"}",
        "title=a&stock=5",
        "\u{feff}{}",
        "<a/>",
        &deep,
        &nested,
    ];
    let mut bodies: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    bodies.extend(
        [
            &b"\x00"[..],
            b"{\"title\":\"\xff\xfe\"}",
            b"{\"title\":\"a\x00b\"}",
            b"\x1f\x8b\x08\x00",
        ]
        .map(<[u8]>::to_vec),
    );
    bodies
}

/// Wrong values for members of a sale that POST and PATCH share.
fn wrong_shared_members() -> Vec<(&'static str, Value)> {
    let long = |length: usize| json!("x".repeat(length));
    let mut wrong = vec![
        ("title", json!("")),
        ("title", json!("   ")),
        ("title", long(201)),
        ("title", json!("a\u{0}b")),
        ("title", json!("a\u{7}b")),
        ("title", json!("a\u{1b}[31mb")),
        ("description", long(4_001)),
        ("description", json!("a\u{0}b")),
        ("image_url", long(501)),
        ("image_url", json!("/a\u{0}")),
        ("closes_at", json!("1969-12-31T23:59:59Z")),
        ("closes_at", json!("0000-01-01T00:00:00Z")),
        ("closes_at", json!("9999-12-31T23:59:59-10:00")),
        ("closes_at", json!("9999-12-31T23:59:59Z")),
        ("payment_timeout_secs", json!(0)),
        ("payment_timeout_secs", json!(-1)),
        ("payment_timeout_secs", json!(604_801)),
        ("payment_timeout_secs", json!(i64::MAX)),
    ];
    for url in [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        " javascript:alert(1)",
        "data:text/html,<script>alert(1)</script>",
        "vbscript:x",
        "//evil.example/a.png",
        "ftp://evil.example/a.png",
        "file:///etc/passwd",
        "a.png",
    ] {
        wrong.push(("image_url", json!(url)));
    }
    for time in [
        "",
        "now",
        "yesterday",
        "2026-13-45T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-01-01",
        "10:00",
        "2026-01-01T25:00:00Z",
        "+275760-09-13T00:00:00Z",
        "2026-01-01T00:00:00",
    ] {
        wrong.push(("closes_at", json!(time)));
    }
    for member in ["title", "description", "image_url", "closes_at"] {
        wrong.extend(
            [json!(5), json!(true), json!(["x"]), json!({"x": 1})].map(|value| (member, value)),
        );
    }
    wrong.extend(not_integers().map(|value| ("payment_timeout_secs", value)));
    wrong
}

fn not_integers() -> [Value; 8] {
    [
        json!("5"),
        json!(1.5),
        json!(1e30),
        json!(u64::MAX),
        json!(true),
        json!([5]),
        json!({}),
        json!(""),
    ]
}

#[tokio::test]
async fn a_wrong_sale_is_not_created() {
    let app = TestApp::start().await;
    let path = "/api/v1/admin/sales";
    app.sale(5, json!({})).await;
    let before = app.snapshot().await;
    let good = json!({"title": "a thing", "price_cents": 100, "stock": 5});

    let mut wrong = wrong_shared_members();
    wrong.extend([
        ("price_cents", json!(-1)),
        ("price_cents", json!(i64::MIN)),
        ("price_cents", json!(i64::MAX)),
        ("original_price_cents", json!(-1)),
        ("original_price_cents", json!(99)),
        ("original_price_cents", json!(i64::MAX)),
        ("stock", json!(0)),
        ("stock", json!(-1)),
        ("stock", json!(i64::MIN)),
        ("stock", json!(i64::MAX)),
        ("stock", json!(2_147_483_648_i64)),
        ("stock", json!(100_000_001)),
        ("per_user_limit", json!(0)),
        ("per_user_limit", json!(-1)),
        ("per_user_limit", json!(65_536)),
        ("per_user_limit", json!(i64::MAX)),
        ("opens_at", json!("9999-12-31T23:59:59Z")),
        ("opens_at", json!("0001-01-01T00:00:00Z")),
        ("opens_at", json!("tomorrow")),
        ("opens_at", json!(1_800_000_000)),
        ("closes_at", json!(in_secs(-10))),
    ]);
    for currency in ["", "usd", "US", "USDT", "U$D", "ＵＳＤ", "123"] {
        wrong.push(("currency", json!(currency)));
    }
    wrong.push(("currency", json!(840)));
    for member in [
        "price_cents",
        "original_price_cents",
        "stock",
        "per_user_limit",
    ] {
        wrong.extend(not_integers().map(|value| (member, value)));
    }
    for member in ["title", "price_cents", "stock"] {
        wrong.push((member, Value::Null));
    }
    for member in [
        "id",
        "remaining",
        "taken",
        "paused",
        "closed",
        "state",
        "epoch",
        "version",
        "seed_key",
        "Title",
        "__proto__",
        "",
    ] {
        wrong.push((member, json!(1)));
    }
    for (member, value) in wrong {
        let mut body = good.clone();
        body[member] = value.clone();
        let reply = app.admin(Method::POST, path, Some(body)).await;
        assert_eq!(
            (reply.status.as_u16(), reply.code()),
            (422, "invalid"),
            "{member}: {value}: {:#}",
            reply.body
        );
        assert_refused(&reply, member);
    }
    for missing in ["title", "price_cents", "stock"] {
        let mut body = good.clone();
        body.as_object_mut().expect("an object").remove(missing);
        app.admin(Method::POST, path, Some(body))
            .await
            .assert_problem(422, "invalid");
    }

    // A window that closes before it opens, or as it opens.
    for (opens_at, closes_at) in [
        ("2030-01-01T00:00:00Z", "2029-12-31T23:59:59Z"),
        ("2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z"),
        ("2030-01-01T00:00:00Z", "2030-01-01T08:00:00+08:00"),
        ("2030-01-01T00:00:00-01:00", "2030-01-01T00:30:00Z"),
    ] {
        let mut body = good.clone();
        body["opens_at"] = json!(opens_at);
        body["closes_at"] = json!(closes_at);
        app.admin(Method::POST, path, Some(body))
            .await
            .assert_problem(422, "invalid");
    }
    for raw in [
        r#"{"title":"a","title":"b","price_cents":1,"stock":1}"#,
        // The members' values in their order are no sale either.
        r#"["a",null,null,null,1,null,1,null,null,null,null]"#,
        r#"{"title":"a","price_cents":1e400,"stock":1}"#,
        r#"{"title":"a","price_cents":1,"stock":1.0}"#,
        r#"{"title":"a","price_cents":1,"stock":99999999999999999999999999}"#,
        r#"{"title":"a","price_cents":-0.0,"stock":1}"#,
    ] {
        let reply = send(
            &app,
            ADMIN_TOKEN,
            &Method::POST,
            path,
            "application/json",
            raw,
        )
        .await;
        assert_refused(&reply, raw);
    }
    for body in malformed() {
        let what = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        assert_refused(
            &send(
                &app,
                ADMIN_TOKEN,
                &Method::POST,
                path,
                "application/json",
                body,
            )
            .await,
            &what,
        );
    }
    assert_eq!(app.snapshot().await, before);
    app.finish().await;
}

#[tokio::test]
async fn a_wrong_change_changes_nothing() {
    let app = TestApp::start().await;
    let sale = app
        .sale(
            5,
            json!({"opens_at": "2030-01-01T00:00:00Z", "closes_at": "2030-01-02T00:00:00Z"}),
        )
        .await;
    let closed = app.sale(5, json!({})).await;
    app.steer(&closed, "close").await;
    let path = format!("/api/v1/admin/sales/{sale}");
    let before = app.snapshot().await;
    let mut wrong = wrong_shared_members();
    wrong.push(("closes_at", json!("2030-01-01T00:00:00Z")));
    wrong.push(("closes_at", json!("2029-12-31T23:59:59Z")));
    // What cannot be changed is as unknown as what does not exist.
    for member in [
        "price_cents",
        "original_price_cents",
        "stock",
        "remaining",
        "per_user_limit",
        "currency",
        "paused",
        "id",
        "x",
    ] {
        wrong.push((member, json!(7)));
    }
    wrong.push(("opens_at", json!("2029-01-01T00:00:00Z")));
    for (member, value) in wrong {
        // A good change beside it must not slip through.
        let mut body = json!({"description": "changed"});
        body[member] = value.clone();
        let reply = app.admin(Method::PATCH, &path, Some(body)).await;
        assert_eq!(
            (reply.status.as_u16(), reply.code()),
            (422, "invalid"),
            "{member}: {value}: {:#}",
            reply.body
        );
        assert_refused(&reply, member);
    }
    for body in malformed() {
        let what = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        assert_refused(
            &send(
                &app,
                ADMIN_TOKEN,
                &Method::PATCH,
                &path,
                "application/json",
                body,
            )
            .await,
            &what,
        );
    }
    let in_order = json!(["a", "b", null, null, null]);
    app.admin(Method::PATCH, &path, Some(in_order))
        .await
        .assert_problem(422, "invalid");
    // What was closed stays closed.
    let reopening = json!({"closes_at": in_secs(9_000)});
    let reply = app
        .admin(
            Method::PATCH,
            &format!("/api/v1/admin/sales/{closed}"),
            Some(reopening),
        )
        .await;
    assert_refused(&reply, "reopening");
    assert_eq!(app.snapshot().await, before);
    app.finish().await;
}

#[tokio::test]
async fn wrong_stock_changes_nothing() {
    let app = TestApp::start().await;
    let sale = app.sale(5, json!({})).await;
    let path = format!("/api/v1/admin/sales/{sale}/stock");
    let before = app.snapshot().await;
    let mut wrong: Vec<Value> = not_integers().map(|value| json!({"add": value})).into();
    wrong.extend([
        json!({"add": 0}),
        json!({"add": null}),
        json!({"add": i64::MAX}),
        json!({"add": i64::MIN}),
        json!({"add": 100_000_000}),
        json!({"add": 99_999_996}),
        json!({"add": 2_147_483_647}),
        json!({}),
        json!({"ADD": 1}),
        json!({"add": 1, "x": 1}),
        json!({"add": 1, "stock": 9}),
        json!([1]),
        json!(1),
    ]);
    for body in wrong {
        let reply = app.admin(Method::POST, &path, Some(body.clone())).await;
        assert_eq!(
            (reply.status.as_u16(), reply.code()),
            (422, "invalid"),
            "{body}: {:#}",
            reply.body
        );
        assert_refused(&reply, "stock");
    }
    for less in [-6, -100_000_000] {
        app.add_stock(&sale, less)
            .await
            .assert_problem(409, "not_enough_remaining");
    }
    for body in malformed() {
        let what = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        assert_refused(
            &send(
                &app,
                ADMIN_TOKEN,
                &Method::POST,
                &path,
                "application/json",
                body,
            )
            .await,
            &what,
        );
    }
    assert_eq!(app.snapshot().await, before);
    app.assert_sound(&sale).await;
    app.finish().await;
}

#[tokio::test]
async fn a_wrong_session_is_not_opened() {
    let app = TestApp::start().await;
    for body in [
        json!({"name": 5}),
        json!({"name": ["Ada"]}),
        json!({"name": "x".repeat(10_000)}),
        json!({"name": "a\u{0}b"}),
        json!({"name": "a\r\nSet-Cookie: session=x"}),
        json!({"user_id": "00000000-0000-4000-8000-000000000000"}),
        json!({"name": "Ada", "admin": true}),
        json!([]),
        json!(["Ada"]),
        json!("Ada"),
    ] {
        let reply = Reply::of(
            app.client
                .post(app.url("/api/v1/session"))
                .json(&body)
                .send()
                .await
                .expect("an answer"),
        )
        .await;
        assert_eq!(
            (reply.status.as_u16(), reply.code()),
            (422, "invalid"),
            "{body}"
        );
        assert_refused(&reply, "session");
        assert!(!reply.headers.contains_key("set-cookie"));
    }
    for body in malformed() {
        if body.iter().all(u8::is_ascii_whitespace) {
            continue; // a session needs no wishes
        }
        let what = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        let request = app
            .client
            .post(app.url("/api/v1/session"))
            .header("content-type", "application/json")
            .body(body);
        assert_refused(
            &Reply::of(request.send().await.expect("an answer")).await,
            &what,
        );
    }
    app.finish().await;
}

/// Every route that changes something: who may, its method, its path, and a body that it would take.
fn changing(sale: &str, order: &str) -> Vec<(bool, Method, String, &'static str)> {
    let admin = |rest: &str| format!("/api/v1/admin/sales/{sale}{rest}");
    vec![
        (
            false,
            Method::POST,
            "/api/v1/session".to_owned(),
            r#"{"name":"Ada"}"#,
        ),
        (
            false,
            Method::POST,
            format!("/api/v1/sales/{sale}/orders"),
            "",
        ),
        (
            false,
            Method::POST,
            format!("/api/v1/orders/{order}/pay"),
            "",
        ),
        (
            false,
            Method::POST,
            format!("/api/v1/orders/{order}/cancel"),
            "",
        ),
        (
            true,
            Method::POST,
            "/api/v1/admin/sales".to_owned(),
            r#"{"title":"b","price_cents":1,"stock":1}"#,
        ),
        (true, Method::PATCH, admin(""), r#"{"title":"b"}"#),
        (true, Method::POST, admin("/stock"), r#"{"add":1}"#),
        (true, Method::POST, admin("/pause"), ""),
        (true, Method::POST, admin("/resume"), ""),
        (true, Method::POST, admin("/close"), ""),
    ]
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_however_it_comes() {
    let app = TestApp::start().await;
    let sale = app.sale(5, json!({"per_user_limit": 9})).await;
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&sale).await;
    let before = app.snapshot().await;
    for (admin, method, path, body) in changing(&sale, &order) {
        let token = if admin { ADMIN_TOKEN } else { &shopper.token };
        for size in [LIMIT + 1, 10 * LIMIT, 60 * LIMIT] {
            let mut large = body.as_bytes().to_vec();
            large.resize(size, b' ');
            for (how, body) in [
                ("with its length", Body::from(large.clone())),
                ("in chunks", chunked(large)),
            ] {
                let reply = send(&app, token, &method, &path, "application/json", body).await;
                assert_eq!(
                    reply.status,
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "{size} bytes {how}: {method} {path}: {:#}",
                    reply.body
                );
                assert_refused(&reply, &path);
                // Its body is left unread: the next request needs another connection.
                assert_eq!(reply.header("connection"), "close");
            }
        }
        // One that only announces itself is refused before it is sent.
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: 100000000000\r\n\r\n"
        );
        let answer = raw(&app, head.as_bytes()).await;
        assert!(
            answer.starts_with("HTTP/1.1 413 "),
            "{method} {path}: {answer}"
        );
        assert!(answer.contains("\"code\":\"too_large\""), "{answer}");
    }
    // Routes that take no body at all are no way in either.
    for path in ["/api/v1/sales", "/api/v1/orders", "/healthz", "/"] {
        let reply = send(
            &app,
            &shopper.token,
            &Method::GET,
            path,
            "application/json",
            vec![b' '; 10 * LIMIT],
        )
        .await;
        assert!(!reply.status.is_server_error(), "{path}");
    }
    assert_eq!(app.snapshot().await, before);

    // The limit itself is allowed.
    let mut exact = br#"{"title":"b","price_cents":1,"stock":1}"#.to_vec();
    exact.resize(LIMIT, b' ');
    for body in [Body::from(exact.clone()), chunked(exact)] {
        let reply = send(
            &app,
            ADMIN_TOKEN,
            &Method::POST,
            "/api/v1/admin/sales",
            "application/json",
            body,
        )
        .await;
        reply.assert(StatusCode::CREATED);
    }
    app.finish().await;
}

/// Writes these bytes to the server and reads until it has nothing more to say.
async fn raw(app: &TestApp, bytes: &[u8]) -> String {
    let mut connection = TcpStream::connect(app.base.trim_start_matches("http://"))
        .await
        .expect("a connection");
    connection.write_all(bytes).await.expect("it takes them");
    let mut answer = Vec::new();
    let reading = connection.read_to_end(&mut answer);
    let read = tokio::time::timeout(PATIENCE, reading)
        .await
        .expect("an answer in time");
    // What was answered counts, even if the connection is then reset.
    assert!(read.is_ok() || !answer.is_empty(), "{read:?}");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn what_breaks_http_itself_does_no_harm() {
    let app = TestApp::start().await;
    let sale = app.sale(5, json!({})).await;
    let before = app.snapshot().await;
    let path = format!("/api/v1/sales/{sale}/orders");
    let authorization = format!("authorization: Bearer {}", app.shopper().token);
    for request in [
        "nonsense\r\n\r\n".to_owned(),
        "GET\r\n\r\n".to_owned(),
        format!("POST {path} HTTP/9.9\r\nhost: a\r\n{authorization}\r\n\r\n"),
        format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{authorization}\r\ncontent-length: -1\r\n\r\n"
        ),
        format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{authorization}\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"
        ),
        format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{authorization}\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
        ),
        format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{authorization}\r\nbad header: x\r\n\r\n"
        ),
        format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{authorization}\r\nx: {}\r\n\r\n",
            "x".repeat(1_000_000)
        ),
        format!(
            "POST /{} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{authorization}\r\n\r\n",
            "x".repeat(100_000)
        ),
        "POST /%zz%2 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".to_owned(),
    ] {
        let answer = match tokio::time::timeout(PATIENCE, try_raw(&app, request.as_bytes())).await {
            Ok(answer) => answer,
            Err(_) => panic!("no answer to {:?}", &request[..request.len().min(200)]),
        };
        // The connection may just be closed; what is said must not be a success or a 5xx.
        assert!(
            answer.is_empty()
                || answer.starts_with("HTTP/1.1 4")
                || answer.starts_with("HTTP/1.0 4"),
            "{request:.200}: {answer}"
        );
    }
    assert_eq!(app.snapshot().await, before);
    app.finish().await;
}

/// Like [`raw`], for a server that may hang up on what it reads.
async fn try_raw(app: &TestApp, bytes: &[u8]) -> String {
    let mut connection = TcpStream::connect(app.base.trim_start_matches("http://"))
        .await
        .expect("a connection");
    let _ = connection.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_body_has_to_be_json_and_to_be_called_so() {
    let app = TestApp::start().await;
    let sale = app.sale(5, json!({})).await;
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&sale).await;
    let before = app.snapshot().await;
    for (admin, method, path, body) in changing(&sale, &order) {
        let token = if admin { ADMIN_TOKEN } else { &shopper.token };
        if body.is_empty() {
            // No body is taken, so one that wants something is refused rather than ignored.
            for unwanted in [r#"{"quantity":5}"#, "[]", "null", "quantity=5"] {
                for body in [Body::from(unwanted), chunked(unwanted.as_bytes().to_vec())] {
                    assert_refused(
                        &send(&app, token, &method, &path, "application/json", body).await,
                        &path,
                    );
                }
            }
            continue;
        }
        for kind in [
            "",
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/jsonp",
            "application/xml",
            "json",
            ";",
            "application/json, text/plain",
        ] {
            let reply = send(&app, token, &method, &path, kind, body).await;
            assert_eq!(
                (reply.status.as_u16(), reply.code()),
                (415, "unsupported_media_type"),
                "{kind}: {method} {path}"
            );
            assert_refused(&reply, kind);
        }
    }
    assert_eq!(app.snapshot().await, before);
    for kind in [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
    ] {
        let path = format!("/api/v1/admin/sales/{sale}/stock");
        send(
            &app,
            ADMIN_TOKEN,
            &Method::POST,
            &path,
            kind,
            r#"{"add":1}"#,
        )
        .await
        .assert(StatusCode::OK);
    }
    app.finish().await;
}

#[tokio::test]
async fn a_malformed_id_is_nothing_that_exists() {
    let app = TestApp::start().await;
    let sale = app.sale(5, json!({})).await;
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&sale).await;
    let before = app.snapshot().await;
    let junk = [
        "abc",
        "-1",
        "0",
        "00",
        &format!("0{sale}"),
        &format!("+{sale}"),
        &format!("{sale}.0"),
        "1e3",
        "0x1",
        "1_000",
        "NaN",
        "null",
        "99999999999999999999",
        "9223372036854775808",
        "18446744073709551616",
        &"9".repeat(1_000),
        "%20",
        &format!("%20{sale}"),
        &format!("{sale}%20"),
        &format!("{sale}%00"),
        &format!("{sale}%0a"),
        "%00",
        "%ff",
        "%c3%28",
        "%27%20OR%201=1--",
        "%3Cscript%3E",
        "..%2f..%2fetc%2fpasswd",
        &format!("{sale}%2forders"),
        "%EF%BC%91",
        "%D9%A1",
        "*",
        "{id}",
        &format!("{sale};x=1"),
        &format!("{sale},{order}"),
    ]
    .map(str::to_owned);
    for id in &junk {
        for (method, path) in [
            (Method::GET, format!("/api/v1/sales/{id}")),
            (Method::GET, format!("/api/v1/sales/{id}/events")),
            (Method::POST, format!("/api/v1/sales/{id}/orders")),
            (Method::GET, format!("/api/v1/orders/{id}")),
            (Method::GET, format!("/api/v1/orders/{id}/events")),
            (Method::POST, format!("/api/v1/orders/{id}/pay")),
            (Method::POST, format!("/api/v1/orders/{id}/cancel")),
        ] {
            let reply = within_patience(shopper.call(method.clone(), &path)).await;
            assert_refused(&reply, &format!("{method} {path}"));
        }
        for (method, rest, body) in [
            (Method::PATCH, "", Some(json!({"title": "b"}))),
            (Method::POST, "/pause", None),
            (Method::POST, "/resume", None),
            (Method::POST, "/close", None),
            (Method::POST, "/stock", Some(json!({"add": 1}))),
            (Method::GET, "/audit", None),
            (Method::GET, "/orders", None),
        ] {
            let path = format!("/api/v1/admin/sales/{id}{rest}");
            assert_refused(
                &app.admin(method.clone(), &path, body).await,
                &format!("{method} {path}"),
            );
        }
    }
    for query in [
        "state=%ff",
        "state=%00",
        "state=OPEN",
        "state=open&state=paused",
        "state[]=open",
        "x=1",
    ] {
        assert_refused(&app.get(&format!("/api/v1/sales?{query}")).await, query);
    }
    for id in junk.iter().filter(|id| !id.contains(['{', ';'])) {
        assert_refused(
            &shopper.get(&format!("/api/v1/orders?after={id}")).await,
            id,
        );
        assert_refused(
            &app.admin(
                Method::GET,
                &format!("/api/v1/admin/sales/{sale}/orders?after={id}"),
                None,
            )
            .await,
            id,
        );
    }
    assert_eq!(app.snapshot().await, before);
    app.finish().await;
}

#[tokio::test]
async fn a_bad_token_is_nobody() {
    let app = TestApp::start().await;
    let sale = app.sale(5, json!({"per_user_limit": 9})).await;
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&sale).await;
    let before = app.snapshot().await;

    let now = OffsetDateTime::now_utc();
    let good = &shopper.token;
    let [header, claims, signature] = good.split('.').collect::<Vec<_>>()[..] else {
        panic!("three parts")
    };
    let forged = TokenSigner::new(b"the secret of somebody else, long").expect("long enough");
    let other = app.mint(UserId::random());
    let other_claims = other.split('.').nth(1).expect("claims");
    let none = "eyJhbGciOiJub25lIn0"; // {"alg":"none"}
    let rs256 = "eyJhbGciOiJSUzI1NiJ9"; // {"alg":"RS256"}
    let bad = [
        app.mint_until(shopper.user, now - time::Duration::SECOND),
        app.mint_until(shopper.user, now - time::Duration::DAY),
        app.mint_until(shopper.user, OffsetDateTime::UNIX_EPOCH),
        forged.mint(shopper.user, "tester", now + time::Duration::HOUR),
        good[..good.len() - 1].to_owned(),
        good[1..].to_owned(),
        format!("{good}x"),
        format!("{good}."),
        format!("{header}.{claims}"),
        format!("{header}.{claims}."),
        format!("{header}.{other_claims}.{signature}"),
        format!("{none}.{claims}."),
        format!("{none}.{claims}.{signature}"),
        format!("{rs256}.{claims}.{signature}"),
        format!(".{claims}.{signature}"),
        "..".to_owned(),
        ".".to_owned(),
        "x".to_owned(),
        "x".repeat(4_000),
        shopper.user.to_string(),
        ADMIN_TOKEN.to_owned(),
    ];
    let order_path = format!("/api/v1/orders/{order}");
    let routes = [
        (Method::GET, "/api/v1/session".to_owned()),
        (Method::POST, format!("/api/v1/sales/{sale}/orders")),
        (Method::GET, "/api/v1/orders".to_owned()),
        (Method::GET, order_path.clone()),
        (Method::GET, format!("{order_path}/events")),
        (Method::POST, format!("{order_path}/pay")),
        (Method::POST, format!("{order_path}/cancel")),
    ];
    for (method, path) in &routes {
        let ask = async |header: &str, value: &[u8]| {
            let value = HeaderValue::from_bytes(value).expect("a header's value");
            let request = app
                .client
                .request(method.clone(), app.url(path))
                .header(header, value);
            let reply = within_patience(Reply::of(request.send().await.expect("an answer"))).await;
            assert_eq!(
                (reply.status.as_u16(), reply.code()),
                (401, "unauthenticated"),
                "{method} {path}"
            );
            assert_refused(&reply, path);
            assert!(reply.headers.contains_key("www-authenticate"));
        };
        for token in &bad {
            ask("authorization", format!("Bearer {token}").as_bytes()).await;
            ask("cookie", format!("session={token}").as_bytes()).await;
        }
        for header in [
            good.clone(),
            format!("Basic {good}"),
            format!("Bearer{good}"),
            "Bearer".to_owned(),
            "Bearer ".to_owned(),
            String::new(),
        ] {
            ask("authorization", header.as_bytes()).await;
        }
        ask("authorization", b"Bearer \xff\xfe").await;
        ask("cookie", b"session=\xff; session=").await;
        ask("cookie", format!("SESSION={good}").as_bytes()).await;
    }
    assert_eq!(app.snapshot().await, before);
    app.finish().await;
}

#[tokio::test]
async fn a_bad_idempotency_key_buys_nothing() {
    let app = TestApp::start().await;
    let sale = app.sale(5, json!({})).await;
    let shopper = app.shopper();
    let before = app.snapshot().await;
    let long = vec![b'k'; 65];
    let longer = vec![b'k'; 5_000];
    for key in [
        &b""[..],
        b"   ",
        &long,
        &longer,
        "schlüssel".as_bytes(),
        "键".as_bytes(),
        b"\xff",
        b"a\tb",
    ] {
        let request = app
            .client
            .post(app.url(&format!("/api/v1/sales/{sale}/orders")))
            .bearer_auth(&shopper.token)
            .header(
                "idempotency-key",
                HeaderValue::from_bytes(key).expect("a header's value"),
            );
        Reply::of(request.send().await.expect("an answer"))
            .await
            .assert_problem(422, "invalid");
    }
    assert_eq!(app.snapshot().await, before);
    app.finish().await;
}
