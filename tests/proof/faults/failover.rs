//! Postgres fails over: a standby takes the place of a primary that was killed.

use super::*;
use crate::support::standby::{self, followers, make_synchronous, standby_of, until_followed};
use embedded::PostgresServer;

/// An instance that reaches Postgres through a proxy, and a standby.
struct Scene {
    app: TestApp,
    standby: PostgresServer,
    proxy: Proxy,
    servers: Servers,
}

impl Scene {
    async fn start() -> Self {
        let servers = Servers::own().await;
        let proxy = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
        let app = TestApp::behind(&servers, &proxy).await;
        let standby = standby_of(&servers.postgres, &servers.folder("standby")).await;
        Self { app, standby: standby.expect("a standby"), proxy, servers }
    }

    async fn rows(&self) -> i64 {
        self.app.number("SELECT count(*) FROM orders").await
    }

    /// Kills the primary, leads all connections to the standby, and promotes it a moment later.
    async fn fail_over(&mut self) {
        self.servers.postgres.kill();
        let address = self.standby.address();
        self.proxy.set_target(Address::of_postgres(address));
        self.proxy.cut();
        standby::promote(&self.standby).await.expect("promoted");
        self.app.database = self.app.database.clone().on(address);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_standby_has_every_order_that_was_acknowledged() {
    let mut scene = Scene::start().await;
    make_synchronous(&scene.servers.postgres).await.expect("followed");
    let (sale, rush) = rush_on(&[&scene.app]).await;
    let written = scene.rows().await;
    scene.fail_over().await;
    assert!(scene.rows().await >= written);
    rush.until_accepted(2 * ENOUGH).await;
    assert_nothing_lost(&scene.app, &sale, rush).await;
    scene.app.stop().await;
}

/// Orders that a lagging standby has not got are lost for good; what is left is sold once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asynchronous_standby_that_lags_loses_orders_and_oversells_nothing() {
    let mut scene = Scene::start().await;
    let primary = &scene.servers.postgres;
    until_followed(primary, "async").await.expect("followed");
    let (sale, rush) = rush_on(&[&scene.app]).await;
    // It no longer receives: one whose replay is only paused would catch up when promoted.
    let alone = ["ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"];
    standby::execute(&scene.standby, &alone).await.expect("cut off");
    wait_for!(followers(primary, "").await.expect("a number") == 0);
    rush.until_accepted(2 * ENOUGH).await;
    let lost_from = scene.rows().await;
    let before = epoch(&scene.app, &sale).await;
    scene.fail_over().await;
    let found = scene.rows().await;
    assert!(found < lost_from, "the standby lagged: {found} of {lost_from}");

    // Redis knows of buyers whom Postgres has forgotten: it has to be rebuilt.
    wait_for!(epoch(&scene.app, &sale).await > before);
    rush.until_accepted(ENOUGH).await;
    let told = rush.end().await.winners.len() as i64;
    let audit = scene.app.assert_sound(&sale).await;
    let live = audit.live;
    println!("{told} told 202, {live} live, {} of those lost", told - live);
    assert!(live <= audit.stock && live < told, "{audit:#?}");
    scene.app.stop().await;
}
