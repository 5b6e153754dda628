//! The life of an order: it ends once, and its unit comes back once and is buyable at once.

use crate::{contract::assert_order, support::prelude::*};

/// From now on the database notes every change of status and every unit that enters the outbox. It
/// enters again if an order is recovered that is closed by then; it returns once, which audits see.
async fn keep_history(app: &TestApp) {
    let triggers = "
        CREATE TABLE history (order_id bigint NOT NULL, event text NOT NULL);
        CREATE FUNCTION note_status() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN INSERT INTO history VALUES (NEW.id, NEW.status::text); RETURN NULL; END $$;
        CREATE FUNCTION note_release() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN INSERT INTO history VALUES (NEW.order_id, 'released') ON CONFLICT DO NOTHING;
            RETURN NULL; END $$;
        CREATE UNIQUE INDEX ON history (order_id) WHERE event = 'released';
        CREATE TRIGGER note_status AFTER UPDATE OF status ON orders
            FOR EACH ROW EXECUTE FUNCTION note_status();
        CREATE TRIGGER note_release AFTER INSERT ON releases
            FOR EACH ROW EXECUTE FUNCTION note_release();";
    app.execute(triggers).await;
}

async fn history(app: &TestApp) -> BTreeMap<String, String> {
    let query =
        "SELECT order_id::text, string_agg(event, ' ' ORDER BY event) FROM history GROUP BY 1";
    let query = sqlx::query_as::<_, (String, String)>(query);
    let orders = query.fetch_all(&mut app.database.connect().await).await;
    orders.expect("the history").into_iter().collect()
}

#[track_caller]
pub fn assert_refused(reply: &Reply, code: &str, order_status: &str) {
    reply.assert_problem(409, code);
    assert_eq!(reply.text("order_status"), order_status);
}

/// An order that is in the queue no more. While its sale is rebuilt nobody can say.
async fn decided(shopper: &Shopper, id: &str) -> Value {
    wait_for!("it is decided", {
        let reply = shopper.order(id).await;
        (reply.status == 200 && reply.text("status") != "queued").then_some(reply.body)
    })
}

const PAYMENTS: &str = "SELECT count(*) FROM payments WHERE state = 'captured'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_payments_at_once_are_one_payment() {
    let (app, sale) = TestApp::selling(3, json!({"price_cents": 1_234})).await;
    let (shopper, id) = app.buyer(&sale).await;
    let mut replies = join_all((0..50).map(|_| until_told(async || shopper.pay(&id).await))).await;
    replies.push(shopper.pay(&id).await); // and later the same again
    let order = &replies[0].body;
    for reply in &replies {
        reply.assert(200);
        assert_eq!(reply.body, *order, "every payment has the same answer");
    }
    let paid = json!({"order_id": id, "status": "paid", "price_cents": 1_234, "closed_at": null});
    assert_has(order, paid);
    assert!(time_of(&order["paid_at"]) <= time_of(&order["pay_by"]));
    assert_eq!(app.number(PAYMENTS).await, 1);
    assert_eq!(app.number("SELECT amount_cents FROM payments").await, 1_234);
    app.assert_sound_with(&sale, json!({"paid": 1, "pending_payment": 0, "remaining": 2})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_unit_comes_back_once_and_is_buyable_at_once() {
    let (app, other) = TestApp::pair().await;
    keep_history(&app).await;
    let sale = app.sale(1, json!({})).await;
    let mut owner = app.shopper();
    let mut id = owner.order_to_pay(&sale).await;
    let mut ids = vec![id.clone()];
    for next in app.shoppers(10) {
        next.refused(&sale, "sold_out").await;
        let cancelled = owner.cancel(&id).await.must_be(200);
        assert_order(&cancelled.body);
        assert_eq!(cancelled.text("status"), "cancelled");
        // A release that Redis answers late comes by the outbox.
        wait_for!(app.sale_now(&sale).await["state"] == "open");
        let bought = next.must_buy(&sale).await;
        assert_eq!(owner.cancel(&id).await.body, cancelled.body);
        assert_refused(&owner.pay(&id).await, "not_payable", "cancelled");
        owner.refused(&sale, "sold_out").await;
        next.until(&bought, "pending_payment").await;
        (id, owner) = (bought, next);
        ids.push(id.clone());
    }
    // The other instance must have it as sold out in memory, not just be told so by Redis.
    let next = other.shopper();
    next.refused(&sale, "sold_out").await;
    wait_for!(other.sale_now(&sale).await["state"] == "sold_out");
    for reply in join_all((0..20).map(|_| owner.cancel(&id))).await {
        reply.assert(200);
    }
    wait_for!(app.sale_now(&sale).await["remaining"] == 1);
    app.assert_sound_with(&sale, json!({"live": 0, "cancelled": 11, "remaining": 1})).await;
    let released = ids.into_iter().map(|id| (id, "cancelled released".to_owned()));
    assert_eq!(history(&app).await, released.collect());
    wait_for!(next.told(&sale).await.order().is_some());
    app.assert_sound_with(&sale, json!({"live": 1, "cancelled": 11, "remaining": 0})).await;
}

/// Another sweeper stops within its transaction: the answer must be what comes of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_payment_is_refused_before_a_sweep_and_in_the_middle_of_one() {
    // The time to pay of three orders is over, at an instance without a sweeper.
    let (app, sale) = TestApp::selling_with(Options::without_writer(), 3, json!({})).await;
    let orders = crowd(&app, &sale, 3).await;
    let writer = app.another(Options::default()).await;
    all_written(&orders).await;
    writer.stop().await;
    app.execute("UPDATE orders SET pay_by = now()").await;
    let [(payer, to_pay), (canceller, to_cancel), (shopper, id)] = &orders[..] else {
        panic!("three orders")
    };
    assert_refused(&payer.pay(to_pay).await, "not_payable", "expired");
    assert_refused(&canceller.cancel(to_cancel).await, "not_cancellable", "expired");
    for (owner, order) in &orders[..2] {
        assert_eq!(owner.order(order).await.text("status"), "expired");
    }
    assert_eq!(crowd(&app, &sale, 2).await.len(), 2);
    let expire = format!(
        "UPDATE orders SET status = 'expired', slot = NULL, closed_at = now() WHERE id = {id};
         UPDATE sales SET taken = taken - 1 WHERE id = {sale};
         INSERT INTO releases (order_id, sale_id, user_id)
             SELECT id, sale_id, user_id FROM orders WHERE id = {id};"
    );
    let mut sweep = app.begin(&expire).await;
    let finish = async {
        app.waiting_for_locks(2).await;
        sweep.execute("COMMIT").await.expect("commit");
    };
    let (paid, cancelled, ()) = tokio::join!(shopper.pay(id), shopper.cancel(id), finish);
    assert_refused(&paid, "not_payable", "expired");
    assert_refused(&cancelled, "not_cancellable", "expired");
    assert_eq!(app.number(PAYMENTS).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paying_cancelling_and_expiring_at_once_have_one_winner() {
    const ORDERS: usize = 60;
    let (app, other) = TestApp::pair().await;
    keep_history(&app).await;
    let sale = app.sale(ORDERS as i64, json!({"payment_timeout_secs": 1})).await;
    let outcomes = join_all((0..ORDERS).map(async |number| {
        let payer = app.shopper();
        let canceller = payer.at(&other);
        let id = payer.must_buy(&sale).await;
        // On a busy machine it may have expired before anybody saw that it could be paid.
        let order = decided(&payer, &id).await;
        // From 500 ms before the deadline to 200 ms after it, a dozen milliseconds apart.
        let offset = time::Duration::milliseconds(number as i64 * 12 - 500);
        let start = time_of(&order["pay_by"]) + offset - OffsetDateTime::now_utc();
        tokio::time::sleep(start.try_into().unwrap_or_default()).await;
        let paying = until_told(async || payer.pay(&id).await);
        let cancelling = until_told(async || canceller.cancel(&id).await);
        let (paid, cancelled) = tokio::join!(paying, cancelling);
        (payer, id, paid, cancelled)
    }))
    .await;
    let mut counts = BTreeMap::from(["paid", "cancelled", "expired"].map(|status| (status, 0)));
    let mut expected = BTreeMap::new();
    for (shopper, id, paid, cancelled) in outcomes {
        let status = match (paid.status.as_u16(), cancelled.status.as_u16()) {
            (200, 409) => "paid",
            (409, 200) => "cancelled",
            (409, 409) => "expired",
            other => panic!("both or neither answered: {other:?} {paid:#?} {cancelled:#?}"),
        };
        if status != "paid" {
            assert_refused(&paid, "not_payable", status);
        }
        if status != "cancelled" {
            assert_refused(&cancelled, "not_cancellable", status);
        }
        assert_eq!(shopper.order(&id).await.text("status"), status);
        *counts.entry(status).or_default() += 1;
        let events = if status == "paid" { "paid".into() } else { format!("{status} released") };
        expected.insert(id, events);
    }
    println!("outcomes of {ORDERS} races: {counts:?}");
    assert_eq!(history(&app).await, expected);
    app.assert_sound_with(&sale, json!(counts)).await;
    app.assert_sound_with(&sale, json!({"remaining": ORDERS as i64 - counts["paid"]})).await;
    assert_eq!(app.number(PAYMENTS).await, counts["paid"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_lowered_behind_redis_back_rejects_and_never_oversells() {
    let (app, sale) = TestApp::selling_with(Options::without_writer(), 10, json!({})).await;
    let buyers = crowd(&app, &sale, 10).await;
    app.execute(&format!("UPDATE sales SET stock = 3 WHERE id = {sale}")).await;
    let _writer = app.another(Options::default()).await;
    let mut rejected = Vec::new();
    for (buyer, id) in &buyers {
        let order = decided(buyer, id).await;
        assert_eq!(app.audit(&sale).await.oversold, 0);
        match order["status"].as_str() {
            Some("rejected") => rejected.push((buyer, order)),
            status => assert_eq!(status, Some("pending_payment")),
        }
    }
    assert_eq!(rejected.len(), 7);
    app.until_sound(&sale).await; // redis knows the stock
    let lowered = json!({"stock": 3, "live": 3, "rejected": 7, "remaining": 0});
    app.assert_sound_with(&sale, lowered).await;
    app.shopper().refused(&sale, "sold_out").await;
    let (victim, order) = &rejected[0];
    assert_order(order);
    let id = order["order_id"].as_str().expect("an id");
    assert_refused(&victim.pay(id).await, "not_payable", "rejected");
    assert_refused(&victim.cancel(id).await, "not_cancellable", "rejected");
    victim.get("/api/v1/orders").await.assert_has(json!({ "orders": [order] }));
    let all = app.admin_sale("GET", &sale, "/orders?status=rejected", None).await;
    assert_eq!(all.body["orders"].as_array().map(Vec::len), Some(7));
    app.admin_sale("POST", &sale, "/stock", Some(json!({"add": 1}))).await.assert(200);
    victim.order_to_pay(&sale).await;
    app.assert_sound_with(&sale, json!({"live": 4, "rejected": 7, "remaining": 0})).await;
}
