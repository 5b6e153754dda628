//! A primary is killed under load, and its replica takes its place: with everything, or without the last
//! orders that were acknowledged. The sales of the others go on.

use super::{Deployment, crowd::Crowd};
use crate::support::app::{TestApp, eventually};
use crate::support::plant::{SELL_FROM_ANY_PROCESS, plant};
use flash_sale::domain::{Admission, SaleId};
use reqwest::StatusCode;
use std::time::Duration;

async fn epoch(app: &TestApp, sale: &str) -> i64 {
    app.number(&format!("SELECT epoch FROM sales WHERE id = {sale}"))
        .await
}

/// The sales of other nodes stood still for no longer than this. Far below the time that a failover takes
/// (2 to 4 s), and far above what a busy machine does.
const LONGEST_PAUSE: Duration = Duration::from_millis(2_000);

/// What becomes of the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Killed,
    /// Killed, when its replica has been cut off before and lacks what was acknowledged since.
    KilledUnfollowed,
    /// It stands still until another one has its slots, and then goes on, for a moment believing that
    /// nothing has happened.
    Frozen,
}

/// Takes the primary of the first sale away while people buy, and hands everything to the checkers.
async fn fail_over(fate: Fate) {
    let deployment = Deployment::start().await;
    let sales = vec![
        deployment.sale_on(0, 150).await,
        deployment.sale_on(0, 50_000).await,
        deployment.sale_on(1, 50_000).await,
        deployment.sale_on(2, 50_000).await,
    ];
    let (cluster, app) = (&deployment.cluster, &deployment.apps[0]);
    let crowd = Crowd::start(&deployment.apps, &sales, 4);
    crowd.until_accepted(&[0, 1, 2, 3], 20).await;
    if fate == Fate::KilledUnfollowed {
        cluster.replica_of(0).be_cut_off().await;
        crowd.until_accepted(&[1], 50).await;
        // What is lost are rows by now, most of them, which only Postgres knows.
        let words = ["HGET", &super::key_of(&sales[1]), "admitted"];
        let known: i64 = cluster.replica_of(0).own_word(&words).await;
        let sold: i64 = cluster.nodes[0].command(&words).await;
        assert!(
            sold >= known + 50,
            "the replica lacks something: {known} of {sold}"
        );
    }
    let before = epoch(app, &sales[1]).await;
    match fate {
        Fate::Frozen => cluster.nodes[0].freeze(true),
        _ => cluster.nodes[0].kill(),
    }
    // The others go on while nobody has its slots.
    crowd.until_accepted(&[2, 3], 20).await;
    eventually("its replica is promoted, approved, and sells", async || {
        (epoch(app, &sales[1]).await > before).then_some(())
    })
    .await;
    if fate == Fate::Frozen {
        cluster.nodes[0].freeze(false);
    }
    crowd.until_accepted(&[1, 2, 3], 20).await;
    let away = crowd.longest_pause(1);
    let pauses: Vec<Duration> = [2, 3].map(|sale| crowd.longest_pause(sale)).to_vec();
    let shed: Vec<usize> = (0..4).map(|sale| crowd.shed(sale)).collect();
    let judged = crowd.judge(app, cluster, true, fate != Fate::Killed).await;
    println!(
        "{fate:?}: stood still for {away:?}; the sales of the others {pauses:?}; told 503: {shed:?}"
    );
    judged.assert_kept(&format!("{fate:?}"));
    assert!(shed[1] > 0, "the gate was never shut");
    assert!(
        pauses.iter().all(|pause| *pause < LONGEST_PAUSE),
        "the others waited: {pauses:?}"
    );
    for sale in &sales[2..] {
        assert_eq!(epoch(app, sale).await, 1, "they were not rebuilt");
    }
    eventually("whoever was replaced is approved no more", async || {
        let approved = app.number("SELECT count(*) FROM redis_incarnation").await;
        (approved == 3).then_some(())
    })
    .await;
    deployment.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_is_killed_under_load_and_its_replica_takes_over() {
    fail_over(Fate::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lacks_acknowledged_orders_takes_over() {
    fail_over(Fate::KilledUnfollowed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_stands_still_wakes_up_when_another_one_has_its_slots() {
    fail_over(Fate::Frozen).await;
}

/// What would happen if any process sold: somebody who has an order gets another one, because the replica
/// does not know of it. With the check it is 503, and then the order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_does_not_look_who_it_is_sells_twice_and_is_found_out() {
    let deployment = Deployment::start().await;
    let (cluster, honest) = (&deployment.cluster, &deployment.apps[0]);
    let sale = deployment.sale_on(0, 1_000).await;
    // Without the task that looks which processes are approved.
    let (buggy, _orders) = honest.shop_without_loops();
    for app in &deployment.apps {
        // Nobody rebuilds until we have looked at what is sold before.
        app.shop
            .fail_points
            .set("rebuild.elected=error*always")
            .expect("a point");
    }
    let sale_id: SaleId = sale.parse().expect("an id");
    eventually("the replica has the sale", async || {
        let words = ["EXISTS", &super::key_of(&sale)];
        let there: i64 = cluster.replica_of(0).own_word(&words).await;
        (there == 1).then_some(())
    })
    .await;
    cluster.replica_of(0).be_cut_off().await;
    let regular = honest.shopper();
    let order = regular.must_buy(&sale).await;
    regular.until(&order, "pending_payment").await;
    regular.pay(&order).await.assert(StatusCode::OK); // so that it does not lapse meanwhile
    cluster.nodes[0].kill();
    let replica = cluster.replica_of(0);
    eventually("the replica is promoted", async || {
        (replica.info("replication", "role").await? == "master").then_some(())
    })
    .await;
    let refused = eventually("redis refuses", async || {
        let reply = honest.as_shopper(&regular).buy(&sale).await;
        (reply.status.as_u16() == 503).then_some(reply)
    })
    .await;
    refused.assert_problem(503, "unavailable");
    let mut connection = replica.connection().await.expect("it answers");
    plant(&mut connection, SELL_FROM_ANY_PROCESS).await;
    let second = eventually("the bug sells", async || {
        let bought = buggy.purchase(sale_id, regular.user, None).await;
        match bought {
            Ok(Admission::Accepted { order_id, .. }) => Some(order_id.to_string()),
            _ => None,
        }
    })
    .await;
    assert_ne!(second, order, "a second order of somebody who has one");
    for app in &deployment.apps {
        app.shop.fail_points.clear();
    }
    // Postgres has the last word: one order each, the other is rejected.
    regular.until(&second, "rejected").await;
    eventually("the sale is rebuilt", async || {
        let audit = honest.shop.audit(sale.parse().expect("an id")).await.ok()?;
        (audit.redis.run_id_approved && audit.redis.epoch > Some(1)).then_some(())
    })
    .await;
    deployment.apps[0].assert_sound(&sale).await;
    deployment.finish().await;
}
