//! Versions side by side, and across what cannot be: docs/operations.md, "Upgrading".

use crate::support::prelude::*;
use redis::InfoDict;
use serde::Deserialize;

const MARK: &str = "-- not rolling:";

/// Statements that an older instance, running or restarted, does not survive.
const FORBIDDEN: &str = "DROP TABLE, DROP COLUMN, DROP SCHEMA, DROP TYPE, DROP FUNCTION, RENAME, \
    SET NOT NULL, SET DATA TYPE, TYPE USING, TRUNCATE";

fn breaks_older_instances(sql: &str) -> Option<String> {
    let without_comments: Vec<&str> =
        sql.lines().map(|line| line.split("--").next().unwrap_or("")).collect();
    for statement in without_comments.join("\n").split(';') {
        let upper = statement.to_uppercase();
        let words = upper.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let text = format!(" {} ", words.join(" "));
        let says = |some: &str| text.contains(&format!(" {some} "));
        // Older instances do not know the objects that a migration creates.
        let bad = FORBIDDEN.split(", ").find(|bad| says(bad) && words.first() != Some(&"CREATE"));
        if let Some(bad) = bad {
            return Some(format!("{bad} in: {}", statement.trim()));
        }
        let adds = words.first() == Some(&"ALTER") && says("ADD COLUMN");
        if adds && says("NOT NULL") && !says("DEFAULT") && !says("GENERATED") {
            return Some(format!("an older insert lacks it: {}", statement.trim()));
        }
    }
    None
}

#[test]
fn migrations_only_add() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let migrations = entries(&folder).map(|path| (fs::read_to_string(&path).expect("text"), path));
    let migrations: Vec<_> = migrations.collect();
    assert!(migrations.len() >= 6);
    for (sql, path) in migrations {
        let is_marked = sql.lines().any(|line| line.trim_start().starts_with(MARK));
        let why = breaks_older_instances(&sql).filter(|_| !is_marked);
        assert_eq!(why, None, "{} (or say why, after {MARK:?})", path.display());
    }
    // One that takes away is noticed.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_instance_starts_sells_and_writes_beside_a_newer_one() {
    let (home, database) = Home::on_shared_servers("beside:").await;
    let further = "
        ALTER TABLE sales ADD COLUMN of_the_future text NOT NULL DEFAULT 'x';
        ALTER TABLE orders ADD COLUMN of_the_future integer;
        ALTER TABLE payments ADD COLUMN of_the_future integer NOT NULL DEFAULT 7;
        CREATE TABLE of_the_future (id bigint PRIMARY KEY);
        INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES (999999, 'of the future', true, '\\x00', 0)";
    database.connect().await.execute(further).await.expect("the schema goes further");
    let program = Program::serve(&home, "--no-writer").await;
    let sale = program.sale(5).await;
    program.ask("POST", "/api/v1/session").json(json!({})).await.assert(201);
    let shopper = program.entrance(SECRET).shopper();
    let new = ("of_the_future", b"7 8 9".to_vec());
    let mut redis = redis_connection(&Servers::shared().await.redis.url()).await;
    let state = format!("beside:{{sale:{sale}}}");
    let log = format!("{state}:log");
    let () = redis.hset(&state, new.0, &new.1).await.expect("a new field");
    let bought = shopper.buy(&sale).await.must_be(202);
    let entries: StreamRangeReply = redis.xrange_all(&log).await.expect("the log");
    let [entry] = &entries.ids[..] else { panic!("one purchase, one entry: {entries:?}") };
    let field = |name| (name, entry.get::<Vec<u8>>(name).expect("a field"));
    let mut replace = redis::pipe();
    replace.atomic().xadd(&log, "*", &[field("m"), field("o"), new]).xdel(&log, &[&entry.id]);
    replace.exec_async(&mut redis).await.expect("the entry is replaced");
    let mut worker = Program::spawn(&home, home.command("worker --metrics-addr 127.0.0.1:0"));
    worker.line_after("flash-sale worker ready").await;
    wait_for!(shopper.pay(bought.text("order_id")).await.status == 200);
    assert_has(&program.quiet_audit(&sale).await, json!({"ok": true, "paid": 1}));
    worker.terminate().await;
    program.terminate().await;
}

/// Left by a kill of commit 70f243a (`upgrade/fill.py`). Sale 1 sells, 2 allows two each, 3 is
/// paused, 4 archived, 5 divided into buckets, 6 amid a rebuild.
const LEFT_IN_POSTGRES: &str = include_str!("upgrade/70f243a.sql");
const LEFT_IN_REDIS: &str = include_str!("upgrade/70f243a.redis");

#[derive(Deserialize)]
struct Answered {
    user: UserId,
    sale: String,
    order: String,
    key: Option<String>,
    status: String,
}

impl Answered {
    fn is_live(&self) -> bool {
        ["pending_payment", "paid"].contains(&&*self.status)
    }

    fn buyer(&self, app: &TestApp) -> Shopper {
        let mut buyer = app.shopper();
        (buyer.user, buyer.token) = (self.user, app.mint(self.user));
        buyer
    }
}

async fn load_postgres(connection: &mut PgConnection) {
    let empty = "DROP SCHEMA public CASCADE; DROP SCHEMA lab CASCADE; CREATE SCHEMA public";
    connection.execute(empty).await.expect("an empty database");
    // The schema: the checksums among the data tell whether these migrations are those of then.
    let migrated = flash_sale::postgres::migrator().run_to(14, &mut *connection).await;
    migrated.expect("the schema of the older version");
    connection.execute("DELETE FROM _sqlx_migrations; DELETE FROM id_clock").await.expect("DELETE");
    connection.execute(LEFT_IN_POSTGRES).await.expect("data");
    // It was left a moment ago: otherwise its sales would be over, and its orders would expire.
    let younger = "
        CREATE TEMP TABLE age AS SELECT now() - max(created_at) AS age FROM orders;
        UPDATE sales SET opens_at = opens_at + age, closes_at = closes_at + age
        FROM age WHERE archived_at IS NULL;
        UPDATE orders SET pay_by = pay_by + age FROM age WHERE status = 'pending_payment'";
    connection.execute(younger).await.expect("UPDATE");
}

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
    all.exec(&mut redis).expect("keys");
    let info: InfoDict = redis::cmd("INFO").arg("server").query(&mut redis).expect("INFO");
    info.get("run_id").expect("a run id")
}

fn hex(digits: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("a byte");
    (0..digits.len()).step_by(2).map(byte).collect()
}

async fn assert_kept(app: &TestApp, answers: &[Answered]) -> usize {
    let mut bought_again = 0;
    for told in answers {
        let buyer = told.buyer(app);
        buyer.until(&told.order, &told.status).await;
        let reply = buyer.told(&told.sale).await;
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
            reply.assert(202);
            bought_again += 1;
        }
        if let Some(key) = &told.key {
            let replay = buyer.buy_with_key(&told.sale, key).await.must_be(202);
            assert_eq!(replay.text("order_id"), told.order);
            assert_eq!(replay.header("idempotent-replayed"), "true");
        }
    }
    bought_again
}

async fn assert_new_keys_only(app: &TestApp) {
    let mut redis = app.redis().await;
    let key = |(sale, epoch)| format!("{}{{sale:{sale}}}:{epoch}:buyers", app.prefix);
    let new = [(1, 2), (2, 2), (3, 2), (6, 3)].map(key);
    let pattern = format!("{}{{sale:[1236]}}:*:buyers*", app.prefix);
    wait_for!("only new keys are left", {
        let mut keys: Vec<String> = redis.keys(&pattern).await.ok()?;
        keys.sort();
        (keys == new).then_some(())
    });
}

/// `same_redis`: the process that Postgres has approved is still the one that runs.
async fn a_running_shop_is_carried_over((same_redis, ending): (bool, &'static str)) {
    let servers = Servers::shared().await;
    let database = servers.database().await;
    let mut connection = database.connect().await;
    load_postgres(&mut connection).await;
    let (url, prefix) = (servers.redis.url(), format!("left-{same_redis}:"));
    let run_id = load_redis(&url, &prefix);
    if same_redis {
        let approve = sqlx::query("UPDATE redis_incarnation SET run_id = $1").bind(run_id);
        approve.execute(&mut connection).await.expect("UPDATE");
    }
    // Only a sale in buckets keeps the schema as it was, until `ending` has ended it.
    let pool = flash_sale::postgres::pool(database.options(), 1);
    let refused = flash_sale::postgres::migrate(&pool).await;
    let why = refused.expect_err("sale 5 is not over").to_string();
    assert!(why.contains("sales 5 are divided into buckets"), "{why}");
    database.connect().await.execute(ending).await.expect("UPDATE");
    flash_sale::postgres::migrate(&pool).await.expect("nothing is in the way");
    pool.close().await;
    let app = TestApp::launch(database, url, prefix, Options::default()).await;
    for (sale, epoch) in [("1", 2), ("2", 2), ("3", 2), ("5", 2), ("6", 3)] {
        wait_for!(app.audit(sale).await.redis.epoch == Some(epoch));
    }
    let answers = include_str!("upgrade/70f243a.json");
    let answers: Vec<Answered> = serde_json::from_str(answers).expect("answers");
    assert_eq!(app.number("SELECT count(*) FROM orders").await, answers.len() as i64);
    app.shopper().refused("3", "paused").await;
    app.steer("3", "resume").await;
    let again = assert_kept(&app, &answers).await;
    for (sale, stock, again) in [("1", 64, again), ("2", 32, 0), ("3", 16, 0), ("6", 32, 0)] {
        let live = |told: &&Answered| told.sale == sale && told.is_live();
        let held = answers.iter().filter(live).count();
        let winners = crowd(&app, sale, stock).await;
        assert_eq!(winners.len(), stock - held - again, "sale {sale}");
        all_written(&winners).await;
        assert_eq!(app.assert_sound(sale).await.live, stock as i64);
    }
    assert_eq!(app.assert_sound("5").await.paid, 2);
    let archived = app.audit("4").await;
    assert!(archived.ok, "{:?}", archived.problems);
    assert_eq!((archived.paid, archived.cancelled), (1, 1));
    let unpaid = "SELECT count(*) FROM orders LEFT JOIN payments ON order_id = orders.id
                  WHERE (status = 'paid') <> (order_id IS NOT NULL)";
    assert_eq!(app.number(unpaid).await, 0);
    assert_new_keys_only(&app).await;
}

cases! { a_running_shop_is_carried_over:
    with_its_redis => (true, "UPDATE sales SET closed = true WHERE id = 5"),
    with_one_that_was_restarted => (false, "UPDATE sales SET closes_at = now() WHERE id = 5"),
}
