//! A server that is there and says no, or somebody else at its address: whoever asks hears 503,
//! never 500, and when the server does its work again so does everything else, without a restart.

use super::OwnRedis;
use crate::support::{
    Servers,
    app::{Options, Reply, Shopper, TestApp, eventually},
    load::{Winner, assert_shed},
    proxy::{Address, Fault, Proxy, free_port},
};
use flash_sale::embedded::RedisSettings;
use futures_util::future::{BoxFuture, join_all};
use redis::{Value, aio::MultiplexedConnection};
use reqwest::{Method, StatusCode};
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor};
use std::{fs, path::PathBuf};

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Everybody,
    /// Without the operators, who wait for a minute where shoppers wait for ten seconds.
    Shoppers,
}

/// Everything that can be asked, of a sale and of somebody's order in it, at once; and what is wrong with the answers.
async fn ask_everything(
    app: &TestApp,
    who: Who,
    sale: &str,
    (shopper, order): &Winner,
) -> Vec<String> {
    let at = |path: &str| format!("/api/v1/admin/sales/{sale}{path}");
    let mut asked: Vec<BoxFuture<'_, (String, Reply)>> = Vec::new();
    for path in [
        "/healthz".to_owned(),
        "/readyz".to_owned(),
        "/api/v1/sales".to_owned(),
        format!("/api/v1/sales/{sale}"),
    ] {
        asked.push(Box::pin(async move {
            let reply = app.get(&path).await;
            (path, reply)
        }));
    }
    for (method, path) in [
        (Method::GET, "/api/v1/orders".to_owned()),
        (Method::GET, format!("/api/v1/orders/{order}")),
        (Method::GET, "/api/v1/orders/123456789".to_owned()),
        (Method::POST, format!("/api/v1/orders/{order}/pay")),
        (Method::POST, format!("/api/v1/orders/{order}/cancel")),
        (Method::POST, format!("/api/v1/sales/{sale}/orders")),
    ] {
        asked.push(Box::pin(async move {
            let reply = shopper.call(method.clone(), &path).await;
            (format!("shopper: {method} {path}"), reply)
        }));
    }
    let of_user = at(&format!("/orders?user={}", shopper.user));
    let changed = json!({"description": "changed"});
    let another = json!({"title": "another", "price_cents": 1, "stock": 1});
    let operators = [
        (Method::GET, at("/audit"), None),
        (Method::GET, at("/orders"), None),
        (Method::GET, of_user, None),
        (Method::PATCH, at(""), Some(changed)),
        (Method::POST, at("/stock"), Some(json!({"add": 1}))),
        (Method::POST, at("/pause"), None),
        (Method::POST, at("/resume"), None),
        (
            Method::POST,
            "/api/v1/admin/sales".to_owned(),
            Some(another),
        ),
    ];
    let operators = operators.into_iter().filter(|_| who == Who::Everybody);
    for (method, path, body) in operators {
        asked.push(Box::pin(async move {
            let reply = app.admin(method.clone(), &path, body).await;
            (format!("operator: {method} {path}"), reply)
        }));
    }
    let told = join_all(asked).await;
    let is_wrong = |reply: &Reply| {
        reply.status.is_server_error() && reply.status != StatusCode::SERVICE_UNAVAILABLE
    };
    told.into_iter()
        .filter(|(_, reply)| is_wrong(reply))
        .map(|(what, reply)| format!("{what}: {} {}", reply.status, reply.body))
        .collect()
}

/// Somebody who has an order to pay.
async fn regular(app: &TestApp, sale: &str) -> Winner {
    let shopper = app.shopper();
    let order = shopper.order_to_pay(sale).await;
    (shopper, order)
}

/// Waits until the sale, which somebody may have paused, sells again.
async fn until_it_sells(app: &TestApp, sale: &str) -> Winner {
    eventually("it sells again", async || {
        let path = format!("/api/v1/admin/sales/{sale}/resume");
        app.admin(Method::POST, &path, None).await;
        bought(app.shopper(), sale).await.ok()
    })
    .await
}

async fn bought(shopper: Shopper, sale: &str) -> Result<Winner, Reply> {
    let reply = shopper.buy(sale).await;
    if reply.is_accepted() {
        let order = reply.text("order_id").to_owned();
        return Ok((shopper, order));
    }
    Err(reply)
}

// --- redis

/// Why it does not do what it is asked for.
#[derive(Debug, Clone, Copy)]
enum OfRedis {
    FullMemory,
    FailingSnapshots,
    TooFewReplicas,
    IsReplica,
    Busy,
    Password,
    TooManyClients,
    /// Somebody takes connections, and closes them at the first question.
    SlammedDoor,
    /// Postgres answers.
    SomebodyElse,
}

const OF_REDIS: [OfRedis; 9] = [
    OfRedis::FullMemory,
    OfRedis::FailingSnapshots,
    OfRedis::TooFewReplicas,
    OfRedis::IsReplica,
    OfRedis::Busy,
    OfRedis::Password,
    OfRedis::TooManyClients,
    OfRedis::SlammedDoor,
    OfRedis::SomebodyElse,
];

/// A Redis, what stands before it, and somebody who is connected to it all the time.
struct Stage {
    servers: Servers,
    redis: OwnRedis,
    proxy: Proxy,
    operator: MultiplexedConnection,
}

impl Stage {
    async fn start() -> Self {
        let servers = Servers::own().await;
        let redis = OwnRedis::start(servers.folder("other"), RedisSettings::default()).await;
        let proxy = Proxy::start(Address::Unix(redis.server().socket())).await;
        let operator = connection(&redis).await;
        Self {
            servers,
            redis,
            proxy,
            operator,
        }
    }

    async fn say(&self, words: &[&str]) -> Value {
        redis::cmd(words[0])
            .arg(&words[1..])
            .query_async(&mut self.operator.clone())
            .await
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    async fn set(&self, name: &str, value: &str) {
        self.say(&["CONFIG", "SET", name, value]).await;
    }

    /// Everybody else has to connect anew.
    async fn disconnect(&self) {
        self.say(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    }

    /// Where a snapshot goes.
    fn snapshot(&self) -> PathBuf {
        self.redis.files().with_file_name("dump.rdb")
    }

    async fn begin(&self, refusal: OfRedis) {
        match refusal {
            OfRedis::FullMemory => self.set("maxmemory", "1").await,
            OfRedis::FailingSnapshots => {
                // A folder is in its place.
                fs::create_dir(self.snapshot()).expect("a folder");
                self.set("save", "3600 1000000").await;
                self.say(&["BGSAVE"]).await;
                eventually("the snapshot has failed", async || {
                    let said = self.say(&["INFO", "persistence"]).await;
                    let said: String = redis::from_redis_value(said).expect("text");
                    said.contains("rdb_last_bgsave_status:err").then_some(())
                })
                .await;
            }
            OfRedis::TooFewReplicas => self.set("min-replicas-to-write", "1").await,
            OfRedis::IsReplica => {
                let nobody = free_port().to_string();
                self.say(&["REPLICAOF", "127.0.0.1", &nobody]).await;
            }
            OfRedis::Busy => {
                self.set("busy-reply-threshold", "1").await;
                let mut another = connection(&self.redis).await;
                tokio::spawn(async move {
                    let mut endless = redis::cmd("EVAL");
                    endless.arg("while true do end").arg(0);
                    let ended = endless.exec_async(&mut another).await;
                    ended.expect_err("it is killed");
                });
            }
            OfRedis::Password => {
                self.set("requirepass", "nobody knows it").await;
                self.disconnect().await;
            }
            OfRedis::TooManyClients => {
                self.set("maxclients", "1").await;
                self.disconnect().await;
            }
            OfRedis::SlammedDoor => {
                self.proxy.set(Fault::CutRequest { after: 1 }).await;
                self.proxy.cut();
            }
            OfRedis::SomebodyElse => {
                let postgres = Address::of_postgres(self.servers.postgres.address());
                self.proxy.set_target(postgres);
                self.proxy.cut();
            }
        }
    }

    async fn end(&self, refusal: OfRedis) {
        match refusal {
            OfRedis::FullMemory => self.set("maxmemory", "0").await,
            OfRedis::FailingSnapshots => {
                fs::remove_dir(self.snapshot()).expect("a folder");
                self.set("save", "").await;
            }
            OfRedis::TooFewReplicas => self.set("min-replicas-to-write", "0").await,
            OfRedis::IsReplica => drop(self.say(&["REPLICAOF", "NO", "ONE"]).await),
            OfRedis::Busy => {
                self.say(&["SCRIPT", "KILL"]).await;
                // By now anything that takes a millisecond makes it busy.
                eventually("it is not busy any more", async || {
                    let mut set = redis::cmd("CONFIG");
                    set.arg("SET").arg("busy-reply-threshold").arg(5_000);
                    set.exec_async(&mut self.operator.clone()).await.ok()
                })
                .await;
            }
            OfRedis::Password => self.set("requirepass", "").await,
            OfRedis::TooManyClients => self.set("maxclients", "10000").await,
            OfRedis::SlammedDoor => self.proxy.set(Fault::None).await,
            OfRedis::SomebodyElse => {
                self.proxy
                    .set_target(Address::Unix(self.redis.server().socket()));
                self.proxy.cut();
            }
        }
    }
}

async fn connection(redis: &OwnRedis) -> MultiplexedConnection {
    let client = redis::Client::open(redis.server().url()).expect("redis url");
    let connected = client.get_multiplexed_async_connection().await;
    connected.expect("redis")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_redis_refuses_for_is_503_and_passes() {
    let stage = Stage::start().await;
    let app = TestApp::launch(
        stage.servers.database().await,
        format!("redis://{}", stage.proxy.address()),
        "refuses:".to_owned(),
        Options::default(),
    )
    .await;
    let sale = app.sale(10_000, json!({})).await;
    let mut winners: Vec<Winner> = Vec::new();
    let mut wrong = Vec::new();
    for refusal in OF_REDIS {
        let regular = regular(&app, &sale).await;
        stage.begin(refusal).await;
        eventually("somebody is refused", async || {
            match bought(app.shopper(), &sale).await {
                Ok(winner) => {
                    winners.push(winner);
                    None
                }
                Err(reply) => {
                    assert_shed(&reply);
                    Some(())
                }
            }
        })
        .await;
        let answers = ask_everything(&app, Who::Everybody, &sale, &regular).await;
        let answers = answers.into_iter();
        wrong.extend(answers.map(|told| format!("{refusal:?}: {told}")));
        stage.end(refusal).await;
        winners.push(until_it_sells(&app, &sale).await);
        winners.push(regular);
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    app.assert_kept(&sale, &winners).await;
    app.assert_sound(&sale).await;
    app.stop().await;
}

// --- postgres

/// Why it does not do what it is asked for.
#[derive(Debug, Clone, Copy)]
enum OfPostgres {
    /// The database lets nobody in.
    Closed,
    ReadOnly,
    /// Somebody has locked the orders and does not end.
    Locked,
    /// Bytes vanish.
    Silent,
    SlammedDoor,
    /// Redis answers.
    SomebodyElse,
}

const OF_POSTGRES: [OfPostgres; 6] = [
    OfPostgres::Closed,
    OfPostgres::ReadOnly,
    OfPostgres::Locked,
    OfPostgres::Silent,
    OfPostgres::SlammedDoor,
    OfPostgres::SomebodyElse,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_postgres_refuses_for_is_503_and_passes() {
    let servers = Servers::own().await;
    let postgres = Address::of_postgres(servers.postgres.address());
    let proxy = Proxy::start(postgres.clone()).await;
    let app = TestApp::behind(&servers, &proxy).await;
    let sale = app.sale(10_000, json!({})).await;
    let mut winners: Vec<Winner> = Vec::new();
    let mut wrong = Vec::new();
    for refusal in OF_POSTGRES {
        let regular = regular(&app, &sale).await;
        let mut operator = app.database.connect().await;
        let read_only = |on: &str| {
            let name = &app.database.name;
            format!("ALTER DATABASE {name} SET default_transaction_read_only = {on}")
        };
        match refusal {
            OfPostgres::Closed => app.allow_connections(false).await,
            OfPostgres::ReadOnly => {
                app.execute(&read_only("on")).await;
                proxy.cut();
            }
            OfPostgres::Locked => {
                let lock = "BEGIN; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE";
                operator.execute(lock).await.expect(lock);
            }
            OfPostgres::Silent => proxy.set(Fault::BlackHole).await,
            OfPostgres::SlammedDoor => {
                proxy.set(Fault::CutRequest { after: 1 }).await;
                proxy.cut();
            }
            OfPostgres::SomebodyElse => {
                proxy.set_target(Address::Unix(servers.redis.socket()));
                proxy.cut();
            }
        }
        // Selling goes on.
        let winner = bought(app.shopper(), &sale).await;
        winners.push(winner.unwrap_or_else(|reply| panic!("{refusal:?}: {}", reply.body)));
        let who = match refusal {
            OfPostgres::Locked | OfPostgres::Silent => Who::Shoppers,
            _ => Who::Everybody,
        };
        let answers = ask_everything(&app, who, &sale, &regular).await;
        let answers = answers.into_iter();
        wrong.extend(answers.map(|told| format!("{refusal:?}: {told}")));
        match refusal {
            OfPostgres::Closed => app.allow_connections(true).await,
            OfPostgres::ReadOnly => {
                // By a session from before.
                let again = read_only("off");
                operator
                    .execute(AssertSqlSafe(again))
                    .await
                    .expect("ALTER DATABASE");
                proxy.cut();
            }
            OfPostgres::Locked => drop(operator.execute("ROLLBACK").await.expect("ROLLBACK")),
            OfPostgres::Silent | OfPostgres::SlammedDoor => {
                proxy.set(Fault::None).await;
                proxy.cut();
            }
            OfPostgres::SomebodyElse => {
                proxy.set_target(postgres.clone());
                proxy.cut();
            }
        }
        winners.push(until_it_sells(&app, &sale).await);
        winners.push(regular);
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    app.assert_kept(&sale, &winners).await;
    app.assert_sound(&sale).await;
    app.stop().await;
}
