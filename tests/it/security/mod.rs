//! Promises of `docs/security.md` that no other test shows.

mod costs;
mod secrets;
pub mod sites;

#[test]
fn every_test_that_the_document_names_exists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("docs/security.md")).expect("the document");
    let code_spans = document.split('`').skip(1).step_by(2);
    let named: Vec<&str> =
        code_spans.filter(|span| span.contains("::") && !span.contains('…')).collect();
    assert!(named.len() > 50, "{named:?}");
    for name in named {
        let (path, function) = name.rsplit_once("::").expect("a path");
        let path = path.trim_end_matches("::tests").replace("::", "/");
        let files = [
            format!("tests/it/{path}.rs"),
            format!("tests/it/{path}/mod.rs"),
            format!("tests/proof/{path}.rs"),
            format!("tests/proof/{path}/mod.rs"),
            format!("src/{path}.rs"),
            format!("src/{path}/mod.rs"),
            // A crate: its name, src, and the rest.
            format!("crates/{}.rs", path.replacen('/', "/src/", 1)),
        ];
        // A function, or a line of a table.
        let declared = [format!("fn {function}("), format!("{function} =>")];
        let mut sources =
            files.iter().filter_map(|file| std::fs::read_to_string(root.join(file)).ok());
        let is_there = |source: String| declared.iter().any(|way| source.contains(way));
        assert!(sources.any(is_there), "{name}");
    }
}
