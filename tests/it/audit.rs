//! The audit: it says what is so, admits what it cannot compare yet, and names every kind of breakage.
//!
//! Each breakage is planted by hand behind the program's back, in the stores of that test alone.

use crate::support::app::{Options, Shopper, TestApp, eventually};
use flash_sale::{
    domain::{SaleId, UserId},
    redis::Keys,
    sale::Audit,
};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use reqwest::{Method, StatusCode};
use serde_json::json;
use std::cell::Cell;

/// Where a sale lives in Redis.
struct SaleKeys {
    keys: Keys,
    id: SaleId,
}

impl SaleKeys {
    fn of(app: &TestApp, sale: &str) -> Self {
        Self {
            keys: Keys::new(&app.prefix),
            id: sale.parse().expect("an id"),
        }
    }

    fn state(&self) -> String {
        self.keys.state(self.id)
    }

    fn log(&self) -> String {
        self.keys.log(self.id)
    }

    async fn buyers(&self, connection: &mut MultiplexedConnection) -> String {
        let epoch: i64 = redis::cmd("HGET")
            .arg(self.state())
            .arg("epoch")
            .query_async(connection)
            .await
            .expect("the sale's state");
        self.keys.buyers(self.id, epoch)
    }
}

/// Adds to a number of the sale's state in Redis.
async fn add_in_redis(app: &TestApp, sale: &str, field: &str, add: i64) {
    redis::cmd("HINCRBY")
        .arg(SaleKeys::of(app, sale).state())
        .arg(field)
        .arg(add)
        .exec_async(&mut app.redis().await)
        .await
        .expect("HINCRBY");
}

/// A sale of `stock` units, of which `sold` are held by as many shoppers, all of it written.
async fn sale_with_orders(
    app: &TestApp,
    stock: i64,
    sold: usize,
) -> (String, Vec<(Shopper, String)>) {
    let sale = app.sale(stock, json!({})).await;
    let orders = accept(app, &sale, sold).await;
    let audit = app.assert_sound(&sale).await;
    assert_eq!(audit.live, sold as i64);
    (sale, orders)
}

async fn accept(app: &TestApp, sale: &str, buyers: usize) -> Vec<(Shopper, String)> {
    let mut orders = Vec::new();
    for _ in 0..buyers {
        let shopper = app.shopper();
        let id = shopper.must_buy(sale).await;
        orders.push((shopper, id));
    }
    orders
}

/// A live order row that no purchase made.
fn extra_order(sale: &str, id: i64, user: UserId) -> String {
    format!(
        "INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, created_at, pay_by)
         VALUES ({id}, {sale}, '{user}', 0, 'pending_payment', 100, now(), now() + interval '1 hour');"
    )
}

fn count_one_more(sale: &str) -> String {
    format!("UPDATE sales SET taken = taken + 1 WHERE id = {sale};")
}

/// The endpoint's verdict, which is the function's.
async fn endpoint_agrees(app: &TestApp, sale: &str, audit: &Audit) -> bool {
    let reply = app
        .admin(
            Method::GET,
            &format!("/api/v1/admin/sales/{sale}/audit"),
            None,
        )
        .await;
    reply.assert(StatusCode::OK);
    reply.body == serde_json::to_value(audit).expect("JSON")
}

/// The audit finds a breakage, names it in one of these words, and the endpoint says the same.
async fn assert_named(app: &TestApp, sale: &str, words: &[&str]) -> Audit {
    let audit = app.audit(sale).await;
    assert!(!audit.ok, "{audit:#?}");
    for word in words {
        assert!(
            audit.problems.iter().any(|problem| problem.contains(word)),
            "no {word:?} in {audit:#?}"
        );
    }
    assert!(
        endpoint_agrees(app, sale, &audit).await,
        "the endpoint says something else than {audit:#?}"
    );
    audit
}

#[tokio::test]
async fn a_sound_sale_has_the_documented_shape() {
    let app = TestApp::start().await;
    let sale = app.sale(20, json!({})).await;
    let buyers = accept(&app, &sale, 6).await;
    for (shopper, id) in &buyers {
        shopper.until(id, "pending_payment").await;
    }
    buyers[0].0.pay(&buyers[0].1).await.assert(StatusCode::OK);
    buyers[1].0.pay(&buyers[1].1).await.assert(StatusCode::OK);
    buyers[2]
        .0
        .cancel(&buyers[2].1)
        .await
        .assert(StatusCode::OK);
    let audit = app.assert_sound(&sale).await;
    assert!(endpoint_agrees(&app, &sale, &audit).await);
    let body = serde_json::to_value(&audit).expect("JSON");
    assert_eq!(
        body,
        json!({
            "sale_id": sale, "ok": true, "quiescent": true, "stock": 20, "remaining": 15, "live": 5,
            "pending_payment": 3, "paid": 2, "cancelled": 1, "expired": 0, "rejected": 0, "backlog": 0,
            "oversold": 0, "duplicate_users": 0, "conserved": true,
            "redis": {"remaining": 15, "buyers": 5, "stream": 0, "epoch": 1, "run_id_approved": true},
            "postgres": {"taken": 5, "epoch": 1},
            "problems": [],
        })
    );
    app.admin(Method::GET, "/api/v1/admin/sales/999999/audit", None)
        .await
        .assert_problem(404, "sale_not_found");
    app.get(&format!("/api/v1/admin/sales/{sale}/audit"))
        .await
        .assert_problem(401, "unauthenticated");
    app.finish().await;
}

#[tokio::test]
async fn a_backlog_is_not_compared_and_not_called_broken() {
    let app = TestApp::start_with(Options::without_writer()).await;
    let sale = app.sale(10, json!({})).await;
    accept(&app, &sale, 5).await;
    let audit = app.audit(&sale).await;
    assert!(audit.ok && !audit.quiescent, "{audit:#?}");
    assert_eq!(
        (audit.conserved, audit.backlog, audit.live, audit.remaining),
        (None, 5, 0, 5)
    );
    assert_eq!(
        (audit.redis.buyers, audit.redis.stream, audit.postgres.taken),
        (Some(5), Some(5), 0)
    );
    let reply = app
        .admin(
            Method::GET,
            &format!("/api/v1/admin/sales/{sale}/audit"),
            None,
        )
        .await;
    assert_eq!(reply.body, serde_json::to_value(&audit).expect("JSON"));
    assert!(reply.body["conserved"].is_null());

    let writer = app.another(Options::default()).await;
    let audit = app.assert_sound(&sale).await;
    assert_eq!(
        (audit.backlog, audit.live, audit.redis.stream),
        (0, 5, Some(0))
    );
    writer.stop().await;
    app.finish().await;
}

/// One shopper of a rush: a third pays, a third cancels, a third leaves it at that.
async fn buy_and_decide(shopper: Shopper, sale: &str, number: usize) {
    let reply = shopper.buy(sale).await;
    if reply.status != StatusCode::ACCEPTED {
        reply.assert_problem(409, "sold_out");
        return;
    }
    let id = reply.text("order_id");
    shopper.until(id, "pending_payment").await;
    match number % 3 {
        0 => shopper.pay(id).await.assert(StatusCode::OK),
        1 => shopper.cancel(id).await.assert(StatusCode::OK),
        _ => {}
    }
}

/// An audit while people buy, pay and cancel must not cry wolf.
#[tokio::test]
async fn a_rush_is_never_called_broken() {
    let app = TestApp::start().await;
    let sale = app.sale(150, json!({})).await;
    let over = Cell::new(false);
    let rush = async {
        let shoppers = (0..300).map(|_| app.shopper()).enumerate();
        join_all(shoppers.map(|(number, shopper)| buy_and_decide(shopper, &sale, number))).await;
        over.set(true);
    };
    let (mut audits, mut restless) = (0, 0);
    let look = async {
        while !over.get() {
            let audit = app.audit(&sale).await;
            assert!(audit.ok, "{audit:#?}");
            assert_eq!(audit.conserved.is_some(), audit.quiescent);
            audits += 1;
            restless += i32::from(!audit.quiescent);
        }
    };
    tokio::join!(rush, look);
    println!("{audits} audits in the rush, {restless} of them not quiescent");
    app.assert_sound(&sale).await;
    app.finish().await;
}

#[tokio::test]
async fn an_extra_order_that_is_counted_is_named() {
    let app = TestApp::start().await;
    let (sale, _) = sale_with_orders(&app, 10, 3).await;
    app.execute(&(extra_order(&sale, 17, UserId::random()) + &count_one_more(&sale)))
        .await;
    let audit = assert_named(
        &app,
        &sale,
        &[
            "live orders in postgres that redis never accepted: 1 (for example 17)",
            "I4 broken: 7 remain in redis",
        ],
    )
    .await;
    assert_eq!(
        (audit.conserved, audit.live, audit.postgres.taken),
        (Some(false), 4, 4)
    );
    app.finish().await;
}

#[tokio::test]
async fn an_extra_order_that_is_not_counted_is_named() {
    let app = TestApp::start().await;
    let (sale, _) = sale_with_orders(&app, 10, 3).await;
    app.execute(&extra_order(&sale, 17, UserId::random())).await;
    let audit = assert_named(
        &app,
        &sale,
        &[
            "live orders in postgres that redis never accepted: 1 (for example 17)",
            "I4 broken in postgres: the counter says 3 taken, 4 orders are live",
        ],
    )
    .await;
    assert_eq!(audit.conserved, Some(false));
    app.finish().await;
}

#[tokio::test]
async fn a_lost_row_is_named() {
    let app = TestApp::start().await;
    let (sale, orders) = sale_with_orders(&app, 10, 3).await;
    let lost = &orders[1].1;
    app.execute(&format!("DELETE FROM orders WHERE id = {lost}; UPDATE sales SET taken = taken - 1 WHERE id = {sale};"),
    )
    .await;
    let expected = format!(
        "accepted orders that are neither live in postgres nor waiting: 1 (for example {lost})"
    );
    assert_named(&app, &sale, &[&expected]).await;
    app.finish().await;
}

#[tokio::test]
async fn a_user_with_two_orders_is_named() {
    let app = TestApp::start().await;
    let (sale, orders) = sale_with_orders(&app, 10, 3).await;
    let user = orders[0].0.user;
    app.execute(&format!(
        "DROP INDEX orders_one_live_per_user_slot; {} {}",
        extra_order(&sale, 17, user),
        count_one_more(&sale)
    ))
    .await;
    let audit = assert_named(
        &app,
        &sale,
        &["I2 broken: 1 users hold more live orders than the sale allows"],
    )
    .await;
    assert_eq!(audit.duplicate_users, 1);
    app.finish().await;
}

#[tokio::test]
async fn an_oversold_sale_is_named() {
    let app = TestApp::start().await;
    let (sale, _) = sale_with_orders(&app, 2, 2).await;
    app.execute(&format!(
        "ALTER TABLE sales DROP CONSTRAINT sales_taken_within_stock; {} {}",
        extra_order(&sale, 17, UserId::random()),
        count_one_more(&sale)
    ))
    .await;
    let audit = assert_named(&app, &sale, &["I1 broken: 3 live orders on a stock of 2"]).await;
    assert_eq!((audit.oversold, audit.live, audit.stock), (1, 3, 2));
    app.finish().await;
}

#[tokio::test]
async fn a_wrong_counter_in_postgres_is_named() {
    let app = TestApp::start().await;
    let (sale, _) = sale_with_orders(&app, 10, 3).await;
    app.execute(&count_one_more(&sale)).await;
    let words = "I4 broken in postgres: the counter says 4 taken, 3 orders are live";
    let audit = assert_named(&app, &sale, &[words]).await;
    assert_eq!((audit.conserved, audit.postgres.taken), (Some(false), 4));
    app.finish().await;
}

#[tokio::test]
async fn a_wrong_remainder_in_redis_is_named() {
    let app = TestApp::start().await;
    let (sale, _) = sale_with_orders(&app, 10, 3).await;
    add_in_redis(&app, &sale, "remaining", 1).await;
    let audit = assert_named(
        &app,
        &sale,
        &[
            "I4 broken in redis: a stock of 10 is not 8 remaining + 3 held",
            "I4 broken: 8 remain in redis, but 10 in stock - 3 live orders is 7",
        ],
    )
    .await;
    assert_eq!((audit.conserved, audit.remaining), (Some(false), 8));
    app.finish().await;
}

#[tokio::test]
async fn a_negative_remainder_is_named() {
    let app = TestApp::start().await;
    let (sale, _) = sale_with_orders(&app, 3, 3).await;
    add_in_redis(&app, &sale, "remaining", -1).await;
    let audit = assert_named(&app, &sale, &["I1 broken in redis: -1 units remain"]).await;
    assert_eq!(audit.redis.remaining, Some(-1));
    // Shoppers are never told of less than nothing.
    let shown = app.get(&format!("/api/v1/sales/{sale}")).await;
    assert_eq!(
        (shown.text("state"), &shown.body["remaining"]),
        ("sold_out", &json!(0))
    );
    app.finish().await;
}

#[tokio::test]
async fn a_wrong_stock_in_redis_is_named() {
    let app = TestApp::start().await;
    let (sale, _) = sale_with_orders(&app, 10, 3).await;
    // The program repairs this very difference after it has seen it twice, a second apart; so plant
    // it again if it has just done so.
    eventually("a wrong stock is named", async || {
        let state = SaleKeys::of(&app, &sale).state();
        redis::cmd("HSET")
            .arg(state)
            .arg(&["stock", "12", "remaining", "7"])
            .exec_async(&mut app.redis().await)
            .await
            .expect("HSET");
        let audit = app.audit(&sale).await;
        let named = |words: &str| audit.problems.iter().any(|problem| problem.contains(words));
        (!audit.ok
            && named("I4 broken: redis knows a stock of 12, postgres of 10")
            && named("I4 broken in redis: a stock of 12 is not 7 remaining + 3 held")
            && endpoint_agrees(&app, &sale, &audit).await)
            .then_some(())
    })
    .await;
    app.finish().await;
}

#[tokio::test]
async fn a_wrong_backlog_counter_is_named() {
    let app = TestApp::start().await;
    let (sale, _) = sale_with_orders(&app, 10, 3).await;
    add_in_redis(&app, &sale, "pending", 2).await;
    let words = "I3 broken: 2 orders are counted as waiting, but the log holds 0";
    let audit = assert_named(&app, &sale, &[words]).await;
    assert_eq!(
        (audit.backlog, audit.quiescent, audit.conserved),
        (2, false, None)
    );
    add_in_redis(&app, &sale, "pending", -3).await;
    assert_named(
        &app,
        &sale,
        &["I3 broken: -1 orders are counted as waiting, but the log holds 0"],
    )
    .await;
    app.finish().await;
}

#[tokio::test]
async fn a_backlog_counter_that_disagrees_with_the_log_is_named() {
    let app = TestApp::start_with(Options::without_writer()).await;
    let sale = app.sale(10, json!({})).await;
    accept(&app, &sale, 3).await;
    assert!(app.audit(&sale).await.ok, "a backlog is no fault");
    add_in_redis(&app, &sale, "pending", 1).await;
    let words = "I3 broken: 4 orders are counted as waiting, but the log holds 3";
    assert_named(&app, &sale, &[words]).await;
    app.finish().await;
}

#[tokio::test]
async fn a_buyer_whose_record_is_gone_is_named() {
    let app = TestApp::start().await;
    let (sale, orders) = sale_with_orders(&app, 10, 3).await;
    let (shopper, id) = &orders[2];
    let mut connection = app.redis().await;
    let buyers = SaleKeys::of(&app, &sale).buyers(&mut connection).await;
    let removed: i64 = redis::cmd("HDEL")
        .arg(buyers)
        .arg(&shopper.user.as_bytes()[..])
        .query_async(&mut connection)
        .await
        .expect("HDEL");
    assert_eq!(removed, 1);
    let expected =
        format!("live orders in postgres that redis never accepted: 1 (for example {id})");
    let audit = assert_named(
        &app,
        &sale,
        &[
            "I4 broken in redis: a stock of 10 is not 7 remaining + 2 held",
            &expected,
        ],
    )
    .await;
    assert_eq!(audit.redis.buyers, Some(2));
    app.finish().await;
}

/// Three orders wait in the log and the entry of the middle one disappears, with or without its
/// count, before anybody has written it.
#[tokio::test]
async fn a_lost_log_entry_is_named() {
    for counted in [true, false] {
        let app = TestApp::start_with(Options::without_writer()).await;
        let sale = app.sale(10, json!({})).await;
        let orders = accept(&app, &sale, 3).await;
        let log = SaleKeys::of(&app, &sale).log();
        let mut connection = app.redis().await;
        let entries: redis::streams::StreamRangeReply = redis::cmd("XRANGE")
            .arg(&log)
            .arg("-")
            .arg("+")
            .query_async(&mut connection)
            .await
            .expect("XRANGE");
        assert_eq!(entries.ids.len(), 3, "one entry for each purchase");
        redis::cmd("XDEL")
            .arg(&log)
            .arg(&entries.ids[1].id)
            .exec_async(&mut connection)
            .await
            .expect("XDEL");
        if counted {
            add_in_redis(&app, &sale, "pending", -1).await;
        }

        // The other two are written, and then it shows.
        let writer = app.another(Options::default()).await;
        for (shopper, id) in [&orders[0], &orders[2]] {
            shopper.until(id, "pending_payment").await;
        }
        let lost = orders[1].1.as_str();
        let expected = if counted {
            format!(
                "accepted orders that are neither live in postgres nor waiting: 1 (for example {lost})"
            )
        } else {
            "I3 broken: 1 orders are counted as waiting, but the log holds 0".to_owned()
        };
        eventually("the two other entries are acknowledged", async || {
            (app.audit(&sale).await.redis.stream == Some(0)).then_some(())
        })
        .await;
        assert_named(&app, &sale, &[&expected]).await;
        writer.stop().await;
        app.finish().await;
    }
}

#[tokio::test]
async fn what_is_broken_in_one_sale_does_not_show_in_another() {
    let app = TestApp::start().await;
    let (broken, _) = sale_with_orders(&app, 10, 2).await;
    let (sound, _) = sale_with_orders(&app, 10, 2).await;
    app.execute(&count_one_more(&broken)).await;
    assert_named(&app, &broken, &["I4 broken in postgres"]).await;
    let audit = app.assert_sound(&sound).await;
    assert_eq!(audit.problems, Vec::<String>::new());
    app.finish().await;
}
