//! A primary is killed under load; its replica has everything, or lacks the last orders.

use super::*;
use crate::faults::until_rebuilt;
use crate::support::plant::{SELL_FROM_ANY_PROCESS, plant};
use crate::support::redis_servers::Watched;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Killed,
    /// Killed, when its replica has been cut off before and lacks what was acknowledged since.
    KilledUnfollowed,
    /// It stands still until another one has its slots, and wakes up believing that it still has.
    Frozen,
}

cases! { fail_over:
    a_primary_is_killed_under_load_and_its_replica_takes_over => Fate::Killed,
    a_replica_that_lacks_acknowledged_orders_takes_over => Fate::KilledUnfollowed,
    a_primary_that_stands_still_wakes_up_when_another_one_has_its_slots => Fate::Frozen,
}

async fn fail_over(fate: Fate) {
    let deployment = Deployment::start().await;
    let sales = deployment.sales([(0, 150), (0, 50_000), (1, 50_000), (2, 50_000)]).await;
    let (cluster, app) = (&deployment.redis, &deployment.apps[0]);
    let crowd = Crowd::start(&deployment.apps, &sales, 4);
    crowd.until_accepted(&[0, 1, 2, 3], 20).await;
    if fate == Fate::KilledUnfollowed {
        cluster.replica_of(0).be_cut_off().await;
        crowd.until_accepted(&[1], 50).await;
        // What is lost are rows by now, most of them, which only Postgres knows.
        let words = ["HGET", &key_of(&sales[1]), "admitted"];
        let known: i64 = cluster.replica_of(0).own_word(&words).await;
        let sold: i64 = cluster.nodes[0].command(&words).await;
        assert!(sold >= known + 50, "the replica lacks something: {known} of {sold}");
    }
    let (before, shed_before) = (epoch_of(app, &sales[1]).await, crowd.shed(1));
    let first = [cluster.nodes[0].pid().expect("it runs")];
    match fate {
        Fate::Frozen => signal(&first, Signal::SIGSTOP),
        _ => cluster.nodes[0].kill(),
    }
    crowd.until_accepted(&[2, 3], 20).await;
    wait_for!(crowd.shed(1) > shed_before);
    assert_eq!(epoch_of(app, &sales[1]).await, before, "somebody has its slots");
    cluster.may_fail_over(0).await;
    wait_for!(epoch_of(app, &sales[1]).await > before);
    if fate == Fate::Frozen {
        signal(&first, Signal::SIGCONT);
    }
    crowd.until_accepted(&[1, 2, 3], 20).await;
    let away = crowd.longest_pause(1);
    let pauses = [2, 3].map(|sale| crowd.longest_pause(sale));
    let shed = [0, 1, 2, 3].map(|sale| crowd.shed(sale));
    let judged = crowd.judge(app, cluster, fate != Fate::Killed).await;
    println!("{fate:?}: stood still for {away:?}; the others {pauses:?}; told 503: {shed:?}");
    judged.assert_kept(&format!("{fate:?}"));
    for sale in &sales[2..] {
        assert_eq!(epoch_of(app, sale).await, 1, "they were not rebuilt");
    }
    wait_for!(app.number("SELECT count(*) FROM redis_incarnation").await == 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_under_sentinels_is_killed_and_followed() {
    let servers = Servers::own().await;
    let watched = Watched::start(&servers.folder("watched")).await;
    let url = watched.url();
    let deployment = Deployment::with(servers, watched, url).await;
    let (apps, watched) = (&deployment.apps, &deployment.redis);
    let sales = [sale(&apps[0], 150).await, sale(&apps[0], 50_000).await];
    let before = watched.primary().await;
    let crowd = Crowd::start(apps, &sales, 6);
    crowd.until_accepted(&[0, 1], 30).await;
    // Nobody rebuilds until somebody was told to come again.
    deployment.arm("rebuild.elected=error*always");
    let shed_before = crowd.shed(1);
    watched.servers[before].kill();
    wait_for!(crowd.shed(1) > shed_before);
    deployment.disarm();
    wait_for!(epoch_of(&apps[0], &sales[1]).await > 1 && watched.primary().await != before);
    crowd.until_accepted(&[1], 50).await;
    let (away, shed) = (crowd.longest_pause(1), crowd.shed(1));
    // Replicas follow asynchronously: the last orders may have been lost, and are repaired.
    let judged = crowd.judge(&apps[0], watched, true).await;
    println!("stood still for {away:?}; {shed} told 503");
    judged.assert_kept("failover by Sentinels");
    assert_eq!(apps[0].number("SELECT count(*) FROM redis_incarnation").await, 1);
}

/// A sale of the first node, whose replica has it and does not follow any more.
async fn unfollowed() -> (Deployment<RedisCluster>, String) {
    let deployment = Deployment::start().await;
    let sale = deployment.sale_on(0, 1_000).await;
    let replica = deployment.redis.replica_of(0);
    wait_for!(replica.own_word::<i64>(&["EXISTS", &key_of(&sale)]).await == 1);
    replica.be_cut_off().await;
    (deployment, sale.id.to_string())
}

/// If any process sold, somebody would get a second order, which the replica does not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_does_not_check_who_it_is_sells_twice_and_is_found_out() {
    let (deployment, sale) = unfollowed().await;
    let (cluster, honest) = (&deployment.redis, &deployment.apps[0]);
    // Without the task that reads which processes are approved.
    let (buggy, _orders) = honest.services_without_tasks();
    // Nobody rebuilds until we have looked at what is sold before.
    deployment.arm("rebuild.elected=error*always");
    let regular = honest.shopper();
    let order = regular.order_to_pay(&sale).await;
    regular.pay(&order).await.assert(200); // so that it does not lapse meanwhile
    cluster.nodes[0].kill();
    cluster.may_fail_over(0).await;
    let replica = cluster.replica_of(0);
    wait_for!(replica.info("replication", "role").await.as_deref() == Some("master"));
    wait_for!(regular.at(honest).buy(&sale).await.code() == "unavailable");
    plant(&mut replica.connection().await.expect("it answers"), SELL_FROM_ANY_PROCESS).await;
    let second = wait_for!("the bug sells", {
        match buggy.admission.purchase(sale.parse().expect("an id"), regular.user, None).await {
            Ok(PurchaseResult::Accepted { order_id, .. }) => Some(order_id.to_string()),
            _ => None,
        }
    });
    assert_ne!(second, order, "a second order of somebody who has one");
    deployment.disarm();
    // Postgres has the last word: one order each, the other is rejected.
    regular.until(&second, "rejected").await;
    until_rebuilt(honest, &sale, 1).await;
    honest.assert_sound(&sale).await;
}

/// The documented loss: the instance never learned that it sold this order, so nobody has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_only_a_retry_was_told_of_is_lost_with_its_primary() {
    let (deployment, sale) = unfollowed().await;
    let (cluster, app) = (&deployment.redis, &deployment.apps[0]);
    deployment.arm("recovery.read=error*always"); // it would find the order in the log
    arm(app, "admission.admitted=error*always");
    let buyer = app.shopper();
    buyer.buy(&sale).await.assert_problem(503, "unavailable");
    app.services.fail_points.clear();
    arm(app, "recovery.read=error*always");
    let told = buyer.buy(&sale).await;
    told.assert_problem(409, "already_ordered");
    cluster.nodes[0].kill();
    cluster.may_fail_over(0).await;
    let bought = buyer.told(&sale).await.must_be(202);
    assert_ne!(bought.text("order_id"), told.text("order_id"));
    deployment.disarm();
    buyer.until(bought.text("order_id"), "pending_payment").await;
    app.assert_sound(&sale).await;
}
