//! Whoever asks twice buys once, and whoever hangs up finds out by asking again.

use super::{Wire, purchase};
use crate::support::app::{Reply, Shopper, TestApp, all_at_once};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_double_click_buys_once() {
    const PAIRS: usize = 50;
    let app = TestApp::start().await;
    let sale = app.sale(1_000, json!({})).await;
    for key in [None, Some("the same click")] {
        let shoppers: Vec<Shopper> = (0..PAIRS).map(|_| app.shopper()).collect();
        let clicks = shoppers.iter().flat_map(|shopper| [shopper, shopper]);
        let replies = all_at_once(clicks.cloned().map(|shopper| {
            let sale = sale.clone();
            async move {
                match key {
                    Some(key) => shopper.buy_with_key(&sale, key).await,
                    None => shopper.buy(&sale).await,
                }
            }
        }))
        .await;
        for pair in replies.chunks(2) {
            assert_eq!(
                pair[0].text("order_id"),
                pair[1].text("order_id"),
                "both name the one order"
            );
            let accepted = |reply: &&Reply| reply.is_accepted();
            let replayed = |reply: &&Reply| reply.header("idempotent-replayed") == "true";
            if key.is_some() {
                assert_eq!(pair.iter().filter(accepted).count(), 2, "{pair:#?}");
                assert_eq!(pair.iter().filter(replayed).count(), 1, "{pair:#?}");
            } else {
                assert_eq!(pair.iter().filter(accepted).count(), 1, "{pair:#?}");
                let refused = pair.iter().find(|reply| !accepted(reply));
                refused
                    .expect("the other one")
                    .assert_problem(409, "already_ordered");
            }
        }
    }
    assert_eq!(app.assert_sound(&sale).await.live, 2 * PAIRS as i64);
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_hangs_up_right_after_sending_finds_one_order_by_retrying() {
    const BUYERS: usize = 100;
    let app = TestApp::start().await;
    let sale = app.sale(1_000, json!({})).await;
    let shoppers: Vec<Shopper> = (0..BUYERS).map(|_| app.shopper()).collect();
    for (number, shopper) in shoppers.iter().enumerate() {
        let mut wire = Wire::to(&app).await;
        wire.send(purchase(&sale, shopper, "idempotency-key: once\r\n"))
            .await;
        if number % 2 == 0 {
            // Resets the connection where an ordinary close would say goodbye.
            wire.stream.set_zero_linger().expect("an option");
        }
        drop(wire);
    }
    // Whether the server was faster than the hang-up is its own affair.
    let retries = all_at_once(
        shoppers
            .iter()
            .cloned()
            .enumerate()
            .map(|(number, shopper)| {
                let sale = sale.clone();
                async move {
                    if number % 3 == 0 {
                        shopper.buy(&sale).await
                    } else {
                        shopper.buy_with_key(&sale, "once").await
                    }
                }
            }),
    )
    .await;
    for (number, (shopper, reply)) in shoppers.iter().zip(&retries).enumerate() {
        let is_known = reply.is_accepted();
        // Without the key, an order that the first request placed is in the way of the second.
        let is_named = number % 3 == 0 && reply.code() == "already_ordered";
        assert!(is_known || is_named, "{number}: {reply:#?}");
        let order = reply.text("order_id");
        shopper.until(order, "pending_payment").await;
        let orders = shopper.get("/api/v1/orders").await;
        let orders = orders.body["orders"].as_array().expect("a list");
        assert_eq!(orders.len(), 1, "{number}: {orders:#?}");
        assert_eq!(orders[0]["order_id"], order);
    }
    assert_eq!(app.assert_sound(&sale).await.live, BUYERS as i64);
    app.finish().await;
}
