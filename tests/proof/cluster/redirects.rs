//! Slots move between approved primaries: nothing is lost or rebuilt, and the sale goes on.

use super::*;
use crate::support::load::{assert_shed, crowd};
use reqwest::StatusCode;
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_are_spread_and_a_moved_slot_is_followed() {
    let deployment = Deployment::start().await;
    let ([first, second], cluster) = (&deployment.apps, &deployment.redis);
    // Every node has one, and each sells.
    let mut sales = Vec::new();
    for node in 0..3 {
        let sale = deployment.sale_on(node, 100).await;
        let id = sale.id.to_string();
        assert_eq!(crowd(first, &id, 8).await.len(), 8);
        first.assert_sound(&id).await;
        let words = ["KEYS", &format!("{}*", key_of(&sale))];
        let keys: Vec<String> = cluster.nodes[node].command(&words).await;
        assert!(keys.len() > 2, "its state, log and buyers are there: {keys:?}");
        sales.push(sale);
    }
    // The other instance looks at a new sale a moment later.
    let open = |app: &TestApp| app.services.catalog.admission_is_open();
    wait_for!(open(first) && open(second));
    assert_eq!(first.number("SELECT count(*) FROM redis_incarnation").await, 3);

    // At rest: the keys go with the slot, and a client that asks the old node hears MOVED.
    let (moved, id) = (&sales[0], &sales[0].id.to_string());
    let (shopper, order) = crowd(second, id, 4).await.remove(0);
    first.assert_sound(id).await;
    cluster.move_slot(slot_of_sale(moved), 1).await;
    assert_eq!(cluster.holder(&key_of(moved)).await.port, cluster.nodes[1].port);
    for app in &deployment.apps {
        app.shopper().must_buy(id).await;
        let again = app.as_shopper(&shopper).refused(id, "already_ordered").await;
        assert_eq!(again.text("order_id"), order);
    }
    let live = first.assert_sound(id).await.live;
    let epoch = epoch_of(first, moved).await;
    assert_eq!((live, epoch), (14, 1), "nothing is lost, nothing was rebuilt");
    deployment.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_on_its_way_sells_where_its_keys_are() {
    let deployment = Deployment::start().await;
    let ([app, _], cluster) = (&deployment.apps, &deployment.redis);
    // With the first buyer, every key is there.
    let sale = deployment.sale_on(0, 20).await;
    let (slot, id) = (slot_of_sale(&sale), &sale.id.to_string());
    let (winner, order) = crowd(app, id, 1).await.remove(0);
    app.assert_sound(id).await;
    cluster.begin_move(slot, 0, 1).await;

    // MIGRATING, and all keys are where they were.
    app.shopper().must_buy(id).await;
    // Some of them here, some there: TRYAGAIN, which is tried for a while, and then told.
    assert_eq!(cluster.move_keys(slot, 0, 1, 1).await, 1);
    let reply = app.shopper().buy(id).await;
    assert_shed(&reply);
    assert!(reply.text("detail").contains("moves to another server"));
    // All of them there: ASK.
    while cluster.move_keys(slot, 0, 1, 10).await > 0 {}
    for app in &deployment.apps {
        app.shopper().must_buy(id).await;
        let again = app.as_shopper(&winner).refused(id, "already_ordered").await;
        assert_eq!(again.text("order_id"), order);
        winner.until(&order, "pending_payment").await;
    }
    // Other calls follow too: a unit comes back, an operator restocks, the audit looks.
    winner.cancel(&order).await.assert(StatusCode::OK);
    let add = Some(json!({"add": 5}));
    app.admin_sale(reqwest::Method::POST, id, "/stock", add).await.assert(StatusCode::OK);
    let audit = app.assert_sound(id).await;
    assert_eq!((audit.stock, audit.live, audit.cancelled), (25, 3, 1));
    let holder = cluster.holder(&key_of(&sale)).await;
    assert_eq!(holder.port, cluster.nodes[0].port, "it is still on its way");

    cluster.end_move(slot, 0, 1).await;
    assert_eq!(crowd(app, id, 60).await.len(), 22, "all of the rest sells");
    assert_eq!((app.assert_sound(id).await.live, epoch_of(app, &sale).await), (25, 1));
    deployment.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_sale_is_moved_around_the_cluster_while_people_buy() {
    let deployment = Deployment::start().await;
    let (app, cluster) = (&deployment.apps[0], &deployment.redis);
    let sales = deployment.sales([(0, 150), (1, 50_000), (2, 50_000)]).await;
    let crowd = Crowd::start(&deployment.apps, &sales, 6);
    crowd.until_accepted(&[0, 1, 2], 20).await;
    for round in 1..=3 {
        for (home, sale) in sales[..2].iter().enumerate() {
            cluster.move_slot(slot_of_sale(sale), (home + round) % 3).await;
        }
        crowd.until_accepted(&[1, 2], 20).await;
    }
    let [moved, other]: [Duration; 2] = [1, 2].map(|sale| crowd.longest_pause(sale));
    let shed = crowd.shed(1);
    let judged = crowd.judge(app, cluster, false).await;
    println!(
        "six moves: no purchase for {moved:?} where it moved, else {other:?}; {shed} told 503"
    );
    judged.assert_kept("resharding");
    for sale in &sales {
        assert_eq!(epoch_of(app, sale).await, 1, "nothing was rebuilt");
    }
    deployment.finish().await;
}
