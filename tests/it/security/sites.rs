//! Requests from pages of other sites, paths, and redirects.

use crate::support::prelude::*;
use flash_sale::http;

/// The answer to a request for exactly this path, which a client library would normalise.
async fn exactly(app: &TestApp, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n");
    let answer = app.raw(request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 "), "{path}: {answer}");
    answer
}

pub fn documented(sale: &str, order: &str) -> Vec<(Method, String)> {
    let document = serde_json::to_value(http::openapi()).expect("JSON");
    let mut found = Vec::new();
    for (path, operations) in document["paths"].as_object().expect("paths") {
        let id = if path.contains("/sales/") { sale } else { order };
        for method in operations.as_object().expect("operations").keys() {
            let method = method.to_ascii_uppercase().parse().expect("a method");
            found.push((method, path.replace("{id}", id)));
        }
    }
    assert!(found.len() >= 22, "{found:?}");
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_another_site_changes_nothing_with_a_visitors_cookie() {
    let limit = json!({"per_user_limit": 9});
    let (app, sale) = TestApp::selling_with(Options::with_lab(), 10, limit).await;
    let (shopper, order) = app.buyer(&sale).await;
    // What needs no preflight; pages of a sister site send the cookie even with SameSite.
    let form = "application/x-www-form-urlencoded";
    let tricks = [
        [("sec-fetch-site", "cross-site"), ("content-type", "text/plain")],
        [("origin", "http://127.0.0.1:1"), ("content-type", "text/plain")],
        [("origin", "https://evil.example"), ("content-type", form)],
        [("origin", "null"), ("content-type", "multipart/form-data")],
        [("sec-fetch-site", "same-site"), ("origin", "http://blog.shop")],
    ];
    for (method, path) in documented(&sale, &order) {
        if method == Method::GET {
            continue;
        }
        // A cookie is nothing to the admin routes and to webhooks, which are signed; all others,
        // the lab's too, look at the origin.
        let (status, code) = match () {
            () if path.contains("/admin/") => (401, "unauthenticated"),
            () if path.contains("/webhooks/") => (401, "webhook_signature_invalid"),
            () => (403, "cross_origin"),
        };
        for trick in tricks {
            let reply = app.ask(&method, &path).cookie(&shopper.token).headers(&trick).await;
            reply.assert_problem_at(&path, status, code);
            assert_eq!(reply.header("set-cookie"), "", "{path}");
        }
    }
    app.assert_sound_with(&sale, json!({"pending_payment": 1, "live": 1})).await;

    let (buy, pay) = (format!("sales/{sale}/orders"), format!("orders/{order}/pay"));
    let same = ("sec-fetch-site", "same-origin");
    let plain = ("accept", "*/*");
    for (path, more, status) in [(&buy, plain, 202), (&buy, same, 202), (&pay, plain, 200)] {
        let ask = app.ask("POST", &format!("/api/v1/{path}")).cookie(&shopper.token);
        ask.headers(&[more, ("origin", &app.base)]).await.assert(status);
    }
    // A browser adds no bearer token by itself, so its origin does not matter.
    shopper.buy_with(&sale, &[("origin", "https://app.example")]).await.assert(202);
}

const OPTIONAL: [&str; 3] = ["/waiting-room", "/pass", "/challenge"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_changes_nothing_and_no_other_site_may_read() {
    let (app, sale) = TestApp::selling_with(Options::with_lab(), 10, json!({})).await;
    let (shopper, order) = app.buyer(&sale).await;
    let before = app.snapshot().await;
    for (_, path) in documented(&sale, &order) {
        if path.ends_with("/events") {
            continue; // they do not end
        }
        let token = shopper.token_at(&path);
        for method in ["GET", "HEAD", "OPTIONS"] {
            let ask = app.ask(method, &path).bearer(token).header("origin", "https://evil.example");
            let reply = ask.header("access-control-request-method", "POST").await;
            let what = format!("{method} {path}: {}", reply.status);
            for name in reply.headers.keys() {
                assert!(!name.as_str().starts_with("access-control-"), "{what}: {name}");
            }
            assert_eq!(reply.header("x-content-type-options"), "nosniff", "{what}");
            // There is no arena with the id of a sale, and this sale has nothing optional.
            let is_lab = path.contains("/lab/") && reply.status.is_client_error();
            let is_optional = OPTIONAL.iter().any(|end| path.ends_with(end)) && reply.status == 404;
            let is_busy = path == "/readyz" && reply.status == 503;
            let is_read = reply.status.is_success() || reply.status == 405;
            assert!(is_read || is_lab || is_optional || is_busy, "{what}");
        }
    }
    assert_eq!(app.snapshot().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_path_leads_out_of_the_folder_of_files_or_to_another_site() {
    let app = TestApp::start().await;
    let outside = "/static/../Cargo.toml /static/%2e%2e/Cargo.toml /static/..%2fCargo.toml \
        /static/%2e%2e%2fCargo.toml /static/css/../../Cargo.toml \
        /static/css/..%2f..%2fCargo.toml /static/..\\Cargo.toml /static/..%5cCargo.toml \
        /static//etc/passwd /static/%2fetc%2fpasswd /static/....//Cargo.toml \
        /static/index.html%00.css /docs/../Cargo.toml /docs/..%2fCargo.toml \
        /docs/%2e%2e/%2e%2e/etc/passwd /docs//etc/passwd";
    for path in outside.split(' ') {
        let answer = exactly(&app, path).await;
        let is_refused = ["404", "400"].iter().any(|status| answer[9..].starts_with(status));
        let is_file = answer.contains("[package]") || answer.contains("root:");
        assert!(is_refused && !is_file, "{path}: {answer}");
    }

    let mut redirects = 0;
    let misleading = "/docs //evil.example //evil.example/docs //evil.example/..;/docs \
        /\\evil.example/docs /%2f%2fevil.example/docs /docs//evil.example \
        /docs/..//evil.example http://evil.example/docs \
        /docs?url=https://evil.example/openapi.json /orders?next=//evil.example";
    for path in misleading.split(' ') {
        let answer = exactly(&app, path).await;
        let head = answer.split("\r\n\r\n").next().unwrap_or_default();
        let Some(location) = head.lines().find_map(|line| line.strip_prefix("location: ")) else {
            assert!(!answer.starts_with("HTTP/1.1 3"), "{path}: {answer}");
            continue;
        };
        redirects += 1;
        let rest = location.strip_prefix('/').expect("a path");
        assert!(!rest.starts_with(['/', '\\']), "{path}: {location}");
    }
    assert!(redirects >= 1, "/docs leads to /docs/");
}
