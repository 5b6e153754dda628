//! The pages and their files, carried inside the program (in a debug build they are read from
//! `static/`, so an edit shows on reload).

use super::{
    App,
    error::{NOT_FOUND, Problem},
};
use axum::{
    Router,
    body::Body,
    extract::Path,
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
            REFERRER_POLICY,
        },
    },
    response::{IntoResponse, Response},
    routing::get,
};
use rust_embed::{Embed, EmbeddedFile};
use tower_http::set_header::SetResponseHeaderLayer;
use utoipa_swagger_ui::SwaggerUi;

#[derive(Embed)]
#[folder = "static/"]
struct Static;

/// Everything comes from here, and nobody may frame it: an inline script does not run even if one
/// got into a sale's title.
const POLICY: &str = "default-src 'self'; img-src 'self' data: https:; object-src 'none'; base-uri 'none'; \
                      frame-ancestors 'none'; form-action 'self'";
/// Swagger UI styles its elements inline.
const DOCS_POLICY: &str = "default-src 'self'; img-src 'self' data: https:; style-src 'self' 'unsafe-inline'; \
                           object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'";

/// The pages, their files, and `/docs` over the document at `/openapi.json`.
pub fn router() -> Router<App> {
    let pages = Router::new()
        .route(
            "/",
            get(async |headers: HeaderMap| file("index.html", &headers)),
        )
        .route(
            "/sales/{id}",
            get(async |headers: HeaderMap| file("sale.html", &headers)),
        )
        .route(
            "/orders",
            get(async |headers: HeaderMap| file("orders.html", &headers)),
        )
        .route(
            "/admin",
            get(async |headers: HeaderMap| file("admin.html", &headers)),
        )
        .route(
            "/static/{*path}",
            get(async |Path(path): Path<String>, headers: HeaderMap| file(&path, &headers)),
        );
    // No validator: the document would be sent to somebody else's server.
    let config = utoipa_swagger_ui::Config::from("/openapi.json").validator_url("none");
    let docs = Router::from(SwaggerUi::new("/docs").config(config));
    guarded(pages, POLICY).merge(guarded(docs, DOCS_POLICY))
}

fn guarded(router: Router<App>, policy: &'static str) -> Router<App> {
    let header = |name: HeaderName, value| {
        SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value))
    };
    router
        .layer(header(CONTENT_SECURITY_POLICY, policy))
        .layer(header(REFERRER_POLICY, "same-origin"))
}

/// A file, or 304 if the client has it as it is. `no-cache` means "ask every time": a new release is
/// seen at once, and an unchanged file costs headers only.
fn file(path: &str, headers: &HeaderMap) -> Response {
    let Some(file) = Static::get(path) else {
        return Problem::new(&NOT_FOUND).into_response();
    };
    let tag = etag(&file);
    let mut response = if is_known(headers, &tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let content_type = HeaderValue::try_from(content_type(&file));
        let mut response = Response::new(Body::from(file.data));
        response
            .headers_mut()
            .extend(content_type.ok().map(|value| (CONTENT_TYPE, value)));
        response
    };
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
        .headers_mut()
        .extend(HeaderValue::try_from(tag).ok().map(|value| (ETAG, value)));
    response
}

/// Half of the content's SHA-256 tells two versions of a file apart.
fn etag(file: &EmbeddedFile) -> String {
    let hash = file.metadata.sha256_hash();
    let head = hash[..16]
        .iter()
        .fold(0u128, |head, byte| head << 8 | u128::from(*byte));
    format!("\"{head:032x}\"")
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

fn content_type(file: &EmbeddedFile) -> String {
    let kind = file.metadata.mimetype();
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
            "/etc/passwd",
        ] {
            assert_eq!(file(path, &HeaderMap::new()).status(), 404, "{path}");
        }
    }
}
