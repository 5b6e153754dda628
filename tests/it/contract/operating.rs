//! The admin routes, and what they do to a sale by the time they answer.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_admin_token_nothing_happens() {
    let (app, sale) = TestApp::selling(5, json!({})).await;
    let hidden = app.another(Options { hides_admin: true, ..Options::default() }).await;
    let operators = |sale| Route::all(sale, "").filter(|route| route.who == "operator");
    let before = app.snapshot().await;
    for (header, value) in [
        ("accept", "*/*".to_owned()), // no token at all
        ("authorization", format!("Bearer {ADMIN_TOKEN}x")),
        ("authorization", format!("Bearer {}", &ADMIN_TOKEN[1..])),
        ("authorization", format!("Basic {ADMIN_TOKEN}")),
        ("authorization", format!("Bearer {}", app.shopper().token)),
        ("authorization", ADMIN_TOKEN.to_owned()),
        ("cookie", format!("session={ADMIN_TOKEN}")),
    ] {
        for route in operators(&sale).chain(operators(UNKNOWN)) {
            let reply = route.ask(&app).header(header, &value).await;
            reply.assert_problem_at(&value, 401, "unauthenticated");
            assert_refused(&route.ask(&hidden).header(header, &value).await.must_be(404), &value);
        }
    }
    for route in operators(&sale) {
        assert_refused(&route.ask(&hidden).bearer(ADMIN_TOKEN).await.must_be(404), &route.path);
    }
    for route in operators(UNKNOWN).filter(|route| route.has_id) {
        route.ask(&app).bearer(ADMIN_TOKEN).await.assert_problem(404, "sale_not_found");
    }
    app.add_stock(UNKNOWN, -1).await.assert_problem(404, "sale_not_found");
    assert_eq!(app.snapshot().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_sale_is_what_was_asked_for_and_buyable_at_once() {
    let app = TestApp::start().await;
    let create = async |body: Value| {
        let reply = app.admin("POST", SALES, Some(body)).await.must_be(201);
        assert_sale(&reply.body);
        reply.body
    };
    let asked = OffsetDateTime::now_utc() - time::Duration::SECOND; // by another clock
    let wanted = json!({"title": "a thing", "price_cents": 0, "stock": 1});
    let least = create(wanted.clone()).await;
    assert_has(&least, wanted);
    assert_has(&least, json!({"description": "", "image_url": "", "original_price_cents": null}));
    assert_has(&least, json!({"remaining": 1, "per_user_limit": 1, "state": "open"}));
    let (opens_at, now) = (time_of(&least["opens_at"]), time_of(&least["server_time"]));
    assert!(asked <= opens_at && opens_at <= now, "{least:#}");
    assert_eq!(time_of(&least["closes_at"]) - opens_at, time::Duration::DAY);
    app.shopper().must_buy(least["id"].as_str().expect("an id")).await;
    let mut all = json!({
        "title": "Phone ☎", "description": "two\nlines", "image_url": "/static/img/phone.svg",
        "currency": "EUR", "price_cents": 19_900, "original_price_cents": 29_900,
        "stock": 100_000, "per_user_limit": 2, "opens_at": "2030-01-01T08:00:00+08:00",
        "closes_at": "2030-01-02T00:00:00Z", "payment_timeout_secs": 60,
    });
    let sale = create(all.clone()).await;
    all["opens_at"] = json!("2030-01-01T00:00:00Z");
    assert_has(&sale, all);
    assert_has(&sale, json!({"remaining": 100_000, "state": "scheduled"}));
    let mut read = app.sale_now(sale["id"].as_str().expect("an id")).await;
    read["server_time"] = sale["server_time"].clone();
    assert_eq!(read, sale);
    let opens_at = "2030-01-01T00:00:00Z";
    let later = json!({"title": "b", "price_cents": 1, "stock": 1, "opens_at": opens_at});
    assert_eq!(create(later).await["closes_at"], "2030-01-02T00:00:00Z");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_can_be_changed_member_by_member() {
    let (app, sale) = TestApp::selling(5, json!({"payment_timeout_secs": 600})).await;
    let mut expected = app.sale_now(&sale).await;
    let changes = json!([
        {"title": "another thing"}, {"description": "words"}, {"payment_timeout_secs": 30},
        {"image_url": "https://images.example/a.png"}, {"closes_at": "2031-01-02T03:04:05Z"},
        {"title": "two", "description": "", "image_url": ""},
    ]);
    for change in changes.as_array().expect("changes") {
        let reply = app.change(&sale, change.clone()).await.must_be(200);
        assert_sale(&reply.body);
        expected = with(expected, change);
        for found in [reply.body, app.sale_now(&sale).await] {
            expected["server_time"] = found["server_time"].clone();
            assert_eq!(found, expected);
        }
    }
    let asked = OffsetDateTime::now_utc();
    let (shopper, order) = app.buyer(&sale).await;
    let pending = shopper.order(&order).await.body;
    assert_eq!(pending["sale_title"], "two");
    assert_time_to_pay(&pending, 30, asked);

    let opened = app.sale(5, json!({"opens_at": in_secs(-100)})).await;
    let reply = app.change(&opened, json!({"closes_at": in_secs(-1)})).await.must_be(200);
    assert_eq!(reply.text("state"), "ended");
    app.shopper().refused(&opened, "ended").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_is_added_and_taken_away_up_to_what_remains() {
    let (app, sale) = TestApp::selling(3, json!({})).await;
    assert_eq!(crowd(&app, &sale, 3).await.len(), 3);
    app.shopper().refused(&sale, "sold_out").await;
    let refused =
        async |add| app.add_stock(&sale, add).await.assert_problem(409, "not_enough_remaining");
    let changed = async |add, expected| {
        let reply = app.add_stock(&sale, add).await.must_be(200);
        assert_sale(&reply.body);
        reply.assert_has(expected);
    };
    refused(-1).await;
    changed(4, json!({"stock": 7, "remaining": 4, "state": "open"})).await;
    app.shopper().must_buy(&sale).await;
    // Where Redis refuses, that raises the version of the row, and nothing that anybody sees.
    let shown = async || with(app.sale_now(&sale).await, &json!({"server_time": null}));
    let before = shown().await;
    assert_has(&before, json!({"stock": 7, "remaining": 3}));
    let version = format!("SELECT version FROM sales WHERE id = {sale}");
    for (too_much, claims) in [(-4, 1), (-7, 1), (-8, 0), (-100_000_000, 0)] {
        let claimed = app.number(&version).await + claims;
        refused(too_much).await;
        assert_eq!(shown().await, before);
        assert_eq!(app.number(&version).await, claimed, "{too_much}");
    }
    let (fresh, _) = app.services_without_tasks();
    let taken = fresh.catalog.add_stock(sale.parse().expect("an id"), -8).await;
    let all = matches!(taken, Err(ServiceError::NotEnoughRemaining { remaining: 3 }));
    assert!(all, "where the sale is not cached: {taken:?}");
    changed(-1, json!({"stock": 6, "remaining": 2})).await;
    changed(-2, json!({"stock": 4, "remaining": 0, "state": "sold_out"})).await;
    app.shopper().refused(&sale, "sold_out").await;
    app.assert_sound_with(&sale, json!({"stock": 4, "live": 4, "remaining": 0})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_counts_everything_and_says_so_in_these_members() {
    let (app, sale) = TestApp::selling(10, json!({})).await;
    let orders = app.orders_to_pay(&sale, 4).await;
    orders[0].0.pay(&orders[0].1).await.assert(200);
    orders[1].0.cancel(&orders[1].1).await.assert(200);
    app.quiet_audit(&sale).await;
    let reply = app.admin_sale("GET", &sale, "/audit", None).await.must_be(200);
    let expected = json!({
        "sale_id": sale, "ok": true, "quiescent": true, "stock": 10, "remaining": 7, "live": 3,
        "pending_payment": 2, "paid": 1, "cancelled": 1, "expired": 0, "rejected": 0,
        "backlog": 0, "oversold": 0, "duplicate_users": 0, "conserved": true, "problems": [],
        "redis": {"remaining": 7, "buyers": 3, "stream": 0, "epoch": 1, "run_id_approved": true},
        "postgres": {"taken": 3, "epoch": 1},
    });
    assert_eq!(reply.body, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_sees_all_orders_of_a_sale_and_whose_they_are() {
    let app = TestApp::start().await;
    let (sale, other) = (app.sale(9, json!({})).await, app.sale(9, json!({})).await);
    let mut orders = app.orders_to_pay(&sale, 5).await;
    orders.reverse();
    for (shopper, _) in &orders {
        shopper.order_to_pay(&other).await;
    }
    orders[1].0.pay(&orders[1].1).await.assert(200);
    orders[3].0.cancel(&orders[3].1).await.assert(200);

    let get =
        async |query: &str| app.admin_sale("GET", &sale, &format!("/orders?{query}"), None).await;
    let list = async |query: &str| -> Vec<(String, String)> {
        let mut reply = get(query).await.must_be(200);
        assert_members(&reply.body, "orders");
        let [orders, users] = ["order_id", "user_id"].map(|id| column(&reply.body["orders"], id));
        for order in reply.body["orders"].as_array_mut().expect("a list") {
            order.as_object_mut().expect("an order").remove("user_id");
            assert_order(order);
        }
        orders.into_iter().zip(users).collect()
    };
    let pair = |(shopper, order): &(Shopper, String)| (order.clone(), shopper.user.to_string());
    let all: Vec<_> = orders.iter().map(pair).collect();
    let ((first, _), (id, user)) = (&all[0], &all[1]);
    for (query, expected) in [
        (String::new(), vec![0, 1, 2, 3, 4]),
        ("limit=2".to_owned(), vec![0, 1]),
        (format!("limit=2&after={id}"), vec![2, 3]),
        ("status=paid".to_owned(), vec![1]),
        ("status=cancelled".to_owned(), vec![3]),
        ("status=pending_payment".to_owned(), vec![0, 2, 4]),
        (format!("status=pending_payment&limit=1&after={first}"), vec![2]),
        (format!("user={user}"), vec![1]), // not those of other sales
        (format!("user={user}&status=paid"), vec![1]),
        (format!("user={user}&status=cancelled"), vec![]),
        (format!("user={user}&after={id}"), vec![]),
        (format!("user={}", UserId::random()), vec![]),
    ] {
        let expected: Vec<_> = expected.into_iter().map(|one| all[one].clone()).collect();
        assert_eq!(list(&query).await, expected, "{query}");
    }
    for none in ["status=expired", "status=rejected", "status=queued"] {
        assert!(list(none).await.is_empty(), "{none}");
    }
    for bad in ["status=done", "status=", "limit=0", "after=-1", "user=", "user=me"] {
        get(bad).await.assert_problem_at(bad, 422, "invalid");
    }
}
