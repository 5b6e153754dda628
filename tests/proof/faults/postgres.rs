//! Postgres refuses, fails transactions, commits slowly, stands still or has a full disk: purchases
//! go on, because Redis accepts them, or are shed with 503; what was accepted is written as soon as
//! it can be. (It is killed under load by the short form of the chaos run.)

use super::*;
use crate::support::processes::{family, signal};
use nix::sys::signal::Signal;
use std::process::{Child, Command, Stdio};
use std::{fs, io::Write, path::PathBuf};

cases! { nobody_gets_through:
    a_postgres_that_refuses_connections => Fault::Refuse,
    // As a balancer does that has no server behind it.
    a_postgres_behind_a_balancer_that_hangs_up => Fault::CutRequest { after: 1 },
}

async fn nobody_gets_through(fault: Fault) {
    let servers = Servers::shared().await;
    let proxy = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
    let app = TestApp::behind(servers, &proxy).await;
    let (sale, rush) = rush_on(&[&app]).await;
    let rows = async || app.number("SELECT count(*) FROM orders").await;
    let written = rows().await;
    proxy.set(fault).await;
    proxy.cut();
    rush.until_accepted(2 * ENOUGH).await;
    let now = rows().await;
    assert!(now < written + 2 * ENOUGH as i64, "nobody wrote: {written}, {now}");
    app.shopper().get("/api/v1/orders").await.assert_problem(503, "unavailable");
    proxy.set(Fault::None).await;
    rush.until_accepted(ENOUGH).await;
    assert_nothing_lost(&app, &sale, rush).await;
    app.finish().await;
}

/// Every second transaction on orders fails with this code.
macro_rules! failing {
    ($code:literal) => {
        concat!(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF random() < 0.5 THEN RAISE EXCEPTION 'not this time' USING ERRCODE = '",
            $code,
            "'; END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER fail AFTER INSERT OR UPDATE ON orders
                 FOR EACH STATEMENT EXECUTE FUNCTION fail();"
        )
    };
}

/// Each transaction that adds orders sleeps in its COMMIT, once.
const SLOW_COMMITS: &str = "
    CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF current_setting('test.slept', true) IS DISTINCT FROM pg_current_xact_id()::text THEN
            PERFORM set_config('test.slept', pg_current_xact_id()::text, true), pg_sleep(0.3);
        END IF;
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION dawdle();";

cases! { sells_in_spite_of:
    every_second_transaction_fails_to_serialize => failing!("40001"),
    every_second_transaction_is_the_victim_of_a_deadlock => failing!("40P01"),
    commits_that_take_300_ms => SLOW_COMMITS,
}

/// Buys, pays and cancels while these statements are in force.
async fn sells_in_spite_of(statements: &str) {
    let (first, second) = TestApp::pair().await;
    first.execute(statements).await;
    let (sale, rush) = rush_on(&[&first, &second]).await;
    for pays in [true, false, true, false] {
        let shopper = first.shopper();
        let id = shopper.order_to_pay(&sale).await;
        let ask = async || match pays {
            true => shopper.pay(&id).await,
            false => shopper.cancel(&id).await,
        };
        // A transaction that failed is an answer of 5xx; asking again is safe.
        wait_for!(ask().await.status == StatusCode::OK);
    }
    rush.until_accepted(ENOUGH).await;
    assert_nothing_lost(&first, &sale, rush).await;
    let audit = first.audit(&sale).await;
    assert_eq!((audit.paid, audit.cancelled), (2, 2));
    first.finish_with(second).await;
}

/// A connection that comes back to the pool is tested in one round trip; a silent one is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_comes_back_is_tested_once_and_not_for_ever() {
    let servers = Servers::shared().await;
    let proxy = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
    let database = servers.database().await.through(proxy.tcp_address());
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
    pool.close().await;
    database.drop().await;
}

/// Loads of orders share queries, a few at a time: one that gets no answer must not keep its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_that_fell_silent_hold_up_nobody_afterwards() {
    let servers = Servers::shared().await;
    let proxy = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
    let app = TestApp::behind(servers, &proxy).await;
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&app.sale(10, json!({})).await).await;
    proxy.set(Fault::BlackHole).await;
    for _ in 0..3 {
        shopper.order(&order).await.assert_problem(503, "unavailable");
    }
    // Those connections stay silent; the next loads find others.
    proxy.set(Fault::None).await;
    wait_for!(shopper.order(&order).await.status == StatusCode::OK);
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_stands_still_for_five_seconds() {
    let (servers, app) = TestApp::on_own_servers().await;
    let (sale, rush) = rush_on(&[&app]).await;
    let stopped = family(servers.postgres.pid().expect("running"));
    assert!(stopped.len() > 5, "the postmaster and its family: {stopped:?}");
    signal(&stopped, Signal::SIGSTOP);
    let stands_still = tokio::time::sleep(Duration::from_secs(5));
    // Nobody needs Postgres to buy.
    tokio::join!(stands_still, rush.until_accepted(2 * ENOUGH));
    signal(&stopped, Signal::SIGCONT);
    rush.until_accepted(ENOUGH).await;
    assert_nothing_lost(&app, &sale, rush).await;
    app.stop().await;
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
    let long = tokio::time::sleep(Duration::from_secs(13));
    working.during(long).await.expect("it is alive");
    assert!(lock(1).await.1, "nobody waits for the silent one");
    assert!(!lock(2).await.1, "the one at work is not disturbed");
    silent.commit().await.expect_err("it has lost everything");
    working.commit().await.expect("COMMIT");
    postgres.close().await;
    database.drop().await;
}

/// A small disk in memory.
struct SmallDisk {
    path: PathBuf,
    janitor: Child,
}

impl SmallDisk {
    /// Needs root; `Err` says what `mount` said.
    fn mount(megabytes: u32) -> Result<Self, String> {
        let name = format!("fs-it-{}-disk", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a folder");
        let size = format!("size={megabytes}m");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path);
        let why = match mount.output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Some(format!("mount: {error}")),
        };
        if let Some(why) = why {
            fs::remove_dir(&path).ok();
            return Err(why);
        }
        // When this process ends, the pipe closes. Lazily: a server may still be about to end.
        let script = "trap '' INT TERM HUP; cat >/dev/null; umount -l \"$1\" && rmdir \"$1\"";
        let mut janitor = Command::new("sh");
        janitor.args(["-c", script, "janitor"]).arg(&path);
        janitor.stdin(Stdio::piped()).stdout(Stdio::null());
        Ok(Self { path, janitor: janitor.spawn().expect("sh runs") })
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let mut file = fs::File::create(self.path.join("big")).expect("a file");
        let mut block = vec![b'x'; 1 << 20];
        while !block.is_empty() {
            if file.write_all(&block).is_err() {
                block.truncate(block.len() / 2);
            }
        }
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
        Err(why) => {
            println!("NOT EXERCISED: a full disk of Postgres, because none can be mounted: {why}");
            let allowed = std::env::var_os("FLASH_SALE_ALLOW_UNEXERCISED").is_some();
            assert!(allowed, "set FLASH_SALE_ALLOW_UNEXERCISED=1 to go on without this test");
            return;
        }
    };
    // A Redis that cannot write its log ends itself: it has another disk.
    let redis = Servers::shared().await.redis.url();
    let servers = Servers::own_in(disk.path.join("servers")).await;
    let app = TestApp::with_redis(&servers, redis, Options::default()).await;
    let (sale, rush) = rush_on(&[&app]).await;
    disk.fill();
    // Until Postgres cannot write any more: then what is accepted waits in the log.
    wait_for!(state(&app, &sale, "pending").await > 200);
    rush.until_accepted(ENOUGH).await;
    fs::remove_file(disk.path.join("big")).expect("the file");
    // It may have ended itself for lack of room; then its supervisor has started it again.
    servers.postgres.wait_ready().await.expect("it comes back");
    rush.until_accepted(ENOUGH).await;
    assert_nothing_lost(&app, &sale, rush).await;
    app.stop().await;
    drop(servers);
}
