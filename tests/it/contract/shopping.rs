//! Sessions, the catalogue, buying, and the life of an order.

use super::{
    assert_id, assert_members, assert_order, assert_sale, in_secs, retry_after, time_of,
    within_patience,
};
use crate::support::app::{Options, Reply, TestApp, all_at_once, eventually};
use flash_sale::app::Role;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use time::OffsetDateTime;

// ---- sessions ---------------------------------------------------------------------------------

async fn open_session(app: &TestApp, body: Value) -> Reply {
    let request = app.client.post(app.url("/api/v1/session")).json(&body);
    Reply::of(request.send().await.expect("an answer")).await
}

#[tokio::test]
async fn a_session_is_a_token_and_a_cookie() {
    let app = TestApp::start().await;
    let opened = open_session(&app, json!({"name": "Ada"})).await;
    opened.assert(StatusCode::CREATED);
    assert_members(&opened.body, "user_id name token expires_at");
    assert_eq!(opened.text("name"), "Ada");
    opened
        .text("user_id")
        .parse::<uuid::Uuid>()
        .expect("a uuid");
    assert!(time_of(&opened.body["expires_at"]) > OffsetDateTime::now_utc());

    let cookie = opened.header("set-cookie").to_owned();
    let mut parts = cookie.split(';').map(str::trim);
    assert_eq!(
        parts.next(),
        Some(format!("session={}", opened.text("token")).as_str())
    );
    let attributes: Vec<String> = parts.map(str::to_ascii_lowercase).collect();
    for attribute in ["httponly", "samesite=lax", "path=/"] {
        assert!(
            attributes.iter().any(|found| found == attribute),
            "no {attribute}: {cookie}"
        );
    }

    let token = format!("Bearer {}", opened.text("token"));
    let by_cookie = format!("other=1; session={}", opened.text("token"));
    for (header, value) in [("authorization", &token), ("cookie", &by_cookie)] {
        let request = app
            .client
            .get(app.url("/api/v1/session"))
            .header(header, value);
        let read = Reply::of(request.send().await.expect("an answer")).await;
        read.assert(StatusCode::OK);
        assert_members(&read.body, "user_id name expires_at");
        for member in ["user_id", "name", "expires_at"] {
            assert_eq!(read.body[member], opened.body[member]);
        }
    }

    let nameless = open_session(&app, json!({})).await;
    nameless.assert(StatusCode::CREATED);
    assert!(!nameless.text("name").is_empty());
    assert_ne!(nameless.text("user_id"), opened.text("user_id"));
    app.get("/api/v1/session")
        .await
        .assert_problem(401, "unauthenticated");
    app.finish().await;
}

#[tokio::test]
async fn a_cookie_buys_only_from_this_sites_own_pages() {
    let app = TestApp::start().await;
    let sale = app.sale(10, json!({"per_user_limit": 100})).await;
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&sale).await;
    let with_cookie = async |path: String, headers: &[(&str, &str)]| {
        let mut request = app
            .client
            .post(app.url(&path))
            .header("cookie", format!("session={}", shopper.token));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Reply::of(request.send().await.expect("an answer")).await
    };
    let paths = [
        format!("/api/v1/sales/{sale}/orders"),
        format!("/api/v1/orders/{order}/pay"),
        format!("/api/v1/orders/{order}/cancel"),
    ];

    let before = app.snapshot().await;
    let other_port = "http://127.0.0.1:1";
    for foreign in [
        &[("origin", "https://evil.example")][..],
        &[("origin", other_port)],
        &[("origin", "null")],
        &[("sec-fetch-site", "cross-site")],
        &[
            ("sec-fetch-site", "cross-site"),
            ("origin", "https://evil.example"),
        ],
        &[("sec-fetch-site", "same-site")],
    ] {
        for path in &paths {
            let reply = with_cookie(path.clone(), foreign).await;
            reply.assert_problem(403, "cross_origin");
        }
    }
    assert_eq!(app.snapshot().await, before);

    for own in [
        &[("origin", app.base.as_str())][..],
        &[
            ("sec-fetch-site", "same-origin"),
            ("origin", app.base.as_str()),
        ],
    ] {
        with_cookie(paths[0].clone(), own)
            .await
            .assert(StatusCode::ACCEPTED);
    }
    with_cookie(paths[1].clone(), &[("origin", app.base.as_str())])
        .await
        .assert(StatusCode::OK);

    // A bearer token is nothing that a browser adds by itself, so its origin does not matter.
    let request = app
        .client
        .post(app.url(&paths[0]))
        .bearer_auth(&shopper.token)
        .header("origin", "https://app.example");
    Reply::of(request.send().await.expect("an answer"))
        .await
        .assert(StatusCode::ACCEPTED);
    app.finish().await;
}

// ---- the catalogue ----------------------------------------------------------------------------

#[tokio::test]
async fn sales_are_listed_open_ones_first_and_then_by_opening_time() {
    let app = TestApp::start().await;
    let later = app
        .sale(
            1,
            json!({"opens_at": in_secs(7_200), "closes_at": in_secs(9_000)}),
        )
        .await;
    let paused = app.sale(1, json!({"opens_at": in_secs(-100)})).await;
    let open_second = app.sale(3, json!({"opens_at": in_secs(-10)})).await;
    let soon = app.sale(1, json!({"opens_at": in_secs(3_600)})).await;
    let sold_out = app.sale(1, json!({"opens_at": in_secs(-300)})).await;
    let ended = app.sale(1, json!({"opens_at": in_secs(-400)})).await;
    let open_first = app.sale(3, json!({"opens_at": in_secs(-20)})).await;
    app.steer(&paused, "pause").await;
    app.steer(&ended, "close").await;
    app.shopper().must_buy(&sold_out).await;

    let list = async |query: &str| -> Vec<(String, String)> {
        let reply = app.get(&format!("/api/v1/sales{query}")).await;
        reply.assert(StatusCode::OK);
        assert_members(&reply.body, "sales");
        let sales = reply.body["sales"].as_array().expect("a list").clone();
        let text = |sale: &Value, member: &str| sale[member].as_str().expect("text").to_owned();
        sales
            .iter()
            .inspect(|sale| assert_sale(sale))
            .map(|sale| (text(sale, "id"), text(sale, "state")))
            .collect()
    };
    let expected = [
        (&open_first, "open"),
        (&open_second, "open"),
        (&ended, "ended"),
        (&sold_out, "sold_out"),
        (&paused, "paused"),
        (&soon, "scheduled"),
        (&later, "scheduled"),
    ]
    .map(|(id, state)| (id.clone(), state.to_owned()));
    assert_eq!(list("").await, expected);
    for state in ["scheduled", "open", "sold_out", "paused", "ended"] {
        let of_this_state: Vec<_> = expected
            .iter()
            .filter(|(_, found)| found == state)
            .cloned()
            .collect();
        assert_eq!(list(&format!("?state={state}")).await, of_this_state);
    }
    app.get("/api/v1/sales?state=closed")
        .await
        .assert_problem(422, "invalid");

    for (id, state) in &expected {
        let sale = app.sale_now(id).await;
        assert_sale(&sale);
        assert_eq!(
            (sale["id"].as_str(), sale["state"].as_str()),
            (Some(id.as_str()), Some(state.as_str()))
        );
    }
    app.get("/api/v1/sales/9223372036854775807")
        .await
        .assert_problem(404, "sale_not_found");
    app.finish().await;
}

// ---- buying -----------------------------------------------------------------------------------

#[tokio::test]
async fn an_order_is_accepted_written_and_paid() {
    let app = TestApp::start().await;
    let sale = app.sale(5, json!({"title": "Phone", "price_cents": 19_900, "currency": "EUR", "payment_timeout_secs": 600})).await;
    let shopper = app.shopper();
    let bought = shopper.buy(&sale).await;
    bought.assert(StatusCode::ACCEPTED);
    assert_members(&bought.body, "order_id sale_id status");
    assert_id(&bought.body["order_id"]);
    assert_eq!(
        (bought.text("sale_id"), bought.text("status")),
        (sale.as_str(), "queued")
    );
    assert!(!bought.headers.contains_key("idempotent-replayed"));
    let order = bought.text("order_id").to_owned();
    assert_eq!(bought.header("location"), format!("/api/v1/orders/{order}"));

    // It can be read at once, whether it is a row already or not.
    let read = shopper.get(bought.header("location")).await;
    read.assert(StatusCode::OK);
    assert_order(&read.body);

    let pending = shopper.until(&order, "pending_payment").await;
    assert_order(&pending);
    assert_eq!(
        json!([
            pending["order_id"],
            pending["sale_id"],
            pending["sale_title"],
            pending["price_cents"],
            pending["currency"]
        ]),
        json!([order, sale, "Phone", 19_900, "EUR"])
    );
    let until = time_of(&pending["pay_by"]) - time_of(&pending["created_at"]);
    assert!((595..660).contains(&until.whole_seconds()), "{pending:#}");
    assert_eq!(app.sale_now(&sale).await["remaining"], 4);

    let paid = shopper.pay(&order).await;
    paid.assert(StatusCode::OK);
    assert_order(&paid.body);
    assert_eq!(paid.text("status"), "paid");
    let again = shopper.pay(&order).await;
    again.assert(StatusCode::OK);
    assert_eq!(again.body, paid.body);
    assert_eq!(shopper.order(&order).await.body, paid.body);

    let refused = shopper.cancel(&order).await;
    refused.assert_problem(409, "not_cancellable");
    assert_eq!(shopper.order(&order).await.body, paid.body);
    app.assert_sound(&sale).await;
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_with_its_key_gets_its_first_answer() {
    let app = TestApp::start().await;
    let (sale, other_sale) = (app.sale(5, json!({})).await, app.sale(5, json!({})).await);
    let shopper = app.shopper();
    // The longest key, of all kinds of printable characters.
    let key = format!("{:~<64}", "a B!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}");
    let first = shopper.buy_with_key(&sale, &key).await;
    first.assert(StatusCode::ACCEPTED);
    assert!(!first.headers.contains_key("idempotent-replayed"));

    let assert_replayed = |reply: &Reply| {
        reply.assert(StatusCode::ACCEPTED);
        assert_eq!(reply.header("idempotent-replayed"), "true");
        assert_eq!(
            (&reply.body, reply.header("location")),
            (&first.body, first.header("location"))
        );
    };
    assert_replayed(&shopper.buy_with_key(&sale, &key).await);
    let storm = all_at_once((0..20).map(|_| {
        let (shopper, sale, key) = (shopper.clone(), sale.clone(), key.clone());
        async move { shopper.buy_with_key(&sale, &key).await }
    }));
    storm.await.iter().for_each(assert_replayed);

    for second in [
        shopper.buy_with_key(&sale, "another").await,
        shopper.buy(&sale).await,
    ] {
        second.assert_problem(409, "already_ordered");
        assert_eq!(second.text("order_id"), first.text("order_id"));
    }

    // A key means something for one shopper and one sale only.
    for reply in [
        app.shopper().buy_with_key(&sale, &key).await,
        shopper.buy_with_key(&other_sale, &key).await,
    ] {
        reply.assert(StatusCode::ACCEPTED);
        assert!(!reply.headers.contains_key("idempotent-replayed"));
        assert_ne!(reply.text("order_id"), first.text("order_id"));
    }

    // The answer stays when there is nothing to buy any more.
    app.steer(&sale, "pause").await;
    assert_replayed(&shopper.buy_with_key(&sale, &key).await);
    app.steer(&sale, "close").await;
    assert_replayed(&shopper.buy_with_key(&sale, &key).await);
    shopper
        .until(first.text("order_id"), "pending_payment")
        .await;
    shopper
        .cancel(first.text("order_id"))
        .await
        .assert(StatusCode::OK);
    assert_replayed(&shopper.buy_with_key(&sale, &key).await);
    app.finish().await;
}

#[tokio::test]
async fn a_shopper_holds_as_many_orders_as_the_sale_allows() {
    let app = TestApp::start().await;
    let sale = app.sale(10, json!({"per_user_limit": 3})).await;
    let shopper = app.shopper();
    let mut orders = Vec::new();
    for _ in 0..3 {
        orders.push(shopper.order_to_pay(&sale).await);
    }
    let refused = shopper.buy(&sale).await;
    refused.assert_problem(409, "already_ordered");
    assert!(orders.contains(&refused.text("order_id").to_owned()));

    shopper.cancel(&orders[1]).await.assert(StatusCode::OK);
    shopper.must_buy(&sale).await;
    shopper
        .buy(&sale)
        .await
        .assert_problem(409, "already_ordered");
    assert_eq!(app.assert_sound(&sale).await.live, 3);
    app.finish().await;
}

#[tokio::test]
async fn a_purchase_is_refused_with_the_reason() {
    let app = TestApp::start().await;
    let shopper = app.shopper();

    let opens_at = in_secs(3_600);
    let scheduled = app.sale(1, json!({"opens_at": opens_at})).await;
    let refused = shopper.buy(&scheduled).await;
    refused.assert_problem(409, "not_open");
    assert_eq!(
        refused.body["opens_at"],
        app.sale_now(&scheduled).await["opens_at"]
    );
    assert_eq!(
        time_of(&refused.body["opens_at"]).unix_timestamp(),
        time_of(&json!(opens_at)).unix_timestamp()
    );
    assert!((1..=3_601).contains(&retry_after(&refused)));

    let sale = app.sale(1, json!({})).await;
    app.steer(&sale, "pause").await;
    shopper.buy(&sale).await.assert_problem(409, "paused");
    app.steer(&sale, "resume").await;
    let order = shopper.must_buy(&sale).await;

    // The only buyer is told of the order, everybody else that there is nothing left.
    for _ in 0..3 {
        app.shopper()
            .buy(&sale)
            .await
            .assert_problem(409, "sold_out");
        let refused = shopper.buy(&sale).await;
        refused.assert_problem(409, "already_ordered");
        assert_eq!(refused.text("order_id"), order);
    }

    // A shut sale is shut for everybody, whoever holds an order.
    for (step, code) in [("pause", "paused"), ("close", "ended")] {
        app.steer(&sale, step).await;
        for buyer in [&shopper, &app.shopper()] {
            buyer.buy(&sale).await.assert_problem(409, code);
        }
    }
    shopper
        .buy("9223372036854775807")
        .await
        .assert_problem(404, "sale_not_found");
    let stranger = app
        .client
        .post(app.url(&format!("/api/v1/sales/{sale}/orders")));
    Reply::of(stranger.send().await.expect("an answer"))
        .await
        .assert_problem(401, "unauthenticated");
    for key in ["", &"k".repeat(65)] {
        shopper
            .buy_with_key(&sale, key)
            .await
            .assert_problem(422, "invalid");
    }
    assert_eq!(app.assert_sound(&sale).await.live, 1);
    app.finish().await;
}

#[tokio::test]
async fn a_sale_opens_and_ends_by_the_clock() {
    let app = TestApp::start().await;
    let sale = app.sale(1_000_000, json!({"opens_at": in_secs(2)})).await;
    app.shopper()
        .buy(&sale)
        .await
        .assert_problem(409, "not_open");
    assert_eq!(app.sale_now(&sale).await["state"], "scheduled");
    eventually("the sale opens", async || {
        let reply = app.shopper().buy(&sale).await;
        if reply.status == StatusCode::ACCEPTED {
            return Some(());
        }
        reply.assert_problem(409, "not_open");
        None
    })
    .await;
    assert_eq!(app.sale_now(&sale).await["state"], "open");
    let end = json!({"closes_at": in_secs(1)});
    app.admin(
        Method::PATCH,
        &format!("/api/v1/admin/sales/{sale}"),
        Some(end),
    )
    .await
    .assert(StatusCode::OK);
    eventually("the sale ends", async || {
        let reply = app.shopper().buy(&sale).await;
        if reply.status == StatusCode::ACCEPTED {
            return None;
        }
        reply.assert_problem(409, "ended");
        Some(())
    })
    .await;
    assert_eq!(app.sale_now(&sale).await["state"], "ended");
    app.assert_sound(&sale).await;
    app.finish().await;
}

// ---- the life of an order ---------------------------------------------------------------------

#[tokio::test]
async fn a_cancelled_order_gives_its_unit_back_at_once() {
    let app = TestApp::start().await;
    let sale = app.sale(1, json!({})).await;
    let (shopper, other) = (app.shopper(), app.shopper());
    let order = shopper.order_to_pay(&sale).await;
    other.buy(&sale).await.assert_problem(409, "sold_out");

    let cancelled = shopper.cancel(&order).await;
    cancelled.assert(StatusCode::OK);
    assert_order(&cancelled.body);
    assert_eq!(cancelled.text("status"), "cancelled");
    assert_eq!(app.sale_now(&sale).await["remaining"], 1);
    let again = shopper.cancel(&order).await;
    again.assert(StatusCode::OK);
    assert_eq!(again.body, cancelled.body);
    let refused = shopper.pay(&order).await;
    refused.assert_problem(409, "not_payable");
    assert_eq!(refused.text("order_status"), "cancelled");

    other.must_buy(&sale).await;
    shopper.buy(&sale).await.assert_problem(409, "sold_out");
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.cancelled, audit.remaining), (1, 1, 0));
    app.finish().await;
}

#[tokio::test]
async fn an_order_that_is_not_paid_in_time_expires() {
    let app = TestApp::start().await;
    let sale = app.sale(1, json!({"payment_timeout_secs": 1})).await;
    let shopper = app.shopper();
    let order = shopper.must_buy(&sale).await;
    let expired = shopper.until(&order, "expired").await;
    assert_order(&expired);
    let refused = shopper.pay(&order).await;
    refused.assert_problem(409, "not_payable");
    assert_eq!(refused.text("order_status"), "expired");
    shopper
        .cancel(&order)
        .await
        .assert_problem(409, "not_cancellable");
    assert_eq!(shopper.order(&order).await.body, expired);

    let next = eventually("the unit is buyable again", async || {
        let reply = shopper.buy(&sale).await;
        (reply.status == StatusCode::ACCEPTED).then(|| reply.text("order_id").to_owned())
    })
    .await;
    assert_ne!(next, order);
    app.finish().await;
}

#[tokio::test]
async fn a_rejected_order_is_there_to_be_seen() {
    let app = TestApp::start().await;
    let sale = app.sale(1, json!({})).await;
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&sale).await;
    // Only a fault makes one, so it is planted.
    let mut database = app.database.connect().await;
    sqlx::query(
        "UPDATE orders SET status = 'rejected', slot = NULL, pay_by = NULL, closed_at = now()",
    )
    .execute(&mut database)
    .await
    .expect("UPDATE");
    let read = shopper.order(&order).await;
    read.assert(StatusCode::OK);
    assert_order(&read.body);
    assert_eq!(read.text("status"), "rejected");
    let refused = shopper.pay(&order).await;
    refused.assert_problem(409, "not_payable");
    assert_eq!(refused.text("order_status"), "rejected");
    shopper
        .cancel(&order)
        .await
        .assert_problem(409, "not_cancellable");
    let listed = app
        .admin(
            Method::GET,
            &format!("/api/v1/admin/sales/{sale}/orders?status=rejected"),
            None,
        )
        .await;
    assert_eq!(listed.body["orders"][0]["order_id"], order);
    app.finish().await;
}

#[tokio::test]
async fn an_order_is_queued_until_somebody_writes_it() {
    let app = TestApp::start_with(Options {
        role: Role::ServerWithoutWriter,
        ..Options::default()
    })
    .await;
    let sale = app.sale(2, json!({})).await;
    let shopper = app.shopper();
    let order = shopper.must_buy(&sale).await;
    let queued = shopper.order(&order).await;
    queued.assert(StatusCode::OK);
    assert_order(&queued.body);
    assert_eq!(queued.text("status"), "queued");
    assert_eq!(
        shopper.get("/api/v1/orders").await.body["orders"],
        json!([queued.body])
    );

    let refused = shopper.pay(&order).await;
    refused.assert_problem(409, "still_queued");
    retry_after(&refused);
    shopper
        .cancel(&order)
        .await
        .assert_problem(409, "not_cancellable");
    for other in [
        app.shopper().order(&order).await,
        app.shopper().pay(&order).await,
        app.shopper().cancel(&order).await,
    ] {
        other.assert_problem(404, "order_not_found");
    }
    let audit = app
        .admin(
            Method::GET,
            &format!("/api/v1/admin/sales/{sale}/audit"),
            None,
        )
        .await;
    let audit = audit.body;
    assert_eq!(
        json!([
            audit["ok"],
            audit["quiescent"],
            audit["conserved"],
            audit["backlog"],
            audit["live"]
        ]),
        json!([true, false, null, 1, 0])
    );

    let writer = app.another(Options::default()).await;
    let written = shopper.until(&order, "pending_payment").await;
    assert_order(&written);
    for member in [
        "order_id",
        "sale_id",
        "sale_title",
        "price_cents",
        "currency",
    ] {
        assert_eq!(written[member], queued.body[member]);
    }
    shopper.pay(&order).await.assert(StatusCode::OK);
    app.assert_sound(&sale).await;
    writer.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn my_orders_are_listed_newest_first_and_in_pages() {
    let app = TestApp::start().await;
    let sales = [
        app.sale(9, json!({"per_user_limit": 3})).await,
        app.sale(9, json!({"per_user_limit": 3})).await,
    ];
    let (shopper, other) = (app.shopper(), app.shopper());
    let mut mine = Vec::new();
    for turn in 0..6 {
        mine.push(shopper.order_to_pay(&sales[turn % 2]).await);
        if turn < 2 {
            other.order_to_pay(&sales[turn]).await;
        }
    }
    mine.reverse();
    shopper.pay(&mine[2]).await.assert(StatusCode::OK);

    let list = async |query: &str| -> Vec<String> {
        let reply = shopper.get(&format!("/api/v1/orders{query}")).await;
        reply.assert(StatusCode::OK);
        assert_members(&reply.body, "orders");
        let orders = reply.body["orders"].as_array().expect("a list").clone();
        orders
            .iter()
            .inspect(|order| assert_order(order))
            .map(|order| order["order_id"].as_str().expect("an id").to_owned())
            .collect()
    };
    assert_eq!(list("").await, mine);
    assert_eq!(list("?limit=4").await, mine[..4]);
    assert_eq!(
        list(&format!("?limit=4&after={}", mine[3])).await,
        mine[4..]
    );
    assert_eq!(list(&format!("?after={}", mine[1])).await, mine[2..]);
    assert!(list(&format!("?after={}", mine[5])).await.is_empty());
    for bad in [
        "limit=0",
        "limit=-1",
        "limit=ten",
        "limit=99999999999999999999",
        "after=0",
        "after=x",
        "after=",
    ] {
        shopper
            .get(&format!("/api/v1/orders?{bad}"))
            .await
            .assert_problem(422, "invalid");
    }
    assert_eq!(
        app.shopper().get("/api/v1/orders").await.body,
        json!({"orders": []})
    );
    app.get("/api/v1/orders")
        .await
        .assert_problem(401, "unauthenticated");
    app.finish().await;
}

#[tokio::test]
async fn nobody_sees_or_changes_somebody_elses_order() {
    let app = TestApp::start().await;
    let sale = app.sale(2, json!({})).await;
    let (owner, thief) = (app.shopper(), app.shopper());
    let order = owner.order_to_pay(&sale).await;
    let before = app.snapshot().await;
    for id in [order.as_str(), "1", "9223372036854775807"] {
        let path = format!("/api/v1/orders/{id}");
        for (method, path) in [
            (Method::GET, path.clone()),
            (Method::GET, format!("{path}/events")),
            (Method::POST, format!("{path}/pay")),
            (Method::POST, format!("{path}/cancel")),
        ] {
            within_patience(thief.call(method.clone(), &path))
                .await
                .assert_problem(404, "order_not_found");
            let nobody = app.client.request(method, app.url(&path));
            let reply = within_patience(Reply::of(nobody.send().await.expect("an answer"))).await;
            reply.assert_problem(401, "unauthenticated");
        }
    }
    assert_eq!(app.snapshot().await, before);
    app.finish().await;
}
