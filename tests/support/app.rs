//! The application under test: the real router and workers on a port of its own, and a client.

use super::{Database, Servers, proxy::Proxy};
use flash_sale::{
    app::{Front, Role, Running, Stores, serve},
    auth::{AdminToken, TokenSigner},
    bots::limits::WhenAway,
    config::{ProxyTrust, SaleSettings},
    domain::UserId,
    fail_point::FailPoints,
    http::ConnectionLimits,
    redis::Redis,
    sale::{
        Audit, Shop, ShopSettings, log::AcceptedBatch, metrics::Metrics, payment::SimulatedPayments,
    },
};
use redis::aio::MultiplexedConnection;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use time::OffsetDateTime;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

pub const ADMIN_TOKEN: &str = "admin-token-of-a-test";
const TOKEN_SECRET: &[u8] = b"a secret of at least thirty-two bytes";

/// How long a test waits for something that should happen soon. Generous, because the machine may be
/// busy; nothing that works waits for it to pass.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How an application differs from the ordinary one.
#[derive(Clone)]
pub struct Options {
    pub role: Role,
    pub rate_limit: bool,
    pub shared_limits: Option<WhenAway>,
    pub trust_proxy: bool,
    pub drain_notice: Duration,
    pub admin: bool,
    pub backlog_limit: i64,
    pub batch_limit: u16,
    pub connections: ConnectionLimits,
    /// See `flash_sale::fail_point`.
    pub fail_points: String,
    pub lab: bool,
    /// Where the lab may start servers.
    pub lab_dir: Option<std::path::PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            role: Role::Server,
            rate_limit: false,
            shared_limits: None,
            trust_proxy: false,
            drain_notice: Duration::ZERO,
            admin: true,
            backlog_limit: 1_000_000,
            batch_limit: 512,
            connections: ConnectionLimits::new(10_000, false),
            fail_points: String::new(),
            lab: false,
            lab_dir: None,
        }
    }
}

impl Options {
    pub fn with_lab() -> Self {
        Self {
            lab: true,
            ..Self::default()
        }
    }

    /// An instance that takes orders, and neither writes nor expires any.
    pub fn without_writer() -> Self {
        Self {
            role: Role::ServerWithoutWriter,
            ..Self::default()
        }
    }
}

/// One running application, with its own database and key prefix (or those of another, to be a second
/// instance of it).
pub struct TestApp {
    pub shop: Arc<Shop>,
    pub base: String,
    pub client: reqwest::Client,
    pub database: Database,
    pub prefix: String,
    pub redis_url: String,
    tokens: Arc<TokenSigner>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl TestApp {
    /// An ordinary instance on the shared servers.
    pub async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    pub async fn start_with(options: Options) -> Self {
        Self::start_on(Servers::shared().await, options).await
    }

    /// An instance with a fresh database and prefix on these servers.
    pub async fn start_on(servers: &Servers, options: Options) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("t{}:", NUMBER.fetch_add(1, Relaxed));
        Self::launch(
            servers.database().await,
            servers.redis.url(),
            prefix,
            options,
        )
        .await
    }

    /// An instance on these servers, but with another Redis, or another way to it.
    pub async fn with_redis(servers: &Servers, redis_url: String, options: Options) -> Self {
        let database = servers.database().await;
        Self::launch(database, redis_url, "other:".to_owned(), options).await
    }

    /// An ordinary instance on these servers that reaches Postgres through this proxy.
    pub async fn behind(servers: &Servers, postgres: &Proxy) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("behind{}:", NUMBER.fetch_add(1, Relaxed));
        let database = servers.database().await.through(postgres.tcp_address());
        Self::launch(database, servers.redis.url(), prefix, Options::default()).await
    }

    /// One more instance of the same deployment.
    pub async fn another(&self, options: Options) -> Self {
        Self::launch(
            self.database.clone(),
            self.redis_url.clone(),
            self.prefix.clone(),
            options,
        )
        .await
    }

    /// An instance on exactly these stores.
    pub async fn launch(
        database: Database,
        redis_url: String,
        prefix: String,
        options: Options,
    ) -> Self {
        flash_sale::telemetry::metrics();
        let redis = Redis::new(&redis_url, &prefix).expect("redis url");
        let stores = Stores::existing(database.pool(10).await, redis);
        let sale = SaleSettings {
            backlog_limit: options.backlog_limit,
            batch_limit: options.batch_limit,
            fail_points: options.fail_points,
        };
        let running = Running::start(
            &stores.postgres,
            &stores.redis,
            &sale,
            options.role,
            Metrics::published(),
        )
        .expect("well-formed fail points");
        assert!(running.gate_opened(PATIENCE).await, "the gate opens");
        let shop = running.shop.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let front = Front {
            tokens: TokenSigner::new(TOKEN_SECRET).expect("long enough"),
            admin: options.admin.then(|| AdminToken::new(ADMIN_TOKEN)),
            rate_limit: options.rate_limit,
            trust_proxy: if options.trust_proxy {
                ProxyTrust::Everybody
            } else {
                ProxyTrust::Nobody
            },
            drain_notice: options.drain_notice,
            shared_limits: options.shared_limits,
            connections: options.connections,
            lab: options.lab.then(|| stores.lab(options.lab_dir)),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            let shutdown = async {
                let _ = stopped.await;
            };
            serve(running, listener, front, shutdown)
                .await
                .expect("serves until it is stopped");
            stores.close().await;
        });
        Self {
            shop,
            base,
            client: reqwest::Client::new(),
            database,
            prefix,
            redis_url,
            tokens: Arc::new(TokenSigner::new(TOKEN_SECRET).expect("long enough")),
            stop,
            served,
        }
    }

    /// Stops this instance as SIGTERM does; the database stays.
    pub async fn stop(self) -> Database {
        let _ = self.stop.send(());
        self.served.await.expect("the application ends in order");
        self.database
    }

    /// Stops it and removes what it leaves.
    pub async fn finish(self) {
        let (prefix, url) = (self.prefix.clone(), self.redis_url.clone());
        self.stop().await.drop().await;
        let client = redis::Client::open(url).expect("redis url");
        let mut connection = client
            .get_multiplexed_async_connection()
            .await
            .expect("redis");
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS")
            .arg(format!("{prefix}*"))
            .query_async(&mut connection)
            .await
            .expect("KEYS");
        for keys in keys.chunks(1_000) {
            redis::cmd("UNLINK")
                .arg(keys)
                .exec_async(&mut connection)
                .await
                .expect("UNLINK");
        }
    }

    /// A shop on the same stores that nothing works for in the background: a test steps it. It says
    /// that it writes its own orders; the second value is where it hands them.
    pub fn shop_without_loops(&self) -> (Arc<Shop>, mpsc::Receiver<AcceptedBatch>) {
        shop_without_loops(&self.database, &self.redis_url, &self.prefix)
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub fn mint(&self, user: UserId) -> String {
        self.mint_until(user, OffsetDateTime::now_utc() + time::Duration::HOUR)
    }

    pub fn mint_until(&self, user: UserId, expires_at: OffsetDateTime) -> String {
        self.tokens.mint(user, "tester", expires_at)
    }

    pub fn shopper(&self) -> Shopper {
        self.entrance().shopper()
    }

    /// Where people come in; it can be handed to another task.
    pub fn entrance(&self) -> Entrance {
        Entrance {
            tokens: self.tokens.clone(),
            client: self.client.clone(),
            base: self.base.clone(),
        }
    }

    /// The same person at this instance.
    pub fn as_shopper(&self, other: &Shopper) -> Shopper {
        self.entrance().welcome(other)
    }

    pub async fn get(&self, path: &str) -> Reply {
        Reply::of(
            self.client
                .get(self.url(path))
                .send()
                .await
                .expect("an answer"),
        )
        .await
    }

    /// Writes these bytes and reads until the server has nothing more to say; it may hang up on
    /// what it reads.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let address = self.base.trim_start_matches("http://");
        let connected = tokio::net::TcpStream::connect(address).await;
        let mut connection = connected.expect("a connection");
        let mut answer = Vec::new();
        let exchange = async {
            let _ = connection.write_all(bytes).await;
            let _ = connection.read_to_end(&mut answer).await;
        };
        let exchanged = tokio::time::timeout(PATIENCE, exchange).await;
        let what = || String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
        exchanged.unwrap_or_else(|_| panic!("no answer to {}", what()));
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A call of nobody in particular.
    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Reply {
        let mut request = self.client.request(method, self.url(path));
        if let Some(body) = body {
            request = request.json(&body);
        }
        Reply::of(request.send().await.expect("an answer")).await
    }

    /// A call with the admin token.
    pub async fn admin(&self, method: Method, path: &str, body: Option<Value>) -> Reply {
        let mut request = self
            .client
            .request(method, self.url(path))
            .bearer_auth(ADMIN_TOKEN);
        if let Some(body) = body {
            request = request.json(&body);
        }
        Reply::of(request.send().await.expect("an answer")).await
    }

    /// Creates a sale; `members` are added to (or replace) a title, a price and the stock.
    pub async fn sale(&self, stock: i64, members: Value) -> String {
        let mut body = json!({"title": "a thing", "price_cents": 100, "stock": stock});
        body.as_object_mut()
            .expect("an object")
            .extend(members.as_object().cloned().unwrap_or_default());
        let reply = self
            .admin(Method::POST, "/api/v1/admin/sales", Some(body))
            .await;
        reply.assert(StatusCode::CREATED);
        reply.text("id").to_owned()
    }

    /// A call with the admin token, about one sale.
    pub async fn admin_sale(
        &self,
        method: Method,
        sale: &str,
        rest: &str,
        body: Option<Value>,
    ) -> Reply {
        let path = format!("/api/v1/admin/sales/{sale}{rest}");
        self.admin(method, &path, body).await
    }

    /// An operator changes members of a sale.
    pub async fn change(&self, sale: &str, members: Value) -> Reply {
        self.admin_sale(Method::PATCH, sale, "", Some(members))
            .await
    }

    /// Everybody buys at once; the answers in their order.
    pub async fn all_buy(shoppers: impl IntoIterator<Item = Shopper>, sale: &str) -> Vec<Reply> {
        all_at_once(shoppers.into_iter().map(|shopper| {
            let sale = sale.to_owned();
            async move { shopper.buy(&sale).await }
        }))
        .await
    }

    /// Waits until all of these orders are rows that can be paid.
    pub async fn all_written(orders: &[(Shopper, String)]) {
        for (shopper, id) in orders {
            shopper.until(id, "pending_payment").await;
        }
    }

    /// What this application's Redis answers, on a connection beside its own.
    pub async fn in_redis<T: redis::FromRedisValue>(&self, command: &mut redis::Cmd) -> T {
        let answer = command.query_async(&mut self.redis().await).await;
        answer.expect("redis answers")
    }

    /// Runs statements in this application's database, behind its back.
    pub async fn execute(&self, statements: &str) {
        let mut connection = self.database.connect().await;
        connection
            .execute(AssertSqlSafe(statements))
            .await
            .expect("executes");
        connection.close().await.expect("close");
    }

    /// The one number that a query finds.
    pub async fn number(&self, query: &str) -> i64 {
        let mut connection = self.database.connect().await;
        let found = sqlx::query_scalar(AssertSqlSafe(query))
            .fetch_one(&mut connection)
            .await
            .expect("a number");
        connection.close().await.expect("close");
        found
    }

    /// Cuts every connection to this database and lets no new one in; or lets them in again.
    pub async fn allow_connections(&self, allowed: bool) {
        let options = self.database.options().database("postgres");
        let mut admin = PgConnection::connect_with(&options)
            .await
            .expect("postgres");
        let name = &self.database.name;
        admin
            .execute(AssertSqlSafe(format!(
                "ALTER DATABASE {name} ALLOW_CONNECTIONS {allowed}"
            )))
            .await
            .expect("ALTER DATABASE");
        if !allowed {
            sqlx::query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1",
            )
            .bind(name)
            .execute(&mut admin)
            .await
            .expect("pg_terminate_backend");
        }
    }

    /// A connection to this application's Redis beside its own.
    pub async fn redis(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.redis_url.as_str()).expect("redis url");
        client
            .get_multiplexed_async_connection()
            .await
            .expect("redis")
    }

    pub async fn audit(&self, sale: &str) -> Audit {
        self.shop
            .audit(sale.parse().expect("an id"))
            .await
            .expect("an audit")
    }

    /// The audit once nothing is under way.
    pub async fn quiet_audit(&self, sale: &str) -> Audit {
        eventually("the sale is quiescent", async || {
            let audit = self.audit(sale).await;
            audit.quiescent.then_some(audit)
        })
        .await
    }

    /// The quiet audit, which must find nothing wrong.
    pub async fn assert_sound(&self, sale: &str) -> Audit {
        let audit = self.quiet_audit(sale).await;
        assert!(audit.ok && audit.conserved == Some(true), "{audit:#?}");
        audit
    }
}

/// See [`TestApp::shop_without_loops`].
pub fn shop_without_loops(
    database: &Database,
    redis_url: &str,
    prefix: &str,
) -> (Arc<Shop>, mpsc::Receiver<AcceptedBatch>) {
    let (handoff, channel) = mpsc::channel(16);
    let settings = ShopSettings {
        high_water: 1_000_000,
        batch_limit: 512,
        own_writer: true,
    };
    let postgres = flash_sale::postgres::pool(database.options(), 8);
    let redis = Arc::new(Redis::new(redis_url, prefix).expect("redis url"));
    let shop = Shop::new(
        postgres,
        redis,
        Arc::new(SimulatedPayments),
        handoff,
        settings,
        Metrics::unpublished(),
        FailPoints::default(),
    );
    (Arc::new(shop), channel)
}

/// The way into one instance, for people who are not there yet.
#[derive(Clone)]
pub struct Entrance {
    tokens: Arc<TokenSigner>,
    client: reqwest::Client,
    base: String,
}

impl Entrance {
    pub fn mint(&self, user: UserId, expires_at: OffsetDateTime) -> String {
        self.tokens.mint(user, "tester", expires_at)
    }

    /// Somebody new.
    pub fn shopper(&self) -> Shopper {
        let user = UserId::random();
        // For a week, as a session: long enough for an instance whose clock is a day ahead.
        let expires_at = OffsetDateTime::now_utc() + time::Duration::WEEK;
        Shopper {
            user,
            token: self.tokens.mint(user, "tester", expires_at),
            client: self.client.clone(),
            base: self.base.clone(),
        }
    }

    /// The way into another instance of the same deployment.
    pub fn at(&self, base: &str) -> Self {
        Self {
            base: base.to_owned(),
            ..self.clone()
        }
    }

    /// The same person here.
    pub fn welcome(&self, other: &Shopper) -> Shopper {
        Shopper {
            base: self.base.clone(),
            client: self.client.clone(),
            ..other.clone()
        }
    }
}

/// Somebody with a token.
#[derive(Clone)]
pub struct Shopper {
    pub user: UserId,
    pub token: String,
    client: reqwest::Client,
    base: String,
}

impl Shopper {
    pub async fn call(&self, method: Method, path: &str) -> Reply {
        let request = self
            .client
            .request(method, format!("{}{path}", self.base))
            .bearer_auth(&self.token);
        Reply::of(request.send().await.expect("an answer")).await
    }

    /// The same person at another instance.
    pub fn at(&self, app: &TestApp) -> Self {
        Self {
            base: app.base.clone(),
            ..self.clone()
        }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.call(Method::GET, path).await
    }

    pub async fn post(&self, path: &str) -> Reply {
        self.call(Method::POST, path).await
    }

    pub async fn post_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = self
            .client
            .post(format!("{}{path}", self.base))
            .bearer_auth(&self.token);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Reply::of(request.send().await.expect("an answer")).await
    }

    pub async fn buy(&self, sale: &str) -> Reply {
        self.post(&format!("/api/v1/sales/{sale}/orders")).await
    }

    pub async fn buy_with_key(&self, sale: &str, key: &str) -> Reply {
        let request = self
            .client
            .post(format!("{}/api/v1/sales/{sale}/orders", self.base))
            .bearer_auth(&self.token)
            .header("Idempotency-Key", key);
        Reply::of(request.send().await.expect("an answer")).await
    }

    /// Buys, which must succeed; the order id.
    pub async fn must_buy(&self, sale: &str) -> String {
        let reply = self.buy(sale).await;
        reply.assert(StatusCode::ACCEPTED);
        reply.text("order_id").to_owned()
    }

    /// A purchase that is refused with 409 and this code.
    pub async fn refused(&self, sale: &str, code: &str) -> Reply {
        let reply = self.buy(sale).await;
        reply.assert_problem(409, code);
        reply
    }

    /// Buys, and waits until the order can be paid.
    pub async fn order_to_pay(&self, sale: &str) -> String {
        let id = self.must_buy(sale).await;
        self.until(&id, "pending_payment").await;
        id
    }

    pub async fn order(&self, id: &str) -> Reply {
        self.get(&format!("/api/v1/orders/{id}")).await
    }

    /// The order once it has this status.
    pub async fn until(&self, id: &str, status: &str) -> Value {
        eventually(&format!("order {id} is {status}"), async || {
            let reply = self.order(id).await;
            (reply.status == StatusCode::OK && reply.text("status") == status).then_some(reply.body)
        })
        .await
    }

    pub async fn pay(&self, id: &str) -> Reply {
        self.post(&format!("/api/v1/orders/{id}/pay")).await
    }

    pub async fn cancel(&self, id: &str) -> Reply {
        self.post(&format!("/api/v1/orders/{id}/cancel")).await
    }
}

/// An answer, read whole.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Reply {
    pub async fn of(response: Response) -> Self {
        let (status, headers) = (response.status(), response.headers().clone());
        assert!(
            headers.contains_key("x-request-id"),
            "every response carries a request id: {headers:?}"
        );
        let text = response.text().await.expect("a body");
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Self {
            status,
            headers,
            body,
        }
    }

    pub fn text(&self, member: &str) -> &str {
        self.body[member]
            .as_str()
            .unwrap_or_else(|| panic!("no text member {member} in {:#}", self.body))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap_or(""))
    }

    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }

    pub fn is_accepted(&self) -> bool {
        self.status == StatusCode::ACCEPTED
    }

    #[track_caller]
    pub fn assert(&self, status: StatusCode) {
        assert_eq!(self.status, status, "{:#}", self.body);
    }

    /// A problem document (RFC 9457) of this status and code, whole.
    #[track_caller]
    pub fn assert_problem(&self, status: u16, code: &str) {
        self.assert_problem_at("", status, code);
    }

    /// The same in a table: `what` names the row.
    #[track_caller]
    pub fn assert_problem_at(&self, what: &str, status: u16, code: &str) {
        let found = (self.status.as_u16(), self.code());
        assert_eq!(found, (status, code), "{what}: {:#}", self.body);
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(self.body["status"], status);
        for member in ["type", "title", "detail"] {
            assert!(
                self.body[member].is_string(),
                "{member} is missing: {:#}",
                self.body
            );
        }
    }
}

/// Waits for something that is to happen, by looking again and again; panics after [`PATIENCE`].
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "waited {PATIENCE:?} in vain: {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Runs `tasks` at once and returns their results in order.
pub async fn all_at_once<T: Send + 'static>(
    tasks: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let running: Vec<JoinHandle<T>> = tasks.map(tokio::spawn).collect();
    let mut results = Vec::with_capacity(running.len());
    for task in running {
        results.push(task.await.expect("no panic"));
    }
    results
}
