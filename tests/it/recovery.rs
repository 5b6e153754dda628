//! Nothing acknowledged is lost: outages of Postgres, writers that die, a Redis that restarts or
//! forgets.

use crate::support::{
    Servers,
    app::{Options, PATIENCE, TestApp, all_at_once, eventually},
    load::crowd,
};
use flash_sale::{
    app::Role,
    domain::{Admission, UserId},
    sale::ids,
    worker::{rebuild, recovery},
};
use reqwest::StatusCode;
use serde_json::json;
use std::{
    collections::HashSet,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_goes_on_without_postgres_and_the_backlog_drains_by_itself() {
    let app = TestApp::start().await;
    let sale = app.sale(1_000, json!({})).await;
    crowd(&app, &sale, 50).await;
    app.allow_connections(false).await;

    let mut winners = Vec::new();
    for _ in 0..4 {
        winners.extend(crowd(&app, &sale, 100).await);
    }
    assert_eq!(
        winners.len(),
        400,
        "no purchase fails while postgres is away"
    );

    app.allow_connections(true).await;
    for (shopper, id) in &winners {
        shopper.until(id, "pending_payment").await;
    }
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.redis.stream), (450, Some(0)));
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_process_without_a_writer_takes_is_written_by_a_worker() {
    let taker = TestApp::start_with(Options::without_writer()).await;
    let sale = taker.sale(500, json!({})).await;
    let winners = crowd(&taker, &sale, 300).await;
    assert_eq!(winners.len(), 300);
    let (shopper, id) = &winners[0];
    let queued = shopper.order(id).await;
    queued.assert(StatusCode::OK);
    assert_eq!(queued.text("status"), "queued");
    shopper.pay(id).await.assert_problem(409, "still_queued");
    let listed = shopper.get("/api/v1/orders").await;
    assert_eq!(
        listed.body["orders"][0]["order_id"],
        id.as_str(),
        "queued orders are listed"
    );
    let audit = taker.audit(&sale).await;
    assert_eq!(
        (audit.quiescent, audit.backlog, audit.live, audit.conserved),
        (false, 300, 0, None)
    );

    let worker = taker
        .another(Options {
            role: Role::Worker,
            ..Options::default()
        })
        .await;
    for (shopper, id) in &winners {
        shopper.until(id, "pending_payment").await;
    }
    taker.assert_sound(&sale).await;
    worker.stop().await;
    taker.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_a_dead_writer_are_left_alone_for_the_grace_period_and_then_written() {
    let app = TestApp::start_with(Options::without_writer()).await;
    let sale = app.sale(10, json!({})).await;
    let id = sale.parse().expect("an id");
    // A process that says it writes its own orders, and has lost its writer.
    let (shop, _) = app.shop_without_loops();
    rebuild::step(&shop, &mut HashSet::new())
        .await
        .expect("approved");
    let accepted = Instant::now();
    for _ in 0..5 {
        let admission = shop
            .purchase(id, UserId::random(), None)
            .await
            .expect("an answer");
        assert!(
            matches!(admission, Admission::Accepted { .. }),
            "{admission:?}"
        );
    }
    shop.refresh(id).await.expect("the sale");
    assert_eq!(
        recovery::step(&shop).await.expect("a pass"),
        0,
        "too young to be left behind"
    );
    let mut settled = 0;
    eventually("all orders are left behind", async || {
        shop.refresh(id).await.expect("the sale");
        // On a busy machine the first ones are old enough a pass before the last.
        settled += recovery::step(&shop).await.expect("a pass");
        assert!(settled == 0 || accepted.elapsed() >= recovery::GRACE);
        (settled >= 5).then_some(())
    })
    .await;
    assert_eq!(settled, 5, "each once");
    assert_eq!(app.assert_sound(&sale).await.live, 5);
    app.finish().await;
}

/// What was left behind in many sales is written together, not in a transaction for each; and while this process' own
/// writer is behind, what has grown old meanwhile is not taken for left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_many_sales_are_recovered_in_one_transaction_once_nobody_writes_them() {
    const SALES: usize = 40;
    let app = TestApp::start_with(Options::without_writer()).await;
    let mut sales = Vec::new();
    for _ in 0..SALES {
        sales.push(app.sale(10, json!({})).await);
    }
    let (shop, _) = app.shop_without_loops();
    rebuild::step(&shop, &mut HashSet::new())
        .await
        .expect("approved");
    for sale in &sales {
        let id = sale.parse().expect("an id");
        let admission = shop.purchase(id, UserId::random(), None).await;
        let admission = admission.expect("an answer");
        assert!(matches!(admission, Admission::Accepted { .. }));
    }
    let listings = shop.board.listings();
    shop.read_snapshots(&listings).await.expect("snapshots");
    let last = Instant::now();
    shop.set_oldest_in_hand(1); // since 1970
    eventually("all are older than the grace", async || {
        assert_eq!(recovery::step(&shop).await.expect("a pass"), 0);
        (last.elapsed() > recovery::GRACE + Duration::from_millis(200)).then_some(())
    })
    .await;
    shop.set_oldest_in_hand(0);
    let asked = || shop.round_trips.postgres.load(Relaxed);
    let before = asked();
    assert_eq!(recovery::step(&shop).await.expect("a pass"), SALES);
    let round_trips = asked() - before;
    assert!(round_trips < 10, "{round_trips} questions to Postgres");
    for sale in &sales {
        assert_eq!(app.assert_sound(sale).await.live, 1);
    }
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_restarts_keeps_every_promise_and_the_sale_reopens_by_itself() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let sale = app.sale(2_000, json!({})).await;
    let mut winners = crowd(&app, &sale, 300).await;
    assert_eq!(winners.len(), 300);
    for _ in 0..3 {
        let (before, during) = (
            app.audit(&sale).await.postgres.epoch,
            crowd(&app, &sale, 200),
        );
        let (during, ()) = tokio::join!(during, async { servers.redis.kill() });
        winners.extend(during);
        // Reopened: somebody new can buy, in a new epoch.
        let newcomer = app.shopper();
        let id = eventually("the gate reopens", async || {
            let reply = newcomer.buy(&sale).await;
            match reply.status {
                StatusCode::ACCEPTED => Some(reply.text("order_id").to_owned()),
                StatusCode::CONFLICT if reply.code() == "already_ordered" => {
                    Some(reply.text("order_id").to_owned())
                }
                _ => None,
            }
        })
        .await;
        winners.push((newcomer, id));
        assert!(
            app.audit(&sale).await.postgres.epoch > before,
            "a rebuild has fenced the old epoch"
        );
    }
    for (shopper, id) in &winners {
        shopper.until(id, "pending_payment").await;
    }
    let audit = app.assert_sound(&sale).await;
    assert!(
        audit.live >= winners.len() as i64,
        "an unknown outcome may be an order, a 202 must be"
    );
    assert!(audit.redis.run_id_approved);
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_redis_is_noticed_and_rebuilt_without_overselling() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let second = app.another(Options::default()).await;
    let sale = app.sale(120, json!({})).await;
    let winners = crowd(&app, &sale, 100).await;
    assert_eq!(winners.len(), 100);
    for (shopper, id) in &winners {
        shopper.until(id, "pending_payment").await;
    }
    let client = redis::Client::open(servers.redis.url()).expect("url");
    let mut connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("redis");
    redis::cmd("FLUSHALL")
        .exec_async(&mut connection)
        .await
        .expect("FLUSHALL");

    // Twenty units remain for a crowd that keeps coming while the stock is rebuilt.
    let mut sold = 0;
    let mut fresh = Vec::new();
    let deadline = std::time::Instant::now() + PATIENCE;
    while sold < 20 {
        let more = crowd(&second, &sale, 30).await;
        sold += more.len();
        fresh.extend(more);
        assert!(
            std::time::Instant::now() < deadline,
            "only {sold} of 20 sold after the flush"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(sold, 20);
    for (shopper, id) in &fresh {
        shopper.until(id, "pending_payment").await;
    }
    // Old winners are known again, in the new epoch.
    let (shopper, id) = &winners[0];
    let again = second.as_shopper(shopper).buy(&sale).await;
    again.assert_problem(409, "already_ordered");
    assert_eq!(again.text("order_id"), id);
    assert_eq!(app.assert_sound(&sale).await.live, 120);
    second.stop().await;
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_without_its_scripts_is_given_them_again() {
    let app = TestApp::start().await;
    let sale = app.sale(10, json!({})).await;
    app.shopper().must_buy(&sale).await;
    let client = redis::Client::open(app.redis_url.clone()).expect("url");
    let mut connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("redis");
    redis::cmd("SCRIPT")
        .arg("FLUSH")
        .exec_async(&mut connection)
        .await
        .expect("SCRIPT FLUSH");
    app.shopper().must_buy(&sale).await;
    app.assert_sound(&sale).await;
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_redis_gives_every_waiting_buyer_an_answer_in_time_and_no_one_loses_their_order() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let sale = app.sale(1_000, json!({})).await;
    app.shopper().must_buy(&sale).await;
    let pid = nix::unistd::Pid::from_raw(servers.redis.pid().expect("running").cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).expect("SIGSTOP");
    let began = std::time::Instant::now();
    let shoppers: Vec<_> = (0..50).map(|_| app.shopper()).collect();
    let replies = all_at_once(shoppers.iter().cloned().map(|shopper| {
        let sale = sale.clone();
        async move { shopper.buy(&sale).await }
    }))
    .await;
    let waited = began.elapsed();
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).expect("SIGCONT");
    for reply in &replies {
        reply.assert_problem(503, "unavailable");
    }
    assert!(
        waited < Duration::from_secs(15),
        "waiting buyers are answered, not left hanging: {waited:?}"
    );
    // Whatever became of those attempts, the retry resolves it: one order each.
    for shopper in &shoppers {
        let id = eventually("the retry is answered", async || {
            let reply = shopper.buy(&sale).await;
            matches!(reply.status, StatusCode::ACCEPTED | StatusCode::CONFLICT)
                .then(|| reply.text("order_id").to_owned())
        })
        .await;
        shopper.until(&id, "pending_payment").await;
    }
    assert_eq!(app.assert_sound(&sale).await.live, 51);
    app.finish().await;
}

/// An id says when it was made: a sale that was not open by then cannot have that order, whatever state it
/// is in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_order_is_only_in_doubt_if_a_sale_of_its_time_is() {
    let app = TestApp::start().await;
    let opens_at = OffsetDateTime::now_utc() + time::Duration::HOUR;
    let text = opens_at.format(&Rfc3339).expect("a time");
    let (open, next) = (
        app.sale(10, json!({})).await,
        app.sale(10, json!({ "opens_at": text })).await,
    );
    // What is broken stays so.
    let points = &app.shop.fail_points;
    points.set("rebuild.elected=error*always").expect("a point");
    let shopper = app.shopper();
    let unknown = |hours: i64| {
        let time = OffsetDateTime::now_utc() + time::Duration::hours(hours);
        ids::encode(time.unix_timestamp(), 4_000_000_001).expect("an id")
    };
    let break_sale = async |sale: &str| {
        let state = app.shop.redis.keys.state(sale.parse().expect("an id"));
        redis::cmd("HSET")
            .arg(&[state.as_str(), "epoch", "7"])
            .exec_async(&mut app.redis().await)
            .await
            .expect("HSET");
    };
    let ask = async |hours| shopper.order(&unknown(hours).to_string()).await;
    ask(0).await.assert(StatusCode::NOT_FOUND);
    break_sale(&next).await;
    ask(0).await.assert(StatusCode::NOT_FOUND);
    ask(2).await.assert(StatusCode::SERVICE_UNAVAILABLE);
    break_sale(&open).await;
    ask(0).await.assert(StatusCode::SERVICE_UNAVAILABLE);
    app.finish().await;
}
