//! Every fail point, with every action that a test inside the process can survive, in one day of a
//! shop that passes them all. (`exit` needs a process of its own: `rebuild.rs` and `make chaos`.)

use crate::support::{
    app::{Options, Reply, Shopper, TestApp, eventually},
    load::Winner,
};
use flash_sale::{
    domain::{OrderId, SaleId, UserId},
    fail_point::POINTS,
    redis::Keys,
    sale::{
        log::{AcceptedBatch, AcceptedOrder},
        orders::Expect,
    },
    worker::{retire, writer},
};
use futures_util::{FutureExt, StreamExt, future::join_all};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::panic::AssertUnwindSafe;

const ACTIONS: [&str; 3] = ["error", "panic", "pause:300"];

/// Days that are lived at once: they wait more than they work.
const AT_ONCE: usize = 12;

/// How long one may take. None that works comes near.
const A_DAY: std::time::Duration = std::time::Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_point_may_fail_panic_or_stand_still() {
    super::keep_quiet_about_injected_panics();
    // `FAIL_POINT=writer.` lives only those days whose point begins like this.
    let only = std::env::var("FAIL_POINT").unwrap_or_default();
    let cells = POINTS
        .iter()
        .filter(|point| point.starts_with(&only))
        .flat_map(|point| ACTIONS.map(|action| (*point, action)));
    let days = cells.map(|(point, action)| async move {
        let armed = format!("{point}={action}");
        // One bad day must not hide the others.
        let day = AssertUnwindSafe(live_through(point, action)).catch_unwind();
        match tokio::time::timeout(A_DAY, day).await {
            Ok(Ok(())) => None,
            Ok(Err(_)) => Some(format!("{armed}: see the panic above")),
            Err(_) => Some(format!("{armed}: not over after {A_DAY:?}")),
        }
    });
    let days: Vec<Option<String>> = futures_util::stream::iter(days)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let bad: Vec<String> = days.into_iter().flatten().collect();
    assert!(
        bad.is_empty(),
        "{} bad days:\n{}",
        bad.len(),
        bad.join("\n")
    );
}

async fn live_through(point: &'static str, action: &str) {
    let app = TestApp::start().await;
    let armed = format!("{point}={action}");
    app.shop.fail_points.set(&armed).expect("a point");
    let sales = a_day(&app).await;
    assert!(app.shop.fail_points.fired(point) > 0, "never came by");
    for sale in [&sales.long, &sales.short] {
        eventually("everything is settled", async || {
            let audit = app.audit(sale).await;
            (audit.ok && audit.conserved == Some(true)).then_some(())
        })
        .await;
    }
    app.assert_kept(&sales.long, &sales.winners).await;
    // The shop still serves, every step of the way.
    let next = app.sale(2, json!({})).await;
    let shopper = app.shopper();
    let id = buy(&shopper, &next).await;
    shopper.until(&id, "pending_payment").await;
    shopper.cancel(&id).await.assert(StatusCode::OK);
    for _ in 0..2 {
        let shopper = app.shopper();
        let id = buy_when_returned(&shopper, &next).await;
        shopper.until(&id, "pending_payment").await;
        shopper.pay(&id).await.assert(StatusCode::OK);
    }
    assert_eq!(app.assert_sound(&next).await.paid, 2);
    app.finish().await;
}

struct Sales {
    long: String,
    /// Its orders expire after a second.
    short: String,
    winners: Vec<Winner>,
}

/// Passes every fail point.
async fn a_day(app: &TestApp) -> Sales {
    // Takes orders and writes none: this one finds them in the log.
    let taker = app.another(Options::without_writer()).await;
    let long = create(app, 60, json!({"per_user_limit": 2})).await;
    let short = create(app, 10, json!({"payment_timeout_secs": 1})).await;
    let id: SaleId = long.parse().expect("an id");
    have_a_turn(app).await;
    refuse_one_user(app).await;
    let refused = app.shopper();
    app.execute(&format!("INSERT INTO refused VALUES ('{}')", refused.user))
        .await;

    // Purchases, here and where nobody writes: the latter are recovered from the log.
    let here = join_all((0..6).map(async |_| bought(app.shopper(), &long).await));
    let there = join_all((0..3).map(async |_| bought(taker.shopper(), &long).await));
    let expiring = join_all((0..2).map(async |_| bought(app.shopper(), &short).await));
    let keyed = join_all((0..2).map(async |_| {
        let shopper = app.shopper();
        let first = buy_with_key(&shopper, &long).await;
        assert_eq!(buy_with_key(&shopper, &long).await, first, "I8");
        (shopper, first)
    }));
    let (here, there, expiring, keyed) = tokio::join!(here, there, expiring, keyed);
    let rejected = buy(&refused, &long).await;
    refused.until(&rejected, "rejected").await;
    for (shopper, id) in here.iter().chain(&there).chain(&keyed) {
        shopper.until(id, "pending_payment").await;
    }
    // From here on only this one can do what is to be done.
    taker.stop().await;

    for (shopper, id) in &here[..2] {
        until_ok("paid", async || shopper.pay(id).await).await;
    }
    for (shopper, id) in [&here[2], &keyed[0]] {
        until_ok("cancelled", async || shopper.cancel(id).await).await;
    }
    late_order(app, id).await;

    // The operator.
    for change in ["pause", "resume"] {
        let path = format!("/api/v1/admin/sales/{long}/{change}");
        until_ok(change, async || app.admin(Method::POST, &path, None).await).await;
    }
    for add in [5, -3] {
        let path = format!("/api/v1/admin/sales/{long}/stock");
        // Repeated after an error it may be done twice; the books balance all the same.
        let body = json!({ "add": add });
        until_ok("stock", async || {
            app.admin(Method::POST, &path, Some(body.clone())).await
        })
        .await;
    }
    let path = format!("/api/v1/admin/sales/{long}");
    let body = json!({"title": "another thing"});
    until_ok("changed", async || {
        app.admin(Method::PATCH, &path, Some(body.clone())).await
    })
    .await;

    retired_sale(app).await;

    // A sale is gone from Redis, and then the whole process is another one to Postgres.
    let before = super::epoch(app, &long).await;
    app.in_redis::<()>(redis::cmd("DEL").arg(Keys::new(&app.prefix).state(id)))
        .await;
    super::until_rebuilt(app, &long, before).await;
    let before = super::epoch(app, &long).await;
    app.execute("UPDATE redis_incarnation SET run_id = 'another process'")
        .await;
    super::until_rebuilt(app, &long, before).await;

    for (shopper, id) in &expiring {
        shopper.until(id, "expired").await;
    }
    let winners = here.into_iter().chain(there).chain(keyed);
    Sales {
        long,
        short,
        winners: winners.chain([(refused, rejected)]).collect(),
    }
}

/// Somebody joins a waiting room, and their turn comes.
async fn have_a_turn(app: &TestApp) {
    let sale = create(app, 5, json!({"waiting_room": {}})).await;
    let path = format!("/api/v1/sales/{sale}/waiting-room");
    let shopper = app.shopper();
    until_ok("joined", async || shopper.post(&path).await).await;
    eventually("their turn comes", async || {
        let reply = shopper.get(&path).await;
        if reply.status != StatusCode::OK {
            assert_fault(&reply);
        }
        (reply.body["state"] == "turn").then_some(())
    })
    .await;
}

/// From now on Postgres takes no live order of the users in `refused`.
async fn refuse_one_user(app: &TestApp) {
    app.execute(
        "CREATE TABLE refused (user_id uuid PRIMARY KEY);
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.status = 'pending_payment' AND EXISTS (SELECT FROM refused r WHERE r.user_id = NEW.user_id) THEN
                 RAISE EXCEPTION 'not to them' USING ERRCODE = 'check_violation';
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse();",
    )
    .await;
}

/// An order of an older epoch that the writer has in hand: it asks for a place in the live one.
async fn late_order(app: &TestApp, sale: SaleId) {
    let second = time::OffsetDateTime::now_utc() - time::macros::datetime!(2025-01-01 00:00 UTC);
    let user = UserId::random();
    let order = AcceptedOrder {
        // Far from the numbers that the generator begins each day with.
        id: OrderId::from_i64((second.whole_seconds() << 32) + 4_000_000_000),
        user,
        slot: 0,
        key: None,
    };
    let batch = AcceptedBatch {
        sale,
        epoch: 0,
        entry: "1-1".to_owned(),
        created_ms: time::OffsetDateTime::now_utc().unix_timestamp() * 1_000,
        own_writer: true,
        orders: vec![order],
        traced: Vec::new(),
    };
    eventually("the late order is settled", async || {
        // As in the writer: an error is tried again, and here a panic is, too.
        let (shop, batch) = (app.shop.clone(), batch.clone());
        let settled =
            tokio::spawn(
                async move { writer::persist(&shop, &[batch], Expect::PerhapsWritten).await },
            );
        matches!(settled.await, Ok(Ok(()))).then_some(())
    })
    .await;
    let found = format!(
        "SELECT count(*) FROM orders WHERE user_id = '{user}' AND status = 'pending_payment'"
    );
    // One that was readmitted and then forgotten is found in the log.
    wait_for!(app.number(&found).await == 1);
}

/// A sale that has long been over is taken out of Redis.
async fn retired_sale(app: &TestApp) {
    let ago = |hours| {
        let time = time::OffsetDateTime::now_utc() - time::Duration::hours(hours);
        let text = time.format(&time::format_description::well_known::Rfc3339);
        text.expect("a time")
    };
    let window = json!({"opens_at": ago(48), "closes_at": ago(25)});
    let sale = create(app, 5, window).await;
    let listing = app.shop.board.get(sale.parse().expect("an id"));
    let listing = listing.expect("it is on the board");
    eventually("it is retired", async || {
        let shop = app.shop.clone();
        let step = tokio::spawn(async move { retire::step(&shop).await });
        (matches!(step.await, Ok(Ok(_))) && !listing.is_present()).then_some(())
    })
    .await;
}

/// Creates a sale, and asks again after an error (which may leave a sale that nobody uses).
async fn create(app: &TestApp, stock: i64, members: Value) -> String {
    let mut body = json!({"title": "a thing", "price_cents": 100, "stock": stock});
    body.as_object_mut()
        .expect("an object")
        .extend(members.as_object().cloned().unwrap_or_default());
    eventually("a sale is created", async || {
        let asked = app.admin(Method::POST, "/api/v1/admin/sales", Some(body.clone()));
        let reply = asked.await;
        match reply.status {
            StatusCode::CREATED => Some(reply.text("id").to_owned()),
            _ => {
                assert_fault(&reply);
                None
            }
        }
    })
    .await
}

/// Whatever fails inside, people hear that it failed.
#[track_caller]
fn assert_fault(reply: &Reply) {
    assert!(
        reply.status.is_server_error(),
        "{}: {:#}",
        reply.status,
        reply.body
    );
}

async fn until_ok(what: &str, ask: impl AsyncFn() -> Reply) {
    eventually(what, async || {
        let reply = ask().await;
        if reply.status != StatusCode::OK {
            assert_fault(&reply);
            return None;
        }
        Some(())
    })
    .await;
}

async fn bought(shopper: Shopper, sale: &str) -> Winner {
    let id = buy(&shopper, sale).await;
    (shopper, id)
}

/// Buys one unit. Who was told 503 may have an order all the same, and hears of it.
async fn buy(shopper: &Shopper, sale: &str) -> String {
    eventually("somebody buys", async || {
        let reply = shopper.buy(sale).await;
        match reply.status {
            StatusCode::ACCEPTED => Some(reply.text("order_id").to_owned()),
            StatusCode::CONFLICT if reply.code() == "already_ordered" => {
                Some(reply.text("order_id").to_owned())
            }
            _ => {
                assert_fault(&reply);
                None
            }
        }
    })
    .await
}

/// With a key, a retry is answered like the first time.
async fn buy_with_key(shopper: &Shopper, sale: &str) -> String {
    let key = shopper.user.to_string();
    eventually("somebody buys with a key", async || {
        let reply = shopper.buy_with_key(sale, &key).await;
        match reply.status {
            StatusCode::ACCEPTED | StatusCode::OK => Some(reply.text("order_id").to_owned()),
            _ => {
                assert_fault(&reply);
                None
            }
        }
    })
    .await
}

/// Buys one of two units, of which one was returned a moment ago.
async fn buy_when_returned(shopper: &Shopper, sale: &str) -> String {
    eventually("a returned unit is bought", async || {
        let reply = shopper.buy(sale).await;
        (reply.is_accepted()).then(|| reply.text("order_id").to_owned())
    })
    .await
}
