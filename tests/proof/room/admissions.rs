//! Who may buy with what: an admission is one user's for one sale, for a while, and for one order.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_ones_own_admission_for_this_sale_buys() {
    let app = TestApp::start().await;
    let one = sale(&app, 10, SOON, json!({})).await;
    let other = sale(&app, 10, SOON, json!({})).await;
    let (ada, eve) = (app.shopper(), app.shopper());
    let (mine, elsewhere) = (admission(&ada, &one).await, admission(&ada, &other).await);
    let theirs = admission(&eve, &one).await;
    ada.refused(&one, "admission_required").await;
    let (longer, longest) = (format!("{mine}A"), "A".repeat(5_000));
    for token in [&theirs, &elsewhere, "", "x", &mine[1..], &longer, &longest] {
        buy(&ada, &one, token).await.assert_problem(403, "admission_invalid");
    }
    let header = ("Admission-Token", mine.as_str());
    ada.buy_with(&one, &[header, header]).await.assert_problem(403, "admission_invalid");
    assert_eq!(app.audit(&one).await.live, 0);
    buy(&ada, &one, &mine).await.assert(202);
    let second = app.another(Options::default()).await;
    buy(&eve.at(&second), &one, &theirs).await.assert(202);
    assert_eq!(app.assert_sound(&one).await.live, 2);
}

async fn a_hundred_uses(app: &TestApp, second: &TestApp) -> (String, Shopper, String, Vec<Reply>) {
    let members = json!({"per_user_limit": 5, "opens_at": in_secs(SOON), "waiting_room": {}});
    let sale = app.sale(100, members).await;
    let ada = app.shopper();
    let token = admission(&ada, &sale).await;
    let both = [ada.clone(), ada.at(second)];
    let uses = (0..100).map(|number| buy(&both[number % 2], &sale, &token));
    let replies = join_all(uses).await;
    (sale, ada, token, replies)
}

fn orders_of(replies: &[Reply]) -> BTreeSet<&str> {
    replies.iter().filter_map(|reply| reply.body["order_id"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_order_comes_of_an_admission() {
    let (app, second) = TestApp::pair().await;
    let (sale, ada, token, replies) = a_hundred_uses(&app, &second).await;
    let (accepted, refused): (Vec<_>, Vec<_>) =
        replies.iter().partition(|reply| reply.is_accepted());
    assert_eq!(accepted.len(), 1);
    for reply in refused {
        reply.assert_problem(409, "admission_used");
    }
    let order = accepted[0].text("order_id");
    assert_eq!(orders_of(&replies), BTreeSet::from([order]));
    for key in ["one", "two"] {
        let headers = [("Admission-Token", token.as_str()), ("Idempotency-Key", key)];
        let reply = ada.buy_with(&sale, &headers).await.must_be(202);
        assert_eq!(reply.text("order_id"), order);
        assert_eq!(reply.header("idempotent-replayed"), "true");
    }
    ada.until(order, "pending_payment").await;
    ada.cancel(order).await.assert(200);
    let again = buy(&ada, &sale, &token).await;
    again.assert_problem(409, "admission_used");
    assert_eq!(again.text("order_id"), order);
    assert_eq!(app.assert_sound(&sale).await.live, 0);
}

/// The test above would notice a purchase that does not use its turn up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admission_that_can_be_reused_is_noticed() {
    let (_servers, [app, second]) = own_pair().await;
    plant(&mut app.redis().await, FORGET_IDEMPOTENCY_KEYS).await;
    let (_, _, _, replies) = a_hundred_uses(&app, &second).await;
    assert_eq!(orders_of(&replies).len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_ends_and_who_joins_again_stands_behind_everybody() {
    let app = TestApp::start().await;
    let sale = sale(&app, 1, SOON, json!({"turn_secs": 1, "overbooking_percent": 0})).await;
    let (ada, bob) = (app.shopper(), app.shopper());
    let token = admission(&ada, &sale).await;
    join(&bob, &sale).await;
    until(&ada, &sale, "missed").await;
    buy(&ada, &sale, &token).await.assert_problem(409, "admission_expired");
    assert_eq!(app.audit(&sale).await.live, 0);
    // Fifty tabs notice at once; it is one new place, behind Bob's.
    for place in all_at_once((0..50).map(|_| ada.ask("POST", &path(&sale)).into_future())).await {
        place.assert(200);
        let joined = place.body["joined"].as_u64();
        assert!(joined <= Some(3), "{joined:?}");
    }
    // A busy machine may let his turn pass, too.
    wait_for!("bob buys", {
        let place = join(&bob, &sale).await;
        buy(&bob, &sale, place.body["admission_token"].as_str()?).await.is_accepted().then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_window_and_the_stock_are_said_first() {
    let app = TestApp::start().await;
    let members =
        json!({"opens_at": in_secs(IN_AN_HOUR), "waiting_room": {"opens_before_secs": 60}});
    let later = app.sale(1, members).await;
    let shopper = app.shopper();
    shopper.refused(&later, "not_open").await;
    let reply = shopper.post(&path(&later)).await;
    let wait = reply.assert_told_when(409, "waiting_room_not_open");
    assert!((3_500..=3_540).contains(&wait), "{wait}");
    reply.text("opens_at");
    let unknown = "123456789";
    for reply in [shopper.buy(unknown).await, shopper.post(&path(unknown)).await] {
        reply.assert_problem(404, "sale_not_found");
    }
    let ended = sale(&app, 1, SOON, json!({})).await;
    app.steer(&ended, "close").await;
    shopper.refused(&ended, "ended").await;
    shopper.post(&path(&ended)).await.assert_problem(409, "ended");
    app.get(&path(&ended)).await.assert_problem(401, "unauthenticated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_switches_the_room_on_and_off() {
    let app = TestApp::start().await;
    let plain = app.sale(10, json!({})).await;
    let shopper = app.shopper();
    for reply in [shopper.post(&path(&plain)).await, look(&shopper, &plain).await] {
        reply.assert_problem(404, "waiting_room_not_found");
    }
    buy(&shopper, &plain, "whatever").await.assert(202);
    let change = async |room: Value| app.change(&plain, json!({"waiting_room": room})).await;
    let on = change(json!({"per_second": 7})).await.must_be(200);
    let expected = json!({"waiting_room": {
        "opens_before_secs": 600, "per_second": 7, "turn_secs": 120, "overbooking_percent": 20,
    }});
    on.assert_has(expected.clone());
    app.change(&plain, json!({"title": "other"})).await.assert_has(expected);
    let late = app.shopper();
    late.refused(&plain, "admission_required").await;
    let bad = json!([
        {"opens_before_secs": -1}, {"opens_before_secs": 86_401}, {"per_second": 0},
        {"turn_secs": 0}, {"turn_secs": 601}, {"overbooking_percent": -1},
        {"overbooking_percent": 1.5}, {"shuffle": true},
    ]);
    for bad in bad.as_array().expect("rooms") {
        change(bad.clone()).await.assert_problem(422, "invalid");
    }
    change(json!(null)).await.assert_has(json!({"waiting_room": null}));
    late.must_buy(&plain).await;
}

/// An instance looks an unknown sale up with its first purchase, and does not sell it unseen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_instance_admits_nobody_without_credentials() {
    let app = TestApp::start().await;
    let guarded = sale(&app, 10, SOON, json!({})).await;
    let plain = app.sale(10, json!({})).await;
    let (fresh, _channel) = app.services_without_tasks();
    let buy = async |sale: &str| {
        fresh.admission.purchase(sale.parse().expect("an id"), UserId::random(), None).await
    };
    assert!(matches!(buy(&plain).await, Ok(PurchaseResult::Accepted { .. })));
    for _ in 0..2 {
        let refused = buy(&guarded).await;
        assert!(matches!(refused, Err(ServiceError::Unavailable { .. })), "{refused:?}");
    }
    assert_eq!(app.audit(&guarded).await.live, 0);
}
