//! Writing accepted orders: whole batches, batches that are partly written, twice, by two at once, and
//! batches that Postgres refuses.

use crate::support::app::{Options, TestApp, eventually};
use flash_sale::{
    domain::{Admission, OrderId, UserId},
    sale::{
        Shop,
        log::{AcceptedBatch, AcceptedOrder},
        orders::{self, Expect, Written},
    },
    worker::{rebuild, writer},
};
use serde_json::json;
use std::{collections::HashSet, slice::from_ref, sync::Arc};

/// A sale with one accepted and unwritten order of each of `users`, and nobody who writes by itself.
async fn accepted(app: &TestApp, stock: i64, count: usize) -> (String, Arc<Shop>, AcceptedBatch) {
    let sale = app.sale(stock, json!({})).await;
    let (shop, mut channel) = app.shop_without_loops();
    rebuild::step(&shop, &mut HashSet::new())
        .await
        .expect("approved");
    let id = sale.parse().expect("an id");
    let mut whole: Option<AcceptedBatch> = None;
    for _ in 0..count {
        let admission = shop
            .purchase(id, UserId::random(), None)
            .await
            .expect("an answer");
        assert!(
            matches!(admission, Admission::Accepted { .. }),
            "{admission:?}"
        );
        let batch = channel.recv().await.expect("handed on");
        match &mut whole {
            Some(whole) => whole.orders.extend(batch.orders),
            None => whole = Some(batch),
        }
    }
    (sale, shop, whole.expect("somebody bought"))
}

async fn app() -> TestApp {
    TestApp::start_with(Options::without_writer()).await
}

async fn write(shop: &Shop, batches: &[AcceptedBatch]) -> Written {
    let written = orders::write_accepted(shop, batches, Expect::New).await;
    written.expect("an answer")
}

const ROWS: &str = "SELECT count(*) FROM orders";
const TAKEN: &str = "SELECT sum(taken)::bigint FROM sales";

#[tokio::test]
async fn a_batch_that_is_partly_written_is_completed_and_counted_once() {
    let app = app().await;
    let (_, shop, batch) = accepted(&app, 10, 6).await;
    let half = AcceptedBatch {
        orders: batch.orders[..3].to_vec(),
        ..batch.clone()
    };
    assert_eq!(write(&shop, from_ref(&half)).await, Written::All { new: 3 });
    assert_eq!(
        write(&shop, from_ref(&batch)).await,
        Written::All { new: 3 }
    );
    assert_eq!(
        write(&shop, from_ref(&batch)).await,
        Written::All { new: 0 }
    );
    assert_eq!((app.number(ROWS).await, app.number(TAKEN).await), (6, 6));
    app.finish().await;
}

#[tokio::test]
async fn one_call_completes_one_sale_and_begins_another() {
    let app = app().await;
    let (_, shop, first) = accepted(&app, 10, 3).await;
    let (_, _, second) = accepted(&app, 10, 4).await;
    write(&shop, from_ref(&first)).await;
    let both = write(&shop, &[first, second]).await;
    assert_eq!(both, Written::All { new: 4 });
    assert_eq!((app.number(ROWS).await, app.number(TAKEN).await), (7, 7));
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_of_the_same_orders_count_them_once() {
    let app = app().await;
    let (sale, shop, batch) = accepted(&app, 50, 20).await;
    let batch = Arc::new(batch);
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let (shop, batch) = (shop.clone(), batch.clone());
            tokio::spawn(async move { write(&shop, from_ref(&*batch)).await })
        })
        .collect();
    let mut new_in_all = 0;
    for writer in writers {
        match writer.await.expect("no panic") {
            Written::All { new } => new_in_all += new,
            Written::StaleEpoch | Written::IdTaken => panic!("the epoch has not changed"),
        }
    }
    assert_eq!(new_in_all, 20);
    assert_eq!((app.number(ROWS).await, app.number(TAKEN).await), (20, 20));
    drop(sale);
    app.finish().await;
}

#[tokio::test]
async fn an_order_of_another_epoch_writes_nothing_of_its_batch() {
    let app = app().await;
    let (_, shop, batch) = accepted(&app, 10, 3).await;
    let stale = AcceptedBatch {
        epoch: batch.epoch + 1,
        ..batch.clone()
    };
    let outcome = write(&shop, &[batch, stale]).await;
    assert_eq!(outcome, Written::StaleEpoch);
    assert_eq!((app.number(ROWS).await, app.number(TAKEN).await), (0, 0));
    app.finish().await;
}

#[tokio::test]
async fn a_duplicate_user_among_written_and_new_orders_is_rejected_alone() {
    let app = app().await;
    let (_, shop, batch) = accepted(&app, 10, 4).await;
    let written = AcceptedBatch {
        orders: batch.orders[..1].to_vec(),
        ..batch.clone()
    };
    write(&shop, &[written]).await;
    // A second order of a user who has one: what a Redis that forgot would accept.
    let duplicate = AcceptedOrder {
        id: OrderId::from_i64(batch.orders[0].id.get() + 1_000_000),
        ..batch.orders[0]
    };
    let mut with_duplicate = batch.clone();
    with_duplicate.orders.push(duplicate);
    orders::write_accepted(&shop, from_ref(&with_duplicate), Expect::New)
        .await
        .expect_err("I2 is not written over");
    assert_eq!((app.number(ROWS).await, app.number(TAKEN).await), (1, 1));

    writer::persist(&shop, &[with_duplicate], Expect::New)
        .await
        .expect("settled one by one");
    assert_eq!((app.number(ROWS).await, app.number(TAKEN).await), (5, 4));
    let rejected = app
        .number("SELECT id FROM orders WHERE status = 'rejected'")
        .await;
    assert_eq!(rejected, duplicate.id.get());
    app.finish().await;
}

#[tokio::test]
async fn a_sale_that_waits_for_its_rebuild_does_not_hold_up_the_others_of_its_batch() {
    let app = app().await;
    let (waiting, shop, old) = accepted(&app, 10, 2).await;
    let (live, _, current) = accepted(&app, 10, 3).await;
    // Fenced and not yet rebuilt: its orders can neither be written nor ask again.
    app.execute(&format!(
        "UPDATE sales SET epoch = epoch + 1 WHERE id = {waiting}"
    ))
    .await;
    let batches = [old, current];
    let first_try = writer::persist(&shop, &batches, Expect::New).await;
    let rows = format!("{ROWS} WHERE sale_id = {live}");
    assert_eq!(app.number(&rows).await, 3, "{first_try:?}");
    // In the end, when somebody has rebuilt it, all are.
    eventually("the waiting sale's orders are rows", async || {
        writer::persist(&shop, &batches, Expect::New).await.ok()
    })
    .await;
    assert_eq!(app.number(ROWS).await, 5);
}
