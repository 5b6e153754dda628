//! The program as a process: commands, exit codes, children, and what is left after `kill -9`.

use crate::support::{prelude::*, proxy::Lost};

async fn sales(program: &Program) -> Vec<Value> {
    let reply = program.ask("GET", "/api/v1/sales").await.must_be(200);
    reply.body["sales"].as_array().expect("sales").clone()
}

pub async fn sale_for_loads(program: &Program) -> String {
    let sale = sales(program).await.into_iter().find(|sale| sale["stock"] == 100_000);
    sale.expect("the sale for loads")["id"].as_str().expect("an id").to_owned()
}

pub fn entrance(home: &Home, program: &Program) -> Entrance {
    let secret = fs::read_to_string(home.data().join("token_secret"));
    program.entrance(&secret.expect("the secret"))
}

async fn assert_kept(entrance: &Entrance, orders: &[Winner]) {
    let here = orders.iter().map(|(shopper, id)| (entrance.welcome(shopper), id.clone()));
    all_written(&here.collect::<Vec<_>>()).await;
}

async fn audits(home: &Home, more: &str) -> Vec<Value> {
    let audits = home.run(&format!("audit --json {more}")).await.assert_done().json();
    audits.as_array().expect("a list").clone()
}

pub async fn assert_sound(home: &Home, sale: &str) -> Value {
    let audits = audits(home, "").await;
    assert!(audits.iter().all(|audit| audit["ok"] == true), "{audits:#?}");
    let audit = audits.iter().find(|audit| audit["sale_id"] == sale).expect("the sale");
    assert!(audit["quiescent"] == true && audit["conserved"] == true, "{audit:#}");
    audit.clone()
}

#[tokio::test]
async fn serve_sets_itself_up_and_keeps_its_data_through_ends_and_kills() {
    let home = Home::new();
    let program = Program::serve(&home, "").await;
    for path in ["/readyz", "/openapi.json"] {
        wait_for!(program.ask("GET", path).await.status == 200);
    }
    let found = sales(&program).await;
    let stocks: HashSet<i64> = (found.iter()).filter_map(|sale| sale["stock"].as_i64()).collect();
    assert_eq!(stocks, HashSet::from([10, 100, 500, 100_000]));
    let states: Vec<_> = found.iter().filter_map(|sale| sale["state"].as_str()).collect();
    assert_eq!(states, ["open", "open", "open", "scheduled"]);
    let admin_token = fs::read_to_string(home.data().join("admin_token")).expect("the admin token");
    assert!(program.stderr().contains(&admin_token));
    let sale = sale_for_loads(&program).await;
    let mut bought = all_order(entrance(&home, &program).shoppers(100), &sale).await;
    program.terminate().await;
    home.until_nothing_runs().await;
    let mut program = Program::serve(&home, "").await;
    assert!(!program.stderr().contains(&admin_token), "and not again");
    let here = entrance(&home, &program);
    assert_kept(&here, &bought).await;
    let ids = |sales: Vec<Value>| -> HashSet<Value> {
        sales.iter().map(|sale| sale["id"].clone()).collect()
    };
    assert_eq!(ids(sales(&program).await), ids(found));
    assert_eq!(assert_sound(&home, &sale).await["live"], 100);
    let rush = Rush::start(&[here], &sale, 64, &[]);
    rush.until_accepted(1_000).await;
    locked(&rush.told).may_break = true;
    program.signal(Signal::SIGKILL);
    assert_eq!(program.end().await, None, "killed");
    rush.until(1, |told| told.unanswered.len()).await;
    let Told { winners, unanswered, .. } = rush.end().await;
    home.until_nothing_runs().await;
    let program = Program::serve(&home, "").await;
    let here = entrance(&home, &program);
    bought.extend(winners);
    assert_kept(&here, &bought).await;
    let live = assert_sound(&home, &sale).await["live"].as_u64();
    assert!(live >= Some(bought.len() as u64), "{live:?}");
    bought.extend(all_order(unanswered.iter().map(|shopper| here.welcome(shopper)), &sale).await);
    assert_kept(&here, &bought).await;
    let audit = assert_sound(&home, &sale).await;
    assert_eq!(json!([audit["live"], audit["rejected"]]), json!([bought.len(), 0]));
    followed(&program, &admin_token).await;
    program.terminate().await;
    home.until_nothing_runs().await;
}

/// A demo sale that ends is followed by one of its kind.
async fn followed(program: &Program, admin_token: &str) {
    let phones = async || {
        let phones = sales(program).await.into_iter().filter(|sale| sale["stock"] == 10);
        phones.map(|sale| (sale["id"].clone(), sale["state"].clone())).collect::<Vec<_>>()
    };
    let [(first, _)] = &phones().await[..] else { panic!("one sale of ten phones") };
    let close = format!("/api/v1/admin/sales/{}/close", first.as_str().expect("an id"));
    program.ask("POST", &close).bearer(admin_token).await.must_be(200);
    wait_for!(phones().await.iter().any(|(id, state)| id != first && state == "open"));
}

#[tokio::test]
async fn commands_work_without_a_server_and_beside_one() {
    let home = Home::new();
    let document = home.run("openapi").await.assert_done().json();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.")));
    assert!(document["paths"]["/api/v1/sales/{id}/orders"]["post"].is_object());
    assert!(!home.data().exists(), "something was written");
    let file = home.path.join("tokens.json");
    let minted = home.run(&format!("tokens --users 1000 --out {}", file.display())).await;
    assert_eq!(minted.assert_done().stdout, "");
    let entries = fs::read(&file).expect("the tokens");
    let entries: Vec<Value> = serde_json::from_slice(&entries).expect("JSON");
    let users: HashSet<_> = entries.iter().filter_map(|entry| entry["user_id"].as_str()).collect();
    assert_eq!((entries.len(), users.len()), (1_000, 1_000));
    let printed = home.run("tokens --users 3").await.assert_done().json();
    assert_eq!(printed.as_array().map(Vec::len), Some(3));
    assert_eq!(home.run("migrate").await.assert_done().stdout, "the schema is up to date\n");
    assert!(audits(&home, "").await.is_empty());
    for _ in 0..2 {
        assert_eq!(home.run("seed").await.assert_done().stdout, "4 demo sales are there\n");
    }
    assert_eq!(audits(&home, "").await.len(), 4);
    home.until_nothing_runs().await;
    let program = Program::serve(&home, "").await;
    for entry in [&entries[0], &entries[999]] {
        let token = entry["token"].as_str().expect("a token");
        let session = program.ask("GET", "/api/v1/session").bearer(token).await.must_be(200);
        session.assert_has(json!({"user_id": entry["user_id"]}));
    }
    let sale = sale_for_loads(&program).await;
    all_order(entrance(&home, &program).shoppers(20), &sale).await;
    for command in ["migrate", "seed"] {
        home.run(command).await.assert_done();
    }
    assert_eq!(sales(&program).await.len(), 4);
    assert_eq!(assert_sound(&home, &sale).await["live"], 20);
    assert_eq!(audits(&home, &format!("--sale {sale}")).await.len(), 1);
    home.run("audit --sale 4711").await.assert_refused(&["no such sale"]);
    wait_for!(program.ask("GET", "/readyz").await.status == 200);
    home.run("serve").await.assert_refused(&["data"]);
    program.terminate().await;
    home.until_nothing_runs().await;
}

/// Only the commands that serve bring a schema up to date.
#[tokio::test]
async fn an_audit_of_an_older_schema_changes_nothing_and_says_what_to_do() {
    let (home, database) = Home::on_shared_servers("older:").await;
    home.run("audit").await.assert_done();
    // A migration that takes its time, here for locks, dumps no SQL.
    let (mut holder, mut other) = (database.connect().await, database.connect().await);
    let lock = "SELECT pg_advisory_lock(hashtextextended('lab schema', 0));
                BEGIN; LOCK _sqlx_migrations";
    holder.execute(lock).await.expect("the locks");
    let slowly = async {
        for release in ["ROLLBACK", "SELECT pg_advisory_unlock_all()"] {
            let waits = "SELECT 1 FROM pg_stat_activity
                         WHERE datname = current_database() AND wait_event_type = 'Lock'";
            wait_for!(other.fetch_optional(waits).await.is_ok_and(|waits| waits.is_some()));
            tokio::time::sleep(Duration::from_millis(1_100)).await;
            holder.execute(release).await.expect("released");
        }
    };
    let (migrated, ()) = tokio::join!(home.run("migrate"), slowly);
    assert!(!migrated.assert_done().stderr.contains("slow statement"), "{migrated:?}");
    let forget =
        "DELETE FROM _sqlx_migrations WHERE version = (SELECT max(version) FROM _sqlx_migrations)";
    database.connect().await.execute(forget).await.expect("a migration is forgotten");
    for word in ["audit", "rebuild"] {
        home.run(word).await.assert_refused(&["the schema is older", "flash-sale migrate"]);
    }
}

/// Command, settings, what the refusal says. DB, REDIS, TAKEN: addresses; SHORT: 31 bytes.
const REFUSALS: &str = "
    serve DATABASE_URL=DB REDIS_URL=REDIS → TOKEN_SECRET must be set, 32 bytes
    serve TOKEN_SECRET=SHORT → TOKEN_SECRET, 31 bytes, at least 32
    serve DATABASE_URL=DB REDIS_URL=REDIS TOKEN_SECRET=SHORT → TOKEN_SECRET, 31 bytes, at least 32
    tokens --users 1 TOKEN_SECRET=SHORT → TOKEN_SECRET, at least 32
    tokens --users 1 DATABASE_URL=DB REDIS_URL=REDIS TOKEN_SECRET=SHORT → TOKEN_SECRET, at least 32
    serve ADMIN_TOKEN= → ADMIN_TOKEN must not be empty
    serve DATABASE_URL=mysql://a/b REDIS_URL=REDIS TOKEN_SECRET=LONG → DATABASE_URL is not a \
        Postgres address
    serve DATABASE_URL=DB REDIS_URL=http://a TOKEN_SECRET=LONG → REDIS_URL is not a Redis address
    serve LISTEN_ADDR=TAKEN → cannot listen on TAKEN";

#[tokio::test]
async fn settings_that_cannot_work_are_refused_in_one_line() {
    let home = Home::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    let mut table = REFUSALS.to_owned();
    for command in ["serve", "worker", "migrate", "seed", "audit", "rebuild"] {
        table += &format!("\n{command} DATABASE_URL=DB → REDIS_URL, only DATABASE_URL is set");
        table += &format!("\n{command} REDIS_URL=REDIS → DATABASE_URL, only REDIS_URL is set");
    }
    let table = table
        .replace("=DB", "=postgres://nobody@localhost:1/nothing")
        .replace("=REDIS", "=redis://localhost:1")
        .replace("=SHORT", &format!("={}", "x".repeat(31)))
        .replace("=LONG", &format!("={}", "x".repeat(32)))
        .replace("TAKEN", &taken);
    for row in table.lines().filter(|row| !row.is_empty()) {
        let (call, said) = row.split_once(" → ").expect("two columns");
        home.run(call).await.assert_refused(&said.split(", ").collect::<Vec<_>>());
    }
    // Where no server ever ran there is nothing to judge, and nothing is put there.
    for command in ["audit", "rebuild"] {
        let ended = home.run(command).await;
        ended.assert_refused(&["there is no sale in", "DATABASE_URL and REDIS_URL"]);
    }
    assert!(!home.data().join("pg").exists(), "nothing was started");
    assert_eq!(home.run("sell").await.code, Some(2));
    let filter = home.run("migrate --rust-log sqlx=loud").await;
    assert!(filter.code == Some(2) && filter.stderr.contains("'sqlx=loud'"), "{filter:?}");
}

#[tokio::test]
async fn a_missing_server_is_named_with_the_line_that_installs_it() {
    // Without PATH the program still looks where Homebrew puts things; there is no hiding those.
    for prefix in ["/opt/homebrew", "/usr/local"] {
        for server in ["bin/redis-server", "bin/valkey-server", "opt/redis", "opt/valkey"] {
            if Path::new(prefix).join(server).exists() {
                return eprintln!("skipped: there is {server} in {prefix}");
            }
        }
    }
    let ended = Home::new().run("serve PATH=/nonexistent").await;
    ended.assert_refused(&["redis-server", "ask your package manager for"]);
    assert!(ended.stderr.contains("redis (7 or newer)"), "{ended:?}");
}

#[tokio::test]
async fn one_process_takes_orders_and_another_writes_them() {
    let servers = Servers::own().await;
    let database = servers.database().await;
    let home = Home::on(&servers, &database, "");
    home.run("migrate").await.assert_done();
    let mut redis = redis_connection(&servers.redis.url()).await;
    let set = redis::cmd("CONFIG").arg(&["SET", "appendonly", "no"]).exec_async(&mut redis).await;
    set.expect("a setting");
    let server = Program::serve(&home, "--no-writer").await;
    assert!(!home.data().exists(), "only embedded servers need it");
    assert!(server.stderr().contains("redis has appendonly off"), "{}", server.stderr());

    let sale = server.sale(50).await;
    let bought = all_order(server.entrance(SECRET).shoppers(50), &sale).await;

    // They are not written yet: the audit calls that neither broken (1) nor compared (0).
    let waiting = home.run("audit --json --wait 0").await;
    assert_eq!(waiting.code, Some(2), "{waiting:?}");
    assert_has(&waiting.json()[0], json!({"backlog": 50, "conserved": null}));
    assert!(waiting.stderr.contains("redis has appendonly off"), "{waiting:?}");

    let mut worker = Program::spawn(&home, home.command("worker --metrics-addr 127.0.0.1:0"));
    let figures = worker.line_after("flash-sale worker ready, metrics on ").await;
    all_written(&bought).await;
    // While it may wait, an answer that was lost is asked for again.
    let proxy = Proxy::start(Address::Unix(servers.redis.socket())).await;
    proxy.set(Fault::LoseReplies { which: Lost::Next(2), to: "XLEN" }).await;
    let audit = format!("audit --json --wait 60 REDIS_URL=redis://{}", proxy.address);
    let written = home.run(&audit).await.assert_done().json();
    assert_has(&written[0], json!({"backlog": 0, "live": 50, "conserved": true}));
    assert_eq!(proxy.counts().lost_replies, 2);

    for (path, status, words) in [
        ("/metrics", 200, "\nflash_sale_writer_orders_total 50\n"),
        ("/healthz", 200, "ok\n"),
        ("/readyz", 200, "\"ready\":true"),
        ("/readyz", 200, "\"redis_durable\":false"),
        ("/api/v1/sales", 404, ""),
    ] {
        wait_for!(&format!("{path}: {status} {words}"), {
            let asked = reqwest::get(figures.replace("/metrics", path)).await.expect("an answer");
            let found = asked.status();
            (found == status && asked.text().await.expect("text").contains(words)).then_some(())
        });
    }
    let port = figures.trim_start_matches("http://").trim_end_matches("/metrics");
    let second = home.run(&format!("worker METRICS_ADDR={port}")).await;
    second.assert_refused(&["cannot listen on", port]);
    worker.terminate().await;
    server.terminate().await;
    database.drop().await; // the servers are not the program's: they still run
}
