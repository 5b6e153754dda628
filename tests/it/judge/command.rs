//! `flash-sale judge` as it is typed.

use crate::support::buggy_sale::{BuggySale, Manner};
use crate::support::prelude::*;

/// Beside the server, which does what its commands want meanwhile.
async fn judged(sale: &BuggySale, home: &Home, words: &str) -> crate::support::program::Ended {
    sale.beside(home.run(&format!("judge {} {words}", sale.url()))).await
}

const SMALL: &str = "--stock 20 --buyers 50 --duplicates 0.5 --settle 30";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exit_code_is_the_verdict() {
    let home = Home::new();
    judged(&BuggySale::start(Manner::Right), &home, SMALL).await.assert_done();

    let wrong = BuggySale::start(Manner::Oversells);
    let [page, file] = ["report.html", "history.jsonl"].map(|name| home.path.join(name));
    let small = SMALL.replace("--settle 30", "--settle 1");
    let files = format!("--report {} --save-history {}", page.display(), file.display());
    let ended = judged(&wrong, &home, &format!("{small} --json {files}")).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let report = ended.json();
    assert_eq!((&report["verdict"], &report["stored"]), (&json!("broken"), &json!(23)));
    assert_eq!(report["findings"][0]["kind"], "oversold");
    let page = fs::read_to_string(page).expect("the page");
    assert!(page.contains("<svg") && page.contains("3 beyond the stock of 20"), "{page}");
    for elsewhere in ["<script", "src=", "href=", "url("] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    let again = home.run(&format!("judge --history {}", file.display())).await;
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stdout.ends_with("\nverdict: BROKEN (oversold)\n"), "{again:?}");
    // The verdict is said, though there is no room for its page.
    let full = home.run(&format!("judge --history {} --report /dev/full", file.display())).await;
    assert_eq!(full.code, Some(2), "{full:?}");
    assert!(full.stdout.ends_with("\nverdict: BROKEN (oversold)\n"), "{full:?}");
    assert!(full.stderr.contains("not written: /dev/full: "), "{full:?}");
    let stock = home.run(&format!("judge --history {} --stock 7", file.display())).await;
    assert!(stock.code == Some(2) && stock.stderr.contains("cannot be used with"), "{stock:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_judged_exits_with_2_and_says_why() {
    let home = Home::new();
    let adapter = home.path.join("adapter.json");
    fs::write(&adapter, "{\"order\": {}}").expect("an adapter");
    let words = format!("judge http://127.0.0.1:1 --adapter {}", adapter.display());
    let ended = home.run(&words).await;
    assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{ended:?}");
    assert!(ended.stderr.contains("adapter: order: missing field `request`"), "{ended:?}");
    let sale = BuggySale::start(Manner::Right);
    for (words, why) in [
        ("http://192.0.2.1:9", "192.0.2.1 is not this machine"),
        ("http://192.0.2.1:9", "--allow-remote"),
        ("https://127.0.0.1:1", "is no http:// URL"),
        ("http://127.0.0.1:1", "setup[0]: POST /reset: "),
        ("--history nowhere.jsonl", "nowhere.jsonl: "),
        ("http://127.0.0.1:1 --orders-sql postgres://192.0.2.1/x", "has a URL but no SELECT"),
        (&(sale.url() + " --kill false"), "--kill \"false\": exit status: 1"),
    ] {
        home.run(&format!("judge {words}")).await.assert_refused(&[why]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_that_ends_nothing_is_not_survived() {
    let (home, sale) = (Home::new(), BuggySale::start(Manner::Right));
    let ended = home.run(&format!("judge {} {SMALL} --start true", sale.url())).await;
    assert!(ended.code == Some(2) && ended.stderr.contains("--kill"), "{ended:?}");
    // A server that takes its time for an answer is not gone.
    for sale in [sale, BuggySale::start(Manner::ListsSlowly)] {
        let ended = home.run(&format!("judge {} {SMALL} --kill true", sale.url())).await;
        ended.assert_refused(&["the server still answers after --kill"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn this_program_holds_before_its_own_judge() {
    let (home, (shop, _)) = (Home::new(), Home::on_shared_servers("judged:").await);
    let program = Program::serve(&shop, "").await;
    let adapter = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/adapters/flash-sale.json");
    let patient = "--stock 30 --buyers 80 --timeout 60 --settle 60";
    let words = format!("judge {} --adapter {adapter} {patient}", program.base);
    let judge = async |more: &[&str]| {
        let mut command = home.command(&words);
        command.args(more).env("ADMIN_TOKEN", ADMIN_TOKEN);
        home.finish(command).await
    };
    let ended = judge(&[]).await;
    ended.assert_done();
    assert!(ended.stdout.contains("stored    30 orders, 0 units remaining"), "{ended:?}");

    // The same orders, read from its database.
    let url = &shop.settings[0].1;
    let query = "SELECT id, user_id FROM orders WHERE sale_id = (SELECT max(id) FROM sales)";
    judge(&["--orders-sql", &format!("{url} {query}")]).await.assert_done();
    let refused = judge(&["--orders-sql", &format!("{url} SELECT 1, NULL")]).await;
    refused.assert_refused(&["--orders-sql: an order id or a buyer is NULL"]);
    program.terminate().await;
}
