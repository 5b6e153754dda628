//! A server says no, or another is at its address: 503 meanwhile, and no restart afterwards.

use super::*;

/// Beside [`Route::all`]: what is asked for often, an order of nobody, and one user's of a sale.
const MORE: &str = "
    anybody GET /healthz
    anybody GET /readyz
    anybody GET /api/v1/sales
    shopper GET /api/v1/orders/123456789
    operator GET /api/v1/admin/sales/SALE/orders?user=00000000-0000-0000-0000-000000000000";

async fn bought(app: &TestApp, sale: &str) -> Result<Winner, Reply> {
    let shopper = app.shopper();
    let reply = shopper.buy(sale).await;
    if !reply.is_accepted() {
        return Err(reply);
    }
    Ok((shopper, reply.text("order_id").to_owned()))
}

/// An instance whose way to a server leads through a proxy, and what became of its sale.
struct Scene {
    app: TestApp,
    sale: String,
    proxy: Proxy,
    winners: Vec<Winner>,
    wrong: Vec<String>,
}

impl Scene {
    async fn new(app: TestApp, proxy: Proxy) -> Self {
        let sale = app.sale(10_000, json!({})).await;
        Self { app, sale, proxy, winners: Vec::new(), wrong: Vec::new() }
    }

    async fn until_refused(&mut self) {
        let (app, sale, winners) = (&self.app, &self.sale, &mut self.winners);
        let refused = async || bought(app, sale).await.map(|winner| winners.push(winner)).err();
        assert_shed(&eventually("a shopper is refused", refused).await);
    }

    /// Notes wrong answers. Operators wait a minute where shoppers wait ten seconds.
    async fn ask_everything(&mut self, refusal: &str, operators: bool, (shopper, order): &Winner) {
        let routes = Route::all(&self.sale, order).chain(Route::of(MORE, &self.sale, order));
        // The sale goes on, and nobody pays elsewhere.
        let ends = |path: &str| path.ends_with("/close") || path.ends_with("/checkout");
        let routes = routes.filter(|one| (operators || one.who != "operator") && !ends(&one.path));
        let asked = routes.map(async |route| {
            let response = route.ask(&self.app).bearer(route.token(shopper)).begin().await;
            if response.status().is_success() {
                return None; // a stream does not end
            }
            let reply = Reply::of(response).await;
            let is_shed = reply.code() == "unavailable" && !reply.header("retry-after").is_empty();
            let is_wrong = match reply.status.as_u16() {
                503 => !is_shed && route.path != "/readyz",
                404 => !route.path.ends_with("123456789"), // all else is there
                status => status >= 500,
            };
            let Route { who, method, path, .. } = route;
            let Reply { status, body, .. } = reply;
            is_wrong.then(|| format!("{refusal}: {who} {method} {path}: {status} {body}"))
        });
        self.wrong.extend(join_all(asked).await.into_iter().flatten());
    }

    async fn until_it_sells(&mut self, regular: Winner) {
        let (app, sale) = (&self.app, &self.sale);
        let winner = eventually("it sells again", async || {
            app.admin_sale(Method::POST, sale, "/resume", None).await;
            bought(app, sale).await.ok()
        });
        self.winners.extend([winner.await, regular]);
    }

    async fn finish(self) {
        assert!(self.wrong.is_empty(), "\n{}", self.wrong.join("\n"));
        self.app.database.assert_kept(&self.sale, &self.winners).await;
        self.app.assert_sound(&self.sale).await;
    }

    /// The proxy refuses, hangs up at the first question (as a balancer does), or leads elsewhere.
    async fn lead_astray(&self, refusal: &str, elsewhere: &Address) {
        match refusal {
            "refuses connections" => self.proxy.set(Fault::Refuse).await,
            "hangs up" => self.proxy.set(Fault::CutRequest { after: 1 }).await,
            _ => self.proxy.set_target(elsewhere.clone()),
        }
        self.proxy.cut();
    }

    async fn lead_back(&self, home: &Address) {
        self.proxy.set(Fault::None).await;
        self.proxy.lead_to(home.clone());
    }
}

/// Why Redis refuses, the command that brings it about (or code below), and the one that ends it.
const OF_REDIS: [(&str, &str, &str); 10] = [
    ("memory is full", "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    (
        "evicts",
        "CONFIG SET maxmemory 1000000000 maxmemory-policy allkeys-random",
        "CONFIG SET maxmemory 0 maxmemory-policy noeviction",
    ),
    ("snapshots fail", "", "CONFIG SET save "),
    ("few replicas", "CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
    ("a replica of nobody", "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    ("busy", "", ""),
    ("wants a password", "CONFIG SET requirepass unknown", "CONFIG SET requirepass "),
    ("too many clients", "CONFIG SET maxclients 1", "CONFIG SET maxclients 10000"),
    ("hangs up", "", ""),
    ("postgres answers", "", ""),
];

struct Operator(MultiplexedConnection);

impl Operator {
    async fn say(&self, command: &str) -> redis::RedisResult<String> {
        self.say_words(&command.split(' ').collect::<Vec<_>>()).await
    }

    async fn say_words(&self, words: &[&str]) -> redis::RedisResult<String> {
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut self.0.clone()).await
    }

    /// Nothing, if this is empty.
    async fn must_say(&self, command: &str) {
        if !command.is_empty() {
            self.say(command).await.expect(command);
        }
    }

    async fn make_snapshots_fail(&self, snapshot: &Path) {
        fs::create_dir(snapshot).expect("a folder");
        self.say_words(&["CONFIG", "SET", "save", "3600 1000000"]).await.expect("saves");
        self.must_say("BGSAVE").await;
        let failed = "rdb_last_bgsave_status:err";
        wait_for!(self.say("INFO persistence").await.is_ok_and(|said| said.contains(failed)));
    }

    async fn make_busy(&self, mut another: MultiplexedConnection) {
        self.must_say("CONFIG SET busy-reply-threshold 1").await;
        tokio::spawn(async move {
            let mut endless = redis::cmd("EVAL");
            endless.arg("while true do end").arg(0);
            endless.exec_async(&mut another).await.expect_err("it is killed");
        });
    }

    async fn end_script(&self) {
        self.must_say("SCRIPT KILL").await;
        // By now anything that takes a millisecond makes it busy.
        wait_for!(self.say("CONFIG SET busy-reply-threshold 5000").await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_refuses_for_any_reason_is_503_and_passes() {
    let servers = Servers::own().await;
    let home = Address::Unix(servers.redis.socket());
    let elsewhere = Address::of_postgres(servers.postgres.address());
    let proxy = Proxy::start(home.clone()).await;
    let connection = async || redis_connection(&servers.redis.url()).await;
    let operator = Operator(connection().await);
    let snapshot = servers.folder("redis/dump.rdb");
    let url = format!("redis://{}", proxy.address);
    let app = TestApp::with_redis(&servers, url).await;
    let mut scene = Scene::new(app, proxy).await;
    for (refusal, begin, end) in OF_REDIS {
        let regular = scene.app.buyer(&scene.sale).await;
        operator.must_say(begin).await;
        match refusal {
            // Those who are in already are not asked for it.
            "wants a password" | "too many clients" => {
                operator.must_say("CLIENT KILL TYPE normal").await;
            }
            "snapshots fail" => operator.make_snapshots_fail(&snapshot).await,
            "busy" => operator.make_busy(connection().await).await,
            _ if begin.is_empty() => scene.lead_astray(refusal, &elsewhere).await,
            _ => {}
        }
        scene.until_refused().await;
        scene.ask_everything(refusal, true, &regular).await;
        match refusal {
            "snapshots fail" => fs::remove_dir(&snapshot).expect("a folder"),
            "busy" => operator.end_script().await,
            _ if begin.is_empty() => scene.lead_back(&home).await,
            _ => {}
        }
        operator.must_say(end).await;
        scene.until_it_sells(regular).await;
    }
    scene.finish().await;
}

const OF_POSTGRES: &str = "the database lets nobody in, read only, the orders are locked, \
    bytes vanish, refuses connections, hangs up, redis answers";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_refuses_for_any_reason_is_503_and_passes() {
    let servers = Servers::own().await;
    let home = Address::of_postgres(servers.postgres.address());
    let elsewhere = Address::Unix(servers.redis.socket());
    let proxy = Proxy::start(home.clone()).await;
    let mut scene = Scene::new(TestApp::behind(&servers, &proxy).await, proxy).await;
    let name = &scene.app.database.name;
    let alter = format!("ALTER DATABASE {name} SET default_transaction_read_only =");
    for refusal in OF_POSTGRES.split(", ") {
        let regular = scene.app.buyer(&scene.sale).await;
        let mut operator = scene.app.database.connect().await;
        match refusal {
            "the database lets nobody in" => scene.app.allow_connections(false).await,
            "read only" => {
                scene.app.execute(&format!("{alter} on")).await;
                scene.proxy.cut();
            }
            "the orders are locked" => {
                let lock = "BEGIN; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE";
                operator.execute(lock).await.expect(lock);
            }
            "bytes vanish" => scene.proxy.set(Fault::BlackHole).await,
            _ => scene.lead_astray(refusal, &elsewhere).await,
        }
        scene.winners.push(wait_for!(refusal, bought(&scene.app, &scene.sale).await.ok()));
        let answers = !matches!(refusal, "the orders are locked" | "bytes vanish");
        scene.ask_everything(refusal, answers, &regular).await;
        match refusal {
            "the database lets nobody in" => scene.app.allow_connections(true).await,
            "read only" => {
                let again = AssertSqlSafe(format!("{alter} off"));
                operator.execute(again).await.expect("ALTER DATABASE");
                scene.proxy.cut();
            }
            "the orders are locked" => drop(operator.execute("ROLLBACK").await.expect("ROLLBACK")),
            _ => scene.lead_back(&home).await,
        }
        scene.until_it_sells(regular).await;
    }
    scene.finish().await;
}
