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

/// The nodes that have some of the sale.
async fn nodes_of(deployment: &Deployment, sale: &str) -> BTreeSet<usize> {
    let mut nodes = BTreeSet::new();
    for bucket in 0..BUCKETS {
        let key = format!("{{sale:{sale}:{bucket}}}");
        nodes.insert(deployment.cluster.owner(slot_of(key.as_bytes())).await);
    }
    nodes
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
    assert_eq!(nodes_of(&deployment, &sale).await.len(), 3);
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
