//! Who may buy with what: an admission is one user's for one sale, for a while, and for one order.

use super::{admission, join, look, path, sale, turns::buy, until, written};
use crate::support::app::{Options, Reply, Shopper, TestApp, all_at_once};
use crate::support::{
    Servers,
    plant::{FORGET_IDEMPOTENCY_KEYS, plant},
};
use flash_sale::{
    domain::{Admission, UserId},
    sale::ShopError,
};
use reqwest::{Method, StatusCode};
use serde_json::json;
use std::collections::BTreeSet;
use time::{Duration, OffsetDateTime};

fn soon() -> Duration {
    Duration::seconds(-1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_ones_own_admission_for_this_sale_buys() {
    let app = TestApp::start().await;
    let (one, other) = (
        sale(&app, 10, soon(), json!({})).await,
        sale(&app, 10, soon(), json!({})).await,
    );
    let (ada, eve) = (app.shopper(), app.shopper());
    join(&ada, &one).await;
    join(&ada, &other).await;
    join(&eve, &one).await;
    let (mine, elsewhere) = (admission(&ada, &one).await, admission(&ada, &other).await);
    let theirs = admission(&eve, &one).await;

    ada.refused(&one, "admission_required").await;
    for token in [
        &theirs,
        &elsewhere,
        "",
        "x",
        &mine[1..],
        &format!("{mine}A"),
        &"A".repeat(5_000),
    ] {
        buy(&ada, &one, token)
            .await
            .assert_problem(403, "admission_invalid");
    }
    // Two headers are one too many, whatever they say.
    let both = [
        ("Admission-Token", mine.as_str()),
        ("Admission-Token", mine.as_str()),
    ];
    let reply = ada
        .post_with(&format!("/api/v1/sales/{one}/orders"), &both)
        .await;
    reply.assert_problem(403, "admission_invalid");
    assert_eq!(app.audit(&one).await.live, 0);

    buy(&ada, &one, &mine).await.assert(StatusCode::ACCEPTED);
    // It is good at every instance.
    let second = app.another(Options::default()).await;
    buy(&second.as_shopper(&eve), &one, &theirs)
        .await
        .assert(StatusCode::ACCEPTED);
    assert_eq!(app.assert_sound(&one).await.live, 2);
    second.stop().await;
    app.finish().await;
}

/// A sale that allows five each, somebody with a turn in it, and all answers to a hundred uses of their admission at
/// two instances.
async fn a_hundred_uses(app: &TestApp, second: &TestApp) -> (String, Shopper, String, Vec<Reply>) {
    let opens_at = written(OffsetDateTime::now_utc() + soon());
    let members = json!({"per_user_limit": 5, "opens_at": opens_at, "waiting_room": {}});
    let sale = app.sale(100, members).await;
    let ada = app.shopper();
    join(&ada, &sale).await;
    let token = admission(&ada, &sale).await;
    let elsewhere = second.as_shopper(&ada);
    let replies = all_at_once((0..100).map(|number| {
        let shopper = if number % 2 == 0 { &ada } else { &elsewhere }.clone();
        let (sale, token) = (sale.clone(), token.clone());
        async move { buy(&shopper, &sale, &token).await }
    }))
    .await;
    (sale, ada, token, replies)
}

fn orders_of(replies: &[Reply]) -> BTreeSet<String> {
    let named = replies
        .iter()
        .filter_map(|reply| reply.body["order_id"].as_str());
    named.map(str::to_owned).collect()
}

/// With a limit of five, a hundred uses of one admission make one order; so they do after that was cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_order_comes_of_an_admission() {
    let app = TestApp::start().await;
    let second = app.another(Options::default()).await;
    let (sale, ada, token, replies) = a_hundred_uses(&app, &second).await;
    for reply in &replies {
        if !reply.is_accepted() {
            reply.assert_problem(409, "admission_used");
        }
    }
    let orders = orders_of(&replies);
    assert_eq!(orders.len(), 1, "{orders:?}");
    let accepted = replies.iter().filter(|reply| reply.is_accepted());
    assert_eq!(accepted.count(), 1);

    // A retry with a key gets the first answer, and no key makes another order of it.
    let order = orders.first().expect("one").clone();
    for key in ["one", "two"] {
        let headers = [
            ("Admission-Token", token.as_str()),
            ("Idempotency-Key", key),
        ];
        let reply = ada
            .post_with(&format!("/api/v1/sales/{sale}/orders"), &headers)
            .await;
        reply.assert(StatusCode::ACCEPTED);
        assert_eq!(reply.text("order_id"), order);
        assert_eq!(reply.header("idempotent-replayed"), "true");
    }
    ada.until(&order, "pending_payment").await;
    ada.cancel(&order).await.assert(StatusCode::OK);
    let again = buy(&ada, &sale, &token).await;
    again.assert_problem(409, "admission_used");
    assert_eq!(again.text("order_id"), order);
    assert_eq!(app.assert_sound(&sale).await.live, 0);
    second.stop().await;
    app.finish().await;
}

/// The test above would notice a purchase that does not use its turn up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admission_that_can_be_reused_is_noticed() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let second = app.another(Options::default()).await;
    plant(&mut app.redis().await, FORGET_IDEMPOTENCY_KEYS).await;
    let (_, _, _, replies) = a_hundred_uses(&app, &second).await;
    assert_eq!(orders_of(&replies).len(), 5);
    second.stop().await;
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_ends_and_who_joins_again_stands_behind_everybody() {
    let app = TestApp::start().await;
    let room = json!({"turn_secs": 1, "overbooking_percent": 0});
    let sale = sale(&app, 1, soon(), room).await;
    let (ada, bob) = (app.shopper(), app.shopper());
    join(&ada, &sale).await;
    let token = admission(&ada, &sale).await;
    join(&bob, &sale).await;
    until(&ada, &sale, "missed").await;
    buy(&ada, &sale, &token)
        .await
        .assert_problem(409, "admission_expired");
    assert_eq!(app.audit(&sale).await.live, 0);
    // Fifty tabs notice at once; it is one new place, behind Bob's.
    let places = all_at_once((0..50).map(|_| {
        let (ada, sale) = (ada.clone(), sale.clone());
        async move { join(&ada, &sale).await }
    }))
    .await;
    let joined = places
        .iter()
        .filter_map(|place| place.body["joined"].as_u64())
        .max();
    assert!(joined <= Some(3), "{joined:?}");
    let token = admission(&bob, &sale).await;
    buy(&bob, &sale, &token).await.assert(StatusCode::ACCEPTED);
    app.finish().await;
}

/// Who may not buy for another reason hears that reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_window_and_the_stock_are_said_first() {
    let app = TestApp::start().await;
    let later = sale(&app, 1, Duration::HOUR, json!({})).await;
    let shopper = app.shopper();
    shopper.refused(&later, "not_open").await;
    shopper
        .buy("123456789")
        .await
        .assert_problem(404, "sale_not_found");
    shopper
        .post(&path("123456789"))
        .await
        .assert_problem(404, "sale_not_found");
    let ended = sale(&app, 1, soon(), json!({})).await;
    let close = format!("/api/v1/admin/sales/{ended}/close");
    app.admin(Method::POST, &close, None)
        .await
        .assert(StatusCode::OK);
    shopper.refused(&ended, "ended").await;
    shopper
        .post(&path(&ended))
        .await
        .assert_problem(409, "ended");
    app.finish().await;
}

/// Per sale, by the operator: none, one, changed, none again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_switches_the_room_on_and_off() {
    let app = TestApp::start().await;
    let plain = app.sale(10, json!({})).await;
    let shopper = app.shopper();
    shopper
        .post(&path(&plain))
        .await
        .assert_problem(404, "waiting_room_not_found");
    look(&shopper, &plain)
        .await
        .assert_problem(404, "waiting_room_not_found");
    // A header that nobody asks for does no harm.
    buy(&shopper, &plain, "whatever")
        .await
        .assert(StatusCode::ACCEPTED);

    let admin = format!("/api/v1/admin/sales/{plain}");
    let change = async |room: serde_json::Value| {
        app.admin(Method::PATCH, &admin, Some(json!({"waiting_room": room})))
            .await
    };
    let on = change(json!({"per_second": 7})).await;
    on.assert(StatusCode::OK);
    let expected = json!({"opens_before_secs": 600, "per_second": 7, "turn_secs": 120, "overbooking_percent": 20});
    assert_eq!(on.body["waiting_room"], expected);
    let title = app
        .admin(Method::PATCH, &admin, Some(json!({"title": "other"})))
        .await;
    assert_eq!(title.body["waiting_room"], expected, "what is absent stays");
    let late = app.shopper();
    late.refused(&plain, "admission_required").await;
    for (member, bad) in [
        ("opens_before_secs", json!(-1)),
        ("opens_before_secs", json!(86_401)),
        ("per_second", json!(0)),
        ("turn_secs", json!(0)),
        ("turn_secs", json!(601)),
        ("overbooking_percent", json!(-1)),
        ("overbooking_percent", json!(1.5)),
        ("shuffle", json!(true)),
    ] {
        let reply = change(json!({member: bad})).await;
        reply.assert_problem(422, "invalid");
    }
    let off = change(json!(null)).await;
    assert!(off.body["waiting_room"].is_null());
    late.buy(&plain).await.assert(StatusCode::ACCEPTED);
    app.finish().await;
}

/// An instance that has not heard of a sale yet looks it up with the first purchase, and does not sell it unseen.
#[tokio::test]
async fn a_fresh_instance_lets_nobody_past_the_door() {
    let app = TestApp::start().await;
    let (guarded, plain) = (
        sale(&app, 10, soon(), json!({})).await,
        app.sale(10, json!({})).await,
    );
    let (fresh, _channel) = app.shop_without_loops();
    let buy = async |sale: &str| {
        let sale = sale.parse().expect("an id");
        fresh.purchase(sale, UserId::random(), None).await
    };
    assert!(matches!(buy(&plain).await, Ok(Admission::Accepted { .. })));
    for _ in 0..2 {
        let refused = buy(&guarded).await;
        assert!(
            matches!(refused, Err(ShopError::Unavailable { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(app.audit(&guarded).await.live, 0);
    app.finish().await;
}

#[tokio::test]
async fn the_room_opens_when_the_operator_said() {
    let app = TestApp::start().await;
    let opens_at = written(OffsetDateTime::now_utc() + Duration::HOUR);
    let members = json!({"opens_at": opens_at, "waiting_room": {"opens_before_secs": 60}});
    let sale = app.sale(1, members).await;
    let reply = app.shopper().post(&path(&sale)).await;
    reply.assert_problem(409, "waiting_room_not_open");
    let wait: u64 = reply.header("retry-after").parse().expect("seconds");
    assert!((3_500..=3_540).contains(&wait), "{wait}");
    assert!(reply.body["opens_at"].is_string());
    app.finish().await;
}
