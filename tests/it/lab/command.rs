//! `flash-sale lab`: the lab without a browser.

use crate::support::prelude::*;

async fn done(home: &Home, words: &str) -> String {
    home.run(&format!("lab {words}")).await.assert_done().stdout.clone()
}

const SMALL: &str = "run --stock 5 --buyers 30 --concurrency 30";

#[tokio::test]
async fn it_lists_and_runs_strategies() {
    let home = Home::new();
    let list = done(&home, "list").await;
    assert!(list.contains("conditional-update") && list.contains("holds"), "{list}");
    let report = home.path.join("report.html");
    let chosen = "--strategy naive --strategy conditional-update --nodes 2 --report";
    done(&home, &format!("{SMALL} {chosen} {}", report.display())).await;
    let page = std::fs::read_to_string(&report).expect("a report");
    // Of the bars only the one that is wrong leads to a line (which: tests of `lab::report`).
    let leads = |id: &str| page.contains(&format!("href=\"#why-{id}\""));
    assert!(leads("naive") && !leads("conditional-update"), "{page}");

    let six = "lab run --stock 5 --buyers 6 --concurrency 6 --json";
    let without_retries = "--strategy version-column --option retries=0";
    let verdicts = home.run(&format!("{six} {without_retries}")).await.assert_done().json();
    assert!(verdicts[0]["undersold"].as_i64() > Some(0), "{verdicts:#}");
}

#[tokio::test]
async fn it_grades_a_strategy_of_ones_own() {
    let home = Home::new();
    let broken = home.run("lab grade example").await;
    assert_eq!(broken.code, Some(1), "{broken:?}");
    assert!(broken.stdout.contains("BREAKS: Oversells, which it does not declare"), "{broken:?}");
    assert!(broken.stdout.contains("example is broken: "), "{broken:?}");
    let sound = done(&home, "grade solution-3 --lang zh").await;
    assert!(sound.contains("守住了它的承诺") && !sound.contains("破了"), "{sound}");
    let json = home.run("lab grade solution-3 --json").await.assert_done().json();
    assert_eq!((&json["holds"], &json["cases"][0]["verdict"]["sold"]), (&true.into(), &5.into()));
    // What it writes is for its own tests: here it would write into this checkout.
    let refused = home.run("lab new match").await;
    assert!(refused.code == Some(2) && refused.stderr.contains("like my-idea"), "{refused:?}");
}

#[tokio::test]
async fn it_compares_a_strategy_with_and_without_its_lock() {
    let costs = done(&Home::new(), &format!("{SMALL} --with-and-without-lock")).await;
    let rows = costs.lines().filter(|line| line.starts_with("lock-and-hincrby"));
    let rows: Vec<Vec<&str>> = rows.map(|line| line.split_whitespace().collect()).collect();
    let [without, waiting, turned_away] = &rows[..] else { panic!("three rows: {costs}") };
    assert_eq!([without[1], waiting[1], turned_away[2]], ["lock=off", "lock=on", "wait_ms=0"]);
    // Sold, oversold, contended, let through; then round trips to Redis.
    assert_eq!(without[2..6], ["5", "0", "0", "30"], "{costs}");
    assert_eq!(waiting[2..4], ["5", "0"], "{costs}");
    assert_eq!(turned_away[4], "0", "{costs}");
    let figure = |text: &str| text.parse::<f64>().expect("a figure");
    assert!(figure(turned_away[5]) > figure(waiting[4]), "who waits gets in: {costs}");
    assert!(figure(waiting[6]) > figure(without[6]), "{costs}");
}

#[tokio::test]
async fn it_refuses_what_it_cannot_run_and_folders_that_it_cannot_fill() {
    let home = Home::new();
    std::fs::write(home.path.join("mine"), "precious").expect("written");
    let (here, taken) = (home.path.display(), format!("{} is not empty", home.path.display()));
    for (words, why) in [
        (&*format!("export {here}"), &*taken),
        ("export /dev/null/a", "/dev/null/a: "),
        ("run --with-and-without-lock --option lock=on", "sets lock itself"),
        ("run --strategy naive --option retries=0", "no such option"),
        ("run --strategy naive --buyers 0", "buyers: must be from 1 to 100000"),
        ("run --strategy naive --duplicate-share 1.1", "duplicate_share"),
        ("run --strategy no-such", ""),
        ("run --strategy naive --json --buyers 6 --buyers 6", ""),
        ("run --strategy naive --report /no/such/folder/report.html", "/no/such/folder"),
    ] {
        let ended = home.run(&format!("lab {words}")).await;
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{words}: {ended:?}");
        assert!(ended.stderr.contains(why), "{words}: {ended:?}");
        let is_in_vain = words.starts_with("export") && home.data().exists();
        assert!(!is_in_vain, "{words}: servers were started");
    }
}
