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
        let places = ["tests/it", "tests/proof", "src"]
            .iter()
            .flat_map(|place| [format!("{place}/{path}.rs"), format!("{place}/{path}/mod.rs")]);
        let of_crate = format!("crates/{}.rs", path.replacen('/', "/src/", 1));
        let mut sources = (places.chain([of_crate]))
            .filter_map(|file| std::fs::read_to_string(root.join(file)).ok());
        // A function, or a line of a table.
        let declared = [format!("fn {function}("), format!("{function} =>")];
        let is_there = |source: String| declared.iter().any(|way| source.contains(way));
        assert!(sources.any(is_there), "{name}");
    }
}
