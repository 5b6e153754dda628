//! A hot sale in buckets that are spread over the nodes: it sells to the last unit, also when one of the nodes
//! that have some of it is killed.

use super::Deployment;
use crate::support::app::{Shopper, TestApp, all_at_once, eventually};
use flash_sale::redis::slots::slot_of;
use reqwest::StatusCode;
use serde_json::json;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const BUCKETS: usize = 32;

/// The buckets that a node has.
async fn buckets_on(deployment: &Deployment, sale: &str, node: usize) -> BTreeSet<usize> {
    let mut buckets = BTreeSet::new();
    for bucket in 0..BUCKETS {
        let key = format!("{{sale:{sale}:{bucket}}}");
        if deployment.cluster.owner(slot_of(key.as_bytes())).await == node {
            buckets.insert(bucket);
        }
    }
    buckets
}

/// Where somebody buys.
async fn bucket_of(app: &TestApp, sale: &str, shopper: &Shopper) -> usize {
    let listing = app.shop.listing(sale.parse().expect("an id")).await;
    let bucket = listing.expect("the sale").sale().bucket_of(shopper.user);
    usize::from(bucket.part.index)
}

/// A node that did not answer is left alone for some seconds, by the audit too.
async fn until_it_is_asked_again(app: &TestApp, sale: &str) {
    let id = sale.parse().expect("an id");
    eventually("the node is asked again", async || {
        app.shop.audit(id).await.ok()
    })
    .await;
}

/// Buys, and asks again while the answer is 503, as clients do. Whether it was accepted; otherwise it is sold out.
async fn buys(shopper: Shopper, sale: String) -> bool {
    let begin = Instant::now();
    loop {
        let reply = shopper.buy_with_key(&sale, "k").await;
        match reply.status {
            StatusCode::ACCEPTED => return true,
            StatusCode::SERVICE_UNAVAILABLE => {
                assert!(begin.elapsed() < Duration::from_secs(60), "still 503");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            _ => {
                reply.assert_problem(409, "sold_out");
                return false;
            }
        }
    }
}

/// How many of so many people got one, at both instances.
async fn crowd_of(apps: &[TestApp; 2], sale: &str, people: usize) -> usize {
    let bought = all_at_once((0..people).map(|number| {
        let shopper = apps[number % 2].shopper();
        buys(shopper, sale.to_owned())
    }))
    .await;
    bought.into_iter().filter(|bought| *bought).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_divided_sale_is_on_every_node_and_sells_to_the_last_unit() {
    let deployment = Deployment::start().await;
    let app = &deployment.apps[0];
    let sale = app.sale(60, json!({ "buckets": BUCKETS })).await;
    for node in 0..3 {
        assert!(!buckets_on(&deployment, &sale, node).await.is_empty());
    }
    // Fewer than two units a bucket, and six times as many people: nearly all of it is borrowed at the end.
    assert_eq!(crowd_of(&deployment.apps, &sale, 360).await, 60);
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.remaining), (60, 0));
    deployment.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_some_of_the_buckets_is_killed() {
    let deployment = Deployment::start().await;
    let app = &deployment.apps[0];
    let sale = app.sale(200, json!({ "buckets": BUCKETS })).await;
    assert_eq!(crowd_of(&deployment.apps, &sale, 100).await, 100);
    deployment.cluster.nodes[0].kill();
    // Loans between its buckets and others may be half-way: the rebuild recounts everything.
    let rest = crowd_of(&deployment.apps, &sale, 200).await;
    assert_eq!(rest, 100, "what was left, and no more");
    let epoch = eventually("the sale was rebuilt", async || {
        let epoch = app
            .number(&format!("SELECT epoch FROM sales WHERE id = {sale}"))
            .await;
        (epoch > 1).then_some(epoch)
    })
    .await;
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.remaining), (200, 0), "epoch {epoch}");
    deployment.finish().await;
}

/// One node stands still, and has no replica that could take its place; meanwhile another one starts anew. What
/// has nothing on the silent one is sold again at once. The divided sale has, and its buckets on the node that
/// started anew sell nothing until everything can be counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_does_not_keep_the_others_shut() {
    let deployment = Deployment::start().await;
    let (app, cluster) = (&deployment.apps[0], &deployment.cluster);
    let divided = app.sale(100, json!({ "buckets": BUCKETS })).await;
    let whole = deployment.sale_on(0, 100).await;
    assert_eq!(crowd_of(&deployment.apps, &divided, 30).await, 30);
    app.shopper().must_buy(&whole).await;
    let on_first = buckets_on(&deployment, &divided, 0).await;
    cluster.replica_of(0).kill();
    cluster.replica_of(1).kill();
    cluster.nodes[1].freeze(true);
    cluster.nodes[0].kill();
    cluster.nodes[0].start_again();
    eventually("a sale of the node that started anew sells", async || {
        let reply = app.shopper().buy(&whole).await;
        (reply.status == StatusCode::ACCEPTED).then_some(())
    })
    .await;
    let query = format!("SELECT epoch FROM sales WHERE id = {whole}");
    assert_eq!(app.number(&query).await, 2, "it was rebuilt");
    for _ in 0..20 {
        let shopper = app.shopper();
        if on_first.contains(&bucket_of(app, &divided, &shopper).await) {
            shopper
                .buy(&divided)
                .await
                .assert_problem(503, "unavailable");
        }
    }
    cluster.nodes[1].freeze(false);
    assert_eq!(
        crowd_of(&deployment.apps, &divided, 200).await,
        70,
        "what was left"
    );
    until_it_is_asked_again(app, &divided).await;
    let audit = app.assert_sound(&divided).await;
    assert_eq!((audit.live, audit.remaining), (100, 0));
    app.assert_sound(&whole).await;
    deployment.finish().await;
}

/// Units come back to the buckets that can take them, also when most of those that wait belong to one that cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_of_a_silent_node_do_not_keep_those_of_the_others() {
    let deployment = Deployment::start().await;
    let (app, cluster) = (&deployment.apps[0], &deployment.cluster);
    let sale = app.sale(100, json!({ "buckets": BUCKETS })).await;
    let on_silent = buckets_on(&deployment, &sale, 1).await;
    let mut bought = Vec::new();
    let mut waiting = 0;
    for _ in 0..30 {
        let shopper = app.shopper();
        let order = shopper.must_buy(&sale).await;
        shopper.until(&order, "pending_payment").await;
        waiting += i64::from(on_silent.contains(&bucket_of(app, &sale, &shopper).await));
        bought.push((shopper, order));
    }
    assert!(
        (1..30).contains(&waiting),
        "{waiting} of 30 are on the silent node"
    );
    cluster.replica_of(1).kill();
    cluster.nodes[1].freeze(true);
    for (shopper, order) in &bought {
        shopper.cancel(order).await.assert(StatusCode::OK);
    }
    let outbox = format!("SELECT count(*) FROM releases WHERE sale_id = {sale}");
    eventually("the others are returned", async || {
        (app.number(&outbox).await == waiting).then_some(())
    })
    .await;
    cluster.nodes[1].freeze(false);
    eventually("all are returned", async || {
        (app.number(&outbox).await == 0).then_some(())
    })
    .await;
    until_it_is_asked_again(app, &sale).await;
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.remaining), (0, 100));
    deployment.finish().await;
}
