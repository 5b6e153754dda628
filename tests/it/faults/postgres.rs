//! Postgres restarts, refuses, fails transactions, commits slowly or stands still: purchases go on,
//! because Redis accepts them, or are shed with 503; what was accepted is written as soon as it can be.

use crate::support::{
    Servers,
    app::{Options, TestApp, eventually},
    load::Rush,
    proxy::{Address, Fault, Proxy},
};
use flash_sale::postgres::Transaction;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use reqwest::StatusCode;
use serde_json::json;
use std::{fs, time::Duration};

pub(super) const ENOUGH: usize = 80;

/// Ends the rush, and checks that nothing it was promised is missing and nothing is out of balance.
pub(super) async fn assert_nothing_lost(app: &TestApp, sale: &str, rush: Rush) {
    let told = rush.end().await;
    let statuses = app.assert_kept(sale, &told.winners).await;
    assert_eq!(
        statuses.keys().collect::<Vec<_>>(),
        ["pending_payment"],
        "{statuses:?}"
    );
    let audit = app.assert_sound(sale).await;
    println!(
        "{} told 202, {} told 503, {} live",
        told.winners.len(),
        told.shed,
        audit.live
    );
    assert!(audit.live >= told.winners.len() as i64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_is_killed_again_and_again_under_load() {
    let servers = Servers::own().await;
    let first = TestApp::start_on(&servers, Options::default()).await;
    let second = first.another(Options::default()).await;
    let sale = first.sale(50_000, json!({})).await;
    let rush = Rush::start(&[&first, &second], &sale, 6, &[]);
    for _ in 0..3 {
        rush.until_accepted(ENOUGH).await;
        servers.postgres.kill();
        rush.until_accepted(ENOUGH).await;
        servers.postgres.wait_ready().await.expect("it comes back");
    }
    rush.until_accepted(ENOUGH).await;
    assert_nothing_lost(&first, &sale, rush).await;
    second.stop().await;
    first.stop().await;
}

/// How nobody gets through to Postgres.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    /// Nobody listens.
    Shut,
    /// Somebody takes connections, and closes them at the first question, as a balancer does with nobody behind it.
    Slammed,
}

async fn nobody_gets_through(door: Door) {
    let servers = Servers::shared().await;
    let proxy = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
    let app = TestApp::behind(servers, &proxy).await;
    let sale = app.sale(50_000, json!({})).await;
    let rush = Rush::start(&[&app], &sale, 6, &[]);
    rush.until_accepted(ENOUGH).await;
    let written = app.number("SELECT count(*) FROM orders").await;
    match door {
        Door::Shut => proxy.set(Fault::Refuse).await,
        Door::Slammed => proxy.set(Fault::CutRequest { after: 1 }).await,
    }
    proxy.cut();
    rush.until_accepted(2 * ENOUGH).await;
    let now = app.number("SELECT count(*) FROM orders").await;
    assert!(
        now < written + 2 * i64::try_from(ENOUGH).expect("a few"),
        "nobody wrote: {written}, {now}"
    );
    let page = app.shopper().get("/api/v1/orders").await;
    page.assert_problem(503, "unavailable");
    proxy.set(Fault::None).await;
    rush.until_accepted(ENOUGH).await;
    assert_nothing_lost(&app, &sale, rush).await;
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_refuses_connections() {
    nobody_gets_through(Door::Shut).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_behind_somebody_who_slams_the_door() {
    nobody_gets_through(Door::Slammed).await;
}

/// Statements that make transactions on orders fail, or take their time.
fn failing(code: &str) -> String {
    format!(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF random() < 0.5 THEN
                 RAISE EXCEPTION 'not this time' USING ERRCODE = '{code}';
             END IF;
             RETURN NULL;
         END $$;
         CREATE TRIGGER fail AFTER INSERT OR UPDATE ON orders FOR EACH STATEMENT EXECUTE FUNCTION fail();"
    )
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

/// Buys, pays and cancels while these statements are in force.
async fn sells_in_spite_of(statements: String) {
    let first = TestApp::start().await;
    let second = first.another(Options::default()).await;
    let sale = first.sale(50_000, json!({})).await;
    first.execute(&statements).await;
    let rush = Rush::start(&[&first, &second], &sale, 6, &[]);
    rush.until_accepted(ENOUGH).await;
    for pays in [true, false, true, false] {
        let shopper = first.shopper();
        let id = shopper.order_to_pay(&sale).await;
        // A transaction that failed is an answer of 5xx; asking again is safe.
        eventually("it is paid or cancelled", async || {
            let reply = match pays {
                true => shopper.pay(&id).await,
                false => shopper.cancel(&id).await,
            };
            (reply.status == StatusCode::OK).then_some(())
        })
        .await;
    }
    rush.until_accepted(ENOUGH).await;
    assert_nothing_lost(&first, &sale, rush).await;
    let audit = first.audit(&sale).await;
    assert_eq!((audit.paid, audit.cancelled), (2, 2));
    second.stop().await;
    first.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_second_transaction_fails_to_serialize() {
    sells_in_spite_of(failing("40001")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_second_transaction_is_the_victim_of_a_deadlock() {
    sells_in_spite_of(failing("40P01")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_take_300_ms() {
    sells_in_spite_of(SLOW_COMMITS.to_owned()).await;
}

/// What a connection costs when it comes back to the pool: one round trip, in which it shows that it is
/// alive. One that is silent is replaced.
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
    assert!(
        (60..=90).contains(&pieces),
        "{pieces}: 2 × 2 × 20 are meant"
    );

    let at_rest = async || (pool.num_idle() == 1).then_some(());
    eventually("the connection is tested", at_rest).await;
    proxy.set(Fault::BlackHole).await;
    let given_up = tokio::time::timeout(Duration::from_millis(200), ask()).await;
    assert!(given_up.is_err(), "nobody answers");
    proxy.set(Fault::None).await;
    // The one place of the pool is taken by a connection that will never say anything again.
    eventually("the pool has a connection", async || ask().await.ok()).await;
    pool.close().await;
    database.drop().await;
}

/// Looks at orders share queries, a few at a time: one that gets no answer must not keep its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looks_that_fell_silent_hold_up_nobody_afterwards() {
    let servers = Servers::shared().await;
    let proxy = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
    let app = TestApp::behind(servers, &proxy).await;
    let shopper = app.shopper();
    let sale = app.sale(10, json!({})).await;
    let order = shopper.order_to_pay(&sale).await;
    proxy.set(Fault::BlackHole).await;
    for _ in 0..3 {
        let silent = shopper.order(&order).await;
        silent.assert_problem(503, "unavailable");
    }
    // Those connections stay silent; looks find others.
    proxy.set(Fault::None).await;
    eventually("the order can be seen", async || {
        (shopper.order(&order).await.status == StatusCode::OK).then_some(())
    })
    .await;
    app.finish().await;
}

/// The postmaster and everything it has started. (Backends lead sessions of their own, so a signal to
/// the process group would only reach the first.)
fn family(postmaster: u32) -> Vec<Pid> {
    let parent_of = |pid: i32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold spaces: pid (name) state parent
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let processes = fs::read_dir("/proc").expect("/proc");
    let children = processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| parent_of(*pid) == Some(postmaster))
        .map(Pid::from_raw);
    std::iter::once(Pid::from_raw(postmaster.cast_signed()))
        .chain(children)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_stands_still_for_five_seconds() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let sale = app.sale(50_000, json!({})).await;
    let rush = Rush::start(&[&app], &sale, 6, &[]);
    rush.until_accepted(ENOUGH).await;
    let stopped = family(servers.postgres.pid().expect("running"));
    assert!(
        stopped.len() > 5,
        "the postmaster and its family: {stopped:?}"
    );
    for pid in &stopped {
        kill(*pid, Signal::SIGSTOP).expect("SIGSTOP");
    }
    let stands_still = tokio::time::sleep(Duration::from_secs(5));
    // Nobody needs Postgres to buy.
    let buys = rush.until_accepted(2 * ENOUGH);
    tokio::join!(stands_still, buys);
    for pid in &stopped {
        // One that the postmaster would have replaced may have ended.
        kill(*pid, Signal::SIGCONT).ok();
    }
    rush.until_accepted(ENOUGH).await;
    assert_nothing_lost(&app, &sale, rush).await;
    app.stop().await;
}

/// A process that stands still inside a transaction keeps its locks only for so long; one that is at work
/// keeps them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_a_process_that_stands_still_are_taken_from_it() {
    const LOCK: &str = "SELECT pg_try_advisory_xact_lock($1)";
    let database = Servers::shared().await.database().await;
    let postgres = flash_sale::postgres::pool(database.options(), 3);
    let lock = async |number: i64| {
        let mut holder = Transaction::begin(&postgres, "BEGIN").await.expect("BEGIN");
        let got: bool = sqlx::query_scalar(LOCK)
            .bind(number)
            .fetch_one(&mut *holder)
            .await
            .expect("the lock");
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
