//! What `docs/security.md` promises, as far as no other test shows it already.

mod costs;
mod secrets;
mod sites;

#[test]
fn every_test_that_the_document_names_exists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("docs/security.md")).expect("the document");
    let code_spans = document.split('`').skip(1).step_by(2);
    let named: Vec<&str> = code_spans
        .filter(|span| span.contains("::") && !span.contains('…'))
        .collect();
    assert!(named.len() > 50, "{named:?}");
    for name in named {
        let (path, function) = name.rsplit_once("::").expect("a path");
        let path = path.trim_end_matches("::tests").replace("::", "/");
        let files = [
            format!("tests/it/{path}.rs"),
            format!("tests/it/{path}/mod.rs"),
            format!("src/{path}.rs"),
            format!("src/{path}/mod.rs"),
        ];
        let source = files
            .iter()
            .find_map(|file| std::fs::read_to_string(root.join(file)).ok())
            .unwrap_or_else(|| panic!("{name}: no file {files:?}"));
        assert!(source.contains(&format!("fn {function}(")), "{name}");
    }
}
