//! Every fail point, with each action that a process survives, in one day of a shop.

use super::*;
use crate::support::plant::REFUSE_SOME_USERS;
use flash_sale::{catalog::eviction, fail_point::POINTS};
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;

const ACTIONS: [&str; 3] = ["error", "panic", "pause:300"];

/// Days that are lived at once: they wait more than they work.
const AT_ONCE: usize = 12;

/// How long one may take. None that works comes near.
const A_DAY: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_point_may_fail_panic_or_stand_still() {
    keep_quiet_about_injected_panics();
    let only = std::env::var("FAIL_POINT").unwrap_or_default();
    let points = POINTS.iter().filter(|point| point.starts_with(&only));
    let cells = points.flat_map(|point| ACTIONS.map(|action| (*point, action)));
    let days = cells.map(|(point, action)| async move {
        // One bad day must not hide the others.
        let day = AssertUnwindSafe(live_through(point, action)).catch_unwind();
        match tokio::time::timeout(A_DAY, day).await {
            Ok(Ok(())) => None,
            Ok(Err(_)) => Some(format!("{point}={action}: see the panic above")),
            Err(_) => Some(format!("{point}={action}: not over after {A_DAY:?}")),
        }
    });
    let days = stream::iter(days).buffer_unordered(AT_ONCE);
    let bad: Vec<String> = days.filter_map(std::future::ready).collect().await;
    assert!(bad.is_empty(), "{} bad days:\n{}", bad.len(), bad.join("\n"));
}

/// Injected panics are no news, and printing a backtrace takes the debug information of the binary.
fn keep_quiet_about_injected_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // As `panic!` with arguments leaves it.
        let text = panic.payload().downcast_ref::<String>();
        if !text.is_some_and(|text| text.starts_with("injected at ")) {
            usual(panic);
        }
    }));
}

async fn live_through(point: &'static str, action: &str) {
    let app = TestApp::start().await;
    arm(&app, &format!("{point}={action}"));
    let (sales, winners) = a_day(&app).await;
    assert!(fired(&app, point) > 0, "never came by");
    for sale in &sales {
        app.until_sound(sale).await;
    }
    app.database.assert_kept(&sales[0], &winners).await;
    let next = app.sale(2, json!({})).await;
    let shopper = app.shopper();
    let id = buy(&shopper, &next, false).await;
    shopper.until(&id, "pending_payment").await;
    shopper.cancel(&id).await.assert(200);
    for _ in 0..2 {
        let shopper = app.shopper();
        let id = wait_for!("a returned unit is bought", {
            let reply = shopper.buy(&next).await;
            reply.is_accepted().then(|| reply.text("order_id").to_owned())
        });
        shopper.until(&id, "pending_payment").await;
        shopper.pay(&id).await.assert(200);
    }
    assert_eq!(app.assert_sound(&next).await.paid, 2);
    // Here, where other days go on meanwhile.
    app.finish().await;
}

/// Its sales, the first with these orders.
async fn a_day(app: &TestApp) -> ([String; 2], Vec<Winner>) {
    let taker = app.another(Options::without_writer()).await;
    let long = create(app, 60, json!({"per_user_limit": 2})).await;
    let short = create(app, 10, json!({"payment_timeout_secs": 1})).await;
    have_a_turn(app).await;
    let mut winners = orders(app, &taker, &long, &short).await;
    taker.stop().await;
    let expiring = winners.split_off(winners.len() - 2);
    for (shopper, id) in &winners[..2] {
        until_ok("paid", async || shopper.pay(id).await).await;
    }
    for (shopper, id) in &winners[2..4] {
        until_ok("cancelled", async || shopper.cancel(id).await).await;
    }
    late_order(app, &long).await;
    change(app, &long).await;
    evicted_sale(app).await;
    let (keys, id) = keys_of(app, &long);
    rebuilt_by(app, &long, app.in_redis(redis::cmd("DEL").arg(keys.state(id)))).await;
    rebuilt_by(app, &long, app.execute(DISOWN)).await;
    for (shopper, id) in &expiring {
        shopper.until(id, "expired").await;
    }
    ([long, short], winners)
}

/// Purchases, here and where nobody writes (found in the log). The short sale's come last.
async fn orders(app: &TestApp, taker: &TestApp, long: &str, short: &str) -> Vec<Winner> {
    app.execute(REFUSE_SOME_USERS).await;
    let refused = app.shopper();
    app.execute(&format!("INSERT INTO refused VALUES ('{}')", refused.user)).await;
    let bought = async |at: &TestApp, sale: &str, has_key: bool| {
        let shopper = at.shopper();
        let order = buy(&shopper, sale, has_key).await;
        if has_key {
            assert_eq!(buy(&shopper, sale, true).await, order, "I8");
        }
        (shopper, order)
    };
    let keyed = join_all((0..2).map(|_| bought(app, long, true)));
    let here = join_all((0..6).map(|_| bought(app, long, false)));
    let there = join_all((0..3).map(|_| bought(taker, long, false)));
    let expiring = join_all((0..2).map(|_| bought(app, short, false)));
    let (here, there, expiring, keyed) = tokio::join!(here, there, expiring, keyed);
    let rejected = buy(&refused, long, false).await;
    refused.until(&rejected, "rejected").await;
    // One of those with a key is among the first four.
    let mut winners = [here, there].concat();
    winners.insert(3, keyed[0].clone());
    winners.push(keyed[1].clone());
    for (shopper, id) in &winners {
        shopper.until(id, "pending_payment").await;
    }
    winners.push((refused, rejected));
    winners.extend(expiring);
    winners
}

async fn change(app: &TestApp, sale: &str) {
    // Repeated after an error, a change of stock may be done twice; the books balance all the same.
    for (method, path, body) in [
        (Method::POST, "/pause", None),
        (Method::POST, "/resume", None),
        (Method::POST, "/stock", Some(json!({"add": 5}))),
        (Method::POST, "/stock", Some(json!({"add": -3}))),
        (Method::PATCH, "", Some(json!({"title": "another thing"}))),
    ] {
        let ask = async || app.admin_sale(method.clone(), sale, path, body.clone()).await;
        until_ok(path, ask).await;
    }
}

async fn have_a_turn(app: &TestApp) {
    let sale = create(app, 5, json!({"waiting_room": {}})).await;
    let path = format!("/api/v1/sales/{sale}/waiting-room");
    let shopper = app.shopper();
    until_ok("joined", async || shopper.post(&path).await).await;
    let place = async || until_ok("a place", async || shopper.get(&path).await).await.body;
    wait_for!(place().await["state"] == "turn");
}

/// An order of an older epoch that the writer has in hand: it asks for a place in the live one.
async fn late_order(app: &TestApp, sale: &str) {
    let order = new_order(0);
    let batch = batch_of(sale.parse().expect("an id"), 0, order);
    wait_for!("the late order is settled", {
        // As in the writer: an error is tried again, and here a panic is, too.
        let (services, batch) = (app.services.clone(), [batch.clone()]);
        let settle = async move { services.orders.persist(&batch, Expect::PerhapsWritten).await };
        matches!(tokio::spawn(settle).await, Ok(Ok(()))).then_some(())
    });
    // One that was readmitted and then forgotten is found in the log.
    wait_for!(count(app, &order, "pending_payment").await == 1);
}

async fn evicted_sale(app: &TestApp) {
    let ago = |hours: i64| in_secs(-3_600 * hours);
    let sale = create(app, 5, json!({"opens_at": ago(48), "closes_at": ago(25)})).await;
    let cached = app.services.catalog.cache.get(sale.parse().expect("an id"));
    let cached = cached.expect("it is in the cache");
    wait_for!("it is evicted", {
        let catalog = app.services.catalog.clone();
        let step = tokio::spawn(async move { eviction::step(&catalog).await });
        (matches!(step.await, Ok(Ok(_))) && !cached.is_present()).then_some(())
    });
}

async fn until(what: &str, wanted: &[StatusCode], ask: impl AsyncFn() -> Reply) -> Reply {
    wait_for!(what, {
        let reply = ask().await;
        if wanted.contains(&reply.status) {
            return Some(reply);
        }
        assert!(reply.status.is_server_error(), "{what}: {}: {:#}", reply.status, reply.body);
        None
    })
}

async fn until_ok(what: &str, ask: impl AsyncFn() -> Reply) -> Reply {
    until(what, &[StatusCode::OK], ask).await
}

/// Creates a sale, and asks again after an error (which may leave a sale that nobody uses).
async fn create(app: &TestApp, stock: i64, members: Value) -> String {
    let body = with(json!({"title": "a thing", "price_cents": 100, "stock": stock}), &members);
    let ask = async || app.admin(Method::POST, "/api/v1/admin/sales", Some(body.clone())).await;
    until("a sale is created", &[StatusCode::CREATED], ask).await.text("id").to_owned()
}

/// After a 503 one may have an order, and hears of it; with a key a retry is like the first time.
async fn buy(shopper: &Shopper, sale: &str, has_key: bool) -> String {
    let ask = async || match has_key {
        true => shopper.buy_with_key(sale, &shopper.user.to_string()).await,
        false => shopper.buy(sale).await,
    };
    let again = if has_key { StatusCode::OK } else { StatusCode::CONFLICT };
    let reply = until("a purchase", &[StatusCode::ACCEPTED, again], ask).await;
    let is_theirs = reply.status != StatusCode::CONFLICT || reply.code() == "already_ordered";
    assert!(is_theirs, "{:#}", reply.body);
    reply.text("order_id").to_owned()
}
