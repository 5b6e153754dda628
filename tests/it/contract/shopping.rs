//! The catalogue, buying, and who sees an order. The transitions of an order: `life.rs`.

use super::events::{next_order, of_order, open};
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_are_listed_open_ones_first_and_then_by_opening_time() {
    let app = TestApp::start().await;
    let opening = async |stock, secs| app.sale(stock, json!({"opens_at": in_secs(secs)})).await;
    let later = app.sale(1, json!({"opens_at": in_secs(7_200), "closes_at": in_secs(9_000)})).await;
    let paused = opening(1, -100).await;
    let open_second = opening(3, -10).await;
    let soon = opening(1, 3_600).await;
    let sold_out = opening(1, -300).await;
    let ended = opening(1, -400).await;
    let open_first = opening(3, -20).await;
    app.steer(&paused, "pause").await;
    app.steer(&ended, "close").await;
    app.shopper().must_buy(&sold_out).await;
    let list = async |query: &str| -> Vec<Value> {
        let reply = app.get(&format!("/api/v1/sales{query}")).await.must_be(200);
        assert_members(&reply.body, "sales");
        let sales = reply.body["sales"].as_array().expect("a list").iter();
        let sales = sales.inspect(|sale| assert_sale(sale));
        sales.map(|sale| json!([sale["id"], sale["state"]])).collect()
    };
    let expected = json!([
        [open_first, "open"],
        [open_second, "open"],
        [ended, "ended"],
        [sold_out, "sold_out"],
        [paused, "paused"],
        [soon, "scheduled"],
        [later, "scheduled"],
    ]);
    let expected = expected.as_array().expect("a list");
    assert_eq!(list("").await, *expected);
    for state in STATES {
        let mut of_this_state = expected.clone();
        of_this_state.retain(|sale| sale[1] == state);
        assert_eq!(list(&format!("?state={state}")).await, of_this_state);
    }
    app.get("/api/v1/sales?state=closed").await.assert_problem(422, "invalid");
    for listed in expected {
        let sale = app.sale_now(listed[0].as_str().expect("an id")).await;
        assert_sale(&sale);
        assert_eq!(json!([sale["id"], sale["state"]]), *listed);
    }
    app.get(&format!("/api/v1/sales/{UNKNOWN}")).await.assert_problem(404, "sale_not_found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_accepted_written_and_paid() {
    let mut terms = json!({"title": "Phone", "price_cents": 19_900, "currency": "EUR"});
    terms["payment_timeout_secs"] = json!(600);
    let (app, sale) = TestApp::selling(5, terms).await;
    let shopper = app.shopper();
    let asked = OffsetDateTime::now_utc();
    let bought = shopper.buy(&sale).await.must_be(202);
    assert_members(&bought.body, "order_id sale_id status");
    bought.assert_has(json!({"sale_id": sale, "status": "queued"}));
    assert!(!bought.headers.contains_key("idempotent-replayed"));
    let order = bought.text("order_id").to_owned();
    assert_eq!(bought.header("location"), format!("/api/v1/orders/{order}"));
    assert_order(&shopper.get(bought.header("location")).await.must_be(200).body);
    let pending = shopper.until(&order, "pending_payment").await;
    assert_order(&pending);
    assert_has(&pending, json!({"order_id": order, "sale_id": sale, "sale_title": "Phone"}));
    assert_has(&pending, json!({"price_cents": 19_900, "currency": "EUR"}));
    assert_time_to_pay(&pending, 600, asked);
    let paid = shopper.pay(&order).await.must_be(200);
    assert_order(&paid.body);
    assert_eq!(paid.text("status"), "paid");
    app.assert_sound(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_with_its_key_gets_its_first_answer() {
    let app = TestApp::start().await;
    let (sale, other_sale) = (app.sale(5, json!({})).await, app.sale(5, json!({})).await);
    let shopper = app.shopper();
    let key = format!("{:~<64}", "a B!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}");
    let first = shopper.buy_with_key(&sale, &key).await.must_be(202);
    let order = first.text("order_id");
    let is_replay = |reply: &Reply| reply.headers.contains_key("idempotent-replayed");
    assert!(!is_replay(&first));
    let assert_replayed = async || {
        let reply = shopper.buy_with_key(&sale, &key).await.must_be(202);
        assert_eq!(reply.header("idempotent-replayed"), "true");
        assert_eq!(reply.body, first.body);
        assert_eq!(reply.header("location"), first.header("location"));
    };
    assert_replayed().await;
    for second in [shopper.buy_with_key(&sale, "another").await, shopper.buy(&sale).await] {
        second.assert_problem(409, "already_ordered");
        assert_eq!(second.text("order_id"), order);
    }
    let others = app.shopper().buy_with_key(&sale, &key).await;
    for reply in [others, shopper.buy_with_key(&other_sale, &key).await] {
        reply.assert(202);
        assert!(!is_replay(&reply) && reply.text("order_id") != order);
    }
    for step in ["pause", "close"] {
        app.steer(&sale, step).await;
        assert_replayed().await;
    }
    shopper.until(order, "pending_payment").await;
    shopper.cancel(order).await.assert(200);
    assert_replayed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_is_refused_with_the_reason() {
    let app = TestApp::start().await;
    let shopper = app.shopper();
    let opens_at = in_secs(3_600);
    let scheduled = app.sale(1, json!({"opens_at": opens_at})).await;
    let refused = shopper.refused(&scheduled, "not_open").await;
    let told = &refused.body["opens_at"];
    assert_eq!(*told, app.sale_now(&scheduled).await["opens_at"]);
    assert_eq!(time_of(told).unix_timestamp(), time_of(&json!(opens_at)).unix_timestamp());
    assert!((1..=3_601).contains(&refused.assert_told_when(409, "not_open")));
    let sale = app.sale(1, json!({})).await;
    app.steer(&sale, "pause").await;
    shopper.refused(&sale, "paused").await;
    app.steer(&sale, "resume").await;
    let order = shopper.must_buy(&sale).await;
    for _ in 0..3 {
        app.shopper().refused(&sale, "sold_out").await;
        assert_eq!(shopper.refused(&sale, "already_ordered").await.text("order_id"), order);
    }
    let steps = [("pause", "paused"), ("close", "ended"), ("resume", "ended"), ("pause", "ended")];
    for (step, code) in steps {
        let steered = app.steer(&sale, step).await;
        assert_sale(&steered);
        assert_eq!(steered["state"], code);
        for buyer in [&shopper, &app.shopper()] {
            buyer.refused(&sale, code).await;
        }
    }
    shopper.buy(UNKNOWN).await.assert_problem(404, "sale_not_found");
    assert_eq!(app.assert_sound(&sale).await.live, 1);
}

/// In the log and in no table, with room for no other order that waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_accepted_order_is_on_every_list_also_while_it_is_being_written() {
    let (app, sale) = TestApp::selling(200, json!({})).await;
    let buy_and_look = async |shopper: Shopper| {
        let order = shopper.must_buy(&sale).await;
        for _ in 0..3 {
            let listed = until_told(async || shopper.get("/api/v1/orders").await).await;
            assert_eq!(listed.must_be(200).body["orders"][0]["order_id"], order);
        }
    };
    stream::iter(app.shoppers(200)).for_each_concurrent(6, buy_and_look).await;
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_queued_until_somebody_writes_it() {
    let options = Options { backlog_limit: Some(1), ..Options::without_writer() };
    let (app, sale) = TestApp::selling_with(options, 10, json!({})).await;
    let shopper = app.shopper();
    let order = shopper.must_buy(&sale).await;
    let queued = shopper.order(&order).await.must_be(200);
    assert_order(&queued.body);
    assert_eq!(queued.text("status"), "queued");
    shopper.get("/api/v1/orders").await.assert_has(json!({"orders": [queued.body]}));
    let mut events = open(of_order(&shopper, &order)).await;
    assert_eq!(next_order(&mut events).await["status"], "queued");
    shopper.pay(&order).await.assert_told_when(409, "still_queued");
    shopper.cancel(&order).await.assert_problem(409, "not_cancellable");
    let other = app.shopper();
    for reply in [other.order(&order).await, other.pay(&order).await, other.cancel(&order).await] {
        reply.assert_problem(404, "order_not_found");
    }
    for _ in 0..3 {
        assert_shed(&app.shopper().buy(&sale).await);
        assert_eq!(shopper.refused(&sale, "already_ordered").await.text("order_id"), order);
    }
    assert_eq!(app.sale_now(&sale).await["remaining"], 9);
    let audit = app.admin_sale("GET", &sale, "/audit", None).await;
    audit.assert_has(json!({"ok": true, "quiescent": false, "conserved": null}));
    audit.assert_has(json!({"backlog": 1, "live": 0, "remaining": 9}));
    let writer = app.another(Options::default()).await;
    let written = next_order(&mut events).await;
    assert_eq!(written["status"], "pending_payment");
    for member in ["order_id", "sale_id", "sale_title", "price_cents", "currency"] {
        assert_eq!(written[member], queued.body[member]);
    }
    shopper.at(&writer).pay(&order).await.assert(200);
    let mut paid = next_order(&mut events).await;
    if paid["payment"] == "pending" {
        paid = next_order(&mut events).await; // it was seen while it was being paid
    }
    assert_eq!(paid["status"], "paid");
    assert_eq!(events.next().await, None);
    let late = app.shopper();
    wait_for!(late.told(&sale).await.order().is_some());
    assert_eq!(app.assert_sound(&sale).await.live, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn my_orders_are_listed_newest_first_and_in_pages() {
    let app = TestApp::start().await;
    let limit = json!({"per_user_limit": 3});
    let sales = [app.sale(9, limit.clone()).await, app.sale(9, limit).await];
    let (shopper, other) = (app.shopper(), app.shopper());
    let mut mine = Vec::new();
    for turn in 0..6 {
        mine.push(shopper.order_to_pay(&sales[turn % 2]).await);
        if turn < 2 {
            other.order_to_pay(&sales[turn]).await;
        }
    }
    mine.reverse();
    shopper.pay(&mine[2]).await.assert(200);
    let list = async |query: &str| -> Vec<String> {
        let reply = shopper.get(&format!("/api/v1/orders{query}")).await.must_be(200);
        assert_members(&reply.body, "orders");
        reply.body["orders"].as_array().expect("a list").iter().for_each(assert_order);
        column(&reply.body["orders"], "order_id")
    };
    assert_eq!(list("").await, mine);
    assert_eq!(list("?limit=4").await, mine[..4]);
    assert_eq!(list(&format!("?limit=4&after={}", mine[3])).await, mine[4..]);
    assert_eq!(list(&format!("?after={}", mine[1])).await, mine[2..]);
    assert!(list(&format!("?after={}", mine[5])).await.is_empty());
    assert_eq!(app.shopper().get("/api/v1/orders").await.body, json!({"orders": []}));
}
