//! `flash-sale lab`: the lab without a browser.

use crate::cli::Home;
use serde_json::Value;

/// The words of a command; its exit code, and what it said.
fn lab(home: &Home, words: &str) -> (Option<i32>, String, String) {
    let words: Vec<&str> = ["lab"].into_iter().chain(words.split(' ')).collect();
    let output = home.command(&words).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[tokio::test]
async fn it_lists_and_runs_strategies() {
    let home = Home::new();
    let (code, list, _) = lab(&home, "list");
    assert!(
        code == Some(0) && list.contains("conditional-update") && list.contains("holds"),
        "{list}"
    );
    let (code, told, _) = lab(&home, "list naive --lang zh");
    assert!(
        code == Some(0) && told.contains("怎样失败") && told.contains("SELECT remaining"),
        "{told}"
    );

    let small = "run --stock 5 --buyers 30 --concurrency 30";
    let run = |more: &str| lab(&home, &format!("{small} {more}"));
    let report = home.0.join("report.html");
    let file = report.display().to_string();
    let chosen = "--strategy naive --strategy conditional-update --nodes 2 --report";
    let (code, table, errors) = run(&format!("{chosen} {file}"));
    assert_eq!(code, Some(0), "{table}{errors}");
    let row = |id: &str| {
        table
            .lines()
            .find(|line| line.starts_with(id))
            .unwrap_or_else(|| panic!("{id}: {table}"))
    };
    assert!(
        row("naive").contains("failed, as it says") && row("conditional-update").ends_with("held"),
        "{table}"
    );
    assert!(std::fs::read_to_string(&report).is_ok_and(|page| page.contains("naive")));

    let (code, costs, errors) = run("--with-and-without-lock");
    assert_eq!(code, Some(0), "{costs}{errors}");
    let rows: Vec<Vec<&str>> = costs
        .lines()
        .filter(|line| line.starts_with("lock-and-hincrby"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let [without, waiting, turned_away] = &rows[..] else {
        panic!("three rows: {costs}");
    };
    assert_eq!(
        (without[1], waiting[1], turned_away[2]),
        ("lock=off", "lock=on", "wait_ms=0")
    );
    // Sold, oversold, contended, let through; then round trips to Redis.
    assert_eq!(without[2..6], ["5", "0", "0", "30"], "{costs}");
    assert_eq!(waiting[2..5], ["5", "0", "0"], "{costs}");
    assert!(
        turned_away[4] == "0" && turned_away[5] != "0" && turned_away[6] != "30",
        "{costs}"
    );
    let (code, _, errors) = run("--with-and-without-lock --option lock=on");
    assert!(
        code == Some(2) && errors.contains("sets lock itself"),
        "{errors}"
    );
    let (code, told, errors) =
        run("--strategy redlock --option redis_nodes_down=2 --report /no/such/folder/report.html");
    assert!(
        code != Some(0) && told.is_empty() && errors.contains("/no/such/folder"),
        "before anything is run: {told}{errors}"
    );
    let redis = |row: &[&str], at: usize| row[at].parse::<f64>().expect("a figure");
    assert!(redis(waiting, 6) > redis(without, 6), "{costs}");

    let (code, json, errors) =
        run("--strategy version-column --option retries=0 --json --buyers 6");
    assert_ne!(code, Some(0), "--buyers twice: {json}{errors}");
    let (code, json, errors) = lab(
        &home,
        "run --stock 5 --buyers 6 --concurrency 6 --strategy version-column --option retries=0 --json",
    );
    assert_eq!(code, Some(0), "{json}{errors}");
    let verdicts: Value = serde_json::from_str(&json).expect("JSON");
    assert!(verdicts[0]["undersold"].as_i64() > Some(0), "{verdicts:#}");
    let (code, _, errors) = run("--strategy naive --option retries=0");
    assert!(
        code == Some(2) && errors.contains("no such option"),
        "{errors}"
    );
    let (code, _, _) = run("--strategy no-such");
    assert_eq!(code, Some(2));
}
