//! Promises of `docs/security.md` that no other test shows.

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_that_nobody_knows_take_few_connections_to_postgres() {
    const UNKNOWN: Range<i64> = 1_000_000..1_000_060;
    let (app, sale) = TestApp::selling(10, json!({})).await;
    app.shopper().must_buy(&sale).await;
    app.assert_sound(&sale).await;
    let mut observer = app.database.connect().await;
    // Look-ups of sales now take for ever, so that one sees how many there are at once.
    let mut locker = app.begin("LOCK TABLE sales IN ACCESS EXCLUSIVE MODE").await;
    let ask = |sale: i64| {
        let (method, rest) = if sale % 2 == 0 { ("GET", "") } else { ("POST", "/orders") };
        app.shopper().ask(method, &format!("/api/v1/sales/{sale}{rest}")).into_future()
    };
    let asking = tokio::spawn(all_at_once(UNKNOWN.map(ask).collect::<Vec<_>>().into_iter()));
    // While none was given up: those leave their statements waiting a moment longer. Then -1.
    let waiting =
        "SELECT CASE WHEN max(now() - query_start) > interval '1 s' THEN -1 ELSE count(*) END
        FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
            AND query LIKE '%FROM sales WHERE id = $1'";
    let mut most = 0;
    while !asking.is_finished() {
        let (count,) = sqlx::query_as(waiting).fetch_one(&mut observer).await.expect("a count");
        if count < 0 {
            break;
        }
        most = i64::max(most, count);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!((1..=2).contains(&most), "{most} look-ups at once");
    asking.await.expect("no panic").iter().for_each(assert_shed);
    locker.execute("ROLLBACK").await.expect("ROLLBACK");
    wait_for!(app.get("/api/v1/sales/1000001").await.status == 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_was_asked_for_too_early_is_found_when_it_is_there() {
    let (app, other) = TestApp::pair().await;
    let first: i64 = app.sale(1, json!({})).await.parse().expect("a number");
    // Ids are counted, so anybody can guess the next one.
    let next = format!("/api/v1/sales/{}", first + 1);
    for _ in 0..20 {
        other.get(&next).await.assert_problem(404, "sale_not_found");
    }
    assert_eq!(app.sale(1, json!({})).await, (first + 1).to_string());
    wait_for!(other.get(&next).await.status == 200);
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
