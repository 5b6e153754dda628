//! Slots move between primaries that are all approved: nothing is lost, nothing is rebuilt, and the sale goes
//! on.

use super::{Deployment, crowd::Crowd, key_of, slot_of_sale};
use crate::support::{
    app::{TestApp, eventually},
    load::{assert_shed, crowd},
    redis_servers::KeyHolder,
};
use reqwest::StatusCode;
use std::time::Duration;

/// The epoch that Postgres has for this sale: it would have risen with a rebuild.
async fn epoch(app: &TestApp, sale: &str) -> i64 {
    app.number(&format!("SELECT epoch FROM sales WHERE id = {sale}"))
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_are_spread_and_a_moved_slot_is_followed() {
    let deployment = Deployment::start().await;
    let [first, second] = &deployment.apps;
    // Every node has one, and each sells.
    let mut sales = Vec::new();
    for node in 0..3 {
        let sale = deployment.sale_on(node, 100).await;
        assert_eq!(crowd(first, &sale, 8).await.len(), 8);
        first.assert_sound(&sale).await;
        let keys: Vec<String> = deployment.cluster.nodes[node]
            .command(&["KEYS", &format!("{}*", key_of(&sale))])
            .await;
        assert!(
            keys.len() > 2,
            "its state, log and buyers are there: {keys:?}"
        );
        sales.push(sale);
    }
    let open = |app: &TestApp| app.shop.gate_is_open();
    // The other instance looks at a new sale a moment later.
    eventually("both may sell all of them", async || {
        (open(first) && open(second)).then_some(())
    })
    .await;
    assert_eq!(
        first.number("SELECT count(*) FROM redis_incarnation").await,
        3
    );

    // At rest: the keys go with the slot, and whoever asks the old node hears MOVED.
    let sale = &sales[0];
    let regulars = crowd(second, sale, 4).await;
    first.assert_sound(sale).await;
    deployment.cluster.move_slot(slot_of_sale(sale), 1).await;
    let port = deployment.cluster.nodes[1].port;
    assert_eq!(deployment.cluster.holder(&key_of(sale)).await.port, port);
    for app in &deployment.apps {
        app.shopper().must_buy(sale).await;
        let (shopper, id) = &regulars[0];
        let reply = app.as_shopper(shopper).buy(sale).await;
        reply.assert_problem(409, "already_ordered");
        assert_eq!(reply.text("order_id"), id);
    }
    let audit = first.assert_sound(sale).await;
    assert_eq!(
        (audit.live, epoch(first, sale).await),
        (14, 1),
        "nothing is lost, nothing was rebuilt"
    );
    deployment.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_on_its_way_sells_where_its_keys_are() {
    let deployment = Deployment::start().await;
    let [app, other] = &deployment.apps;
    // With the first buyer, every key is there.
    let sale = deployment.sale_on(0, 20).await;
    let winner = crowd(app, &sale, 1).await.remove(0);
    app.assert_sound(&sale).await;
    let (slot, cluster) = (slot_of_sale(&sale), &deployment.cluster);
    cluster.begin_move(slot, 0, 1).await;

    // MIGRATING, and all keys are where they were.
    app.shopper().must_buy(&sale).await;
    // Some of them here, some there: TRYAGAIN, which the gate does for a while, and then says so.
    assert_eq!(cluster.move_keys(slot, 0, 1, 1).await, 1);
    let reply = app.shopper().buy(&sale).await;
    assert_shed(&reply);
    assert!(
        reply.body["detail"]
            .as_str()
            .is_some_and(|words| words.contains("moves to another server"))
    );
    // All of them there: ASK.
    while cluster.move_keys(slot, 0, 1, 10).await > 0 {}
    for app in [app, other] {
        app.shopper().must_buy(&sale).await;
        let reply = app.as_shopper(&winner.0).buy(&sale).await;
        reply.assert_problem(409, "already_ordered");
        assert_eq!(reply.text("order_id"), winner.1);
        winner.0.until(&winner.1, "pending_payment").await;
    }
    // What is not the purchase follows too: a unit comes back, an operator restocks, the audit looks.
    app.as_shopper(&winner.0)
        .cancel(&winner.1)
        .await
        .assert(StatusCode::OK);
    let restocked = app
        .admin(
            reqwest::Method::POST,
            &format!("/api/v1/admin/sales/{sale}/stock"),
            Some(serde_json::json!({"add": 5})),
        )
        .await;
    restocked.assert(StatusCode::OK);
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.stock, audit.live, audit.cancelled), (25, 3, 1));
    assert_eq!(
        cluster.holder(&key_of(&sale)).await.port,
        cluster.nodes[0].port,
        "it is still on its way"
    );

    cluster.end_move(slot, 0, 1).await;
    assert_eq!(
        crowd(app, &sale, 60).await.len(),
        22,
        "all of the rest sells"
    );
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, epoch(app, &sale).await), (25, 1));
    deployment.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_sale_is_moved_around_the_cluster_while_people_buy() {
    let deployment = Deployment::start().await;
    let mut sales = vec![deployment.sale_on(0, 150).await];
    sales.push(deployment.sale_on(1, 50_000).await);
    sales.push(deployment.sale_on(2, 50_000).await);
    let crowd = Crowd::start(&deployment.apps, &sales, 6);
    crowd.until_accepted(&[0, 1, 2], 20).await;
    for round in 1..=3 {
        for (home, sale) in sales[..2].iter().enumerate() {
            let to = (home + round) % 3;
            deployment.cluster.move_slot(slot_of_sale(sale), to).await;
        }
        crowd.until_accepted(&[1, 2], 20).await;
    }
    let pauses: Vec<Duration> = (1..3).map(|sale| crowd.longest_pause(sale)).collect();
    let shed = crowd.shed(1);
    let judged = crowd
        .judge(&deployment.apps[0], &deployment.cluster, true, false)
        .await;
    println!(
        "six moves: the sale that moved stood still for {:?} at most, the other for {:?}; {shed} told 503",
        pauses[0], pauses[1]
    );
    judged.assert_kept("resharding");
    for sale in &sales {
        assert_eq!(
            epoch(&deployment.apps[0], sale).await,
            1,
            "nothing was rebuilt"
        );
    }
    deployment.finish().await;
}
