//! Two versions side by side, as in every rolling upgrade: the newer one has brought the schema further and writes
//! what it knows, and the older one, which is this program, works on. The rule for what may change:
//! docs/operations.md, "Upgrading".

use crate::{
    cli::{Home, Program, settings_of},
    support::{
        Servers,
        app::{ADMIN_TOKEN, Options, TestApp, eventually},
    },
};
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::Executor;
use std::{fs, path::Path};

/// A migration that an older instance cannot live with says so, and why, in a comment that begins like this. Then all
/// instances are stopped for it, and the notes of that release say so.
const MARK: &str = "-- not rolling:";

/// What an older instance that is still running, or started again, does not survive.
const FORBIDDEN: &[&[&str]] = &[
    &["DROP", "TABLE"],
    &["DROP", "COLUMN"],
    &["DROP", "SCHEMA"],
    &["DROP", "TYPE"],
    &["DROP", "FUNCTION"],
    &["RENAME"],
    &["SET", "NOT", "NULL"],
    &["SET", "DATA", "TYPE"],
    &["TYPE", "USING"],
    &["TRUNCATE"],
];

/// Why a migration is not one that an older instance can live with; `None` if it is.
fn breaks_older_instances(sql: &str) -> Option<String> {
    let without_comments: Vec<&str> = sql
        .lines()
        .map(|line| line.split("--").next().unwrap_or(""))
        .collect();
    for statement in without_comments.join("\n").split(';') {
        let upper = statement.to_uppercase();
        let words: Vec<&str> = upper
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .filter(|word| !word.is_empty())
            .collect();
        let says = |some: &[&str]| words.windows(some.len()).any(|window| window == some);
        // What a migration makes itself, nobody older knows.
        let alters = words.first() == Some(&"ALTER");
        if let Some(bad) = FORBIDDEN
            .iter()
            .find(|bad| says(bad) && (alters || words.first() != Some(&"CREATE")))
        {
            return Some(format!("{} in: {}", bad.join(" "), statement.trim()));
        }
        let adds = alters && says(&["ADD", "COLUMN"]);
        if adds
            && says(&["NOT", "NULL"])
            && !words.contains(&"DEFAULT")
            && !words.contains(&"GENERATED")
        {
            return Some(format!("an older insert lacks it: {}", statement.trim()));
        }
    }
    None
}

#[test]
fn migrations_only_add() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let mut seen = 0;
    for file in fs::read_dir(folder).expect("the migrations") {
        let path = file.expect("a file").path();
        let sql = fs::read_to_string(&path).expect("text");
        seen += 1;
        if sql.lines().any(|line| line.trim_start().starts_with(MARK)) {
            continue;
        }
        let why = breaks_older_instances(&sql);
        assert_eq!(why, None, "{} (or say why, after {MARK:?})", path.display());
    }
    assert!(seen >= 6);
}

#[test]
fn a_migration_that_takes_away_is_noticed() {
    for bad in [
        "ALTER TABLE sales DROP COLUMN title;",
        "CREATE TABLE a (b int); DROP TABLE\n lab_orders;",
        "ALTER TABLE sales RENAME COLUMN title TO name;",
        "ALTER TABLE sales ALTER COLUMN stock SET DATA TYPE bigint;",
        "ALTER TABLE orders ALTER COLUMN pay_by SET NOT NULL; -- they are all there",
        "ALTER TABLE orders ADD COLUMN bucket smallint NOT NULL;",
    ] {
        assert!(breaks_older_instances(bad).is_some(), "{bad}");
    }
    for good in [
        "-- DROP TABLE sales;\nCREATE INDEX a ON sales (title);",
        "ALTER TABLE orders ADD COLUMN bucket smallint NOT NULL DEFAULT 0;",
        "ALTER TABLE orders ADD COLUMN note text;",
        "CREATE TABLE a (b int NOT NULL);",
    ] {
        assert_eq!(breaks_older_instances(good), None, "{good}");
    }
}

/// The schema has gone further, with a migration that this program does not have: it starts, sells and audits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_is_older_than_the_schema_starts_and_sells() {
    let servers = Servers::shared().await;
    let database = servers.database().await;
    let mut connection = database.connect().await;
    connection
        .execute(
            "ALTER TABLE sales ADD COLUMN of_the_future text NOT NULL DEFAULT 'x';
             ALTER TABLE orders ADD COLUMN of_the_future integer;
             ALTER TABLE payments ADD COLUMN of_the_future integer NOT NULL DEFAULT 7;
             CREATE TABLE of_the_future (id bigint PRIMARY KEY);
             INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (999999, 'of the future', true, '\\x00', 0)",
        )
        .await
        .expect("the schema goes further");
    drop(connection);
    let home = Home::new();
    let settings = settings_of(servers, &database, "older:");
    let settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let program = Program::serve(&home, &[], &settings).await;
    let client = reqwest::Client::new();
    let post = async |path: &str, token: &str, body: Option<Value>| -> (StatusCode, Value) {
        let mut request = client.post(program.url(path)).bearer_auth(token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let reply = request.send().await.expect("an answer");
        (reply.status(), reply.json().await.expect("JSON"))
    };
    let sale = json!({"title": "a thing", "price_cents": 100, "stock": 5});
    let (status, sale) = post("/api/v1/admin/sales", ADMIN_TOKEN, Some(sale)).await;
    assert_eq!(status, 201, "{sale}");
    let sale = sale["id"].as_str().expect("an id");
    let (_, session) = post("/api/v1/session", "", Some(json!({}))).await;
    let token = session["token"].as_str().expect("a token");
    let (status, order) = post(&format!("/api/v1/sales/{sale}/orders"), token, None).await;
    assert_eq!(status, 202, "{order}");
    let order = order["order_id"].as_str().expect("an id");
    eventually("the order is paid", async || {
        let (status, _) = post(&format!("/api/v1/orders/{order}/pay"), token, None).await;
        (status == 200).then_some(())
    })
    .await;
    eventually("the sale is sound", async || {
        let url = program.url(&format!("/api/v1/admin/sales/{sale}/audit"));
        let asked = client.get(url).bearer_auth(ADMIN_TOKEN).send().await.ok()?;
        let audit: Value = asked.json().await.ok()?;
        assert_eq!(audit["ok"], true, "{audit:#}");
        (audit["quiescent"] == true && audit["paid"] == 1).then_some(())
    })
    .await;
    program.terminate().await;
    database.drop().await;
}

/// What an older version has moved to its archive is again where all orders are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_an_older_version_has_archived_come_back() {
    let servers = Servers::shared().await;
    let database = servers.database().await;
    let mut connection = database.connect().await;
    connection
        .execute("DROP SCHEMA public CASCADE; DROP SCHEMA lab CASCADE; CREATE SCHEMA public")
        .await
        .expect("an empty database");
    let migrated = sqlx::migrate!().run_to(14, &mut connection).await;
    migrated.expect("the schema of the older version");
    connection
        .execute(
            "INSERT INTO sales (id, title, price_cents, stock, taken, opens_at, closes_at, buyer_shards, closed,
                                archived_at, archived_orders)
             OVERRIDING SYSTEM VALUE
             SELECT 7, 'long over', 100, 5, 1, now() - interval '9 days', now() - interval '8 days', 1, true, now(), 2;
             INSERT INTO orders_archive (id, sale_id, user_id, slot, status, price_cents, created_at, pay_by, paid_at,
                                         closed_at)
             SELECT n, 7, md5('x')::uuid, slot, status::order_status, 100, now(), now(), paid_at, closed_at
             FROM (VALUES (1, NULL, 'cancelled', NULL, now()), (2, 0, 'paid', now(), NULL))
                  AS d (n, slot, status, paid_at, closed_at);
             INSERT INTO payments_archive (order_id, amount_cents, reference, paid_at) VALUES (2, 100, 'r', now())",
        )
        .await
        .expect("an archived sale");
    drop(connection);

    let migrated = flash_sale::postgres::migrate(&database.pool(2).await).await;
    migrated.expect("the schema of this version");
    let url = servers.redis.url();
    let app = TestApp::launch(database, url, "archived:".to_owned(), Options::default()).await;
    let audit = app.audit("7").await;
    assert!(audit.ok, "{:?}", audit.problems);
    assert_eq!((audit.paid, audit.cancelled), (1, 1));
    let paid = app
        .number("SELECT sum(amount_cents)::bigint FROM payments JOIN orders o ON o.id = order_id")
        .await;
    assert_eq!(paid, 100);
    app.finish().await;
}

/// A newer instance has put more into Redis, where the rule allows it: new fields of a sale's state, new fields of a
/// log entry. This one sells from the one and writes the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_newer_instance_adds_in_redis_is_passed_over() {
    let app = TestApp::start_with(Options::without_writer()).await;
    let sale = app.sale(10, json!({})).await;
    let mut redis = app.redis().await;
    let (state, log) = (
        format!("{}{{sale:{sale}}}", app.prefix),
        format!("{}{{sale:{sale}}}:log", app.prefix),
    );
    redis::cmd("HSET")
        .arg(&[&state, "of_the_future", "7 8 9"])
        .exec_async(&mut redis)
        .await
        .expect("a new field");
    let buyer = app.shopper();
    let order = buyer.must_buy(&sale).await;
    // The same entry as a newer instance would have written it.
    let entries: redis::streams::StreamRangeReply = redis::cmd("XRANGE")
        .arg(&[&log, "-", "+"])
        .query_async(&mut redis)
        .await
        .expect("the log");
    let [entry] = &entries.ids[..] else {
        panic!("one purchase, one entry: {entries:?}");
    };
    let field = |name: &str| entry.get::<Vec<u8>>(name).expect("a field");
    redis::pipe()
        .atomic()
        .cmd("XADD")
        .arg(&log)
        .arg("*")
        .arg("m")
        .arg(field("m"))
        .arg("o")
        .arg(field("o"))
        .arg("of_the_future")
        .arg("7 8 9")
        .ignore()
        .cmd("XDEL")
        .arg(&log)
        .arg(&entry.id)
        .ignore()
        .exec_async(&mut redis)
        .await
        .expect("the entry is replaced");
    let writer = app.another(Options::default()).await;
    let path = format!("/api/v1/orders/{order}");
    eventually("the order is a row", async || {
        let found = buyer.get(&path).await;
        (found.text("status") == "pending_payment").then_some(())
    })
    .await;
    assert_eq!(app.assert_sound(&sale).await.live, 1);
    writer.stop().await;
    app.finish().await;
}

/// This program would take a sale that is divided into buckets for a lost one: it does not start on one.
#[tokio::test]
async fn a_sale_that_is_divided_and_not_over_keeps_the_schema_as_it_was() {
    let servers = Servers::shared().await;
    let database = servers.database().await;
    let mut connection = database.connect().await;
    connection
        .execute(
            "DELETE FROM _sqlx_migrations WHERE version >= 16;
             ALTER TABLE sales ADD COLUMN buyer_shards integer, ADD COLUMN buckets smallint NOT NULL DEFAULT 1,
                 ADD COLUMN former_buckets smallint NOT NULL DEFAULT 1;
             INSERT INTO sales (id, title, price_cents, stock, opens_at, closes_at, buyer_shards, buckets)
             OVERRIDING SYSTEM VALUE
             VALUES (1, 'whole', 1, 1, now(), now() + interval '1 day', 1, 1),
                    (2, 'divided', 1, 1, now(), now() + interval '1 day', 1, 4),
                    (3, 'over', 1, 1, now() - interval '2 days', now() - interval '1 day', 1, 4)",
        )
        .await
        .expect("the schema of the release before");
    let pool = flash_sale::postgres::pool(database.options(), 1);
    let refused = flash_sale::postgres::migrate(&pool).await;
    let why = refused.expect_err("sale 2 is not over").to_string();
    assert!(why.contains("sales 2 are divided into buckets"), "{why}");
    connection
        .execute("UPDATE sales SET closed = true WHERE id = 2")
        .await
        .expect("UPDATE");
    flash_sale::postgres::migrate(&pool)
        .await
        .expect("nothing is in the way");
    pool.close().await;
    drop(connection);
    database.drop().await;
}
