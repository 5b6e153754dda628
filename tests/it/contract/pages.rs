//! The pages and their files: guarded, self-contained, and not sent twice.

use super::assert_refused;
use crate::support::app::{Reply, TestApp};
use reqwest::StatusCode;
use serde_json::json;
use std::collections::BTreeSet;

/// Every tag of a page: its name, and the text between the name and `>`.
fn tags(html: &str) -> Vec<(String, &str)> {
    let mut found = Vec::new();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        if let Some(comment) = rest.strip_prefix("!--") {
            rest = comment.split_once("-->").map_or("", |(_, after)| after);
            continue;
        }
        let end = rest.find('>').expect("a tag ends");
        let tag = &rest[..end];
        let name = tag
            .split(|c: char| c.is_whitespace() || c == '/')
            .next()
            .unwrap_or_default();
        if !name.is_empty() {
            found.push((name.to_ascii_lowercase(), &tag[name.len()..]));
        }
        rest = &rest[end + 1..];
    }
    found
}

/// The value of an attribute in double quotes.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = tag
        .split_once(&format!(" {name}=\""))
        .or_else(|| tag.split_once(&format!("\n{name}=\"")))?;
    rest.split('"').next()
}

/// The addresses that a page loads or leads to; panics on one outside this site and on anything
/// inline that the policy would have to allow.
fn addresses(page: &str, html: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (name, tag) in tags(html) {
        if name == "script" {
            assert!(
                attribute(tag, "src").is_some_and(|src| !src.is_empty()),
                "{page}: inline script: {tag}"
            );
        }
        assert!(
            !attribute(tag, "href")
                .is_some_and(|href| href.to_ascii_lowercase().starts_with("javascript:")),
            "{page}: {tag}"
        );
        let handler = tag
            .split(|c: char| c.is_whitespace() || c == '"')
            .any(|word| {
                word.strip_prefix("on")
                    .and_then(|rest| rest.strip_suffix('='))
                    .is_some_and(|event| event.chars().all(char::is_alphabetic))
            });
        assert!(!handler, "{page}: inline handler: {tag}");
        for target in ["href", "src", "action"]
            .iter()
            .filter_map(|name| attribute(tag, name))
        {
            assert!(!target.contains("//"), "{page} leads outside: {target}");
            found.insert(target.to_owned());
        }
    }
    // A script with a source has nothing inside.
    for part in html.split("<script").skip(1) {
        let inside = part
            .split_once('>')
            .and_then(|(_, rest)| rest.split_once("</script>"))
            .map_or("", |(inside, _)| inside);
        assert!(inside.trim().is_empty(), "{page}: inline script: {inside}");
    }
    found
}

fn html_of(reply: &Reply) -> &str {
    reply.assert(StatusCode::OK);
    assert!(
        reply.header("content-type").starts_with("text/html"),
        "{:?}",
        reply.headers
    );
    reply.body.as_str().expect("text")
}

/// The policy's directives for scripts allow this site only.
fn assert_guarded(page: &str, reply: &Reply) {
    let policy = reply.header("content-security-policy");
    let directive = |name: &str| {
        policy
            .split(';')
            .map(str::trim)
            .find_map(|directive| directive.strip_prefix(name))
    };
    let scripts = directive("script-src ").or_else(|| directive("default-src "));
    assert_eq!(scripts.map(str::trim), Some("'self'"), "{page}: {policy}");
    assert_eq!(reply.header("x-content-type-options"), "nosniff", "{page}");
}

#[tokio::test]
async fn pages_are_guarded_and_everything_on_them_is_here() {
    let app = TestApp::start().await;
    let sale = app.sale(5, json!({})).await;
    let mut files = BTreeSet::new();
    for page in [
        "/",
        "/sales/1",
        &format!("/sales/{sale}"),
        &format!("/sales/{sale}/live"),
        "/orders",
        "/admin",
    ] {
        let reply = app.get(page).await;
        let html = html_of(&reply);
        assert_guarded(page, &reply);
        assert!(html.contains("<script type=\"module\" src="), "{page}");
        files.extend(addresses(page, html));
    }
    assert!(
        files.iter().any(|file| file.ends_with(".css"))
            && files.iter().any(|file| file.ends_with(".js"))
    );
    for file in files.iter().filter(|file| file.starts_with('/')) {
        let request = app.client.get(app.url(file));
        let reply = Reply::of(request.send().await.expect("an answer")).await;
        reply.assert(StatusCode::OK);
        let kind = match file.rsplit_once('.').map(|(_, ending)| ending) {
            Some("css") => "text/css",
            Some("js") => "text/javascript",
            Some("svg") => "image/svg+xml",
            _ => "text/html",
        };
        assert!(
            reply.header("content-type").starts_with(kind),
            "{file}: {:?}",
            reply.headers
        );
        // A policy says what a document may do; a script or a style is under that of its page. What can
        // be opened by itself (a picture may hold scripts) has its own.
        if !matches!(kind, "text/css" | "text/javascript") {
            assert_guarded(file, &reply);
        }
        assert_eq!(reply.header("x-content-type-options"), "nosniff", "{file}");
    }
    // A page that does not know the sale says so itself; a wrong address is no failure of the server.
    for odd in ["/sales/abc", "/sales/0", "/sales/%00", "/sales/%ff"] {
        assert!(!app.get(odd).await.status.is_server_error(), "{odd}");
    }
    app.finish().await;
}

#[tokio::test]
async fn a_file_that_has_not_changed_is_not_sent_again() {
    let app = TestApp::start().await;
    for file in [
        "/",
        "/orders",
        "/static/css/app.css",
        "/static/js/api.js",
        "/static/favicon.svg",
    ] {
        let first = app.get(file).await;
        first.assert(StatusCode::OK);
        let tag = first.header("etag").to_owned();
        assert!(tag.ends_with('"') && tag.len() > 8, "{file}: {tag}");
        let ask = async |known: &str| {
            let request = app.client.get(app.url(file)).header("if-none-match", known);
            Reply::of(request.send().await.expect("an answer")).await
        };
        let strong = tag.trim_start_matches("W/").to_owned();
        for known in [
            tag.clone(),
            format!("W/{strong}"),
            format!("\"other\", {strong}"),
            "*".to_owned(),
        ] {
            let reply = ask(&known).await;
            assert_eq!(reply.status, StatusCode::NOT_MODIFIED, "{file}: {known}");
            assert_eq!(
                (reply.header("etag"), reply.body.as_str()),
                (tag.as_str(), Some(""))
            );
        }
        for unknown in ["\"other\"", "", "nonsense", "\""] {
            assert_eq!(
                ask(unknown).await.status,
                StatusCode::OK,
                "{file}: {unknown}"
            );
        }
    }
    assert_refused(
        &app.get("/static/js/nothing.js").await,
        "a file that is not there",
    );
    app.finish().await;
}

#[tokio::test]
async fn the_docs_work_offline() {
    let app = TestApp::start().await;
    let start = app
        .client
        .get(app.url("/docs"))
        .send()
        .await
        .expect("an answer");
    let address = start.url().path().to_owned();
    let reply = Reply::of(start).await;
    let html = html_of(&reply);
    assert_guarded("/docs", &reply);
    let folder = &address[..=address.rfind('/').expect("a path")];
    let mut configured = false;
    for file in addresses("/docs", html) {
        let path = match file.strip_prefix("./") {
            Some(relative) => format!("{folder}{relative}"),
            None if file.starts_with('/') => file.clone(),
            None => format!("{folder}{file}"),
        };
        let reply = app.get(&path).await;
        reply.assert(StatusCode::OK);
        let text = reply.body.as_str().unwrap_or_default();
        if text.contains("openapi.json") {
            // The document must not be shown to the validator that Swagger UI would ask by itself.
            assert!(
                text.contains("\"validatorUrl\": \"none\""),
                "{path}: {text}"
            );
            assert!(!text.contains("http"), "{path}: {text}");
            configured = true;
        }
    }
    assert!(configured, "the docs read /openapi.json");
    app.finish().await;
}
