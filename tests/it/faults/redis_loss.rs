//! Redis loses data, or another Redis takes its place that does not have everything, while two
//! instances sell. Until the rebuild is done people hear 503; every 202 is a row or `rejected`.

use super::{OwnRedis, Pair, copy_folder, cut, epoch, until_rebuilt};
use crate::{
    cli::{Home, Program, settings_of},
    support::{
        Servers,
        app::{Options, TestApp, eventually},
        load::{Rush, assert_shed, crowd},
        proxy::{Address, Proxy, free_port},
    },
};
use flash_sale::embedded::RedisSettings;
use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::json;
use std::fs;

/// What a rush buys at least before the loss, and again after it.
const ENOUGH: usize = 80;

/// A rush at both instances, in the middle of which `lose` takes something away.
async fn survives(lose: impl AsyncFnOnce(&mut OwnRedis)) {
    let mut pair = Pair::start().await;
    let sale = pair.first.sale(50_000, json!({})).await;
    let regulars = crowd(&pair.first, &sale, 4).await;
    TestApp::all_written(&regulars).await;
    let apps = [&pair.first, &pair.second];
    let rush = Rush::start(&apps, &sale, 6, &regulars);
    rush.until_accepted(ENOUGH).await;
    let before = epoch(&pair.first, &sale).await;
    lose(&mut pair.redis).await;
    until_rebuilt(&pair.first, &sale, before).await;
    // It reopened by itself, and goes on selling.
    rush.until_accepted(ENOUGH).await;
    let told = rush.end().await;
    assert!(told.shed > 0, "the gate was never shut");
    assert!(told.reminded > 0, "the regulars never got an answer");
    let statuses = pair.first.assert_kept(&sale, &told.winners).await;
    let audit = pair.first.assert_sound(&sale).await;
    println!(
        "{} told 202: {statuses:?}; {} told 503; {} live",
        told.winners.len(),
        told.shed,
        audit.live
    );
    // A 202 is kept; an attempt that was told 503 may have become an order, too.
    assert!(audit.live >= told.winners.len() as i64);
    assert_eq!(
        statuses.keys().collect::<Vec<_>>(),
        ["pending_payment"],
        "with units left, a late order gets one of them"
    );
    pair.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushall() {
    survives(async |redis| drop(command(redis, &["FLUSHALL"]).await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_and_a_restart_with_everything() {
    survives(async |redis| {
        redis.kill();
        redis.start_again().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_nothing() {
    survives(async |redis| {
        redis.kill();
        fs::remove_dir_all(redis.files()).expect("its files");
        redis.start_again().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_without_the_tail() {
    survives(async |redis| {
        redis.kill();
        // Stock, buyers, log and epoch go back together and still agree with each other.
        let (file, length) = redis.last_incr();
        cut(&file, length - length / 3);
        redis.start_again().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_backup() {
    survives(async |redis| {
        // Taken while it serves, as backups are; the sale goes on after it.
        let backup = redis.files().with_extension("backup");
        copy_folder(&redis.files(), &backup).expect("a backup");
        let (_, length) = redis.last_incr();
        wait_for!(redis.last_incr().1 > length + 10_000);
        redis.kill();
        fs::remove_dir_all(redis.files()).expect("its files");
        fs::rename(&backup, redis.files()).expect("restored");
        redis.start_again().await;
    })
    .await;
}

fn listening_on(port: u16) -> RedisSettings {
    let arguments = ["--bind", "127.0.0.1", "--port", &port.to_string()];
    RedisSettings {
        extra_args: arguments.map(str::to_owned).to_vec(),
        ..RedisSettings::default()
    }
}

async fn command(redis: &OwnRedis, words: &[&str]) -> String {
    let client = redis::Client::open(redis.server().url()).expect("redis url");
    let connected = client.get_multiplexed_async_connection().await;
    redis::cmd(words[0])
        .arg(&words[1..])
        .query_async(&mut connected.expect("redis"))
        .await
        .expect(words[0])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_promotion_of_a_replica_that_lags() {
    let servers = Servers::own().await;
    let port = free_port();
    let mut primary = OwnRedis::start(servers.folder("primary"), listening_on(port)).await;
    let replica = OwnRedis::start(servers.folder("replica"), listening_on(free_port())).await;
    let proxy = Proxy::start(Address::Unix(primary.server().socket())).await;
    let first = TestApp::launch(
        servers.database().await,
        format!("redis://{}", proxy.address()),
        "pair:".to_owned(),
        Options::default(),
    )
    .await;
    let second = first.another(Options::default()).await;
    let sale = first.sale(50_000, json!({})).await;
    command(&replica, &["REPLICAOF", "127.0.0.1", &port.to_string()]).await;
    wait_for!(
        command(&replica, &["INFO", "replication"])
            .await
            .contains("master_link_status:up")
    );
    let regulars = crowd(&second, &sale, 4).await;
    TestApp::all_written(&regulars).await;
    let rush = Rush::start(&[&first, &second], &sale, 6, &regulars);
    rush.until_accepted(ENOUGH).await;
    // It loses its primary, and keeps what it had at that moment.
    command(
        &replica,
        &["REPLICAOF", "127.0.0.1", &free_port().to_string()],
    )
    .await;
    rush.until_accepted(ENOUGH).await;

    let before = epoch(&first, &sale).await;
    primary.kill();
    proxy.set_target(Address::Unix(replica.server().socket()));
    proxy.cut();
    // For a moment the program reaches a replica that takes no writes, as in a real failover.
    rush.until_shed(10).await;
    command(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    until_rebuilt(&first, &sale, before).await;
    rush.until_accepted(ENOUGH).await;
    let told = rush.end().await;
    assert!(told.reminded > 0, "the regulars never got an answer");
    let statuses = first.assert_kept(&sale, &told.winners).await;
    assert_eq!(statuses.keys().collect::<Vec<_>>(), ["pending_payment"]);
    first.assert_sound(&sale).await;
    second.stop().await;
    first.stop().await;
}

/// A network that is split: for one instance the old primary is still there, for the other one a replica
/// was promoted. Each sees a Redis that is not approved whenever the other has approved its own, so they
/// take turns; what both promised in that time is kept, or rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_primaries_for_a_while() {
    let servers = Servers::own().await;
    let old = OwnRedis::start(servers.folder("old"), RedisSettings::default()).await;
    let new = OwnRedis::start(servers.folder("new"), RedisSettings::default()).await;
    let (here, there) = tokio::join!(
        Proxy::start(Address::Unix(old.server().socket())),
        Proxy::start(Address::Unix(old.server().socket()))
    );
    let launch = async |database, proxy: &Proxy| {
        let url = format!("redis://{}", proxy.address());
        TestApp::launch(database, url, "pair:".to_owned(), Options::default()).await
    };
    let first = launch(servers.database().await, &here).await;
    let second = launch(first.database.clone(), &there).await;
    let sale = first.sale(50_000, json!({})).await;
    let regulars = crowd(&second, &sale, 4).await;
    TestApp::all_written(&regulars).await;
    let rush = Rush::start(&[&first, &second], &sale, 6, &regulars);
    rush.until_accepted(ENOUGH).await;
    let before = epoch(&first, &sale).await;
    there.set_target(Address::Unix(new.server().socket()));
    there.cut();
    // Long enough for some turns.
    wait_for!(epoch(&first, &sale).await >= before + 3);
    here.set_target(Address::Unix(new.server().socket()));
    here.cut();
    rush.until_accepted(ENOUGH).await;
    let told = rush.end().await;
    let statuses = first.assert_kept(&sale, &told.winners).await;
    println!(
        "{} told 202: {statuses:?}; {} told 503",
        told.winners.len(),
        told.shed
    );
    first.assert_sound(&sale).await;
    second.stop().await;
    first.stop().await;
}

/// In a process of its own, since the metrics belong to the process. Nobody buys meanwhile: what is
/// shown does not wait for somebody who is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_show_that_the_gate_is_shut_while_redis_is_away() {
    let servers = Servers::own().await;
    let mut redis = OwnRedis::start(servers.folder("other"), RedisSettings::default()).await;
    let home = Home::new();
    let mut command = home.command(&["serve"]);
    command.envs(settings_of(&servers, &servers.database().await, ""));
    command.env("REDIS_URL", redis.server().url());
    let program = Program::serve_by(&home, command).await;
    let shows = async |samples: &[&str]| {
        let what = format!("the metrics show {samples:?}");
        eventually(&what, async || {
            let reply = reqwest::get(program.url("/metrics")).await.ok()?;
            let text = reply.text().await.ok()?;
            let shown = |sample: &&str| text.lines().any(|line| line == *sample);
            samples.iter().all(shown).then_some(())
        })
        .await;
    };
    let rebuild = |failing| format!("flash_sale_worker_failing{{worker=\"rebuild\"}} {failing}");
    shows(&["flash_sale_gate_open 1", &rebuild(0)]).await;
    redis.kill();
    shows(&["flash_sale_gate_open 0", &rebuild(1)]).await;
    redis.start_again().await;
    shows(&["flash_sale_gate_open 1", &rebuild(0)]).await;
    program.terminate().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_is_only_in_the_log_is_never_denied() {
    let servers = Servers::own().await;
    let mut redis = OwnRedis::start(servers.folder("other"), RedisSettings::default()).await;
    let app = TestApp::with_redis(&servers, redis.server().url(), Options::without_writer()).await;
    let sale = app.sale(10, json!({})).await;
    let winners = crowd(&app, &sale, 3).await;
    let before = epoch(&app, &sale).await;
    let reads = winners.iter().map(async |(shopper, id)| {
        // Until the rebuild has found it in the log and written it.
        let written = eventually("the order is a row", async || {
            let reply = shopper.order(id).await;
            match reply.status {
                StatusCode::OK => (reply.text("status") == "pending_payment").then_some(()),
                _ => {
                    assert_shed(&reply);
                    None
                }
            }
        });
        written.await;
    });
    let restart = async {
        redis.kill();
        redis.start_again().await;
        until_rebuilt(&app, &sale, before).await;
    };
    tokio::join!(join_all(reads), restart);
    app.assert_kept(&sale, &winners).await;
    app.assert_sound(&sale).await;
    app.stop().await;
}

/// What a paused process still holds when it wakes up in a world that was rebuilt without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_a_paused_writer_held_through_a_rebuild_find_their_units_sold() {
    let pair = Pair::start().await;
    let [first, second] = pair.apps();
    let sale = first.sale(10, json!({})).await;
    let before = epoch(first, &sale).await;
    // The writer of the second instance takes its orders from the channel, and stands still.
    second
        .shop
        .fail_points
        .set("writer.received=pause:6000")
        .expect("a point");
    let late = crowd(second, &sale, 10).await;
    assert_eq!(late.len(), 10);
    super::flush(first).await;
    until_rebuilt(first, &sale, before).await;
    // Neither the log nor Postgres knew of them: the units are sold again, to others.
    let others = crowd(first, &sale, 30).await;
    assert_eq!(others.len(), 10, "no unit is lost, and none sold thrice");
    assert!(second.shop.fail_points.fired("writer.received") > 0);
    let rejected = first.assert_kept(&sale, &late).await;
    assert_eq!(rejected["rejected"], 10, "{rejected:?}");
    for (shopper, id) in &late {
        let order = shopper.order(id).await;
        order.assert(StatusCode::OK);
        assert_eq!(order.text("status"), "rejected", "explicit, and queryable");
    }
    assert_eq!(
        first.assert_kept(&sale, &others).await["pending_payment"],
        10
    );
    let audit = first.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.rejected, audit.oversold), (10, 10, 0));
    pair.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_was_paused_through_a_rebuild_is_judged_in_the_new_epoch() {
    let pair = Pair::start().await;
    let [first, second] = pair.apps();
    let sale = first.sale(10, json!({})).await;
    crowd(second, &sale, 4).await;
    first.assert_sound(&sale).await;
    let before = epoch(first, &sale).await;
    // These have their ids, and the epoch that they believe in, and have not asked yet.
    second
        .shop
        .fail_points
        .set("gate.asking=pause:1500")
        .expect("a point");
    let paused = crowd(second, &sale, 10);
    let rebuilt = async {
        wait_for!(second.shop.fail_points.fired("gate.asking") > 0);
        super::flush(first).await;
        until_rebuilt(first, &sale, before).await;
        crowd(first, &sale, 3).await
    };
    let (mut winners, others) = tokio::join!(paused, rebuilt);
    assert_eq!(others.len(), 3);
    winners.extend(others);
    first.assert_kept(&sale, &winners).await;
    let audit = first.assert_sound(&sale).await;
    assert!(
        audit.live <= 10 && audit.live >= 4 + winners.len() as i64,
        "{audit:#?}"
    );
    // I5: what is left can be bought.
    crowd(second, &sale, 20).await;
    assert_eq!(first.assert_sound(&sale).await.live, 10);
    pair.finish().await;
}
