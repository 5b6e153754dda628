//! The pages and their files, carried inside the program (in a debug build they are read from
//! `static/`, so an edit shows on reload).
//!
//! At an opening thousands load the same page: files are compressed once, not for every visitor, and
//! one that the browser has is not sent again.

use super::{
    App,
    error::{NOT_FOUND, Problem},
};
use axum::{
    Router,
    body::{Body, Bytes, HttpBody, to_bytes},
    extract::{Path, Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{
            ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH,
            CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, VARY,
        },
    },
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
    routing::{MethodRouter, get},
};
use dashmap::DashMap;
use flate2::{Compression, write::GzEncoder};
use rust_embed::Embed;
use sha2::{Digest, Sha256};
use std::{borrow::Cow, io::Write, sync::LazyLock};
use tower_http::set_header::SetResponseHeaderLayer;
use utoipa_swagger_ui::SwaggerUi;

#[derive(Embed)]
#[folder = "static/"]
struct Static;

macro_rules! fetched {
    ($name:literal) => {
        ($name, include_bytes!(concat!(env!("OUT_DIR"), "/", $name)))
    };
}

/// The charting library of the live wall, from build.rs; empty where the build had no network.
const VENDOR: [(&str, &[u8]); 3] = [
    fetched!("uPlot.iife.min.js"),
    fetched!("uPlot.min.css"),
    fetched!("uPlot.LICENSE"),
];

/// Everything comes from here, and nobody may frame it: an inline script does not run even if one
/// got into a sale's title.
const POLICY: &str = "default-src 'self'; img-src 'self' data: https:; object-src 'none'; base-uri 'none'; \
                      frame-ancestors 'none'; form-action 'self'";
/// Runs as a worker, which is governed by the policy that comes with itself.
const WORKER: &str = "js/work-thread.js";
/// Swagger UI styles its elements inline.
const DOCS_POLICY: &str = "default-src 'self'; img-src 'self' data: https:; style-src 'self' 'unsafe-inline'; \
                           object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'";

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const PERMISSIONS_POLICY: HeaderName = HeaderName::from_static("permissions-policy");
/// What a page of a shop has no use for, and so no script of it gets.
const PERMISSIONS: &str = "camera=(), geolocation=(), microphone=(), payment=(), usb=()";
/// Bytes of an answer as of which it is compressed.
const WORTH_IT: u64 = 4 << 10;

/// The pages, their files, and `/docs` over the document at `/openapi.json`.
pub fn router() -> Router<App> {
    let pages = Router::new()
        .route("/", page("index.html"))
        .route("/sales/{id}", page("sale.html"))
        .route("/sales/{id}/live", page("live.html"))
        .route("/orders", page("orders.html"))
        .route("/admin", page("admin.html"))
        .route("/lab", room("lab.html"))
        .route(
            "/lab/lessons",
            get(async || Redirect::to("/lab#lessons")), // an address cut short; the list is there
        )
        .route("/lab/lessons/{id}", room("lesson.html"))
        .route("/lab/locks", room("locks.html"))
        .route("/lab/ids", room("ids.html"))
        .route(
            "/static/{*path}",
            get(async |Path(path): Path<String>, headers: HeaderMap| {
                let mut response = file(&path, &headers);
                if path == WORKER {
                    let policy = HeaderValue::from_static(POLICY);
                    response
                        .headers_mut()
                        .insert(CONTENT_SECURITY_POLICY, policy);
                }
                response
            }),
        );
    // No validator: the document would be sent to somebody else's server.
    let config = utoipa_swagger_ui::Config::from("/openapi.json").validator_url("none");
    let docs = Router::from(SwaggerUi::new("/docs").config(config));
    guarded(pages, POLICY).merge(guarded(docs, DOCS_POLICY))
}

/// A page of the shop. All are the same for everybody, but for the way to a lab that is not there.
fn page(name: &'static str) -> MethodRouter<App> {
    get(async move |State(app): State<App>, headers: HeaderMap| {
        html(name, app.lab.is_some(), &headers)
    })
}

/// A page of the lab; where the lab is off, 404 in words instead.
fn room(name: &'static str) -> MethodRouter<App> {
    get(async move |State(app): State<App>, headers: HeaderMap| {
        if app.lab.is_some() {
            return file(name, &headers);
        }
        // Whatever the browser has: a 404 has a body.
        let mut off = html("lab-off.html", false, &HeaderMap::new());
        *off.status_mut() = StatusCode::NOT_FOUND;
        off
    })
}

/// A page, without its links to the lab where there is none: each stands on a line of its own.
fn html(name: &str, lab: bool, headers: &HeaderMap) -> Response {
    let Some(found) = find(name) else {
        return Problem::new(&NOT_FOUND).into_response();
    };
    if lab {
        return send(found, headers);
    }
    let whole = String::from_utf8_lossy(&found.data);
    let lines = whole
        .lines()
        .filter(|line| !line.contains(r#"href="/lab""#));
    let data = lines.flat_map(|line| [line, "\n"]).collect::<String>();
    let found = Found {
        hash: Sha256::digest(&data).into(),
        data: Cow::Owned(data.into_bytes()),
        content_type: found.content_type,
    };
    send(found, headers)
}

fn guarded(router: Router<App>, policy: &'static str) -> Router<App> {
    let header = |name: HeaderName, value| {
        SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value))
    };
    router
        .layer(of_all_but_parts(CONTENT_SECURITY_POLICY, policy))
        .layer(header(REFERRER_POLICY, "same-origin"))
        .layer(of_documents(OPENER_POLICY, "same-origin"))
        .layer(of_documents(PERMISSIONS_POLICY, PERMISSIONS))
}

/// A header that scripts and styles of a page do not need: the page's own counts for them.
fn of_all_but_parts(
    name: HeaderName,
    value: &'static str,
) -> SetResponseHeaderLayer<impl Fn(&Response) -> Option<HeaderValue> + Clone> {
    SetResponseHeaderLayer::overriding(name, move |response: &Response| {
        let kind = response
            .headers()
            .get(CONTENT_TYPE)
            .map(HeaderValue::as_bytes);
        let is_part = kind.is_some_and(|kind| {
            kind.starts_with(b"text/css") || kind.starts_with(b"text/javascript")
        });
        (!is_part).then(|| HeaderValue::from_static(value))
    })
}

/// A header that means something on a page only: on each of its twenty files it would be mere weight.
fn of_documents(
    name: HeaderName,
    value: &'static str,
) -> SetResponseHeaderLayer<impl Fn(&Response) -> Option<HeaderValue> + Clone> {
    SetResponseHeaderLayer::overriding(name, move |response: &Response| {
        let kind = response.headers().get(CONTENT_TYPE)?.as_bytes();
        let is_page = kind.starts_with(b"text/html");
        is_page.then(|| HeaderValue::from_static(value))
    })
}

fn file(path: &str, headers: &HeaderMap) -> Response {
    match find(path) {
        Some(found) => send(found, headers),
        None => Problem::new(&NOT_FOUND).into_response(),
    }
}

/// A file, or 304 if the client has it as it is. `no-cache` means "ask every time": a new release is
/// seen at once, and an unchanged file costs headers only.
fn send(found: Found, headers: &HeaderMap) -> Response {
    let compressed = takes_gzip(headers);
    let tag = etag(&found.hash);
    let mut response = if is_known(headers, &tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let body = if compressed {
            Body::from(gzip(&tag, &found.data))
        } else {
            Body::from(found.data)
        };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        if compressed {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let content_type = HeaderValue::try_from(found.content_type);
        headers.extend(content_type.ok().map(|value| (CONTENT_TYPE, value)));
        response
    };
    // One tag for the content in both encodings, so it is weak where the bytes are not the file's.
    let tag = if compressed { format!("W/{tag}") } else { tag };
    let headers = response.headers_mut();
    headers.extend(HeaderValue::try_from(tag).ok().map(|value| (ETAG, value)));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    response
}

/// A file of this program; all of them are text (our pictures are SVG).
struct Found {
    data: Cow<'static, [u8]>,
    hash: [u8; 32],
    content_type: String,
}

fn find(path: &str) -> Option<Found> {
    if let Some(name) = path.strip_prefix("vendor/") {
        let (name, data) = VENDOR.into_iter().find(|(vendored, _)| *vendored == name)?;
        let kind = match name.rsplit_once('.') {
            Some((_, "js")) => "text/javascript",
            Some((_, "css")) => "text/css",
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

/// Half of the content's SHA-256 tells two versions of a file apart.
fn etag(hash: &[u8; 32]) -> String {
    let head = hash[..16]
        .iter()
        .fold(0u128, |head, byte| head << 8 | u128::from(*byte));
    format!("\"{head:032x}\"")
}

/// The file compressed, from memory as of its second visitor; a file's tag stands for its content.
fn gzip(tag: &str, data: &[u8]) -> Bytes {
    static DONE: LazyLock<DashMap<String, Bytes>> = LazyLock::new(DashMap::new);
    if let Some(done) = DONE.get(tag) {
        return done.clone();
    }
    let compressed = squeezed(data, Compression::best());
    DONE.insert(tag.to_owned(), compressed.clone());
    compressed
}

fn squeezed(data: &[u8], level: Compression) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    let compressed = encoder
        .write_all(data)
        .and_then(|()| encoder.finish())
        .expect("a Vec takes everything");
    Bytes::from(compressed)
}

/// For routes whose JSON is many kilobytes (the lab's texts and sources): compressed for who takes
/// it. What is small, streamed or no JSON passes as it is.
pub async fn compressed(request: Request, next: Next) -> Response {
    let takes = takes_gzip(request.headers());
    let response = next.run(request).await;
    let is_json = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind == "application/json");
    let size = response.body().size_hint().exact().unwrap_or(0);
    if !takes || !is_json || size < WORTH_IT {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let whole = to_bytes(body, usize::MAX).await;
    let whole = whole.expect("a body of known size is in memory");
    head.headers.remove(CONTENT_LENGTH);
    let gzip = HeaderValue::from_static("gzip");
    head.headers.insert(CONTENT_ENCODING, gzip);
    let vary = HeaderValue::from_static("accept-encoding");
    head.headers.append(VARY, vary);
    let packed = squeezed(&whole, Compression::default());
    Response::from_parts(head, Body::from(packed))
}

/// Whether Accept-Encoding (RFC 9110 §12.5.3) names gzip and does not refuse it by `q=0`.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| {
            let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
            let refused = weight
                .trim()
                .strip_prefix("q=")
                .is_some_and(|weight| weight.parse() == Ok(0.0));
            name.trim().eq_ignore_ascii_case("gzip") && !refused
        })
}

/// If-None-Match (RFC 9110 §13.1.2): weak comparison, so a proxy that compressed the file may have
/// made the tag weak.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let tags = headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok());
    tags.flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

fn content_type(kind: &str) -> String {
    if kind.starts_with("text/") || ["application/javascript", "application/json"].contains(&kind) {
        format!("{kind}; charset=utf-8")
    } else {
        kind.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, known: &str) -> Response {
        let mut headers = HeaderMap::new();
        headers.insert(
            IF_NONE_MATCH,
            HeaderValue::from_str(known).expect("a header"),
        );
        file(path, &headers)
    }

    #[test]
    fn an_unchanged_file_is_not_sent_again() {
        let first = file("index.html", &HeaderMap::new());
        assert_eq!(first.status(), 200);
        assert_eq!(first.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        let tag = first.headers()[ETAG].to_str().expect("ascii").to_owned();
        assert_eq!(tag.len(), 34);
        for known in [
            tag.clone(),
            format!("W/{tag}"),
            format!("\"other\", {tag}"),
            "*".to_owned(),
        ] {
            assert_eq!(asked("index.html", &known).status(), 304, "{known}");
        }
        assert_eq!(asked("index.html", "\"other\"").status(), 200);
    }

    #[test]
    fn who_takes_gzip_gets_the_same_content_in_fewer_bytes() {
        let accepting = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(value));
            headers
        };
        for refusing in ["", "br", "gzip;q=0", "identity, gzip; q=0.0"] {
            let plain = file("css/app.css", &accepting(refusing));
            assert!(
                !plain.headers().contains_key(CONTENT_ENCODING),
                "{refusing}"
            );
        }
        let headers = accepting("br, GZIP;q=0.8");
        let response = file("css/app.css", &headers);
        assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
        assert_eq!(response.headers()[VARY], "accept-encoding");
        let tag = response.headers()[ETAG].to_str().expect("ascii").to_owned();
        assert!(tag.starts_with("W/"), "{tag}");
        assert_eq!(asked("css/app.css", &tag).status(), 304);
        let found = find("css/app.css").expect("a file");
        let compressed = gzip(&etag(&found.hash), &found.data);
        assert!(compressed.len() * 2 < found.data.len());
        let mut unpacked = Vec::new();
        std::io::Read::read_to_end(
            &mut flate2::read::GzDecoder::new(&compressed[..]),
            &mut unpacked,
        )
        .expect("gzip");
        assert_eq!(unpacked[..], found.data[..]);
    }

    #[tokio::test]
    async fn large_json_is_compressed_for_who_takes_it() {
        use axum::{Json, middleware::from_fn};
        use tower::ServiceExt;
        let large = || async { Json("x".repeat(50_000)) };
        let app = Router::<()>::new()
            .route("/large", get(large))
            .route("/small", get(async || Json("x")))
            .layer(from_fn(compressed));
        let ask = |path: &str, accepts: &str| {
            let request = Request::get(path).header(ACCEPT_ENCODING, accepts);
            let request = request.body(Body::empty()).expect("a request");
            let app = app.clone();
            async move {
                let response = app.oneshot(request).await.expect("an answer");
                let packed = response.headers().contains_key(CONTENT_ENCODING);
                let body = to_bytes(response.into_body(), 1 << 20).await;
                (packed, body.expect("whole"))
            }
        };
        let (packed, body) = ask("/large", "gzip").await;
        let mut unpacked = String::new();
        let mut decoder = flate2::read::GzDecoder::new(&body[..]);
        std::io::Read::read_to_string(&mut decoder, &mut unpacked).expect("gzip");
        assert!(packed && body.len() < 1000, "{}", body.len());
        assert_eq!(unpacked.len(), 50_002);
        let (packed, body) = ask("/large", "identity").await;
        assert!(!packed && body.len() == 50_002);
        assert!(!ask("/small", "gzip").await.0);
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
        for name in [
            "index.html",
            "sale.html",
            "live.html",
            "orders.html",
            "admin.html",
        ] {
            assert_eq!(leads(name, true), (true, true), "{name}");
            assert_eq!(
                leads(name, false),
                (false, false),
                "{name}: another tag, too"
            );
        }
        assert!(!leads("lab-off.html", false).1);
    }

    #[test]
    fn the_charting_library_is_served_or_empty() {
        for (name, data) in VENDOR {
            let response = file(&format!("vendor/{name}"), &HeaderMap::new());
            assert_eq!(response.status(), 200, "{name}");
            assert_eq!(data.is_empty(), VENDOR[0].1.is_empty(), "all or nothing");
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
