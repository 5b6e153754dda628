//! The audit: it says what is so, admits what it cannot compare yet, and names every kind of breakage.
//!
//! Each breakage is planted by hand behind the program's back, in the stores of that test alone.

use crate::support::app::{Options, Shopper, TestApp, eventually};
use flash_sale::{redis::Keys, sale::Audit};
use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::cell::Cell;

fn state_of(app: &TestApp, sale: &str) -> String {
    Keys::new(&app.prefix).state(sale.parse().expect("an id"))
}

/// Adds to a number of the sale's state in Redis.
async fn add_in_redis(app: &TestApp, sale: &str, field: &str, add: i64) {
    app.in_redis::<()>(
        redis::cmd("HINCRBY")
            .arg(state_of(app, sale))
            .arg(field)
            .arg(add),
    )
    .await;
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

/// The endpoint's verdict, which is the function's.
async fn endpoint_agrees(app: &TestApp, sale: &str, audit: &Audit) -> bool {
    let reply = app.admin_sale(Method::GET, sale, "/audit", None).await;
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

/// One shopper of a rush: a third pays, a third cancels, a third leaves it at that.
async fn buy_and_decide(shopper: Shopper, sale: &str, number: usize) {
    let reply = shopper.buy(sale).await;
    if !reply.is_accepted() {
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

const EXTRA: &str = "INSERT INTO orders
    (id, sale_id, user_id, slot, status, price_cents, created_at, pay_by)
    VALUES (17, SALE, gen_random_uuid(), 0, 'pending_payment', 100, now(),
        now() + interval '1 hour');";
const OF_THE_FIRST: &str = "UPDATE orders SET user_id = 'USER' WHERE id = 17;";
const COUNTED: &str = "UPDATE sales SET taken = taken + 1 WHERE id = SALE;";
const LOST: &str =
    "DELETE FROM orders WHERE id = ORDER; UPDATE sales SET taken = taken - 1 WHERE id = SALE;";
const NEVER_ACCEPTED: &str =
    "live orders in postgres that redis never accepted: 1 (for example 17)";

/// What is done behind the program's back to a sale of this stock that has sold so much.
struct Breakage {
    stock: i64,
    sold: usize,
    /// SALE, and USER and ORDER of the first buyer, are replaced.
    sql: &'static [&'static str],
    /// Added to a field of the state.
    redis: (&'static str, i64),
    named: &'static [&'static str],
    counted: Value,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_breakage_is_named_and_counted() {
    let breakage = |sql, named, counted| Breakage {
        stock: 10,
        sold: 3,
        sql,
        redis: ("remaining", 0),
        named,
        counted,
    };
    let in_redis = |field, add, named, counted| Breakage {
        redis: (field, add),
        ..breakage(&[], named, counted)
    };
    let breakages = [
        breakage(
            &[EXTRA, COUNTED],
            &[NEVER_ACCEPTED, "I4 broken: 7 remain in redis"],
            json!({"/conserved": false, "/live": 4, "/postgres/taken": 4}),
        ),
        breakage(
            &[EXTRA],
            &[
                NEVER_ACCEPTED,
                "I4 broken in postgres: the counter says 3 taken, 4 orders are live",
            ],
            json!({"/conserved": false}),
        ),
        breakage(
            &[LOST],
            &[
                "accepted orders that are neither live in postgres nor waiting: 1 (for example ORDER)",
            ],
            json!({}),
        ),
        breakage(
            &[
                "DROP INDEX orders_one_live_per_user_slot;",
                EXTRA,
                OF_THE_FIRST,
                COUNTED,
            ],
            &["I2 broken: 1 users hold more live orders than the sale allows"],
            json!({"/duplicate_users": 1}),
        ),
        Breakage {
            stock: 2,
            sold: 2,
            ..breakage(
                &[
                    "ALTER TABLE sales DROP CONSTRAINT sales_taken_within_stock;",
                    EXTRA,
                    COUNTED,
                ],
                &["I1 broken: 3 live orders on a stock of 2"],
                json!({"/oversold": 1, "/live": 3, "/stock": 2}),
            )
        },
        breakage(
            &[COUNTED],
            &["I4 broken in postgres: the counter says 4 taken, 3 orders are live"],
            json!({"/conserved": false, "/postgres/taken": 4}),
        ),
        in_redis(
            "remaining",
            1,
            &[
                "I4 broken in redis: a stock of 10 is not 8 remaining + 3 held",
                "I4 broken: 8 remain in redis, but 10 in stock - 3 live orders is 7",
            ],
            json!({"/conserved": false, "/remaining": 8}),
        ),
        in_redis(
            "pending",
            2,
            &["I3 broken: 2 orders are counted as waiting, but the log holds 0"],
            json!({"/backlog": 2, "/quiescent": false, "/conserved": null}),
        ),
        in_redis(
            "pending",
            -1,
            &["I3 broken: -1 orders are counted as waiting, but the log holds 0"],
            json!({}),
        ),
    ];
    for breakage in breakages {
        let app = TestApp::start().await;
        let (sale, orders) = sale_with_orders(&app, breakage.stock, breakage.sold).await;
        let (shopper, order) = &orders[0];
        let user = shopper.user.to_string();
        let of_it = |text: &str| {
            text.replace("SALE", &sale)
                .replace("USER", &user)
                .replace("ORDER", order)
        };
        app.execute(&of_it(&breakage.sql.concat())).await;
        add_in_redis(&app, &sale, breakage.redis.0, breakage.redis.1).await;
        let named: Vec<String> = breakage.named.iter().map(|words| of_it(words)).collect();
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        let audit = assert_named(&app, &sale, &named).await;
        let audit = serde_json::to_value(audit).expect("JSON");
        for (member, value) in breakage.counted.as_object().expect("members") {
            assert_eq!(audit.pointer(member), Some(value), "{member}: {audit:#}");
        }
        app.finish().await;
    }
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
        let state = state_of(&app, &sale);
        app.in_redis::<()>(
            redis::cmd("HSET")
                .arg(state)
                .arg(&["stock", "12", "remaining", "7"]),
        )
        .await;
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
async fn a_buyer_whose_record_is_gone_is_named() {
    let app = TestApp::start().await;
    let (sale, orders) = sale_with_orders(&app, 10, 3).await;
    let (shopper, id) = &orders[2];
    let mut connection = app.redis().await;
    let buyers = format!("{}:1:buyers", state_of(&app, &sale)); // of the first epoch
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
        let log = format!("{}:log", state_of(&app, &sale));
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
        wait_for!(app.audit(&sale).await.redis.stream == Some(0));
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
    app.execute(&COUNTED.replace("SALE", &broken)).await;
    assert_named(&app, &broken, &["I4 broken in postgres"]).await;
    let audit = app.assert_sound(&sound).await;
    assert_eq!(audit.problems, Vec::<String>::new());
    app.finish().await;
}
