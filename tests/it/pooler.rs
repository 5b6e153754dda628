//! Postgres behind a connection pooler in transaction mode: the real PgBouncer, with fewer sessions than
//! the program has connections.

use crate::{
    cli::{Home, settings_of},
    support::{
        Database, Servers,
        app::{Options, TestApp},
        load::{Rush, crowd},
        pgbouncer::{PgBouncer, SESSIONS},
    },
};
use flash_sale::postgres;
use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::json;
use sqlx::{Executor, PgPool, Row, postgres::PgPoolOptions};

/// The sessions that this database has, but for the one that asks.
async fn sessions_in(database: &Database) -> i64 {
    let mut connection = database.connect().await;
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .fetch_one(&mut connection)
    .await
    .expect("pg_stat_activity")
}

async fn advisory_locks(database: &Database) -> i64 {
    let mut connection = database.connect().await;
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .fetch_one(&mut connection)
    .await
    .expect("pg_locks")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_sale_goes_through_a_pooler_with_few_sessions() {
    let servers = Servers::own().await;
    let pooler = PgBouncer::start(&servers, "").await;
    let database = servers.database().await.pooled_by(&pooler);
    let launch = |database: Database| {
        let url = servers.redis.url();
        TestApp::launch(database, url, "pooled:".to_owned(), Options::default())
    };
    let first = launch(database.clone()).await;
    let second = launch(database.clone()).await;

    // Every end that an order can have.
    let short = first.sale(100, json!({"payment_timeout_secs": 1})).await;
    let (payer, canceller, idler) = (first.shopper(), second.shopper(), first.shopper());
    let paid = payer.order_to_pay(&short).await;
    payer.pay(&paid).await.assert(StatusCode::OK);
    let cancelled = canceller.order_to_pay(&short).await;
    canceller.cancel(&cancelled).await.assert(StatusCode::OK);
    let idle = idler.must_buy(&short).await;
    idler.until(&idle, "expired").await;
    payer.refused(&short, "already_ordered").await;

    // A rush at both, in the middle of which Redis loses everything and is rebuilt.
    let sale = first.sale(50_000, json!({})).await;
    let regulars = crowd(&first, &sale, 4).await;
    TestApp::all_written(&regulars).await;
    let rush = Rush::start(&[&first, &second], &sale, 6, &regulars);
    rush.until_accepted(80).await;
    let before = first.audit(&sale).await.postgres.epoch;
    first.in_redis::<()>(&mut redis::cmd("FLUSHALL")).await;
    wait_for!(first.audit(&sale).await.postgres.epoch > before);
    rush.until_accepted(80).await;
    let sessions = sessions_in(&database).await;
    assert!(
        (1..=i64::from(SESSIONS)).contains(&sessions),
        "{sessions} sessions behind the pooler"
    );
    let told = rush.end().await;
    assert!(told.shed > 0, "the gate was never shut");
    let statuses = first.assert_kept(&sale, &told.winners).await;
    assert_eq!(statuses.keys().collect::<Vec<_>>(), ["pending_payment"]);

    for sale in [&short, &sale] {
        first.assert_sound(sale).await;
    }
    let ended = first.audit(&short).await;
    assert_eq!((ended.paid, ended.cancelled, ended.expired), (1, 1, 1));
    second.stop().await;
    first.stop().await;
    // Nothing is left behind in a session that somebody else gets.
    assert_eq!(advisory_locks(&database).await, 0);
}

/// What 16 tasks get that ask 25 times each: how many right answers.
async fn right_answers(ask: impl AsyncFn(i64) -> Result<i64, sqlx::Error>) -> usize {
    let task = async |task: i64| {
        let mut right = 0;
        for number in 0..25 {
            let wanted = task * 100 + number;
            right += usize::from(ask(wanted).await.is_ok_and(|answer| answer == wanted));
        }
        right
    };
    join_all((0..16).map(task)).await.into_iter().sum()
}

/// Without what the program does about it, statements get lost or meet: the test above can fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_do_not_meet_in_a_session() {
    let servers = Servers::shared().await;
    let pooler = PgBouncer::start(servers, "options,extra_float_digits").await;
    let database = servers.database().await.pooled_by(&pooler);
    let adapted = database.pool(8).await;
    // Two kinds of statement, so that a name stands for different ones in different connections.
    let ask = async |number: i64| {
        let statement = match number % 3 {
            0 => "SELECT $1::bigint",
            1 => "SELECT $1::bigint + 0",
            _ => "SELECT 0 + $1::bigint",
        };
        let query = sqlx::query_scalar::<_, i64>(statement).bind(number);
        query.fetch_one(&adapted).await
    };
    assert_eq!(right_answers(ask).await, 400);

    let naive: PgPool = PgPoolOptions::new()
        .max_connections(8)
        .connect_lazy_with(database.options());
    let ask = async |number: i64| {
        let statement = match number % 3 {
            0 => "SELECT $1::bigint",
            1 => "SELECT $1::bigint + 0",
            _ => "SELECT 0 + $1::bigint",
        };
        let query = sqlx::query_scalar::<_, i64>(statement).bind(number);
        query.fetch_one(&naive).await
    };
    let right = right_answers(ask).await;
    assert!(right < 400, "nothing goes wrong without it either");
    naive.close().await;

    // What a transaction is promised holds here as well.
    let mut transaction = postgres::Transaction::begin(&adapted, "BEGIN")
        .await
        .expect("BEGIN");
    let limit = transaction
        .fetch_one("SELECT current_setting('idle_in_transaction_session_timeout')")
        .await
        .expect("a setting");
    assert_eq!(limit.get::<String, _>(0), "10s");
    transaction.commit().await.expect("COMMIT");
    // And is gone with it.
    let limit = adapted
        .fetch_one("SELECT 1 FROM pg_settings WHERE name = 'statement_timeout' AND setting = '0'")
        .await;
    limit.expect_err("every statement has its limit");
    adapted.close().await;
    drop(pooler);
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_came_later_is_noticed() {
    let servers = Servers::shared().await;
    let pooler = PgBouncer::start(servers, "options").await;
    let database = servers.database().await.pooled_by(&pooler);
    // As if there had been none when the program started.
    let pool = postgres::pool(database.options(), 2);
    let asked = sqlx::query("SELECT 1").execute(&pool).await;
    asked.expect_err("the connection is not what it was taken for");
    pool.close().await;
    drop(pooler);
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_work_through_a_pooler_that_is_named_as_one() {
    let servers = Servers::shared().await;
    let pooler = PgBouncer::start(servers, "").await;
    let database = servers.database().await;
    let home = Home::new();
    let mut settings = settings_of(servers, &database, "pooled-cli:").to_vec();
    let direct = std::mem::replace(
        &mut settings[0].1,
        format!(
            "postgres://{}@{}/{}",
            servers.postgres.address().user,
            pooler.address,
            database.name
        ),
    );
    let command = |arguments: &[&str], more: Option<&str>| {
        let mut command = home.command(arguments);
        command.envs(settings.iter().map(|(name, value)| (*name, value)));
        if let Some(direct) = more {
            command.env("DATABASE_DIRECT_URL", direct);
        }
        command
    };
    let refused = home.finish(command(&["migrate"], None)).await;
    refused.assert_refused(&["unsupported startup parameter"]);
    let run = "lab run --strategy row-lock --stock 5 --buyers 20";
    for words in ["migrate", "seed", "rebuild", "audit", run] {
        let words: Vec<&str> = words.split(' ').collect();
        let ended = home.finish(command(&words, Some(&direct))).await;
        ended.assert_done();
    }
    let wrong = home
        .finish(command(&["migrate"], Some("mysql://x/y")))
        .await;
    wrong.assert_refused(&["DATABASE_DIRECT_URL is not a Postgres address"]);
    drop((home, pooler));
    database.drop().await;
}
