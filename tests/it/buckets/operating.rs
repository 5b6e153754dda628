//! What an operator does with a sale in several buckets, and what one lost bucket means.

use super::{id_of, in_each, user_in};
use crate::support::app::{Options, TestApp, eventually};
use flash_sale::{
    domain::{Admission, Bucket},
    redis::Keys,
    sale::NewSale,
    worker::retire,
};
use reqwest::{Method, StatusCode};
use serde_json::json;

async fn add(app: &TestApp, sale: &str, units: i64) -> crate::support::app::Reply {
    let path = format!("/api/v1/admin/sales/{sale}/stock");
    app.admin(Method::POST, &path, Some(json!({"add": units})))
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_are_added_to_all_buckets_and_taken_from_wherever_they_are() {
    let app = TestApp::start().await;
    let sale = app.sale(10, json!({"buckets": 4})).await;
    assert_eq!(
        in_each(&app, &sale, 4, "remaining").await,
        [3, 3, 2, 2].map(Some)
    );
    add(&app, &sale, 3).await.assert(StatusCode::OK);
    assert_eq!(
        in_each(&app, &sale, 4, "remaining").await,
        [4, 3, 3, 3].map(Some)
    );
    // One bucket is empty, and has to give all the same.
    let first = Bucket::all(id_of(&sale), 4).next().expect("four");
    for _ in 0..4 {
        let bought = app.shop.purchase(first.sale, user_in(first), None).await;
        assert!(
            matches!(bought, Ok(Admission::Accepted { .. })),
            "{bought:?}"
        );
    }
    add(&app, &sale, -10)
        .await
        .assert_problem(409, "not_enough_remaining");
    assert_eq!(
        app.assert_sound(&sale).await.remaining,
        9,
        "nothing is lost"
    );
    add(&app, &sale, -9).await.assert(StatusCode::OK);
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.stock, audit.remaining, audit.live), (4, 0, 4));
    app.shopper()
        .buy(&sale)
        .await
        .assert_problem(409, "sold_out");
    add(&app, &sale, 1).await.assert(StatusCode::OK);
    app.shopper().must_buy(&sale).await;
    app.assert_sound(&sale).await;
    app.finish().await;
}

/// One of them is gone, or damaged: the whole sale is rebuilt, and nobody loses anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_one_bucket_is_mended() {
    let app = TestApp::start().await;
    let sale = app.sale(60, json!({"buckets": 4})).await;
    let keys = Keys::new(&app.prefix);
    let mut winners = crate::support::load::crowd(&app, &sale, 20).await;
    for (index, damage) in ["DEL", "HDEL"].into_iter().enumerate() {
        let bucket = Bucket::all(id_of(&sale), 4).nth(index + 1).expect("four");
        let before = app.audit(&sale).await.postgres.epoch;
        let mut command = redis::cmd(damage);
        command.arg(keys.state(bucket));
        if damage == "HDEL" {
            command.arg("remaining");
        }
        command
            .exec_async(&mut app.redis().await)
            .await
            .expect(damage);
        eventually("it is rebuilt", async || {
            let audit = app.audit(&sale).await;
            let is_new = audit.postgres.epoch > before;
            (is_new && audit.redis.epoch == Some(audit.postgres.epoch)).then_some(())
        })
        .await;
        winners.extend(crate::support::load::crowd(&app, &sale, 5).await);
    }
    app.assert_kept(&sale, &winners).await;
    assert_eq!(app.assert_sound(&sale).await.live, winners.len() as i64);
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_backlog_limit_is_the_sales_and_not_each_buckets() {
    let options = Options {
        backlog_limit: 8,
        ..Options::without_writer()
    };
    let app = TestApp::start_with(options).await;
    let sale = app.sale(400, json!({"buckets": 4})).await;
    let accepted = crate::support::load::crowd(&app, &sale, 100).await.len();
    assert_eq!(accepted, 8, "two in each");
    assert_eq!(app.audit(&sale).await.backlog, 8);
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_long_over_leaves_every_bucket() {
    let app = TestApp::start().await;
    let new = NewSale {
        title: "yesterday's".to_owned(),
        stock: 40,
        buckets: Some(4),
        ..NewSale::default()
    };
    let sale = app.shop.create_sale(new).await.expect("created").sale.id;
    let name = sale.to_string();
    crate::support::load::crowd(&app, &name, 20).await;
    app.assert_sound(&name).await;
    app.execute(&format!(
        "UPDATE sales SET opens_at = now() - interval '3 days', closes_at = now() - interval '25 hours',
         version = version + 1 WHERE id = {sale}"
    ))
    .await;
    let pattern = format!("{}{{sale:{sale}*", app.prefix);
    eventually("nothing of it is in redis", async || {
        app.shop.refresh(sale).await.expect("it is there");
        retire::step(&app.shop).await.expect("a pass");
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg(&pattern)
            .query_async(&mut app.redis().await)
            .await
            .expect("KEYS");
        keys.is_empty().then_some(())
    })
    .await;
    app.finish().await;
}
