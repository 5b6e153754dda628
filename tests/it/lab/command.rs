//! The lab as a program: `flash-sale lab`, without a browser, and arenas of several servers.

use crate::support::{prelude::*, test_lab::ARENAS};

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
    assert!(sound.contains("守住了它的承诺") && !sound.contains("失守"), "{sound}");
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

/// Ctrl-C in the middle of a storm.
#[tokio::test]
async fn an_interrupted_run_leaves_no_arena() {
    let (home, database) = Home::on_shared_servers("interrupted:").await;
    let slow = "lab run --strategy naive --concurrency 1 --option work_ms=2000";
    let mut run = Program::spawn(&home, home.command(slow));
    let mut postgres = database.connect().await;
    let sold = async |postgres: &mut PgConnection| {
        let orders = sqlx::query("SELECT FROM lab.orders").fetch_all(postgres).await;
        orders.is_ok_and(|orders| !orders.is_empty())
    };
    wait_for!("it has sold", sold(&mut postgres).await.then_some(()));
    run.signal(Signal::SIGINT);
    assert_eq!(run.end().await, Some(130), "stderr: {}", run.stderr());
    let left = sqlx::query("SELECT FROM lab.arenas")
        .fetch_all(&mut postgres)
        .await
        .expect("the schema is there");
    assert_eq!(left.len(), 0);
}

const SETTINGS: &str = "LAB=on POSTGRES_CONNECTIONS=5";

/// All buyers at once, through these servers in turn; how many were told that they have a unit.
async fn sold(servers: &[&Program], arena: &str, buyers: usize) -> usize {
    let buy = async |number: usize| {
        let body = json!({"user": format!("buyer-{number}")});
        let server = servers[number % servers.len()];
        let bought = server.ask("POST", &format!("{ARENAS}/{arena}/orders")).json(body).await;
        bought.text("outcome") == "sold"
    };
    join_all((0..buyers).map(buy)).await.iter().filter(|sold| **sold).count()
}

async fn arena(server: &Program, strategy: &str) -> String {
    // Long work, so that the critical sections of two processes cannot miss each other.
    let body = json!({"strategy": strategy, "stock": 6, "work_ms": 400});
    server.ask("POST", ARENAS).json(body).await.text("arena_id").to_owned()
}

async fn verdict(server: &Program, arena: &str) -> Value {
    wait_for!("a verdict of all processes", {
        let verdict = server.ask("GET", &format!("{ARENAS}/{arena}/verdict")).await.body;
        (verdict["quiet"] == true).then_some(verdict)
    })
}

#[tokio::test]
async fn a_mutex_holds_in_one_process_and_oversells_in_two() {
    let (home, _) = Home::on_shared_servers("two-processes:").await;
    let start = || Program::serve(&home, SETTINGS);
    let (first, second) = tokio::join!(start(), start());
    let alone = arena(&first, "process-mutex").await;
    sold(&[&first], &alone, 12).await;
    let held = |processes| json!({"sold": 6, "oversold": 0, "processes": processes});
    assert_has(&verdict(&first, &alone).await, held(1));
    let together = arena(&first, "process-mutex").await;
    // The second opens it before anybody buys: otherwise the first may have sold everything.
    verdict(&second, &together).await;
    let told = sold(&[&first, &second], &together, 16).await;
    for server in [&first, &second] {
        let verdict = verdict(server, &together).await;
        assert!(verdict["oversold"].as_i64() > Some(0), "{verdict:#}");
        assert_has(&verdict, json!({"sold": told, "attempts": 16, "processes": 2}));
        assert_eq!(verdict["kept_promise"], true);
    }
    let row = arena(&second, "conditional-update").await;
    verdict(&first, &row).await;
    sold(&[&first, &second], &row, 16).await;
    assert_has(&verdict(&first, &row).await, held(2));
    tokio::join!(first.terminate(), second.terminate());
}

/// `lua-stream` runs the code that counts the figures of a sale: a lesson must not raise alerts.
#[tokio::test]
async fn what_an_arena_sells_is_not_in_the_figures_of_the_sale() {
    let (home, _) = Home::on_shared_servers("lab-figures:").await;
    let server = Program::serve(&home, SETTINGS).await;
    let arena = arena(&server, "lua-stream").await;
    assert_eq!(sold(&[&server], &arena, 12).await, 6);
    assert_has(&verdict(&server, &arena).await, json!({"sold": 6, "kept_promise": true}));
    let figures = server.ask("GET", "/metrics").await.body;
    let figures = figures.as_str().expect("a text");
    let of_the_sale = ["admissions_total", "writer_orders_total", "orders_total"];
    let of_the_sale = of_the_sale.map(|name| format!("flash_sale_{name}"));
    let is_counter = |line: &&str| of_the_sale.iter().any(|name| line.starts_with(name));
    let counters: Vec<&str> = figures.lines().filter(is_counter).collect();
    let are_none = counters.iter().all(|counter| counter.ends_with(" 0"));
    assert!(counters.len() > 8 && are_none, "{counters:#?}");
    server.terminate().await;
}
