//! Two versions side by side, as in every rolling upgrade: the newer one has brought the schema
//! further and writes what it knows, and the older one, which is this program, works on. And one
//! version after the other, across what cannot be side by side. The rule for what may change:
//! docs/operations.md, "Upgrading".

use crate::{
    cli::{Home, Program, settings_of},
    support::{
        Database, Servers,
        app::{ADMIN_TOKEN, Options, Reply, Shopper, TestApp, eventually},
        load::crowd,
    },
};
use flash_sale::domain::UserId;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::{Executor, PgConnection};
use std::{fs, path::Path};
use uuid::Uuid;

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

/// What commit 70f243a has left, killed at its work (made by `upgrade/fill.py`): orders in every
/// state, some only in the log, a unit on its way back; sale 1 sells, 2 allows two each, 3 is
/// paused, 4 archived, 5 divided into buckets, 6 in the middle of a rebuild.
const LEFT_IN_POSTGRES: &str = include_str!("upgrade/70f243a.sql");
const LEFT_IN_REDIS: &str = include_str!("upgrade/70f243a.redis");

/// A purchase that it answered with 202, and what that is to become.
#[derive(Deserialize)]
struct Answered {
    user: Uuid,
    sale: String,
    order: String,
    key: Option<String>,
    status: String,
}

impl Answered {
    fn all() -> Vec<Self> {
        serde_json::from_str(include_str!("upgrade/70f243a.json")).expect("answers")
    }

    fn is_live(&self) -> bool {
        ["pending_payment", "paid"].contains(&&*self.status)
    }

    fn buyer(&self, app: &TestApp) -> Shopper {
        let user = UserId::from_bytes(*self.user.as_bytes());
        let mut buyer = app.shopper();
        (buyer.user, buyer.token) = (user, app.mint(user));
        buyer
    }
}

async fn load_postgres(connection: &mut PgConnection) {
    connection
        .execute("DROP SCHEMA public CASCADE; DROP SCHEMA lab CASCADE; CREATE SCHEMA public")
        .await
        .expect("an empty database");
    // The schema: the checksums among the data tell whether these migrations are those of then.
    let migrated = sqlx::migrate!().run_to(14, &mut *connection).await;
    migrated.expect("the schema of the older version");
    connection
        .execute("DELETE FROM _sqlx_migrations; DELETE FROM id_clock")
        .await
        .expect("DELETE");
    connection.execute(LEFT_IN_POSTGRES).await.expect("data");
    // It was left a moment ago: otherwise its sales would be over, and its orders would expire.
    connection
        .execute(
            "CREATE TEMP TABLE age AS SELECT now() - max(created_at) AS age FROM orders;
             UPDATE sales SET opens_at = opens_at + age, closes_at = closes_at + age
             FROM age WHERE archived_at IS NULL;
             UPDATE orders SET pay_by = pay_by + age FROM age WHERE status = 'pending_payment'",
        )
        .await
        .expect("UPDATE");
}

/// Answers which process has it now.
fn load_redis(url: &str, prefix: &str) -> String {
    let client = redis::Client::open(url).expect("redis url");
    // Blocking, as it has no time-outs that a busy machine could meet.
    let mut redis = client.get_connection().expect("redis");
    let mut all = redis::pipe();
    for line in LEFT_IN_REDIS.lines() {
        let mut words = line.split('\t');
        let command = all.cmd(words.next().expect("a command"));
        command.arg(format!("{prefix}{}", words.next().expect("a key")));
        for word in words {
            match word.strip_prefix("0x") {
                None => command.arg(word),
                Some(digits) => command.arg(hex(digits)),
            };
        }
    }
    let asked = all.cmd("INFO").arg("server");
    let mut replies: Vec<redis::Value> = asked.query(&mut redis).expect("keys");
    let info = replies.pop().expect("INFO replies last");
    let info: String = redis::from_redis_value(info).expect("text");
    let found = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    found.expect("a run id").to_owned()
}

fn hex(digits: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("a byte");
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Only a sale in buckets keeps the schema as it was, until `ending` has ended it.
async fn migrate_when_nothing_is_divided(database: &Database, ending: &'static str) {
    let pool = flash_sale::postgres::pool(database.options(), 1);
    let refused = flash_sale::postgres::migrate(&pool).await;
    let why = refused.expect_err("sale 5 is not over").to_string();
    assert!(why.contains("sales 5 are divided into buckets"), "{why}");
    let mut connection = database.connect().await;
    connection.execute(ending).await.expect("UPDATE");
    let migrated = flash_sale::postgres::migrate(&pool).await;
    migrated.expect("nothing is in the way");
    pool.close().await;
}

/// Asks again while the sale is being rebuilt.
async fn buy(buyer: &Shopper, sale: &str) -> Reply {
    eventually("it is rebuilt", async || {
        let reply = buyer.buy(sale).await;
        (reply.status != StatusCode::SERVICE_UNAVAILABLE).then_some(reply)
    })
    .await
}

/// Everybody has what they were told, and only those may buy again who hold nothing any more.
/// Answers how many did, all in sale 1.
async fn assert_kept(app: &TestApp, answers: &[Answered]) -> usize {
    let mut bought_again = 0;
    for told in answers {
        let buyer = told.buyer(app);
        buyer.until(&told.order, &told.status).await;
        let reply = buy(&buyer, &told.sale).await;
        if ["4", "5"].contains(&&*told.sale) {
            reply.assert_problem(409, "ended");
            continue;
        }
        if told.is_live() {
            reply.assert_problem(409, "already_ordered");
            let named = reply.text("order_id");
            let mut own = answers.iter().filter(|other| other.user == told.user);
            assert!(own.any(|other| other.order == named), "{named}");
        } else {
            reply.assert(StatusCode::ACCEPTED);
            bought_again += 1;
        }
        if let Some(key) = &told.key {
            let replay = buyer.buy_with_key(&told.sale, key).await;
            replay.assert(StatusCode::ACCEPTED);
            assert_eq!(replay.text("order_id"), told.order);
            assert_eq!(replay.header("idempotent-replayed"), "true");
        }
    }
    bought_again
}

/// The shards of older epochs go.
async fn assert_new_keys_only(app: &TestApp) {
    let mut redis = app.redis().await;
    let key = |(sale, epoch)| format!("{}{{sale:{sale}}}:{epoch}:buyers", app.prefix);
    let new = [(1, 2), (2, 2), (3, 2), (6, 3)].map(key);
    eventually("only new keys are left", async || {
        let mut keys: Vec<String> = redis::cmd("KEYS")
            .arg(format!("{}{{sale:[1236]}}:*:buyers*", app.prefix))
            .query_async(&mut redis)
            .await
            .ok()?;
        keys.sort();
        (keys == new).then_some(())
    })
    .await;
}

/// `same_redis`: the process that Postgres has approved is still the one that runs.
async fn a_running_shop_is_carried_over(same_redis: bool, ending: &'static str) {
    let servers = Servers::shared().await;
    let database = servers.database().await;
    let mut connection = database.connect().await;
    load_postgres(&mut connection).await;
    let (url, prefix) = (servers.redis.url(), format!("left-{same_redis}:"));
    let run_id = load_redis(&url, &prefix);
    if same_redis {
        sqlx::query("UPDATE redis_incarnation SET run_id = $1")
            .bind(run_id)
            .execute(&mut connection)
            .await
            .expect("UPDATE");
    }
    migrate_when_nothing_is_divided(&database, ending).await;

    let app = TestApp::launch(database, url, prefix, Options::default()).await;
    for (sale, epoch) in [("1", 2), ("2", 2), ("3", 2), ("5", 2), ("6", 3)] {
        eventually("it is rebuilt", async || {
            (app.audit(sale).await.redis.epoch == Some(epoch)).then_some(())
        })
        .await;
    }
    let answers = Answered::all();
    let rows = app.number("SELECT count(*) FROM orders").await;
    assert_eq!(rows, answers.len() as i64);
    buy(&app.shopper(), "3").await.assert_problem(409, "paused");
    let resume = "/api/v1/admin/sales/3/resume";
    let resumed = app.admin(Method::POST, resume, None).await;
    resumed.assert(StatusCode::OK);
    let again = assert_kept(&app, &answers).await;

    for (sale, stock, again) in [("1", 64, again), ("2", 32, 0), ("3", 16, 0), ("6", 32, 0)] {
        let live = |told: &&Answered| told.sale == sale && told.is_live();
        let held = answers.iter().filter(live).count();
        let winners = crowd(&app, sale, stock).await;
        assert_eq!(winners.len(), stock - held - again, "sale {sale}");
        for (winner, order) in &winners {
            winner.until(order, "pending_payment").await;
        }
        assert_eq!(app.assert_sound(sale).await.live, stock as i64);
    }
    assert_eq!(app.assert_sound("5").await.paid, 2);
    let archived = app.audit("4").await;
    assert!(archived.ok, "{:?}", archived.problems);
    assert_eq!((archived.paid, archived.cancelled), (1, 1));
    let unpaid = "SELECT count(*) FROM orders LEFT JOIN payments ON order_id = id
                  WHERE (status = 'paid') <> (order_id IS NOT NULL)";
    assert_eq!(app.number(unpaid).await, 0);

    assert_new_keys_only(&app).await;
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_shop_is_carried_over_with_its_redis() {
    let ending = "UPDATE sales SET closed = true WHERE id = 5";
    a_running_shop_is_carried_over(true, ending).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_shop_is_carried_over_with_a_redis_that_was_restarted() {
    let ending = "UPDATE sales SET closes_at = now() WHERE id = 5";
    a_running_shop_is_carried_over(false, ending).await;
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
