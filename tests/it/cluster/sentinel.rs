//! A primary that Sentinels watch is killed under load.

use super::crowd::{Crowd, PAYMENT_SECS};
use crate::support::{
    Servers,
    app::{Options, TestApp, eventually},
    redis_servers::Watched,
};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_under_sentinels_is_killed_and_followed() {
    let servers = Servers::own().await;
    let watched = Watched::start(&servers.folder("watched")).await;
    let database = servers.database().await;
    let first = TestApp::launch(database, watched.url(), String::new(), Options::default()).await;
    let second = first.another(Options::default()).await;
    let apps = [first, second];
    let members = json!({"payment_timeout_secs": PAYMENT_SECS});
    let sales = vec![
        apps[0].sale(150, members.clone()).await,
        apps[0].sale(50_000, members).await,
    ];
    let before = watched.primary().await;
    let crowd = Crowd::start(&apps, &sales, 6);
    crowd.until_accepted(&[0, 1], 30).await;
    watched.servers[before].kill();
    eventually("another one is approved", async || {
        let epoch = apps[0]
            .number(&format!("SELECT epoch FROM sales WHERE id = {}", sales[1]))
            .await;
        (epoch > 1 && watched.primary().await != before).then_some(())
    })
    .await;
    crowd.until_accepted(&[1], 50).await;
    let (away, shed) = (crowd.longest_pause(1), crowd.shed(1));
    // Replicas follow asynchronously: the last orders may have been lost, and are repaired.
    let judged = crowd.judge(&apps[0], &watched, true, true).await;
    println!("stood still for {away:?}; {shed} told 503");
    judged.assert_kept("failover by Sentinels");
    assert!(shed > 0, "the gate was never shut");
    assert_eq!(
        apps[0]
            .number("SELECT count(*) FROM redis_incarnation")
            .await,
        1
    );
    let [first, second] = apps;
    second.stop().await;
    first.stop().await;
}
