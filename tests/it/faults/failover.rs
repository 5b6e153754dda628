//! Postgres fails over: a standby takes the place of a primary that was killed.

use super::{
    epoch,
    postgres::{ENOUGH, assert_nothing_lost},
};
use crate::support::{
    Servers,
    app::{TestApp, eventually},
    load::Rush,
    proxy::{Address, Proxy},
};
use flash_sale::embedded::{PostgresServer, PostgresTuning};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, postgres::PgConnectOptions};
use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::PathBuf,
    process::Command,
};

/// A connection to the database `postgres` of this server.
pub(super) async fn admin(server: &PostgresServer) -> PgConnection {
    let address = server.address();
    let options = PgConnectOptions::new()
        .socket(&address.socket_dir)
        .port(address.port)
        .username(&address.user)
        .database("postgres");
    PgConnection::connect_with(&options)
        .await
        .expect("postgres takes connections")
}

pub(super) async fn execute(server: &PostgresServer, statement: &str) {
    let mut connection = admin(server).await;
    connection
        .execute(AssertSqlSafe(statement))
        .await
        .expect(statement);
    connection.close().await.expect("close");
}

/// A copy of this server that follows it.
pub(super) async fn standby(servers: &Servers) -> PostgresServer {
    standby_of(&servers.postgres, servers.folder("standby")).await
}

/// The same of any server, in this folder.
pub(super) async fn standby_of(primary: &PostgresServer, dir: PathBuf) -> PostgresServer {
    let postmaster = PathBuf::from(format!("/proc/{}", primary.pid().expect("it runs")));
    let binaries = fs::read_link(postmaster.join("exe")).expect("its program");
    let cluster = fs::read_link(postmaster.join("cwd")).expect("its cluster");
    let owner = fs::metadata(&cluster).expect("the cluster");
    let copy = dir.join("pg");
    fs::create_dir_all(&copy).expect("a folder");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o700)).expect("chmod");
    std::os::unix::fs::chown(&copy, Some(owner.uid()), Some(owner.gid())).expect("chown");
    let address = primary.address().clone();
    let mut basebackup = Command::new(binaries.with_file_name("pg_basebackup"));
    basebackup
        .args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync"])
        .arg("--pgdata")
        .arg(&copy)
        .arg("--host")
        .arg(&address.socket_dir)
        .args(["--port", &address.port.to_string()])
        .args(["--username", &address.user])
        .current_dir("/")
        .uid(owner.uid())
        .gid(owner.gid());
    let copied = tokio::task::spawn_blocking(move || basebackup.output());
    let copied = copied.await.expect("no panic").expect("pg_basebackup runs");
    assert!(copied.status.success(), "{copied:?}");
    let tuning = PostgresTuning {
        max_connections: 400, // a standby must have as many as its primary
        ..PostgresTuning::default()
    };
    PostgresServer::start(&dir, tuning)
        .await
        .expect("the standby starts")
}

/// Waits until the primary sees a standby in this state of synchronisation.
async fn until_followed(primary: &PostgresServer, state: &str) {
    eventually(&format!("the standby is {state}"), async || {
        let found: i64 =
            sqlx::query_scalar("SELECT count(*) FROM pg_stat_replication WHERE sync_state = $1")
                .bind(state)
                .fetch_one(&mut admin(primary).await)
                .await
                .expect("pg_stat_replication");
        (found == 1).then_some(())
    })
    .await;
}

/// An instance that reaches Postgres through a proxy.
async fn app_behind(servers: &Servers, proxy: &Proxy) -> TestApp {
    TestApp::behind(servers, proxy).await
}

/// Kills the primary; from now on the standby is where everybody goes, and a moment later it writes.
async fn fail_over(servers: &Servers, standby: &PostgresServer, proxy: &Proxy, app: &mut TestApp) {
    servers.postgres.kill();
    proxy.set_target(Address::of_postgres(standby.address()));
    proxy.cut();
    execute(standby, "SELECT pg_promote(true, 30)").await;
    app.database = app.database.clone().on(standby.address());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_standby_has_every_order_that_was_acknowledged() {
    let servers = Servers::own().await;
    let proxy = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
    let mut app = app_behind(&servers, &proxy).await;
    let sale = app.sale(50_000, json!({})).await;
    let standby = standby(&servers).await;
    execute(
        &servers.postgres,
        "ALTER SYSTEM SET synchronous_standby_names = '*'",
    )
    .await;
    execute(&servers.postgres, "SELECT pg_reload_conf()").await;
    until_followed(&servers.postgres, "sync").await;

    let rush = Rush::start(&[&app], &sale, 6, &[]);
    rush.until_accepted(ENOUGH).await;
    let written = app.number("SELECT count(*) FROM orders").await;
    fail_over(&servers, &standby, &proxy, &mut app).await;
    assert!(app.number("SELECT count(*) FROM orders").await >= written);
    rush.until_accepted(2 * ENOUGH).await;
    assert_nothing_lost(&app, &sale, rush).await;
    app.stop().await;
}

/// What a standby that lags has not got is lost, and nobody can bring it back: the guarantee is that what
/// is left is sold, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asynchronous_standby_that_lags_loses_orders_and_oversells_nothing() {
    let servers = Servers::own().await;
    let proxy = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
    let mut app = app_behind(&servers, &proxy).await;
    let sale = app.sale(50_000, json!({})).await;
    let standby = standby(&servers).await;
    until_followed(&servers.postgres, "async").await;

    let rush = Rush::start(&[&app], &sale, 6, &[]);
    rush.until_accepted(ENOUGH).await;
    // A standby whose replay is paused would catch up when it is promoted: this one does not receive.
    execute(&standby, "ALTER SYSTEM SET primary_conninfo = ''").await;
    execute(&standby, "SELECT pg_reload_conf()").await;
    eventually("the standby is cut off", async || {
        let followers: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_stat_replication")
            .fetch_one(&mut admin(&servers.postgres).await)
            .await
            .expect("pg_stat_replication");
        (followers == 0).then_some(())
    })
    .await;
    rush.until_accepted(2 * ENOUGH).await;
    let lost_from = app.number("SELECT count(*) FROM orders").await;
    let before = epoch(&app, &sale).await;
    fail_over(&servers, &standby, &proxy, &mut app).await;
    let found = app.number("SELECT count(*) FROM orders").await;
    assert!(
        found < lost_from,
        "the standby lagged: {found} of {lost_from}"
    );

    // Redis knows of buyers whom Postgres has forgotten: it has to be rebuilt.
    wait_for!(epoch(&app, &sale).await > before);
    rush.until_accepted(ENOUGH).await;
    let told = rush.end().await;
    let audit = app.assert_sound(&sale).await;
    let (live, told) = (audit.live, told.winners.len() as i64);
    println!(
        "{told} told 202, {live} live, {} of those lost",
        told - live
    );
    assert!(live <= audit.stock && live < told, "{audit:#?}");
    app.stop().await;
}
