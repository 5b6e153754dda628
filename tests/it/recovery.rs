//! What dead writers left behind, and orders that nobody knows.

use crate::support::app::{Options, TestApp, eventually};
use flash_sale::{
    domain::{Admission, UserId},
    sale::ids,
    worker::{rebuild, recovery},
};
use reqwest::StatusCode;
use serde_json::json;
use std::{
    collections::HashSet,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_a_dead_writer_are_left_alone_for_the_grace_period_and_then_written() {
    let app = TestApp::start_with(Options::without_writer()).await;
    let sale = app.sale(10, json!({})).await;
    let id = sale.parse().expect("an id");
    // A process that says it writes its own orders, and has lost its writer.
    let (shop, _) = app.shop_without_loops();
    rebuild::step(&shop, &mut HashSet::new())
        .await
        .expect("approved");
    let accepted = Instant::now();
    for _ in 0..5 {
        let admission = shop
            .purchase(id, UserId::random(), None)
            .await
            .expect("an answer");
        assert!(
            matches!(admission, Admission::Accepted { .. }),
            "{admission:?}"
        );
    }
    shop.refresh(id).await.expect("the sale");
    assert_eq!(
        recovery::step(&shop).await.expect("a pass"),
        0,
        "too young to be left behind"
    );
    let mut settled = 0;
    eventually("all orders are left behind", async || {
        shop.refresh(id).await.expect("the sale");
        // On a busy machine the first ones are old enough a pass before the last.
        settled += recovery::step(&shop).await.expect("a pass");
        assert!(settled == 0 || accepted.elapsed() >= recovery::GRACE);
        (settled >= 5).then_some(())
    })
    .await;
    assert_eq!(settled, 5, "each once");
    assert_eq!(app.assert_sound(&sale).await.live, 5);
    app.finish().await;
}

/// What was left behind in many sales is written together, not in a transaction for each; and while this process' own
/// writer is behind, what has grown old meanwhile is not taken for left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_many_sales_are_recovered_in_one_transaction_once_nobody_writes_them() {
    const SALES: usize = 40;
    let app = TestApp::start_with(Options::without_writer()).await;
    let mut sales = Vec::new();
    for _ in 0..SALES {
        sales.push(app.sale(10, json!({})).await);
    }
    let (shop, _) = app.shop_without_loops();
    rebuild::step(&shop, &mut HashSet::new())
        .await
        .expect("approved");
    for sale in &sales {
        let id = sale.parse().expect("an id");
        let admission = shop.purchase(id, UserId::random(), None).await;
        let admission = admission.expect("an answer");
        assert!(matches!(admission, Admission::Accepted { .. }));
    }
    let listings = shop.board.listings();
    shop.read_snapshots(&listings).await.expect("snapshots");
    let last = Instant::now();
    shop.set_oldest_in_hand(1); // since 1970
    eventually("all are older than the grace", async || {
        assert_eq!(recovery::step(&shop).await.expect("a pass"), 0);
        (last.elapsed() > recovery::GRACE + Duration::from_millis(200)).then_some(())
    })
    .await;
    shop.set_oldest_in_hand(0);
    let asked = || shop.round_trips.postgres.load(Relaxed);
    let before = asked();
    assert_eq!(recovery::step(&shop).await.expect("a pass"), SALES);
    let round_trips = asked() - before;
    assert!(round_trips < 10, "{round_trips} questions to Postgres");
    for sale in &sales {
        assert_eq!(app.assert_sound(sale).await.live, 1);
    }
    app.finish().await;
}

/// An id says when it was made: a sale that was not open by then cannot have that order, whatever state it
/// is in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_order_is_only_in_doubt_if_a_sale_of_its_time_is() {
    let app = TestApp::start().await;
    let opens_at = OffsetDateTime::now_utc() + time::Duration::HOUR;
    let text = opens_at.format(&Rfc3339).expect("a time");
    let (open, next) = (
        app.sale(10, json!({})).await,
        app.sale(10, json!({ "opens_at": text })).await,
    );
    // What is broken stays so.
    let points = &app.shop.fail_points;
    points.set("rebuild.elected=error*always").expect("a point");
    let shopper = app.shopper();
    let unknown = |hours: i64| {
        let time = OffsetDateTime::now_utc() + time::Duration::hours(hours);
        ids::encode(time.unix_timestamp(), 4_000_000_001).expect("an id")
    };
    let break_sale = async |sale: &str| {
        let state = app.shop.redis.keys.state(sale.parse().expect("an id"));
        app.in_redis::<()>(redis::cmd("HSET").arg(&[state.as_str(), "epoch", "7"]))
            .await;
    };
    let ask = async |hours| shopper.order(&unknown(hours).to_string()).await;
    ask(0).await.assert(StatusCode::NOT_FOUND);
    break_sale(&next).await;
    ask(0).await.assert(StatusCode::NOT_FOUND);
    ask(2).await.assert(StatusCode::SERVICE_UNAVAILABLE);
    break_sale(&open).await;
    ask(0).await.assert(StatusCode::SERVICE_UNAVAILABLE);
    app.finish().await;
}
