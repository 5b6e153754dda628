//! Real server processes: a mutex in one process' memory protects only that process.

use crate::support::{prelude::*, test_lab::ARENAS};

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
    server.ask("GET", &format!("{ARENAS}/{arena}/verdict")).await.body
}

#[tokio::test]
async fn a_mutex_holds_in_one_process_and_oversells_in_two() {
    let (home, database) = Home::on_shared_servers("two-processes:").await;
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
        assert_has(&verdict, json!({"quiet": true, "kept_promise": true}));
    }
    let row = arena(&second, "conditional-update").await;
    verdict(&first, &row).await;
    sold(&[&first, &second], &row, 16).await;
    assert_has(&verdict(&first, &row).await, held(2));
    tokio::join!(first.terminate(), second.terminate());
    database.drop().await;
}

/// `lua-stream` runs the code that counts the figures of a sale: a lesson must not raise alerts.
#[tokio::test]
async fn what_an_arena_sells_is_not_in_the_figures_of_the_sale() {
    let (home, database) = Home::on_shared_servers("lab-figures:").await;
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
    database.drop().await;
}
