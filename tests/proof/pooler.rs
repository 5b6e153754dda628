//! Postgres behind the real PgBouncer in transaction mode, with fewer sessions than connections.

use crate::faults::{assert_nothing_lost, flush, rebuilt_by, rush_with_regulars};
use crate::support::postgres_servers::{PgBouncer, SESSIONS};
use crate::support::prelude::*;
use flash_sale::postgres;
use sqlx::{Postgres, Row, postgres::PgPoolOptions};

const SESSIONS_OF_OTHERS: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()";
const ADVISORY_LOCKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_sale_goes_through_a_pooler_with_few_sessions() {
    let servers = Servers::own().await;
    let (_pooler, database) = PgBouncer::start(&servers, "").await;
    let (url, prefix, options) = (servers.redis.url(), "pooled:".to_owned(), Options::default());
    let first = TestApp::launch(database.clone(), url, prefix, options.clone()).await;
    let second = first.another(options).await;
    let short = first.sale(100, json!({"payment_timeout_secs": 1})).await;
    let (payer, canceller, idler) = (first.shopper(), second.shopper(), first.shopper());
    let paid = payer.order_to_pay(&short).await;
    payer.pay(&paid).await.assert(200);
    let cancelled = canceller.order_to_pay(&short).await;
    canceller.cancel(&cancelled).await.assert(200);
    idler.until(&idler.must_buy(&short).await, "expired").await;
    payer.refused(&short, "already_ordered").await;
    let (sale, rush) = rush_with_regulars(&[&first, &second], 4).await;
    rebuilt_by(&first, &sale, flush(&first)).await;
    rush.until_accepted(80).await;
    let sessions = first.number(SESSIONS_OF_OTHERS).await;
    assert!((1..=i64::from(SESSIONS)).contains(&sessions), "{sessions} sessions");
    let told = assert_nothing_lost(&first, &sale, rush).await;
    assert!(!told.unanswered.is_empty(), "no purchase was ever refused");
    assert!(told.reminded > 0, "the regulars never got an answer");
    let ended = first.assert_sound(&short).await;
    assert_eq!((ended.paid, ended.cancelled, ended.expired), (1, 1, 1));
    second.stop().await;
    first.stop().await;
    // Nothing is left behind in a session that somebody else gets.
    let mut connection = database.connect().await;
    let locks = sqlx::query_scalar(ADVISORY_LOCKS).fetch_one(&mut connection).await;
    assert_eq!(locks.ok(), Some(0_i64));
}

async fn right_answers<'c>(pool: impl Executor<'c, Database = Postgres> + Copy) -> usize {
    let task = async |task: i64| {
        let mut right = 0;
        for number in task * 100..task * 100 + 25 {
            // Different statements, so that a name stands for different ones in different sessions.
            let statement = match number % 3 {
                0 => "SELECT $1::bigint",
                1 => "SELECT $1::bigint + 0",
                _ => "SELECT 0 + $1::bigint",
            };
            let answer = sqlx::query_scalar::<_, i64>(statement).bind(number).fetch_one(pool).await;
            right += usize::from(answer.is_ok_and(|answer| answer == number));
        }
        right
    };
    join_all((0..16).map(task)).await.into_iter().sum()
}

/// Without what the program does about it, statements get lost or meet: the test above can fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_do_not_meet_in_a_session() {
    let servers = Servers::shared().await;
    let (_pooler, database) = PgBouncer::start(servers, "options,extra_float_digits").await;
    let adapted = database.pool(8).await;
    assert_eq!(right_answers(&adapted).await, 400);
    let naive = PgPoolOptions::new().max_connections(8).connect_lazy_with(database.options());
    assert!(right_answers(&naive).await < 400, "nothing goes wrong without it either");
    naive.close().await;
    let mut transaction = adapted.begin("BEGIN").await.expect("BEGIN");
    let setting = "SELECT current_setting('idle_in_transaction_session_timeout')";
    let limit = transaction.fetch_one(setting).await.expect("a setting");
    assert_eq!(limit.get::<String, _>(0), "10s");
    transaction.commit().await.expect("COMMIT");
    let none = "SELECT 1 FROM pg_settings WHERE name = 'statement_timeout' AND setting = '0'";
    adapted.fetch_one(none).await.expect_err("every statement has its limit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_came_later_is_noticed() {
    let (_pooler, database) = PgBouncer::start(Servers::shared().await, "options").await;
    // As if there had been none when the program started.
    let pool = postgres::pool(database.options(), 2);
    let asked = sqlx::query("SELECT 1").execute(&pool).await;
    asked.expect_err("the connection is not what it was taken for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_work_through_a_pooler_that_is_named_as_one() {
    let servers = Servers::shared().await;
    let (pooler, database) = PgBouncer::start(servers, "").await;
    let mut home = Home::on(servers, &database, "pooled-cli:");
    let direct = home.settings[0].1.clone();
    let (user, name) = (&servers.postgres.address().user, &database.name);
    home.settings[0].1 = format!("postgres://{user}@{}/{name}", pooler.address);
    home.run("migrate").await.assert_refused(&["unsupported startup parameter"]);
    let lab = "lab run --strategy row-lock --stock 5 --buyers 20";
    for words in ["migrate", "seed", "rebuild", "audit", lab] {
        home.run(&format!("{words} DATABASE_DIRECT_URL={direct}")).await.assert_done();
    }
    let wrong = home.run("migrate DATABASE_DIRECT_URL=mysql://x/y").await;
    wrong.assert_refused(&["DATABASE_DIRECT_URL is not a Postgres address"]);
}
