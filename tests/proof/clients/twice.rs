//! A client who asks twice buys once, and one who hangs up finds out by asking again.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_double_click_buys_once() {
    const PAIRS: usize = 50;
    let app = TestApp::start().await;
    let sale = app.sale(1_000, json!({})).await;
    for headers in [&[][..], &[("Idempotency-Key", "the same click")]] {
        let clicks = app.shoppers(PAIRS).into_iter().flat_map(|one| [one.clone(), one]);
        let replies = all_at_once(clicks.map(|shopper| {
            let sale = sale.clone();
            async move { shopper.buy_with(&sale, headers).await }
        }))
        .await;
        for pair in replies.chunks(2) {
            let [first, second] = [&pair[0], &pair[1]].map(|reply| reply.text("order_id"));
            assert_eq!(first, second, "both name the one order");
            let (accepted, refused): (Vec<&Reply>, Vec<&Reply>) =
                pair.iter().partition(|reply| reply.is_accepted());
            let replays =
                accepted.iter().filter(|reply| !reply.header("idempotent-replayed").is_empty());
            let expected = if headers.is_empty() { (1, 0) } else { (2, 1) };
            assert_eq!((accepted.len(), replays.count()), expected, "{pair:#?}");
            for reply in refused {
                reply.assert_problem(409, "already_ordered");
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
    let shoppers = app.shoppers(BUYERS);
    for (number, shopper) in shoppers.iter().enumerate() {
        let mut wire = Wire::to(&app).await;
        wire.send(purchase(&sale, shopper, "idempotency-key: once\r\n")).await;
        if number % 2 == 0 {
            // Resets the connection, where an ordinary close would end it in order.
            wire.stream.set_zero_linger().expect("an option");
        }
    }
    // The server may or may not have been faster than the hang-up.
    let buyers = shoppers.iter().cloned().enumerate();
    let retries = all_at_once(buyers.map(|(number, shopper)| {
        let sale = sale.clone();
        async move {
            match number % 3 {
                0 => shopper.buy(&sale).await,
                _ => shopper.buy_with_key(&sale, "once").await,
            }
        }
    }))
    .await;
    for (number, (shopper, reply)) in shoppers.iter().zip(&retries).enumerate() {
        // Without the key, an order that the first request placed is in the way of the second.
        let is_named = number % 3 == 0 && reply.code() == "already_ordered";
        assert!(reply.is_accepted() || is_named, "{number}: {reply:#?}");
        let order = shopper.until(reply.text("order_id"), "pending_payment").await;
        let orders = shopper.get("/api/v1/orders").await;
        orders.assert_has(json!({"orders": [order]}));
    }
    assert_eq!(app.assert_sound(&sale).await.live, BUYERS as i64);
    app.finish().await;
}
