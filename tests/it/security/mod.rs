//! Promises of `docs/security.md` that no other test shows.

mod costs;
mod secrets;
pub mod sites;

use crate::support::prelude::*;

/// From one address; what is not let in is in the log, summed up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_guesses_the_operators_token_is_slowed_down_and_locks_nobody_out() {
    let (home, settings) = (Home::new(), format!("RATE_LIMIT=on ADMIN_TOKEN={ADMIN_TOKEN}"));
    let program = Program::serve(&home, &settings).await;
    let ask = |token: &str| program.ask("GET", "/api/v1/admin/sales/1/audit").bearer(token);
    let guesses = all_at_once((0..200).map(|_| ask("a guess").into_future())).await;
    let (slowed, wrong): (Vec<_>, Vec<_>) = guesses.iter().partition(|reply| reply.status == 429);
    assert!(slowed.len() > 100 && wrong.iter().all(|reply| reply.status == 401), "{guesses:?}");
    ask(ADMIN_TOKEN).await.assert(200);
    let said = program.stderr();
    let lines = said.lines().filter(|line| line.contains("without the right admin token"));
    let lines: Vec<&str> = lines.collect();
    assert!((1..100).contains(&lines.len()) && lines[0].contains("address=127.0.0.1"), "{said}");
    program.terminate().await;
}

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
