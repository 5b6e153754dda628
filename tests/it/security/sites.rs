//! What pages of other sites can do, and where addresses lead.

use crate::support::app::{ADMIN_TOKEN, Options, Reply, TestApp};
use flash_sale::http;
use reqwest::{Method, StatusCode};
use serde_json::json;

/// What this request, spelled exactly so, is answered: a client library would tidy it up.
async fn exactly(app: &TestApp, request_line: &str) -> String {
    let request = format!("{request_line} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n");
    let answer = app.raw(request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 "), "{request_line}: {answer}");
    answer
}

fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next().unwrap_or_default();
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// Method and path of everything in the OpenAPI document, with these ids filled in.
fn documented(sale: &str, order: &str) -> Vec<(Method, String)> {
    let document = serde_json::to_value(http::openapi()).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    let mut found = Vec::new();
    for (path, operations) in paths {
        let id = if path.contains("/sales/") {
            sale
        } else {
            order
        };
        for method in operations.as_object().expect("operations").keys() {
            let method = method.to_ascii_uppercase().parse().expect("a method");
            found.push((method, path.replace("{id}", id)));
        }
    }
    assert!(found.len() >= 22, "{found:?}");
    found
}

// ---- pages of other sites ---------------------------------------------------------------------

#[tokio::test]
async fn a_page_of_another_site_changes_nothing_with_a_visitors_cookie() {
    let app = TestApp::start_with(Options::with_lab()).await;
    let sale = app.sale(10, json!({"per_user_limit": 9})).await;
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&sale).await;
    // What forms and scripts of other sites can send without asking first (no preflight).
    let tricks: [&[(&str, &str)]; 4] = [
        &[
            ("sec-fetch-site", "cross-site"),
            ("content-type", "text/plain"),
        ],
        &[
            ("origin", "https://evil.example"),
            ("content-type", "application/x-www-form-urlencoded"),
        ],
        &[("origin", "null"), ("content-type", "multipart/form-data")],
        // A sister site: its pages send the cookie even with SameSite.
        &[
            ("sec-fetch-site", "same-site"),
            ("origin", "http://blog.shop"),
        ],
    ];
    for (method, path) in documented(&sale, &order) {
        if method == Method::GET {
            continue;
        }
        for trick in tricks {
            let mut request = app
                .client
                .request(method.clone(), app.url(&path))
                .header("cookie", format!("session={}", shopper.token));
            for (name, value) in trick {
                request = request.header(*name, *value);
            }
            let reply = Reply::of(request.send().await.expect("an answer")).await;
            // A cookie is nothing to the admin routes; all others look where the request comes from, the
            // lab's too, although nobody has to say there who they are.
            let expected = if path.contains("/admin/") {
                (401, "unauthenticated")
            } else {
                (403, "cross_origin")
            };
            reply.assert_problem(expected.0, expected.1);
            assert_eq!(reply.header("set-cookie"), "", "{path}");
        }
    }
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.pending_payment, audit.live), (1, 1));
    app.finish().await;
}

/// Routes of what a sale has only where an operator wanted it.
const DOORS: [&str; 3] = ["/waiting-room", "/pass", "/challenge"];

#[tokio::test]
async fn reading_changes_nothing_and_no_other_site_may_read() {
    let app = TestApp::start_with(Options::with_lab()).await;
    let sale = app.sale(10, json!({})).await;
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&sale).await;
    let rows = async || {
        let mut connection = app.database.connect().await;
        let rows: String = sqlx::query_scalar(
            "SELECT concat(
                (SELECT string_agg(s::text, E'\n' ORDER BY id) FROM sales s),
                (SELECT string_agg(o::text, E'\n' ORDER BY id) FROM orders o))",
        )
        .fetch_one(&mut connection)
        .await
        .expect("rows");
        rows
    };
    let before = rows().await;
    let admin = format!("Bearer {}", ADMIN_TOKEN);
    let own = format!("Bearer {}", shopper.token);
    for (_, path) in documented(&sale, &order) {
        if path.ends_with("/events") {
            continue; // they do not end
        }
        for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
            let token = if path.contains("/admin/") {
                &admin
            } else {
                &own
            };
            let request = app
                .client
                .request(method.clone(), app.url(&path))
                .header("authorization", token)
                .header("origin", "https://evil.example")
                .header("access-control-request-method", "POST");
            let reply = Reply::of(request.send().await.expect("an answer")).await;
            let allowed: Vec<_> = reply
                .headers
                .keys()
                .filter(|name| name.as_str().starts_with("access-control-"))
                .collect();
            assert!(allowed.is_empty(), "{method} {path}: {allowed:?}");
            assert_eq!(
                reply.header("x-content-type-options"),
                "nosniff",
                "{method} {path}"
            );
            assert!(
                reply.status.is_success()
                    || reply.status == StatusCode::METHOD_NOT_ALLOWED
                    // There is no arena with the id of a sale.
                    || (path.contains("/lab/") && reply.status.is_client_error())
                    // This sale has no door: no waiting room, and nothing that a purchase has to show.
                    || (DOORS.iter().any(|door| path.ends_with(door))
                        && reply.status == StatusCode::NOT_FOUND),
                "{method} {path}: {}",
                reply.status
            );
        }
    }
    assert_eq!(rows().await, before);
    app.finish().await;
}

// ---- addresses --------------------------------------------------------------------------------

#[tokio::test]
async fn no_path_leads_out_of_the_folder_of_files() {
    let app = TestApp::start().await;
    let outside = "/static/../Cargo.toml /static/%2e%2e/Cargo.toml /static/..%2fCargo.toml \
        /static/%2e%2e%2fCargo.toml /static/css/../../Cargo.toml \
        /static/css/..%2f..%2fCargo.toml /static/..\\Cargo.toml /static/..%5cCargo.toml \
        /static//etc/passwd /static/%2fetc%2fpasswd /static/....//Cargo.toml \
        /static/index.html%00.css /docs/../Cargo.toml /docs/..%2fCargo.toml \
        /docs/%2e%2e/%2e%2e/etc/passwd /docs//etc/passwd";
    for path in outside.split(' ') {
        let answer = exactly(&app, &format!("GET {path}")).await;
        assert!(
            answer.starts_with("HTTP/1.1 404") || answer.starts_with("HTTP/1.1 400"),
            "{path}: {answer}"
        );
        assert!(
            !answer.contains("[package]") && !answer.contains("root:"),
            "{path}"
        );
    }
    app.finish().await;
}

#[tokio::test]
async fn no_redirect_leads_to_another_site() {
    let app = TestApp::start().await;
    let mut redirects = 0;
    let misleading = "/docs //evil.example //evil.example/docs //evil.example/..;/docs \
        /\\evil.example/docs /%2f%2fevil.example/docs /docs//evil.example \
        /docs/..//evil.example http://evil.example/docs \
        /docs?url=https://evil.example/openapi.json /orders?next=//evil.example";
    for path in misleading.split(' ') {
        let answer = exactly(&app, &format!("GET {path}")).await;
        let Some(location) = header(&answer, "location") else {
            assert!(!answer.starts_with("HTTP/1.1 3"), "{path}: {answer}");
            continue;
        };
        redirects += 1;
        let is_here = location.starts_with('/') && !location.starts_with("//");
        assert!(
            is_here && !location.starts_with("/\\"),
            "{path}: {location}"
        );
    }
    assert!(redirects >= 1, "/docs leads to /docs/");
    app.finish().await;
}
