//! The pages and their files: guarded and self-contained.

use super::*;

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let start = |space| tag.split_once(&format!("{space}{name}=\""));
    let (_, rest) = start(' ').or_else(|| start('\n'))?;
    rest.split('"').next()
}

/// All on this site. What the policy forbids inside a page: `tests/browser/pages.mjs`.
fn addresses(page: &str, html: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    // Comments are read as markup, too.
    for (tag, _) in html.split('<').filter_map(|part| part.split_once('>')) {
        for target in ["href", "src", "action"].iter().filter_map(|name| attribute(tag, name)) {
            let is_here = !target.contains("//") && !target.contains(':');
            assert!(is_here, "{page} leads outside: {target}");
            found.insert(target.to_owned());
        }
    }
    found
}

/// The policy's directives for scripts allow this site only. (The kinds: `http::tests`.)
fn assert_guarded(page: &str, reply: &Reply) {
    let policy = reply.header("content-security-policy");
    let directive = |name| policy.split(';').find_map(|one| one.trim().strip_prefix(name));
    let scripts = directive("script-src ").or_else(|| directive("default-src "));
    assert_eq!(scripts.map(str::trim), Some("'self'"), "{page}: {policy}");
    assert_eq!(reply.header("x-content-type-options"), "nosniff", "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_guarded_and_everything_on_them_is_here() {
    let (app, sale) = TestApp::selling(5, json!({})).await;
    let mut files = BTreeSet::new();
    let (shown, live) = (format!("/sales/{sale}"), format!("/sales/{sale}/live"));
    for page in ["/", "/sales/1", &shown, &live, "/orders", "/admin", "/docs/"] {
        let reply = app.get(page).await.must_be(200);
        let html = reply.body.as_str().expect("text");
        assert_guarded(page, &reply);
        assert!(html.contains("<script type=\"module\" src="), "{page}");
        files.extend(addresses(page, html));
    }
    for ending in [".css", ".js"] {
        assert!(files.iter().any(|file| file.ends_with(ending)), "no {ending}");
    }
    let mut reads_the_document = false;
    for file in files.iter().filter(|file| file.starts_with('/')) {
        let reply = app.get(file).await.must_be(200);
        // Parts of a page are under the policy of their page; all else can be opened by itself.
        if ![".css", ".js", ".json"].iter().any(|part| file.ends_with(part)) {
            assert_guarded(file, &reply);
        }
        let text = reply.body.as_str().unwrap_or_default();
        if file.ends_with(".js") && text.contains("fetch('/openapi.json')") {
            assert!(!text.contains("://"), "{file} leads outside");
            reads_the_document = true;
        }
    }
    assert!(reads_the_document, "the docs read /openapi.json");
    for odd in ["/sales/abc", "/sales/0", "/sales/%00", "/sales/%ff"] {
        assert!(!app.get(odd).await.status.is_server_error(), "{odd}");
    }
}
