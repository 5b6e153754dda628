//! Orders of an epoch that has ended, which a living process still has in hand: Redis has lost them,
//! Postgres never had them, and nobody else can write them.

use super::{Pair, epoch, flush, until_rebuilt};
use crate::support::{
    Servers,
    app::{Options, TestApp},
    load::{Winner, crowd},
    proxy::{Address, Fault, Proxy},
};
use flash_sale::{
    domain::UserId,
    sale::{log::AcceptedBatch, orders::Expect},
    worker::{rebuild, writer},
};
use serde_json::json;
use std::collections::HashSet;

/// Orders of a sale that only this instance has: its writer holds them back until its fail points are
/// cleared, and Redis has lost everything and was rebuilt without them.
async fn held_back(holder: &TestApp, sale: &str, count: usize) -> Vec<Winner> {
    let before = epoch(holder, sale).await;
    let points = &holder.shop.fail_points;
    points.set("writer.received=error*always").expect("a point");
    let late = crowd(holder, sale, count).await;
    assert_eq!(late.len(), count);
    flush(holder).await;
    until_rebuilt(holder, sale, before).await;
    assert_eq!(rows(holder).await, 0, "nobody wrote them");
    late
}

async fn rows(app: &TestApp) -> i64 {
    app.number("SELECT count(*) FROM orders").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_falls_silent_when_late_orders_are_looked_up() {
    let servers = Servers::own().await;
    let proxy = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let holder = TestApp::launch(
        app.database.clone().through(proxy.tcp_address()),
        app.redis_url.clone(),
        app.prefix.clone(),
        Options::default(),
    )
    .await;
    let sale = app.sale(10, json!({})).await;
    let late = held_back(&holder, &sale, 6).await;
    proxy
        .set(Fault::SilentTo {
            request: "SELECT id FROM orders WHERE id = ANY",
        })
        .await;
    holder.shop.fail_points.clear();
    wait_for!(proxy.counts().swallowed_bytes > 0);
    proxy.set(Fault::None).await;
    // That connection stays silent for ever. The writer asks on another one.
    let kept = app.assert_kept(&sale, &late).await;
    assert_eq!(kept["pending_payment"], 6, "{kept:?}");
    assert_eq!(app.assert_sound(&sale).await.live, 6);
    holder.stop().await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_orders_survive_that_redis_is_lost_again_after_it_took_them_back() {
    let pair = Pair::start().await;
    let [app, holder] = pair.apps();
    let sale = app.sale(10, json!({})).await;
    let late = held_back(holder, &sale, 6).await;
    // They are in the log again, and nobody but the writer that has them may take them from there.
    for instance in pair.apps() {
        let points = &instance.shop.fail_points;
        points.set("recovery.read=error*always").expect("a point");
    }
    let points = &holder.shop.fail_points;
    points
        .set("writer.readmitted=error*always;writer.received=error*0")
        .expect("points");
    wait_for!(points.fired("writer.readmitted") > 0);
    // Those that the writer took in hand; the others are in its channel.
    let again = app.audit(&sale).await.backlog;
    assert!((1..=6).contains(&again), "{again} are in the log");
    assert_eq!(rows(app).await, 0);

    let before = epoch(app, &sale).await;
    flush(app).await;
    until_rebuilt(app, &sale, before).await;
    assert_eq!(rows(app).await, 0, "the rebuild had nothing to write");
    for instance in pair.apps() {
        instance.shop.fail_points.clear();
    }
    let kept = app.assert_kept(&sale, &late).await;
    assert_eq!(kept["pending_payment"], 6, "{kept:?}");
    assert_eq!(app.assert_sound(&sale).await.live, 6);
    pair.finish().await;
}

/// After a loss the log begins anew, by the clock of the Redis that there is then: an id may come twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_order_does_not_acknowledge_a_new_one_whose_entry_has_the_same_id() {
    let servers = Servers::own().await;
    // Nobody writes but this test.
    let app = TestApp::start_on(&servers, Options::without_writer()).await;
    let sale = app.sale(10, json!({})).await;
    let id = sale.parse().expect("an id");
    let (shop, mut accepted) = app.shop_without_loops();
    rebuild::step(&shop, &mut HashSet::new())
        .await
        .expect("approved");
    let mut buy = async || {
        let bought = shop.purchase(id, UserId::random(), None).await;
        bought.expect("an answer");
        accepted.recv().await.expect("accepted")
    };
    let old = buy().await;
    let before = epoch(&app, &sale).await;
    flush(&app).await;
    until_rebuilt(&app, &sale, before).await;
    let new = buy().await;
    assert!(new.epoch > old.epoch);
    let old = AcceptedBatch {
        entry: new.entry.clone(),
        ..old
    };
    writer::persist(&shop, &[old], Expect::PerhapsWritten)
        .await
        .expect("it has a place in the new epoch");
    let audit = app.audit(&sale).await;
    assert_eq!((audit.live, audit.backlog), (1, 1), "{audit:#?}");
    assert_eq!(audit.redis.stream, Some(1), "the new order is in the log");
    writer::persist(&shop, &[new], Expect::New)
        .await
        .expect("written");
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.redis.stream), (2, Some(0)));
    app.stop().await;
}
