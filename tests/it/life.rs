//! The life of an order: paying, cancelling, expiring, being rejected. Every order ends once, and its
//! unit comes back once and is buyable at once.

use crate::support::{
    app::{Options, Reply, Shopper, TestApp, all_at_once, eventually},
    load::crowd,
};
use flash_sale::worker::retire;
use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor};
use std::collections::{BTreeMap, HashSet};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// From now on the database notes every change of an order's status and every unit that enters the
/// outbox, so that a test can count what happened and not only see how it ended.
async fn keep_history(app: &TestApp) {
    app.execute(
        "CREATE TABLE history (order_id bigint NOT NULL, event text NOT NULL);
         CREATE FUNCTION note_status() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO history VALUES (NEW.id, NEW.status::text); RETURN NULL; END $$;
         CREATE FUNCTION note_release() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO history VALUES (NEW.order_id, 'released'); RETURN NULL; END $$;
         CREATE TRIGGER note_status AFTER UPDATE OF status ON orders
             FOR EACH ROW EXECUTE FUNCTION note_status();
         CREATE TRIGGER note_release AFTER INSERT ON releases
             FOR EACH ROW EXECUTE FUNCTION note_release();",
    )
    .await;
}

/// What happened to each order, sorted.
async fn history(app: &TestApp) -> BTreeMap<String, Vec<String>> {
    let mut connection = app.database.connect().await;
    let events: Vec<(i64, String)> =
        sqlx::query_as("SELECT order_id, event FROM history ORDER BY order_id, event")
            .fetch_all(&mut connection)
            .await
            .expect("the history");
    connection.close().await.expect("close");
    let mut orders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (order, event) in events {
        orders.entry(order.to_string()).or_default().push(event);
    }
    orders
}

/// A refusal that says what the order has become.
#[track_caller]
fn assert_refused(reply: &Reply, code: &str, order_status: &str) {
    reply.assert_problem(409, code);
    assert_eq!(reply.text("order_status"), order_status);
}

fn time_of(order: &Value, member: &str) -> OffsetDateTime {
    let text = order[member]
        .as_str()
        .unwrap_or_else(|| panic!("no {member} in {order:#}"));
    OffsetDateTime::parse(text, &Rfc3339).expect("RFC 3339")
}

/// Waits until Postgres' clock has passed the order's time to pay.
async fn until_due(app: &TestApp, order: &str) {
    eventually("the time to pay is over", async || {
        let query = format!("SELECT (pay_by < now())::int::bigint FROM orders WHERE id = {order}");
        (app.number(&query).await == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn fifty_payments_at_once_are_one_payment() {
    let app = TestApp::start().await;
    let sale = app.sale(3, json!({"price_cents": 1_234})).await;
    let shopper = app.shopper();
    let id = shopper.order_to_pay(&sale).await;

    let replies = all_at_once((0..50).map(|_| {
        let (shopper, id) = (shopper.clone(), id.clone());
        async move { shopper.pay(&id).await }
    }))
    .await;
    for reply in &replies {
        reply.assert(StatusCode::OK);
        assert_eq!(reply.text("status"), "paid");
        assert_eq!(
            reply.body, replies[0].body,
            "every payment is answered with the same order"
        );
    }
    let order = &replies[0].body;
    assert_eq!(
        (
            order["order_id"].as_str(),
            order["price_cents"].as_i64(),
            &order["closed_at"]
        ),
        (Some(id.as_str()), Some(1_234), &Value::Null)
    );
    assert!(time_of(order, "paid_at") <= time_of(order, "pay_by"));
    assert_eq!(
        shopper.pay(&id).await.body,
        *order,
        "and later the same again"
    );
    assert_eq!(app.number("SELECT count(*) FROM payments").await, 1);
    assert_eq!(app.number("SELECT amount_cents FROM payments").await, 1_234);

    let audit = app.assert_sound(&sale).await;
    assert_eq!(
        (audit.paid, audit.pending_payment, audit.remaining),
        (1, 0, 2)
    );
    app.finish().await;
}

#[tokio::test]
async fn a_cancelled_unit_comes_back_once_and_is_buyable_at_once() {
    let app = TestApp::start().await;
    keep_history(&app).await;
    let sale = app.sale(1, json!({})).await;
    let mut owner = app.shopper();
    let mut ids = Vec::new();
    // Ten times from hand to hand; nobody waits for anything between the cancel and the purchase.
    ids.push(owner.order_to_pay(&sale).await);
    for _ in 0..10 {
        let next = app.shopper();
        next.refused(&sale, "sold_out").await;
        let id = ids.last().expect("held").clone();
        let reply = owner.cancel(&id).await;
        reply.assert(StatusCode::OK);
        assert_eq!(reply.text("status"), "cancelled");
        time_of(&reply.body, "closed_at");
        let bought = next.buy(&sale).await;
        bought.assert(StatusCode::ACCEPTED);
        // Cancelling again is the same answer and returns nothing.
        assert_eq!(owner.cancel(&id).await.body, reply.body);
        next.until(bought.text("order_id"), "pending_payment").await;
        ids.push(bought.text("order_id").to_owned());
        owner = next;
    }

    let last = ids.last().expect("held").clone();
    let replies = all_at_once((0..20).map(|_| {
        let (owner, last) = (owner.clone(), last.clone());
        async move { owner.cancel(&last).await }
    }))
    .await;
    assert!(
        replies.iter().all(|reply| reply.status == StatusCode::OK),
        "{replies:#?}"
    );

    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.cancelled, audit.remaining), (0, 11, 1));
    let history = history(&app).await;
    for id in &ids {
        assert_eq!(history[id], ["cancelled", "released"]);
    }
    app.finish().await;
}

#[tokio::test]
async fn a_unit_cancelled_at_one_instance_is_buyable_at_the_other() {
    let app = TestApp::start().await;
    let other = app.another(Options::default()).await;
    let sale = app.sale(1, json!({})).await;
    let owner = app.shopper();
    let id = owner.order_to_pay(&sale).await;
    // The other instance must have it as sold out in memory, not just be told so by Redis.
    eventually("the other instance knows that it is sold out", async || {
        other.shopper().refused(&sale, "sold_out").await;
        (other
            .get(&format!("/api/v1/sales/{sale}"))
            .await
            .text("state")
            == "sold_out")
            .then_some(())
    })
    .await;
    owner.cancel(&id).await.assert(StatusCode::OK);
    let next = other.shopper();
    let bought = eventually("the unit is buyable at the other instance", async || {
        let reply = next.buy(&sale).await;
        (reply.is_accepted()).then_some(reply)
    })
    .await;
    next.until(bought.text("order_id"), "pending_payment").await;
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.cancelled, audit.remaining), (1, 1, 0));
    other.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn unpaid_orders_expire_once_although_two_instances_sweep() {
    const ORDERS: usize = 40;
    let app = TestApp::start().await;
    let other = app.another(Options::default()).await;
    keep_history(&app).await;
    let sale = app
        .sale(ORDERS as i64, json!({"payment_timeout_secs": 1}))
        .await;
    let buyers: Vec<Shopper> = (0..ORDERS).map(|_| app.shopper()).collect();
    let ids = all_at_once(buyers.clone().into_iter().map(|buyer| {
        let sale = sale.clone();
        async move { buyer.must_buy(&sale).await }
    }))
    .await;

    // Nobody asks for an order: only the sweepers can end it.
    eventually("all have expired and their units are back", async || {
        let audit = app.audit(&sale).await;
        (audit.expired == ORDERS as i64 && audit.quiescent).then_some(())
    })
    .await;
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.remaining), (0, ORDERS as i64));
    let history = history(&app).await;
    for id in &ids {
        assert_eq!(history[id], ["expired", "released"]);
    }

    for (buyer, id) in buyers.iter().zip(&ids).take(5) {
        let order = buyer.order(id).await;
        assert_eq!(order.text("status"), "expired");
        assert!(time_of(&order.body, "closed_at") >= time_of(&order.body, "pay_by"));
        for instance in [&app, &other] {
            let late = instance.as_shopper(buyer).pay(id).await;
            assert_refused(&late, "not_payable", "expired");
        }
        assert_refused(&buyer.cancel(id).await, "not_cancellable", "expired");
    }
    assert_eq!(app.number("SELECT count(*) FROM payments").await, 0);

    // All units are there again, for the same people too.
    let again = all_at_once(buyers.into_iter().map(|buyer| {
        let sale = sale.clone();
        async move { buyer.buy(&sale).await.status }
    }))
    .await;
    assert!(
        again.iter().all(|status| *status == StatusCode::ACCEPTED),
        "{again:?}"
    );
    other.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn a_late_payment_is_refused_even_if_no_sweeper_has_come_by() {
    let app = TestApp::start().await;
    let sale = app.sale(2, json!({"payment_timeout_secs": 2})).await;
    let (payer, canceller) = (app.shopper(), app.shopper());
    let (paid_late, cancelled_late) = (
        payer.order_to_pay(&sale).await,
        canceller.order_to_pay(&sale).await,
    );
    // What remains takes orders but sweeps nothing.
    let no_sweeper = app.another(Options::without_writer()).await;
    app.stop().await;
    until_due(&no_sweeper, &paid_late).await;
    until_due(&no_sweeper, &cancelled_late).await;

    let payer = no_sweeper.as_shopper(&payer);
    assert_refused(&payer.pay(&paid_late).await, "not_payable", "expired");
    assert_eq!(payer.order(&paid_late).await.text("status"), "expired");
    let canceller = no_sweeper.as_shopper(&canceller);
    assert_refused(
        &canceller.cancel(&cancelled_late).await,
        "not_cancellable",
        "expired",
    );
    assert_eq!(
        canceller.order(&cancelled_late).await.text("status"),
        "expired"
    );

    // Whoever noticed has also returned the unit.
    for _ in 0..2 {
        no_sweeper
            .shopper()
            .buy(&sale)
            .await
            .assert(StatusCode::ACCEPTED);
    }
    assert_eq!(no_sweeper.number("SELECT count(*) FROM payments").await, 0);
    no_sweeper.finish().await;
}

/// Neither waits for the other in the database by luck: the sweeper is stopped in the middle of its
/// transaction, and the answer must be what comes of it, not what was before.
#[tokio::test]
async fn a_late_payment_in_the_middle_of_a_sweep_hears_how_it_ends() {
    let app = TestApp::start().await;
    let sale = app.sale(1, json!({"payment_timeout_secs": 2})).await;
    let shopper = app.shopper();
    let id = shopper.order_to_pay(&sale).await;
    let no_sweeper = app.another(Options::without_writer()).await;
    app.stop().await;
    until_due(&no_sweeper, &id).await;

    let mut connection = no_sweeper.database.connect().await;
    let mut sweep = connection.begin().await.expect("begin");
    sweep
        .execute(AssertSqlSafe(format!(
            "UPDATE orders SET status = 'expired', slot = NULL, closed_at = now() WHERE id = {id};
             UPDATE sales SET taken = taken - 1 WHERE id = {sale};
             INSERT INTO releases (order_id, sale_id, user_id)
                 SELECT id, sale_id, user_id FROM orders WHERE id = {id};"
        )))
        .await
        .expect("expires");
    let shopper = no_sweeper.as_shopper(&shopper);
    let finish = async {
        eventually("both wait for the sweep", async || {
            let waiting = "SELECT count(*) FROM pg_stat_activity
                           WHERE datname = current_database() AND wait_event_type = 'Lock'";
            (no_sweeper.number(waiting).await == 2).then_some(())
        })
        .await;
        sweep.commit().await.expect("commit");
    };
    let (paid, cancelled, ()) = tokio::join!(shopper.pay(&id), shopper.cancel(&id), finish);
    assert_refused(&paid, "not_payable", "expired");
    assert_refused(&cancelled, "not_cancellable", "expired");
    connection.close().await.expect("close");
    no_sweeper.finish().await;
}

#[tokio::test]
async fn paying_cancelling_and_expiring_at_once_have_one_winner() {
    const ORDERS: usize = 60;
    let app = TestApp::start().await;
    let other = app.another(Options::default()).await;
    keep_history(&app).await;
    let sale = app
        .sale(ORDERS as i64, json!({"payment_timeout_secs": 1}))
        .await;

    let outcomes = join_all((0..ORDERS).map(async |number| {
        let payer = app.shopper();
        let canceller = other.as_shopper(&payer);
        let id = payer.order_to_pay(&sale).await;
        let order = payer.order(&id).await.body;
        // From 500 ms before the deadline to 200 ms after it, a dozen milliseconds apart.
        let offset = time::Duration::milliseconds(number as i64 * 12 - 500);
        let start = time_of(&order, "pay_by") + offset - OffsetDateTime::now_utc();
        tokio::time::sleep(start.try_into().unwrap_or_default()).await;
        let (paid, cancelled) = tokio::join!(payer.pay(&id), canceller.cancel(&id));
        (payer, id, paid, cancelled)
    }))
    .await;

    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (shopper, id, paid, cancelled) in outcomes {
        let expected_status = match (paid.status, cancelled.status) {
            (StatusCode::OK, StatusCode::CONFLICT) => "paid",
            (StatusCode::CONFLICT, StatusCode::OK) => "cancelled",
            (StatusCode::CONFLICT, StatusCode::CONFLICT) => "expired",
            other => panic!("both or neither answered: {other:?} {paid:#?} {cancelled:#?}"),
        };
        if expected_status != "paid" {
            assert_refused(&paid, "not_payable", expected_status);
        }
        if expected_status != "cancelled" {
            assert_refused(&cancelled, "not_cancellable", expected_status);
        }
        assert_eq!(shopper.order(&id).await.text("status"), expected_status);
        *counts.entry(expected_status.to_owned()).or_default() += 1;
        let mut events = vec![expected_status.to_owned()];
        if expected_status != "paid" {
            events.push("released".to_owned());
        }
        expected.insert(id, events);
    }
    println!("outcomes of {ORDERS} races: {counts:?}");

    let audit = app.assert_sound(&sale).await;
    let count = |status: &str| counts.get(status).copied().unwrap_or(0);
    assert_eq!(
        (audit.paid, audit.cancelled, audit.expired),
        (count("paid"), count("cancelled"), count("expired"))
    );
    assert_eq!(audit.remaining, ORDERS as i64 - count("paid"));
    // One transition each, and one release for whatever was not paid.
    assert_eq!(history(&app).await, expected);
    assert_eq!(
        app.number("SELECT count(*) FROM payments").await,
        count("paid")
    );
    other.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn a_limit_of_three_is_three_live_orders() {
    let app = TestApp::start().await;
    let sale = app.sale(50, json!({"per_user_limit": 3})).await;
    let shopper = app.shopper();
    let replies = TestApp::all_buy((0..30).map(|_| shopper.clone()), &sale).await;
    let (accepted, refused): (Vec<_>, Vec<_>) =
        replies.iter().partition(|reply| reply.is_accepted());
    assert_eq!((accepted.len(), refused.len()), (3, 27));
    let ids: HashSet<&str> = accepted
        .iter()
        .map(|reply| reply.text("order_id"))
        .collect();
    assert_eq!(ids.len(), 3);
    for reply in refused {
        reply.assert_problem(409, "already_ordered");
        assert!(ids.contains(reply.text("order_id")));
    }

    // Any of the three places can be given up and taken again, while the others stay.
    let mut ids: Vec<String> = ids.into_iter().map(str::to_owned).collect();
    ids.sort();
    for id in &ids {
        shopper.until(id, "pending_payment").await;
    }
    for place in [1, 0, 2] {
        shopper.cancel(&ids[place]).await.assert(StatusCode::OK);
        ids[place] = shopper.order_to_pay(&sale).await;
        shopper.refused(&sale, "already_ordered").await;
    }
    for id in &ids {
        shopper.pay(id).await.assert(StatusCode::OK);
    }
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.paid, audit.cancelled, audit.remaining), (3, 3, 47));
    assert_eq!((audit.duplicate_users, audit.redis.buyers), (0, Some(1)));
    app.finish().await;
}

#[tokio::test]
async fn what_postgres_refuses_is_rejected_and_its_neighbours_are_written() {
    let app = TestApp::start_with(Options::without_writer()).await;
    let sale = app.sale(100, json!({})).await;
    let mut buyers = crowd(&app, &sale, 20).await;
    // Postgres already has a live order of this user that Redis never heard of.
    let (victim, rejected) = buyers.remove(7);
    app.execute(&format!(
            "INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, created_at, pay_by)
                 VALUES (1, {sale}, '{}', 0, 'pending_payment', 100, now(), now() + interval '1 hour');
             UPDATE sales SET taken = taken + 1 WHERE id = {sale};",
            victim.user
        ),
    )
    .await;

    let writer = app.another(Options::default()).await;
    let order = victim.until(&rejected, "rejected").await;
    assert_eq!(
        (&order["pay_by"], &order["paid_at"]),
        (&Value::Null, &Value::Null)
    );
    time_of(&order, "closed_at");
    TestApp::all_written(&buyers).await;
    assert_refused(&victim.pay(&rejected).await, "not_payable", "rejected");
    assert_refused(
        &victim.cancel(&rejected).await,
        "not_cancellable",
        "rejected",
    );
    let listed = victim.get("/api/v1/orders").await;
    assert_eq!(
        listed.body["orders"][0]["status"], "rejected",
        "{:#}",
        listed.body
    );

    // Its unit is back in Redis: 19 of the 20 accepted are held.
    let audit = app.quiet_audit(&sale).await;
    assert_eq!(
        (audit.live, audit.rejected, audit.redis.remaining),
        (20, 1, Some(81))
    );
    // Without the planted order everything is in balance, and the victim can buy.
    app.execute(&format!(
        "DELETE FROM orders WHERE id = 1; UPDATE sales SET taken = taken - 1 WHERE id = {sale};"
    ))
    .await;
    app.assert_sound(&sale).await;
    victim.order_to_pay(&sale).await;
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.rejected, audit.remaining), (20, 1, 80));
    writer.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn a_stock_lowered_behind_redis_back_rejects_and_never_oversells() {
    let app = TestApp::start_with(Options::without_writer()).await;
    let sale = app.sale(10, json!({})).await;
    let buyers = crowd(&app, &sale, 10).await;
    app.execute(&format!("UPDATE sales SET stock = 3 WHERE id = {sale}"))
        .await;
    let writer = app.another(Options::default()).await;

    let mut statuses: BTreeMap<String, i64> = BTreeMap::new();
    for (buyer, id) in &buyers {
        let status = eventually("the order is settled", async || {
            let status = buyer.order(id).await.text("status").to_owned();
            (status != "queued").then_some(status)
        })
        .await;
        assert_eq!(app.audit(&sale).await.oversold, 0);
        *statuses.entry(status).or_default() += 1;
    }
    assert_eq!(
        statuses,
        BTreeMap::from([
            ("pending_payment".to_owned(), 3),
            ("rejected".to_owned(), 7)
        ])
    );
    // Redis is brought in line with the new stock by itself.
    let audit = eventually("redis knows the stock", async || {
        let audit = app.audit(&sale).await;
        (audit.quiescent && audit.ok).then_some(audit)
    })
    .await;
    assert_eq!(audit.conserved, Some(true));
    assert_eq!(
        (audit.stock, audit.live, audit.rejected, audit.remaining),
        (3, 3, 7, 0)
    );
    app.shopper().refused(&sale, "sold_out").await;
    writer.stop().await;
    app.finish().await;
}

/// Everything that Redis keeps of a sale.
async fn keys_of(app: &TestApp, sale: &str) -> Vec<String> {
    let mut connection = app.shop.redis.pooled().await.expect("redis");
    redis::cmd("KEYS")
        .arg(format!("{}{{sale:{sale}}}*", app.prefix))
        .query_async(&mut connection)
        .await
        .expect("KEYS")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_long_over_leaves_redis_and_comes_back_if_it_is_extended() {
    let app = TestApp::start().await;
    let ago = |hours| {
        let time = OffsetDateTime::now_utc() - time::Duration::hours(hours);
        time.format(&Rfc3339).expect("a time")
    };
    let sale = app.sale(5, json!({"opens_at": ago(48)})).await;
    let buyer = app.shopper();
    let order = buyer.order_to_pay(&sale).await;
    app.assert_sound(&sale).await;
    let path = format!("/api/v1/admin/sales/{sale}");

    // Over, but not for long enough: a retry must still get its first answer.
    let change =
        |closes: String| app.admin(Method::PATCH, &path, Some(json!({"closes_at": closes})));
    change(ago(23)).await.assert(StatusCode::OK);
    assert_eq!(retire::step(&app.shop).await.expect("a pass"), 0);
    assert!(!keys_of(&app, &sale).await.is_empty());

    let listing = app.shop.board.get(sale.parse().expect("an id"));
    let listing = listing.expect("it is on the board");
    assert_eq!(listing.buyers.len(), 1);
    change(ago(25)).await.assert(StatusCode::OK);
    wait_for!(listing.buyers.is_empty());
    assert_eq!(retire::step(&app.shop).await.expect("a pass"), 1);
    assert_eq!(keys_of(&app, &sale).await, Vec::<String>::new());
    app.shopper().refused(&sale, "ended").await;
    let audit = app.audit(&sale).await;
    assert!(audit.ok, "{audit:#?}");

    // An operator extends it: it is rebuilt with its buyers.
    change(ago(-1)).await;
    wait_for!(app.shopper().buy(&sale).await.is_accepted());
    assert_eq!(buyer.buy(&sale).await.text("order_id"), order);
    app.assert_sound(&sale).await;
}

/// An operator extends a sale after it was found to be over, and before the script that takes it out of
/// Redis has judged. `reaches_redis`: the change is there before the script; otherwise it is only stored.
async fn extended_while_it_is_retired(reaches_redis: bool) {
    let app = TestApp::start().await;
    let at = |hours| {
        let time = OffsetDateTime::now_utc() + time::Duration::hours(hours);
        time.format(&Rfc3339).expect("a time")
    };
    let sale = app.sale(5, json!({"opens_at": at(-48)})).await;
    let buyer = app.shopper();
    let order = buyer.order_to_pay(&sale).await;
    app.assert_sound(&sale).await;
    let path = format!("/api/v1/admin/sales/{sale}");
    let close_at = async |hours| {
        let body = json!({"closes_at": at(hours)});
        app.admin(Method::PATCH, &path, Some(body)).await
    };
    close_at(-25).await.assert(StatusCode::OK);

    let points = &app.shop.fail_points;
    points.set("retire.judging=pause:4000").expect("a point");
    let extending = async {
        wait_for!(points.fired("retire.judging") > 0);
        if reaches_redis {
            close_at(1).await.assert(StatusCode::OK);
            return;
        }
        points.set("sale.changed=error*always").expect("a point");
        let reply = close_at(1).await;
        assert!(reply.status.is_server_error(), "{:#}", reply.body);
    };
    let (removed, ()) = tokio::join!(retire::step(&app.shop), extending);
    assert_eq!(removed.expect("a pass"), usize::from(!reaches_redis));
    points.clear();

    let next = app.shopper();
    wait_for!(next.buy(&sale).await.is_accepted());
    let again = buyer.refused(&sale, "already_ordered").await;
    assert_eq!(again.text("order_id"), order);
    assert_eq!(app.assert_sound(&sale).await.live, 2);
    let epoch = format!("SELECT epoch FROM sales WHERE id = {sale}");
    let was_rebuilt = app.number(&epoch).await > 1;
    assert_eq!(was_rebuilt, !reaches_redis, "only if it was taken out");
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_extended_while_it_is_retired_stays() {
    extended_while_it_is_retired(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_whose_extension_comes_too_late_for_redis_is_rebuilt_with_its_buyers() {
    extended_while_it_is_retired(false).await;
}
