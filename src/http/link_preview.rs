//! The preview of a link to a page of the lab where it is shared (Open Graph). The programs that
//! ask for it run no scripts and want absolute addresses.

use super::session;
use crate::config::ProxyTrust;
use axum::http::HeaderMap;
use axum::http::header::HOST;
use lab::{lessons::LESSONS, texts};
use web::language::accepted;

/// The tags for the head of a page; `None` for a page without a preview.
pub fn tags(path: &str, trust_proxy: ProxyTrust, headers: &HeaderMap) -> Option<String> {
    let id = match path.strip_prefix("/lab/lessons/") {
        Some(id) => LESSONS.iter().find(|lesson| lesson.id == id)?.id,
        None => matches!(path, "/lab" | "/lab/why").then_some("why")?,
    };
    let text = texts::of(id, accepted(headers))?;
    let origin = origin(trust_proxy, headers)?;
    let address = format!("{origin}{path}");
    let picture = format!("{origin}/static/img/share-{id}.png");
    let tags = [
        ("og:type", "article"),
        ("og:title", text.title()),
        ("og:description", text.lead()),
        ("og:url", address.as_str()),
        ("og:image", picture.as_str()),
        ("twitter:card", "summary_large_image"),
    ];
    let tags = tags.map(|(name, content)| {
        format!("  <meta property=\"{name}\" content=\"{}\">\n", escaped(content))
    });
    Some(tags.concat())
}

/// The site as the caller addresses it, if that could be an address.
pub fn origin(trust_proxy: ProxyTrust, headers: &HeaderMap) -> Option<String> {
    let host = headers.get(HOST)?.to_str().ok()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    let scheme = if session::is_over_tls(trust_proxy, headers) { "https" } else { "http" };
    host.bytes().all(is_plain).then(|| format!("{scheme}://{host}"))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_host_is_repeated_only_if_it_could_be_one() {
        let asked_at = |host: &'static str| {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]);
            tags("/lab/why", ProxyTrust::Nobody, &headers)
        };
        let found = asked_at("[::1]:8080").expect("tags");
        assert!(found.contains("\"http://[::1]:8080/lab/why\""), "{found}");
        for host in ["a\"><script>", "a/b", "a b"] {
            assert_eq!(asked_at(host), None, "{host}");
        }
    }

    #[test]
    fn every_lesson_has_a_picture() {
        for lesson in LESSONS {
            let picture = format!("static/img/share-{}.png", lesson.id);
            assert!(std::path::Path::new(&picture).is_file(), "no {picture}: see share-images.mjs");
        }
    }
}
