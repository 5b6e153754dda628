//! The cost of clients without an order.

use crate::support::prelude::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_that_nobody_knows_take_few_connections_to_postgres() {
    const UNKNOWN: Range<i64> = 1_000_000..1_000_060;
    let (app, sale) = TestApp::selling(10, json!({})).await;
    app.shopper().must_buy(&sale).await;
    app.assert_sound(&sale).await;
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
        let count = app.number(waiting).await;
        if count < 0 {
            break;
        }
        most = most.max(count);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!((1..=2).contains(&most), "{most} look-ups at once");
    for reply in asking.await.expect("no panic") {
        reply.assert_problem(503, "unavailable");
    }
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
