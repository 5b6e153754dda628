//! Whatever Postgres does, purchases go on, and what was accepted is written as soon as can be.

use super::*;
use crate::support::postgres_servers::{execute, followers, promote, standby_of, until_followed};
use crate::support::{launch::name_in, not_exercised};
use std::io;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_comes_back_is_tested_once_and_not_for_ever() {
    let servers = Servers::shared().await;
    let proxy = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
    let database = servers.database().await.through(proxy.address);
    let pool = flash_sale::postgres::pool(database.options(), 1);
    let ask = async || sqlx::query("SELECT 1").execute(&pool).await;
    for _ in 0..2 {
        ask().await.expect("an answer"); // and now the statement is prepared
    }
    // Under this fault the proxy counts what passes: a request is a piece, and so is an answer.
    proxy.set(Fault::Latency(Duration::from_millis(5))).await;
    let before = proxy.counts().delayed;
    for _ in 0..20 {
        ask().await.expect("an answer");
    }
    let pieces = proxy.counts().delayed - before;
    assert!((60..=90).contains(&pieces), "{pieces}: 2 × 2 × 20 are meant");
    wait_for!(pool.num_idle() == 1); // it was tested
    proxy.set(Fault::BlackHole).await;
    let given_up = tokio::time::timeout(Duration::from_millis(200), ask()).await;
    assert!(given_up.is_err(), "nobody answers");
    proxy.set(Fault::None).await;
    // The one place of the pool is taken by a connection that will never say anything again.
    wait_for!(ask().await.is_ok());
}

/// Loads of orders share queries, a few at a time: one that gets no answer must not keep its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_that_fell_silent_hold_up_nobody_afterwards() {
    let servers = Servers::shared().await;
    let proxy = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
    let app = TestApp::behind(servers, &proxy).await;
    let (shopper, order) = app.buyer(&app.sale(10, json!({})).await).await;
    proxy.set(Fault::BlackHole).await;
    for _ in 0..3 {
        shopper.order(&order).await.assert_problem(503, "unavailable");
    }
    proxy.set(Fault::None).await;
    wait_for!(shopper.order(&order).await.status == StatusCode::OK);
}

/// Orders that a lagging standby has not got are lost for good; what is left is sold once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asynchronous_standby_that_lags_loses_orders_and_oversells_nothing() {
    let servers = Servers::own().await;
    let primary = &servers.postgres;
    let proxy = Proxy::start(Address::of_postgres(primary.address())).await;
    let mut app = TestApp::behind(&servers, &proxy).await;
    let standby = standby_of(primary, &servers.folder("standby")).await.expect("a standby");
    until_followed(primary, "async").await.expect("followed");
    let (sale, rush) = rush_with_regulars(&[&app], 0).await;
    // It no longer receives: one whose replay is only paused would catch up when promoted.
    let alone = ["ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"];
    execute(&standby, &alone).await.expect("cut off");
    wait_for!(followers(primary, "").await.expect("a number") == 0);
    rush.until_accepted(2 * ENOUGH).await;
    let rows = "SELECT count(*) FROM orders";
    let lost_from = app.number(rows).await;
    let before = epoch(&app, &sale).await;
    primary.kill();
    let address = standby.address();
    proxy.lead_to(Address::of_postgres(address));
    promote(&standby).await.expect("promoted");
    app.database.address = address.clone();
    let found = app.number(rows).await;
    assert!(found < lost_from, "the standby lagged: {found} of {lost_from}");
    // Redis knows of buyers whom Postgres has forgotten: it has to be rebuilt.
    wait_for!(epoch(&app, &sale).await > before);
    rush.until_accepted(ENOUGH).await;
    let told = rush.end().await.winners.len() as i64;
    let audit = app.assert_sound(&sale).await;
    let live = audit.live;
    println!("{told} told 202, {live} live, {} of those lost", told - live);
    assert!(live <= audit.stock && live < told, "{audit:#?}");
}

/// A process that stands still in a transaction loses its locks; one that is at work keeps them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_a_process_that_stands_still_are_taken_from_it() {
    let database = Servers::shared().await.database().await;
    let postgres = flash_sale::postgres::pool(database.options(), 3);
    let lock = async |number: i64| {
        let mut holder = postgres.begin("BEGIN").await.expect("BEGIN");
        let lock = sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)").bind(number);
        let got: bool = lock.fetch_one(&mut *holder).await.expect("an answer");
        (holder, got)
    };
    let ((silent, first), (mut working, second)) = tokio::join!(lock(1), lock(2));
    assert!(first && second);
    working.during(tokio::time::sleep(Duration::from_secs(13))).await.expect("it is alive");
    assert!(lock(1).await.1, "nobody waits for the silent one");
    assert!(!lock(2).await.1, "the one at work is not disturbed");
    silent.commit().await.expect_err("it has lost everything");
    working.commit().await.expect("COMMIT");
}

struct SmallDisk {
    path: PathBuf,
    janitor: Child,
}

impl SmallDisk {
    /// Needs root; `Err` says what `mount` said.
    fn mount(megabytes: u32) -> Result<Self, String> {
        let path = name_in(&std::env::temp_dir(), "fs-it-disk-");
        fs::create_dir(&path).expect("a folder");
        // When this process ends, the pipe closes. Lazily: a server may still be about to end.
        let script = "trap '' INT TERM HUP; cat >/dev/null; umount -l \"$1\"; rmdir \"$1\"";
        let mut janitor = Command::new("sh");
        janitor.args(["-c", script, "janitor"]).arg(&path);
        janitor.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let disk = Self { path, janitor: janitor.spawn().expect("sh runs") };
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"]).arg(&disk.path);
        let mounted = mount.output().map_err(|error| format!("mount: {error}"))?;
        let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
        mounted.status.success().then_some(disk).ok_or(said)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        self.janitor.wait().ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_no_purchase_and_loses_none() {
    let disk = match SmallDisk::mount(192) {
        Ok(disk) => disk,
        Err(why) => return not_exercised(&format!("a full disk: none can be mounted: {why}")),
    };
    // A Redis that cannot write its log ends itself: it has another disk.
    let redis = Servers::shared().await.redis.url();
    let servers = Servers::start(disk.path.join("servers"), true).await;
    let app = TestApp::with_redis(&servers, redis).await;
    let (sale, rush) = rush_with_regulars(&[&app], 0).await;
    let big = disk.path.join("big");
    let all = io::copy(&mut io::repeat(b'x'), &mut fs::File::create(&big).expect("a file"));
    all.expect_err("there is no room left");
    // Until Postgres cannot write any more: then what is accepted waits in the log.
    wait_for!(state(&app, &sale, "pending").await > 200);
    rush.until_accepted(ENOUGH).await;
    fs::remove_file(big).expect("the file");
    // It may have ended itself for lack of room; then its supervisor has started it again.
    servers.postgres.wait_ready().await.expect("it comes back");
    rush.until_accepted(ENOUGH).await;
    assert_nothing_lost(&app, &sale, rush).await;
}
