//! Writing accepted orders: whole batches, partly written ones, twice, at once, and refused ones.

use crate::support::prelude::*;
use flash_sale::order_log::{AcceptedBatch, AcceptedOrder};
use flash_sale::orders::insert::Expect;
use flash_sale::orders::outcome::Outcome;

async fn accepted(app: &TestApp, stock: i64, count: usize) -> (String, Services, AcceptedBatch) {
    let sale = app.sale(stock, json!({})).await;
    let (services, mut channel) = app.approved_services().await;
    let mut accept = async || {
        must_accept(&services, sale.parse().expect("an id")).await;
        channel.recv().await.expect("handed on")
    };
    let mut whole = accept().await;
    for _ in 1..count {
        whole.orders.extend(accept().await.orders);
    }
    (sale, services, whole)
}

fn first(count: usize, batch: &AcceptedBatch) -> AcceptedBatch {
    AcceptedBatch { orders: batch.orders[..count].to_vec(), ..batch.clone() }
}

async fn write(services: &Services, batches: &[AcceptedBatch]) -> Outcome {
    services.orders.write_accepted(batches, Expect::New).await.expect("an answer")
}

const ROWS: &str = "SELECT count(*) FROM orders";

async fn assert_rows(app: &TestApp, rows: i64, taken: i64) {
    let counted = app.number("SELECT sum(taken)::bigint FROM sales").await;
    assert_eq!((app.number(ROWS).await, counted), (rows, taken));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_partly_written_or_written_by_many_is_completed_and_counted_once() {
    let app = TestApp::start_with(Options::without_writer()).await;
    let (_, services, batch) = accepted(&app, 10, 6).await;
    for (batch, new) in [(first(3, &batch), 3), (batch.clone(), 3), (batch.clone(), 0)] {
        assert_eq!(write(&services, &[batch]).await, Outcome::Written { new });
    }
    assert_rows(&app, 6, 6).await;
    let (_, _, another) = accepted(&app, 10, 4).await;
    assert_eq!(write(&services, &[batch, another]).await, Outcome::Written { new: 4 });
    assert_rows(&app, 10, 10).await;
    let (_, _, current) = accepted(&app, 10, 3).await;
    let stale = AcceptedBatch { epoch: current.epoch + 1, ..current.clone() };
    assert_eq!(write(&services, &[current, stale]).await, Outcome::StaleEpoch);
    assert_rows(&app, 10, 10).await;
    // Many write the same at once.
    let (_, services, batch) = accepted(&app, 50, 20).await;
    let writer = |_| {
        let (services, batches) = (services.clone(), [batch.clone()]);
        async move { write(&services, &batches).await }
    };
    let new = |written| match written {
        Outcome::Written { new } => new,
        other => panic!("another epoch: {other:?}"),
    };
    assert_eq!(all_at_once((0..8).map(writer)).await.into_iter().map(new).sum::<u64>(), 20);
    assert_rows(&app, 30, 30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_user_among_written_and_new_orders_is_rejected_alone() {
    let app = TestApp::start_with(Options::without_writer()).await;
    let (_, services, batch) = accepted(&app, 10, 4).await;
    write(&services, &[first(1, &batch)]).await;
    // A second order of the same user, which only a Redis that lost the first would accept.
    let id = OrderId::from_i64(batch.orders[0].id.get() + 1_000_000);
    let duplicate = AcceptedOrder { id, ..batch.orders[0] };
    let mut both = [batch];
    both[0].orders.push(duplicate);
    let written = services.orders.write_accepted(&both, Expect::New).await;
    assert!(matches!(written, Ok(Outcome::Refused { .. })), "I2 is not written over: {written:?}");
    assert_rows(&app, 1, 1).await;
    services.orders.persist(&both, Expect::New).await.expect("settled one by one");
    assert_rows(&app, 5, 4).await;
    let rejected = "SELECT id FROM orders WHERE status = 'rejected'";
    assert_eq!(app.number(rejected).await, duplicate.id.get());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_waits_for_its_rebuild_does_not_hold_up_the_others_of_its_batch() {
    let app = TestApp::start_with(Options::without_writer()).await;
    let (waiting, services, old) = accepted(&app, 10, 2).await;
    let (live, _, current) = accepted(&app, 10, 3).await;
    app.execute(&format!("UPDATE sales SET epoch = epoch + 1 WHERE id = {waiting}")).await;
    let batches = [old, current];
    let first_try = services.orders.persist(&batches, Expect::New).await;
    let rows = format!("{ROWS} WHERE sale_id = {live}");
    assert_eq!(app.number(&rows).await, 3, "{first_try:?}");
    wait_for!("the waiting sale's orders are rows", {
        services.orders.persist(&batches, Expect::New).await.ok()
    });
    assert_eq!(app.number(ROWS).await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_lets_orders_be_written_and_units_come_back() {
    let (_servers, app) = TestApp::on_own_servers().await;
    let sale = app.sale(3, json!({})).await;
    let limit = async |bytes: u32| {
        app.in_redis::<()>(redis::cmd("CONFIG").arg(&["SET", "maxmemory"]).arg(bytes)).await;
    };
    let points = &app.services.fail_points;
    points.set("writer.received=pause:600000").expect("a fail point");
    let shopper = app.shopper();
    let order = shopper.must_buy(&sale).await;
    limit(1).await;
    points.resume();
    shopper.until(&order, "pending_payment").await;
    assert_shed(&app.shopper().buy(&sale).await);
    app.assert_sound_with(&sale, json!({"backlog": 0, "remaining": 2})).await;
    shopper.cancel(&order).await.assert(200);
    app.assert_sound_with(&sale, json!({"backlog": 0, "remaining": 3})).await;
    limit(0).await;
    wait_for!(app.shopper().buy(&sale).await.is_accepted());
}
