//! What strangers may cost.

use crate::support::app::{Options, TestApp, all_at_once, eventually};
use flash_sale::domain::SaleId;
use reqwest::StatusCode;
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_that_nobody_knows_take_few_connections_to_postgres() {
    const STRANGERS: i64 = 60;
    let app = TestApp::start().await;
    let sale = app.sale(10, json!({})).await;
    app.shopper().must_buy(&sale).await;
    app.assert_sound(&sale).await;

    // Look-ups of sales now take for ever, so that one sees how many there are at once.
    let mut locker = app.database.connect().await;
    for statement in ["BEGIN", "LOCK TABLE sales IN ACCESS EXCLUSIVE MODE"] {
        sqlx::query(statement)
            .execute(&mut locker)
            .await
            .expect("a lock");
    }
    let strangers: Vec<_> = (0..STRANGERS).map(|_| app.shopper()).collect();
    let asking = (0..STRANGERS).zip(strangers).map(|(number, shopper)| {
        let unknown = SaleId::from_i64(1_000_000 + number);
        async move {
            let path = format!("/api/v1/sales/{unknown}");
            if number % 2 == 0 {
                shopper.get(&path).await
            } else {
                shopper.post(&format!("{path}/orders")).await
            }
        }
    });
    let asking = tokio::spawn(all_at_once(asking));
    let mut watcher = app.database.connect().await;
    let mut most = 0;
    while !asking.is_finished() {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%FROM sales WHERE id = $1'",
        )
        .fetch_one(&mut watcher)
        .await
        .expect("a count");
        most = most.max(waiting);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for reply in asking.await.expect("no panic") {
        reply.assert_problem(503, "unavailable");
    }
    // A look-up that was given up leaves its statement waiting a moment longer than its place.
    assert!((1..=6).contains(&most), "{most} look-ups at once");
    sqlx::query("ROLLBACK")
        .execute(&mut locker)
        .await
        .expect("the end of the lock");

    eventually("an unknown sale is unknown again", async || {
        let reply = app.get("/api/v1/sales/1000001").await;
        (reply.status == StatusCode::NOT_FOUND).then_some(())
    })
    .await;
    app.finish().await;
}

#[tokio::test]
async fn a_sale_that_was_asked_for_too_early_is_found_when_it_is_there() {
    let app = TestApp::start().await;
    let other = app.another(Options::default()).await;
    let first: i64 = app.sale(1, json!({})).await.parse().expect("a number");
    // Ids are counted, so anybody can guess the next one.
    let next = format!("/api/v1/sales/{}", first + 1);
    for _ in 0..20 {
        other.get(&next).await.assert_problem(404, "sale_not_found");
    }
    let sale = app.sale(1, json!({})).await;
    assert_eq!(sale, (first + 1).to_string());
    wait_for!(other.get(&next).await.status == StatusCode::OK);
    other.stop().await;
    app.finish().await;
}
