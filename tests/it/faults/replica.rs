//! A real streaming standby that the catalogue is read from: what it shows may be a little old, by a
//! stated bound; when it is older, away or something else, the primary is read. What must not be old
//! never comes from it.

use super::failover::{execute, standby, standby_of};
use crate::support::{
    Servers,
    app::{Options, TestApp, eventually},
    load::crowd,
};
use flash_sale::{
    embedded::{PostgresServer, PostgresTuning},
    postgres::{self, Replica},
};
use reqwest::StatusCode;
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor, postgres::PgConnectOptions};
use std::{sync::atomic::Ordering::Relaxed, time::Duration};

/// This application's database on another server, as its replica.
fn replica_on(app: &TestApp, server: &PostgresServer, limit: Duration) -> Replica {
    let address = server.address();
    let options = PgConnectOptions::new()
        .socket(&address.socket_dir)
        .port(address.port)
        .username(&address.user)
        .database(&app.database.name);
    Replica::new(postgres::pool(options, 2), limit)
}

/// Waits until the catalogue was read so many more times from the replica.
async fn until_read_from_replica(app: &TestApp, more: u64) {
    let reads = || app.shop.browsing.from_replica.load(Relaxed);
    let wanted = reads() + more;
    eventually("the replica is read", async || {
        (reads() >= wanted).then_some(())
    })
    .await;
}

async fn until_read_from_primary(app: &TestApp, more: u64) {
    let reads = || app.shop.browsing.from_primary.load(Relaxed);
    let wanted = reads() + more;
    eventually("the primary is read", async || {
        (reads() >= wanted).then_some(())
    })
    .await;
}

/// Changes a title on the primary, and tells nobody.
async fn rename(app: &TestApp, sale: &str, title: &str) {
    let change =
        format!("UPDATE sales SET title = '{title}', version = version + 1 WHERE id = {sale}");
    app.execute(&change).await;
}

async fn title(app: &TestApp, sale: &str) -> String {
    let reply = app.get(&format!("/api/v1/sales/{sale}")).await;
    reply.assert(StatusCode::OK);
    reply.text("title").to_owned()
}

async fn until_title(app: &TestApp, sale: &str, wanted: &str) {
    eventually(&format!("the title is {wanted}"), async || {
        (title(app, sale).await == wanted).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_catalogue_comes_from_the_replica_as_long_as_it_is_young_enough() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let sale = app.sale(1_000, json!({"title": "first"})).await;
    let standby = standby(&servers).await;
    app.shop
        .browse_on(replica_on(&app, &standby, Duration::from_secs(60)));
    until_read_from_replica(&app, 2).await;
    rename(&app, &sale, "second").await;
    until_title(&app, &sale, "second").await;

    // It stands still, and its bound is far away: pages show what it has.
    execute(&standby, "SELECT pg_wal_replay_pause()").await;
    eventually("the replay is paused", async || {
        let mut admin = super::failover::admin(&standby).await;
        let state: String = sqlx::query_scalar("SELECT pg_get_wal_replay_pause_state()")
            .fetch_one(&mut admin)
            .await
            .expect("a state");
        (state == "paused").then_some(())
    })
    .await;
    rename(&app, &sale, "third").await;
    until_read_from_replica(&app, 3).await;
    assert_eq!(title(&app, &sale).await, "second", "not from the replica");

    // What must not be old is not: purchases, payments and the audit do not wait for it.
    let winners = crowd(&app, &sale, 8).await;
    for (shopper, id) in &winners {
        shopper.until(id, "pending_payment").await;
        shopper.pay(id).await.assert(StatusCode::OK);
        assert_eq!(shopper.order(id).await.text("status"), "paid");
        let listed = shopper.get("/api/v1/orders").await;
        assert_eq!(listed.body["orders"][0]["status"], "paid");
    }
    assert_eq!(title(&app, &sale).await, "second", "still from the replica");
    let audit = app.assert_sound(&sale).await;
    assert_eq!(audit.paid, 8);
    // Nor what an operator is told, or what was published.
    let path = format!("/api/v1/admin/sales/{sale}/pause");
    let paused = app.admin(reqwest::Method::POST, &path, None).await;
    assert_eq!(paused.text("state"), "paused");
    let another = app.another(Options::default()).await;
    assert_eq!(title(&another, &sale).await, "third", "no replica there");

    // Goes on: it is as new as the primary again.
    execute(&standby, "SELECT pg_wal_replay_resume()").await;
    rename(&app, &sale, "fourth").await;
    until_title(&app, &sale, "fourth").await;
    another.stop().await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_too_old_or_away_is_not_read() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let sale = app.sale(1_000, json!({"title": "first"})).await;
    let standby = standby(&servers).await;
    app.shop
        .browse_on(replica_on(&app, &standby, Duration::from_millis(1_500)));
    until_read_from_replica(&app, 2).await;

    // Replay stands still. While nobody writes that makes it no older, and it is read.
    execute(&standby, "SELECT pg_wal_replay_pause()").await;
    rename(&app, &sale, "second").await;
    until_title(&app, &sale, "second").await;
    until_read_from_primary(&app, 1).await;
    execute(&standby, "SELECT pg_wal_replay_resume()").await;
    until_read_from_replica(&app, 2).await;

    // Dead, in the middle of it.
    let before = app.shop.browsing.from_primary.load(Relaxed);
    standby.stop().await;
    rename(&app, &sale, "third").await;
    until_title(&app, &sale, "third").await;
    assert!(app.shop.browsing.from_primary.load(Relaxed) > before);
    let (shopper, id) = crowd(&app, &sale, 1).await.pop().expect("a purchase");
    shopper.until(&id, "pending_payment").await;
    app.assert_sound(&sale).await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_no_standby_of_this_primary_is_not_read() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let sale = app.sale(1_000, json!({"title": "first"})).await;
    // The primary itself: nothing is gained, and after a failover it could be the wrong one.
    app.shop
        .browse_on(replica_on(&app, &servers.postgres, Duration::from_secs(60)));
    until_read_from_primary(&app, 2).await;
    // A standby of another cluster, which has a sale of the same id, and says that it is newer.
    let tuning = PostgresTuning {
        max_connections: 400,
        ..PostgresTuning::default()
    };
    let other = PostgresServer::start(&servers.folder("other"), tuning)
        .await
        .expect("another cluster");
    execute(&other, &format!("CREATE DATABASE {}", app.database.name)).await;
    let there = app.database.clone().on(other.address());
    let pool = postgres::pool(there.options(), 1);
    postgres::migrate(&pool).await.expect("migrations run");
    pool.close().await;
    let foreign = format!(
        "INSERT INTO sales (id, title, price_cents, stock, opens_at, closes_at, buyer_shards, version)
         OVERRIDING SYSTEM VALUE
         VALUES ({sale}, 'foreign', 1, 1, now(), now() + interval '1 day', 1, 1000)"
    );
    let mut connection = there.connect().await;
    connection
        .execute(AssertSqlSafe(foreign))
        .await
        .expect("a sale");
    drop(connection);
    let foreign = standby_of(&other, servers.folder("other-standby")).await;
    let second = app.another(Options::default()).await;
    second
        .shop
        .browse_on(replica_on(&app, &foreign, Duration::from_secs(60)));
    until_read_from_primary(&second, 3).await;
    assert_eq!(second.shop.browsing.from_replica.load(Relaxed), 0);
    assert_eq!(title(&second, &sale).await, "first");
    second.stop().await;
    app.stop().await;
}
