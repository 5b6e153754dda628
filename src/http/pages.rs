//! The pages and their files, embedded in the program (debug builds read `static/`, so an edit
//! shows on reload).
//!
//! Unchanged files are answered with 304.

use super::error::{NOT_FOUND, Problem};
use super::link_preview;
use super::state::App;
use crate::config::ProxyTrust;
use crate::payments::Payments;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
    REFERRER_POLICY, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{MethodRouter, get};
use lab::command::PageFile;
use lab::http::LabState;
use rust_embed::Embed;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::sync::Arc;
use tower_http::compression::CompressionLayer;
use tower_http::set_header::SetResponseHeaderLayer;

#[derive(Embed)]
#[folder = "static/"]
struct Static;

macro_rules! fetched {
    ($name:literal) => {
        ($name, include_bytes!(concat!(env!("OUT_DIR"), "/", $name)))
    };
}

/// The live wall's charting library and the font, fetched by build.rs; empty after a build without
/// npm.
const VENDOR: [(&str, &[u8]); 5] = [
    fetched!("uPlot.iife.min.js"),
    fetched!("uPlot.min.css"),
    fetched!("uPlot.LICENSE"),
    fetched!("archivo-narrow-5.3.0.woff2"),
    fetched!("archivo-narrow.LICENSE"),
];

const FONT: &str = "font/woff2";

/// Only own resources, no inline scripts, no framing: a script in a sale's title does not run.
const POLICY: &str = "default-src 'self'; img-src 'self' data: https:; object-src 'none'; base-uri \
    'none'; frame-ancestors 'none'; form-action 'self'";
/// In lines of a page that are removed where there is no lab, or no page to pay on.
const TO_LAB: &str = r#"href="/lab""#;
const TO_PAY: &str = r#"name="payment-page""#;

/// A worker is governed by the policy of its own response.
const WORKER: &str = "js/work-thread.js";

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const PERMISSIONS_POLICY: HeaderName = HeaderName::from_static("permissions-policy");
/// Browser features that no page uses.
const PERMISSIONS: &str = "camera=(), geolocation=(), microphone=(), payment=(), usb=()";

/// The pages, their files, and a page for whatever leads nowhere.
pub fn router() -> Router<App> {
    let pages = Router::new()
        .route("/", page("index.html"))
        .route("/sales/{id}", page("sale.html"))
        .route("/sales/{id}/live", page("live.html"))
        .route("/orders", page("orders.html"))
        .route("/admin", page("admin.html"))
        .route("/lab", lab_page("lab.html"))
        // A shortened URL: the list is on the lab page.
        .route("/lab/lessons", get(async || Redirect::to("/lab#lessons")))
        .route("/lab/lessons/{id}", lab_page("lesson.html"))
        .route("/lab/locks", lab_page("locks.html"))
        .route("/lab/why", lab_page("why.html"))
        .route("/lab/ids", lab_page("ids.html"))
        .route("/docs", get(async || Redirect::to("/docs/")))
        .route("/docs/", page("docs.html"))
        .route("/static/{*path}", get(part))
        .fallback(leads_nowhere);
    guarded(pages).layer(CompressionLayer::new())
}

/// A page for people, a problem for programs.
async fn leads_nowhere(
    State(state): State<LabState>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let accepts = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let is_browser = method == Method::GET && accepts.is_some_and(|all| all.contains("text/html"));
    if !is_browser || uri.path().starts_with("/api/") {
        return Problem::new(&NOT_FOUND).into_response();
    }
    not_found("missing.html", state.lab.is_some())
}

/// Without conditional headers: a 404 has a body.
fn not_found(name: &'static str, lab: bool) -> Response {
    let mut response = html(name, lab, &HeaderMap::new());
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

async fn part(Path(path): Path<String>, headers: HeaderMap) -> Response {
    let mut response = file(&path, &headers);
    if path == WORKER {
        let policy = HeaderValue::from_static(POLICY);
        let headers = response.headers_mut();
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// A page of the shop, without what leads to a lab that is off or to a provider that has no page.
fn page(name: &'static str) -> MethodRouter<App> {
    let page = async move |State(state): State<LabState>,
                           State(payments): State<Arc<Payments>>,
                           headers: HeaderMap| {
        let no_lab = state.lab.is_none().then_some(TO_LAB);
        let no_page = payments.link.webhooks.is_none().then_some(TO_PAY);
        without(name, &[no_lab, no_page], &headers)
    };
    get(page)
}

/// A page of the lab; 404 with an explanation where the lab is off.
fn lab_page(name: &'static str) -> MethodRouter<App> {
    let page = async move |State(state): State<LabState>,
                           State(trust_proxy): State<ProxyTrust>,
                           uri: Uri,
                           headers: HeaderMap| {
        if state.lab.is_some() {
            return match link_preview::tags(uri.path(), trust_proxy, &headers) {
                Some(tags) => with_tags(name, &tags, &headers),
                None => file(name, &headers),
            };
        }
        not_found("lab-off.html", false)
    };
    get(page)
}

/// A page with these tags in its head, which are in the caller's language.
fn with_tags(name: &str, tags: &str, headers: &HeaderMap) -> Response {
    let Some(found) = find(name) else {
        return Problem::new(&NOT_FOUND).into_response();
    };
    let page = String::from_utf8_lossy(&found.data);
    let page = page.replacen("</head>", &format!("{tags}</head>"), 1);
    let mut response = send(found.rewritten(page), headers);
    response.headers_mut().append(VARY, HeaderValue::from_static("accept-language"));
    response
}

/// A page; without a lab its links to it are removed.
fn html(name: &str, lab: bool, headers: &HeaderMap) -> Response {
    without(name, &[(!lab).then_some(TO_LAB)], headers)
}

/// A page without the lines that have one of these texts.
fn without(name: &str, texts: &[Option<&str>], headers: &HeaderMap) -> Response {
    let Some(found) = find(name) else {
        return Problem::new(&NOT_FOUND).into_response();
    };
    let texts: Vec<&str> = texts.iter().copied().flatten().collect();
    if texts.is_empty() {
        return send(found, headers);
    }
    let whole = String::from_utf8_lossy(&found.data);
    let is_kept = |line: &&str| !texts.iter().any(|text| line.contains(text));
    let lines = whole.lines().filter(is_kept);
    let page = lines.flat_map(|line| [line, "\n"]).collect();
    send(found.rewritten(page), headers)
}

fn guarded(router: Router<App>) -> Router<App> {
    router
        .layer(header_where(is_no_part, CONTENT_SECURITY_POLICY, POLICY))
        .layer(header_where(|_| true, REFERRER_POLICY, "same-origin"))
        .layer(header_where(is_page, OPENER_POLICY, "same-origin"))
        .layer(header_where(is_page, PERMISSIONS_POLICY, PERMISSIONS))
}

/// The policy of a page counts for its scripts and styles.
fn is_no_part(kind: &[u8]) -> bool {
    !kind.starts_with(b"text/css") && !kind.starts_with(b"text/javascript")
}

fn is_page(kind: &[u8]) -> bool {
    kind.starts_with(b"text/html")
}

/// Sets a header on answers with a matching content type.
fn header_where(
    fits: fn(&[u8]) -> bool,
    name: HeaderName,
    value: &'static str,
) -> SetResponseHeaderLayer<impl Fn(&Response) -> Option<HeaderValue> + Clone> {
    SetResponseHeaderLayer::overriding(name, move |response: &Response| {
        let kind = response.headers().get(CONTENT_TYPE);
        let kind = kind.map_or(&b""[..], HeaderValue::as_bytes);
        fits(kind).then(|| HeaderValue::from_static(value))
    })
}

fn file(path: &str, headers: &HeaderMap) -> Response {
    match find(path) {
        Some(found) => send(found, headers),
        None => Problem::new(&NOT_FOUND).into_response(),
    }
}

/// A file, or 304. `no-cache` makes browsers revalidate, so a new release shows at once; the font,
/// whose name has its version, is fetched once.
fn send(found: Found, headers: &HeaderMap) -> Response {
    let tag = etag(&found.hash);
    let cache = match found.content_type.as_str() {
        FONT if !found.data.is_empty() => "public, max-age=31536000, immutable",
        _ => "no-cache",
    };
    let mut response = if is_known(headers, &tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(CONTENT_TYPE, found.content_type)], Body::from(found.data)).into_response()
    };
    let headers = response.headers_mut();
    headers.extend(HeaderValue::try_from(tag).ok().map(|value| (ETAG, value)));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    response
}

/// A file: text, or a picture.
struct Found {
    data: Cow<'static, [u8]>,
    hash: [u8; 32],
    content_type: String,
}

impl Found {
    fn rewritten(&self, page: String) -> Self {
        Self {
            hash: Sha256::digest(&page).into(),
            data: Cow::Owned(page.into_bytes()),
            content_type: self.content_type.clone(),
        }
    }
}

fn find(path: &str) -> Option<Found> {
    if let Some(name) = path.strip_prefix("vendor/") {
        let (name, data) = VENDOR.into_iter().find(|(vendored, _)| *vendored == name)?;
        let kind = match name.rsplit_once('.') {
            Some((_, "js")) => "text/javascript",
            Some((_, "css")) => "text/css",
            Some((_, "woff2")) => FONT,
            _ => "text/plain",
        };
        return Some(Found {
            data: Cow::Borrowed(data),
            hash: Sha256::digest(data).into(),
            content_type: content_type(kind),
        });
    }
    let file = Static::get(path)?;
    Some(Found {
        hash: file.metadata.sha256_hash(),
        content_type: content_type(file.metadata.mimetype()),
        data: file.data,
    })
}

/// All of them, to be written elsewhere.
pub fn files() -> Vec<PageFile> {
    let own = Static::iter().filter_map(|name| Some((name.clone(), Static::get(&name)?.data)));
    let others = VENDOR.map(|(name, data)| (format!("vendor/{name}").into(), data.into()));
    own.chain(others).collect()
}

/// Half of the content's SHA-256. Weak: the answer may be compressed.
fn etag(hash: &[u8; 32]) -> String {
    let head = hash[..16].iter().map(|byte| format!("{byte:02x}"));
    format!("W/\"{}\"", head.collect::<String>())
}

/// If-None-Match (RFC 9110 §13.1.2), by weak comparison.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let tags = headers.get_all(IF_NONE_MATCH).iter();
    let tags = tags.filter_map(|value| value.to_str().ok());
    tags.flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|known| known == "*" || known.trim_start_matches("W/") == tag.trim_start_matches("W/"))
}

fn content_type(kind: &str) -> String {
    match kind.strip_prefix("application/").unwrap_or(kind) {
        "javascript" | "json" => format!("{kind}; charset=utf-8"),
        _ if kind.starts_with("text/") => format!("{kind}; charset=utf-8"),
        _ => kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, known: &str) -> Response {
        let mut headers = HeaderMap::new();
        headers.insert(IF_NONE_MATCH, HeaderValue::from_str(known).expect("a header"));
        file(path, &headers)
    }

    #[test]
    fn an_unchanged_file_is_not_sent_again() {
        let first = file("index.html", &HeaderMap::new());
        assert_eq!(first.status(), 200);
        assert_eq!(first.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        let tag = first.headers()[ETAG].to_str().expect("ascii").to_owned();
        let strong = tag.strip_prefix("W/").expect("a weak tag").to_owned();
        assert_eq!(strong.len(), 34);
        for known in [tag.clone(), strong.clone(), format!("\"other\", {strong}"), "*".to_owned()] {
            assert_eq!(asked("index.html", &known).status(), 304, "{known}");
        }
        assert_eq!(asked("index.html", "\"other\"").status(), 200);
    }

    #[tokio::test]
    async fn who_takes_gzip_gets_the_same_content_in_fewer_bytes() {
        use axum::{body::to_bytes, extract::Request, http::header};
        use tower::ServiceExt;
        let app = crate::http::testing::app();
        let ask = |accepts: &'static str| {
            let request =
                Request::get("/static/css/app.css").header(header::ACCEPT_ENCODING, accepts);
            let request = request.body(Body::empty()).expect("a request");
            let router = router().with_state(app.clone());
            async move {
                let response = router.oneshot(request).await.expect("an answer");
                assert_eq!(response.headers()[VARY], "accept-encoding");
                let encoding = response.headers().get(header::CONTENT_ENCODING).cloned();
                let body = to_bytes(response.into_body(), 1 << 20).await;
                (encoding, body.expect("whole"))
            }
        };
        let found = find("css/app.css").expect("a file");
        for refusing in ["", "br", "gzip;q=0", "identity, gzip; q=0.0"] {
            let (encoding, body) = ask(refusing).await;
            assert_eq!(encoding, None, "{refusing}");
            assert_eq!(body[..], found.data[..]);
        }
        let (encoding, body) = ask("br, GZIP;q=0.8").await;
        assert_eq!(encoding.expect("packed"), "gzip");
        assert!(body.len() * 2 < found.data.len());
    }

    #[test]
    fn where_the_lab_is_off_no_page_leads_there() {
        const LINK: &[u8] = br#"href="/lab""#;
        let leads = |name: &str, lab: bool| {
            let found = find(name).expect("a page");
            let tag = etag(&found.hash);
            let response = html(name, lab, &HeaderMap::new());
            let same = response.headers()[ETAG].to_str().expect("ascii") == tag;
            let body = futures_util::FutureExt::now_or_never(axum::body::to_bytes(
                response.into_body(),
                1 << 20,
            ));
            let body = body.expect("in memory").expect("whole");
            (same, body.windows(LINK.len()).any(|part| part == LINK))
        };
        for name in ["index.html", "sale.html", "live.html", "orders.html", "admin.html"] {
            assert_eq!(leads(name, true), (true, true), "{name}");
            assert_eq!(leads(name, false), (false, false), "{name}: another tag, too");
        }
        assert!(!leads("lab-off.html", false).1);
    }

    #[tokio::test]
    async fn where_payment_is_simulated_no_page_speaks_of_a_payment_page() {
        use axum::{body::to_bytes, extract::Request};
        use tower::ServiceExt;
        for (path, name) in [("/sales/1", "sale.html"), ("/orders", "orders.html")] {
            let file = find(name).expect("a page");
            let file = String::from_utf8_lossy(&file.data).into_owned();
            assert_eq!(file.matches(TO_PAY).count(), 1, "{name}");
            let request = Request::get(path).body(Body::empty()).expect("a request");
            let app = crate::http::testing::app();
            let answer = router().with_state(app).oneshot(request).await.expect("an answer");
            let body = to_bytes(answer.into_body(), 1 << 20).await.expect("whole");
            // That server has no lab, either.
            let is_off = |line: &&str| line.contains(TO_PAY) || line.contains(TO_LAB);
            let rest = file.lines().filter(|line| !is_off(line));
            let rest: String = rest.flat_map(|line| [line, "\n"]).collect();
            assert!(body == rest, "{path}: nothing else is missing");
        }
    }

    #[test]
    fn what_others_made_is_served_whole_or_empty() {
        for (name, data) in VENDOR {
            let response = file(&format!("vendor/{name}"), &HeaderMap::new());
            assert_eq!(response.status(), 200, "{name}");
            let package = name.split(['.', '-']).next().expect("a name");
            let of_it = VENDOR.iter().filter(|(other, _)| other.starts_with(package));
            let mut of_it = of_it.map(|(_, data)| data.is_empty());
            assert!(
                of_it.all(|is_empty| is_empty == data.is_empty()),
                "all of {package} or nothing"
            );
        }
    }

    #[test]
    fn only_what_is_in_the_folder_is_served() {
        assert_eq!(
            file("css/app.css", &HeaderMap::new()).headers()[CONTENT_TYPE],
            "text/css; charset=utf-8"
        );
        for path in [
            "",
            "nothing.html",
            "../Cargo.toml",
            "css/../../Cargo.toml",
            "vendor/",
            "vendor/../index.html",
            "/etc/passwd",
        ] {
            assert_eq!(file(path, &HeaderMap::new()).status(), 404, "{path}");
        }
    }
}
