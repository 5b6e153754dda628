//! The admin routes, and what they do to a sale by the time they answer.

use super::{
    AUDIT, ORDER, assert_members, assert_order, assert_refused, assert_sale, in_secs, time_of,
};
use crate::support::app::{ADMIN_TOKEN, Options, Reply, TestApp, all_at_once, eventually};
use flash_sale::domain::UserId;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// Every admin route, and a body that it would take.
fn routes(sale: &str) -> Vec<(Method, String, Option<Value>)> {
    let at = |rest: &str| format!("/api/v1/admin/sales/{sale}{rest}");
    vec![
        (
            Method::POST,
            "/api/v1/admin/sales".to_owned(),
            Some(json!({"title": "b", "price_cents": 1, "stock": 1})),
        ),
        (Method::PATCH, at(""), Some(json!({"title": "b"}))),
        (Method::POST, at("/pause"), None),
        (Method::POST, at("/resume"), None),
        (Method::POST, at("/close"), None),
        (Method::POST, at("/stock"), Some(json!({"add": 1}))),
        (Method::GET, at("/audit"), None),
        (Method::GET, at("/orders"), None),
    ]
}

async fn call(
    app: &TestApp,
    (method, path, body): &(Method, String, Option<Value>),
    auth: Option<&str>,
) -> Reply {
    let mut request = app.client.request(method.clone(), app.url(path));
    if let Some(auth) = auth {
        request = request.header("authorization", auth);
    }
    if let Some(body) = body {
        request = request.json(body);
    }
    Reply::of(request.send().await.expect("an answer")).await
}

#[tokio::test]
async fn without_the_admin_token_nothing_happens() {
    let app = TestApp::start().await;
    let sale = app.sale(5, json!({})).await;
    let shopper = app.shopper();
    let before = app.snapshot().await;
    let (longer, shorter) = (
        format!("Bearer {ADMIN_TOKEN}x"),
        format!("Bearer {}", &ADMIN_TOKEN[1..]),
    );
    let (basic, users) = (
        format!("Basic {ADMIN_TOKEN}"),
        format!("Bearer {}", shopper.token),
    );
    for route in routes(&sale) {
        for auth in [
            None,
            Some(""),
            Some("Bearer "),
            Some(&longer),
            Some(&shorter),
            Some(&basic),
            Some(&users),
            Some(ADMIN_TOKEN),
        ] {
            call(&app, &route, auth)
                .await
                .assert_problem(401, "unauthenticated");
        }
        // A shopper's cookie opens nothing here either, and strangers do not learn what exists.
        let request = app
            .client
            .request(route.0, app.url(&route.1))
            .header("cookie", format!("session={ADMIN_TOKEN}"));
        Reply::of(request.send().await.expect("an answer"))
            .await
            .assert_problem(401, "unauthenticated");
    }
    for route in routes("9223372036854775807") {
        call(&app, &route, None)
            .await
            .assert_problem(401, "unauthenticated");
    }
    assert_eq!(app.snapshot().await, before);
    app.finish().await;
}

#[tokio::test]
async fn without_a_configured_token_there_are_no_admin_routes() {
    let operated = TestApp::start().await;
    let sale = operated.sale(5, json!({})).await;
    let app = operated
        .another(Options {
            admin: false,
            ..Options::default()
        })
        .await;
    let before = operated.snapshot().await;
    let with_token = format!("Bearer {ADMIN_TOKEN}");
    for route in routes(&sale) {
        for auth in [None, Some(with_token.as_str()), Some("Bearer ")] {
            let reply = call(&app, &route, auth).await;
            assert_eq!(reply.status, StatusCode::NOT_FOUND, "{route:?}");
            assert_refused(&reply, &route.1);
        }
    }
    assert_eq!(operated.snapshot().await, before);
    app.stop().await;
    operated.finish().await;
}

#[tokio::test]
async fn a_new_sale_is_what_was_asked_for_and_buyable_at_once() {
    let app = TestApp::start().await;
    let create = async |body: Value| {
        let reply = app
            .admin(Method::POST, "/api/v1/admin/sales", Some(body))
            .await;
        reply.assert(StatusCode::CREATED);
        assert_sale(&reply.body);
        reply.body
    };
    let least = create(json!({"title": "a thing", "price_cents": 0, "stock": 1})).await;
    assert_eq!(
        json!([
            least["title"],
            least["description"],
            least["image_url"],
            least["price_cents"],
            least["original_price_cents"]
        ]),
        json!(["a thing", "", "", 0, null])
    );
    assert_eq!(
        json!([
            least["stock"],
            least["remaining"],
            least["per_user_limit"],
            least["state"]
        ]),
        json!([1, 1, 1, "open"])
    );
    let (opens_at, now) = (time_of(&least["opens_at"]), time_of(&least["server_time"]));
    assert!(
        opens_at <= now && (now - opens_at).whole_seconds() < 10,
        "{least:#}"
    );
    assert_eq!(time_of(&least["closes_at"]) - opens_at, time::Duration::DAY);
    app.shopper()
        .must_buy(least["id"].as_str().expect("an id"))
        .await;

    let all = json!({
        "title": "Phone ☎", "description": "two\nlines", "image_url": "/static/img/phone.svg", "currency": "EUR",
        "price_cents": 19_900, "original_price_cents": 29_900, "stock": 100_000, "per_user_limit": 2,
        "opens_at": "2030-01-01T08:00:00+08:00", "closes_at": "2030-01-02T00:00:00Z", "payment_timeout_secs": 60,
    });
    let sale = create(all.clone()).await;
    for (member, value) in all.as_object().expect("an object") {
        if member.ends_with("_at") {
            continue;
        }
        assert_eq!(&sale[member], value, "{member}");
    }
    assert_eq!(
        json!([sale["opens_at"], sale["closes_at"]]),
        json!(["2030-01-01T00:00:00Z", "2030-01-02T00:00:00Z"])
    );
    assert_eq!(
        json!([sale["remaining"], sale["state"]]),
        json!([100_000, "scheduled"])
    );

    // What opens later lasts a day from then.
    let later = create(
        json!({"title": "b", "price_cents": 1, "stock": 1, "opens_at": "2030-01-01T00:00:00Z"}),
    )
    .await;
    assert_eq!(later["closes_at"], "2030-01-02T00:00:00Z");

    let mut read = app.sale_now(sale["id"].as_str().expect("an id")).await;
    read["server_time"] = sale["server_time"].clone();
    assert_eq!(read, sale);
    app.finish().await;
}

#[tokio::test]
async fn a_sale_can_be_changed_member_by_member() {
    let app = TestApp::start().await;
    let sale = app.sale(5, json!({"payment_timeout_secs": 600})).await;
    let path = format!("/api/v1/admin/sales/{sale}");
    let mut expected = app.sale_now(&sale).await;
    for change in [
        json!({"title": "another thing"}),
        json!({"description": "words"}),
        json!({"image_url": "https://images.example/a.png"}),
        json!({"closes_at": "2031-01-02T03:04:05Z"}),
        json!({"payment_timeout_secs": 30}),
        json!({"title": "two", "description": "", "image_url": ""}),
    ] {
        let reply = app.admin(Method::PATCH, &path, Some(change.clone())).await;
        reply.assert(StatusCode::OK);
        assert_sale(&reply.body);
        expected
            .as_object_mut()
            .expect("an object")
            .extend(change.as_object().expect("an object").clone());
        for found in [reply.body, app.sale_now(&sale).await] {
            expected["server_time"] = found["server_time"].clone();
            assert_eq!(found, expected);
        }
    }
    let shopper = app.shopper();
    let pending = shopper
        .until(&shopper.must_buy(&sale).await, "pending_payment")
        .await;
    assert_eq!(pending["sale_title"], "two");
    let to_pay = time_of(&pending["pay_by"]) - time_of(&pending["created_at"]);
    assert!((25..60).contains(&to_pay.whole_seconds()), "{pending:#}");

    // The end can be brought forward, even to what has passed.
    let opened = app.sale(5, json!({"opens_at": in_secs(-100)})).await;
    let change = json!({"closes_at": in_secs(-1)});
    let reply = app
        .admin(
            Method::PATCH,
            &format!("/api/v1/admin/sales/{opened}"),
            Some(change),
        )
        .await;
    reply.assert(StatusCode::OK);
    assert_eq!(reply.text("state"), "ended");
    app.shopper()
        .buy(&opened)
        .await
        .assert_problem(409, "ended");

    let unknown = "/api/v1/admin/sales/9223372036854775807";
    app.admin(Method::PATCH, unknown, Some(json!({"title": "b"})))
        .await
        .assert_problem(404, "sale_not_found");
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pausing_and_closing_count_on_every_instance_before_they_answer() {
    let here = TestApp::start().await;
    let there = here.another(Options::default()).await;
    let sale = here.sale(1_000, json!({})).await;
    there.shopper().must_buy(&sale).await;
    for _ in 0..5 {
        assert_eq!(here.steer(&sale, "pause").await["state"], "paused");
        there
            .shopper()
            .buy(&sale)
            .await
            .assert_problem(409, "paused");
        here.shopper()
            .buy(&sale)
            .await
            .assert_problem(409, "paused");
        assert_eq!(here.steer(&sale, "resume").await["state"], "open");
        here.shopper().must_buy(&sale).await;
        eventually("the other instance sells again", async || {
            (there.shopper().buy(&sale).await.status == StatusCode::ACCEPTED).then_some(())
        })
        .await;
    }

    // Buyers keep coming while the sale is closed: whoever comes after the answer is refused.
    let buyers = all_at_once((0..200).map(|_| {
        let (shopper, sale) = (there.shopper(), sale.clone());
        async move { shopper.buy(&sale).await.code().to_owned() }
    }));
    let (codes, closed) = tokio::join!(buyers, here.steer(&sale, "close"));
    assert!(
        codes.iter().all(|code| code.is_empty() || code == "ended"),
        "{codes:?}"
    );
    assert_eq!(closed["state"], "ended");
    let sold = here.quiet_audit(&sale).await.live;
    for shopper in [there.shopper(), here.shopper()] {
        shopper.buy(&sale).await.assert_problem(409, "ended");
    }

    // Closing is final.
    for step in ["resume", "pause"] {
        assert_eq!(here.steer(&sale, step).await["state"], "ended");
        there
            .shopper()
            .buy(&sale)
            .await
            .assert_problem(409, "ended");
    }
    assert_eq!(here.assert_sound(&sale).await.live, sold);
    there.stop().await;
    for step in ["pause", "resume", "close"] {
        let path = format!("/api/v1/admin/sales/9223372036854775807/{step}");
        here.admin(Method::POST, &path, None)
            .await
            .assert_problem(404, "sale_not_found");
    }
    here.finish().await;
}

#[tokio::test]
async fn stock_is_added_and_taken_away_up_to_what_remains() {
    let app = TestApp::start().await;
    let sale = app.sale(3, json!({})).await;
    let of = |sale: &Value| {
        (
            sale["stock"].as_i64().expect("a number"),
            sale["remaining"].as_i64().expect("a number"),
        )
    };
    for _ in 0..3 {
        app.shopper().must_buy(&sale).await;
    }
    app.shopper()
        .buy(&sale)
        .await
        .assert_problem(409, "sold_out");
    app.add_stock(&sale, -1)
        .await
        .assert_problem(409, "not_enough_remaining");

    let added = app.add_stock(&sale, 4).await;
    added.assert(StatusCode::OK);
    assert_sale(&added.body);
    assert_eq!((of(&added.body), added.text("state")), ((7, 4), "open"));
    app.shopper().must_buy(&sale).await;

    for too_much in [-4, -7, -8, -1_000_000] {
        let refused = app.add_stock(&sale, too_much).await;
        refused.assert_problem(409, "not_enough_remaining");
        assert_eq!(of(&app.sale_now(&sale).await), (7, 3));
    }
    let taken = app.add_stock(&sale, -1).await;
    taken.assert(StatusCode::OK);
    assert_eq!(of(&taken.body), (6, 2));
    let emptied = app.add_stock(&sale, -2).await;
    emptied.assert(StatusCode::OK);
    assert_eq!(
        (of(&emptied.body), emptied.text("state")),
        ((4, 0), "sold_out")
    );
    app.shopper()
        .buy(&sale)
        .await
        .assert_problem(409, "sold_out");
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.stock, audit.live, audit.remaining), (4, 4, 0));
    app.add_stock("9223372036854775807", 1)
        .await
        .assert_problem(404, "sale_not_found");
    app.add_stock("9223372036854775807", -1)
        .await
        .assert_problem(404, "sale_not_found");
    app.finish().await;
}

#[tokio::test]
async fn the_audit_counts_everything_and_says_so_in_these_members() {
    let app = TestApp::start().await;
    let sale = app.sale(10, json!({})).await;
    let mut orders = Vec::new();
    for _ in 0..4 {
        let shopper = app.shopper();
        let order = shopper.order_to_pay(&sale).await;
        orders.push((shopper, order));
    }
    orders[0].0.pay(&orders[0].1).await.assert(StatusCode::OK);
    orders[1]
        .0
        .cancel(&orders[1].1)
        .await
        .assert(StatusCode::OK);
    app.quiet_audit(&sale).await;
    let reply = app
        .admin(
            Method::GET,
            &format!("/api/v1/admin/sales/{sale}/audit"),
            None,
        )
        .await;
    reply.assert(StatusCode::OK);
    assert_members(&reply.body, AUDIT);
    assert_members(
        &reply.body["redis"],
        "remaining buyers stream epoch run_id_approved",
    );
    assert_members(&reply.body["postgres"], "taken epoch");
    let expected = json!({
        "sale_id": sale, "ok": true, "quiescent": true, "stock": 10, "remaining": 7, "live": 3, "pending_payment": 2,
        "paid": 1, "cancelled": 1, "expired": 0, "rejected": 0, "backlog": 0, "oversold": 0, "duplicate_users": 0,
        "conserved": true,
        "redis": {"remaining": 7, "buyers": 3, "stream": 0, "epoch": 1, "run_id_approved": true},
        "postgres": {"taken": 3, "epoch": 1}, "problems": [],
    });
    assert_eq!(reply.body, expected);

    let mut database = app.database.connect().await;
    sqlx::query("UPDATE sales SET taken = taken + 1")
        .execute(&mut database)
        .await
        .expect("UPDATE");
    let reply = app
        .admin(
            Method::GET,
            &format!("/api/v1/admin/sales/{sale}/audit"),
            None,
        )
        .await;
    reply.assert(StatusCode::OK);
    assert_eq!(reply.body["ok"], false);
    assert!(
        !reply.body["problems"]
            .as_array()
            .expect("a list")
            .is_empty(),
        "{:#}",
        reply.body
    );
    let unknown = "/api/v1/admin/sales/9223372036854775807/audit";
    app.admin(Method::GET, unknown, None)
        .await
        .assert_problem(404, "sale_not_found");
    app.finish().await;
}

#[tokio::test]
async fn the_operator_sees_all_orders_of_a_sale_and_whose_they_are() {
    let app = TestApp::start().await;
    let (sale, other) = (app.sale(9, json!({})).await, app.sale(9, json!({})).await);
    let mut orders = Vec::new();
    for _ in 0..5 {
        let shopper = app.shopper();
        shopper.order_to_pay(&other).await;
        let order = shopper.order_to_pay(&sale).await;
        orders.push((order, shopper));
    }
    orders.reverse();
    orders[1].1.pay(&orders[1].0).await.assert(StatusCode::OK);
    orders[3]
        .1
        .cancel(&orders[3].0)
        .await
        .assert(StatusCode::OK);

    let list = async |query: &str| -> Vec<(String, String)> {
        let reply = app
            .admin(
                Method::GET,
                &format!("/api/v1/admin/sales/{sale}/orders{query}"),
                None,
            )
            .await;
        reply.assert(StatusCode::OK);
        assert_members(&reply.body, "orders");
        let text = |order: &Value, member: &str| order[member].as_str().expect("text").to_owned();
        let orders = reply.body["orders"].as_array().expect("a list").clone();
        for order in &orders {
            assert_members(order, &format!("{ORDER} user_id"));
            let mut owners = order.clone();
            owners.as_object_mut().expect("an object").remove("user_id");
            assert_order(&owners);
        }
        orders
            .iter()
            .map(|order| (text(order, "order_id"), text(order, "user_id")))
            .collect()
    };
    let all: Vec<_> = orders
        .iter()
        .map(|(order, shopper)| (order.clone(), shopper.user.to_string()))
        .collect();
    assert_eq!(list("").await, all);
    assert_eq!(list("?limit=2").await, all[..2]);
    assert_eq!(
        list(&format!("?limit=2&after={}", all[1].0)).await,
        all[2..4]
    );
    assert_eq!(list("?status=paid").await, all[1..2]);
    assert_eq!(list("?status=cancelled").await, all[3..4]);
    let pending = [&all[0], &all[2], &all[4]].map(Clone::clone);
    assert_eq!(list("?status=pending_payment").await, pending);
    assert_eq!(
        list(&format!(
            "?status=pending_payment&limit=1&after={}",
            all[0].0
        ))
        .await,
        pending[1..2]
    );
    let of = |user: &str| format!("?user={user}");
    assert_eq!(
        list(&of(&all[1].1)).await,
        all[1..2],
        "not those of other sales"
    );
    assert_eq!(
        list(&format!("{}&status=paid", of(&all[1].1))).await,
        all[1..2]
    );
    for nobody in [
        of(&UserId::random().to_string()),
        format!("{}&status=cancelled", of(&all[1].1)),
        format!("{}&after={}", of(&all[1].1), all[1].0),
    ] {
        assert!(list(&nobody).await.is_empty(), "{nobody}");
    }
    for none in ["expired", "rejected", "queued"] {
        assert!(list(&format!("?status={none}")).await.is_empty(), "{none}");
    }
    for bad in [
        "status=done",
        "status=",
        "limit=0",
        "limit=-1",
        "limit=x",
        "after=x",
        "after=-1",
        "user=",
        "user=me",
    ] {
        let reply = app
            .admin(
                Method::GET,
                &format!("/api/v1/admin/sales/{sale}/orders?{bad}"),
                None,
            )
            .await;
        reply.assert_problem(422, "invalid");
    }
    let unknown = "/api/v1/admin/sales/9223372036854775807/orders";
    app.admin(Method::GET, unknown, None)
        .await
        .assert_problem(404, "sale_not_found");
    app.finish().await;
}
