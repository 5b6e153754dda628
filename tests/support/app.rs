//! The application under test: the real router and workers on a port of its own, and a client.

use super::people::client_of;
use crate::support::prelude::*;
use flash_sale::app::{Front, Role, Running, Stores, serve};
use flash_sale::auth::AdminToken;
use flash_sale::catalog::changes::NewSale;
use flash_sale::config::{ProxyTrust, SaleSettings};
use flash_sale::payments::provider::{PaymentLink, SimulatedPayments};
use flash_sale::telemetry::instruments::Metrics;
use flash_sale::{access::bots::limits::WhenAway, admission::AdmissionSettings, audit::Audit};
use flash_sale::{databases::Databases, fail_point::FailPoints, http::ConnectionLimits};
use flash_sale::{order_log::AcceptedBatch, redis::Redis};
use std::{convert::Infallible, future::Future};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

pub const ADMIN_TOKEN: &str = "admin-token-of-a-test";

/// Generous, because the machine may be busy; nothing that works waits for it to pass.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Default)]
pub struct Options {
    pub writes_nothing: bool,
    pub rate_limit: bool,
    pub shared_limits: Option<WhenAway>,
    pub trust_proxy: bool,
    pub hides_admin: bool,
    pub backlog_limit: Option<i64>,
    pub batch_limit: Option<u16>,
    pub connections: Option<ConnectionLimits>,
    pub lab: bool,
    pub payments: Option<PaymentLink>,
}

impl Options {
    pub fn with_lab() -> Self {
        Self { lab: true, ..Self::default() }
    }

    pub fn without_writer() -> Self {
        Self { writes_nothing: true, ..Self::default() }
    }
}

/// A running application; another instance shares its database and key prefix.
pub struct TestApp {
    pub services: Services,
    pub base: String,
    pub entrance: Entrance,
    pub database: Database,
    pub prefix: String,
    pub redis_url: String,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    /// Whichever instance ends last and has this removes their database and keys.
    leftovers: Option<Arc<()>>,
}

impl TestApp {
    pub async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    pub async fn selling(stock: i64, members: Value) -> (Self, String) {
        Self::selling_with(Options::default(), stock, members).await
    }

    pub async fn selling_with(options: Options, stock: i64, members: Value) -> (Self, String) {
        let app = Self::start_with(options).await;
        let sale = app.sale(stock, members).await;
        (app, sale)
    }

    pub async fn pair() -> (Self, Self) {
        let first = Self::start().await;
        let second = first.another(Options::default()).await;
        (first, second)
    }

    pub async fn on_own_servers() -> (Servers, Self) {
        let servers = Servers::own().await;
        let app = Self::start_on(&servers, Options::default()).await;
        (servers, app)
    }

    pub async fn start_with(options: Options) -> Self {
        Self::start_on(Servers::shared().await, options).await
    }

    pub async fn start_on(servers: &Servers, options: Options) -> Self {
        Self::first(servers, servers.database().await, options).await
    }

    /// The first of a deployment. What servers of its own hold goes with them.
    async fn first(servers: &Servers, database: Database, options: Options) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("t{}:", NUMBER.fetch_add(1, Relaxed));
        let mut app = Self::launch(database, servers.redis.url(), prefix, options).await;
        app.leftovers = servers.is_shared.then(Arc::default);
        app
    }

    pub async fn with_redis(servers: &Servers, url: String) -> Self {
        Self::launch(servers.database().await, url, "other:".to_owned(), Options::default()).await
    }

    pub async fn behind(servers: &Servers, postgres: &Proxy) -> Self {
        let database = servers.database().await.through(postgres.address);
        Self::first(servers, database, Options::default()).await
    }

    pub async fn another(&self, options: Options) -> Self {
        let (url, prefix) = (self.redis_url.clone(), self.prefix.clone());
        let mut other = Self::launch(self.database.clone(), url, prefix, options).await;
        other.leftovers = self.leftovers.clone();
        other
    }

    pub async fn launch(database: Database, url: String, prefix: String, options: Options) -> Self {
        flash_sale::telemetry::metrics();
        let redis = Redis::new(&url, &prefix).expect("redis url");
        let stores = Stores::existing(database.pool(10).await, redis);
        let sale = SaleSettings {
            backlog_limit: options.backlog_limit.unwrap_or(1_000_000),
            batch_limit: options.batch_limit.unwrap_or(512),
            fail_points: String::new(),
        };
        let role = if options.writes_nothing { Role::ServerWithoutWriter } else { Role::Server };
        let (postgres, redis) = (&stores.postgres, &stores.redis);
        let link = options.payments.unwrap_or_else(|| stores.payments.clone());
        let running = Running::start(postgres, redis, link, &sale, role, Metrics::published());
        let running = running.expect("well-formed fail points");
        assert!(running.admission_opened(TEST_TIMEOUT).await, "it is ready to sell");
        let services = running.services.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let connections = options.connections.unwrap_or(ConnectionLimits::new(10_000, false));
        let trusted = if options.trust_proxy { ProxyTrust::Everybody } else { ProxyTrust::Nobody };
        let front = Front {
            tokens: TokenSigner::new(SECRET.as_bytes()).expect("long enough"),
            admin: (!options.hides_admin).then(|| AdminToken::new(ADMIN_TOKEN)),
            rate_limit: options.rate_limit,
            trust_proxy: trusted,
            drain_notice: Duration::ZERO,
            shared_limits: options.shared_limits,
            connections,
            lab: if options.lab { Some(stores.lab(None).await.expect("a lab")) } else { None },
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            let served = serve(running, listener, front, async { drop(stopped.await) }).await;
            served.expect("serves until it is stopped");
            stores.close().await;
        });
        Self {
            services,
            entrance: Entrance { client: client_of(connections), ..Entrance::of(&base, SECRET) },
            base,
            database,
            prefix,
            redis_url: url,
            running: Some((stop, served)),
            leftovers: None,
        }
    }

    pub async fn stop(mut self) -> Database {
        self.leftovers = None;
        self.end().await;
        self.database.clone()
    }

    /// Stops it as dropping does, where a runtime of one thread cannot do that.
    pub async fn finish(mut self) {
        self.end().await;
    }

    async fn end(&mut self) {
        let Some((stop, served)) = self.running.take() else { return };
        let _ = stop.send(());
        served.await.expect("the application ends in order");
        if self.leftovers.take().and_then(Arc::into_inner).is_none() {
            return;
        }
        let mut redis = self.redis().await;
        let keys: Vec<Vec<u8>> = redis.keys(format!("{}*", self.prefix)).await.expect("KEYS");
        for keys in keys.chunks(1_000) {
            let () = redis.unlink(keys).await.expect("UNLINK");
        }
        self.database.clone().drop().await;
    }

    /// Without background tasks: a test steps them. The channel leads to a writer.
    pub fn services_without_tasks(&self) -> (Services, mpsc::Receiver<AcceptedBatch>) {
        services_without_tasks(&self.database, &self.redis_url, &self.prefix)
    }

    pub async fn approved_services(&self) -> (Services, mpsc::Receiver<AcceptedBatch>) {
        let (services, channel) = self.services_without_tasks();
        services.rebuild.step(&mut HashSet::new()).await.expect("approved");
        (services, channel)
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub fn mint(&self, user: UserId) -> String {
        self.mint_until(user, OffsetDateTime::now_utc() + time::Duration::HOUR)
    }

    pub fn mint_until(&self, user: UserId, expires_at: OffsetDateTime) -> String {
        self.entrance.tokens.mint(user, "tester", expires_at)
    }

    pub fn shopper(&self) -> Shopper {
        self.entrance.shopper()
    }

    pub fn shoppers(&self, count: usize) -> Vec<Shopper> {
        self.entrance.shoppers(count)
    }

    pub async fn buyer(&self, sale: &str) -> (Shopper, String) {
        let shopper = self.shopper();
        let order = shopper.order_to_pay(sale).await;
        (shopper, order)
    }

    pub async fn orders_to_pay(&self, sale: &str, count: usize) -> Vec<(Shopper, String)> {
        stream::iter(0..count).then(|_| self.buyer(sale)).collect().await
    }

    pub fn ask(&self, method: impl AsRef<str>, path: &str) -> Ask {
        ask(&self.entrance.client, method, self.url(path))
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.ask("GET", path).await
    }

    /// Writes these bytes and reads to the end; the server may hang up on what it reads.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let address = self.base.trim_start_matches("http://");
        let mut connection = TcpStream::connect(address).await.expect("a connection");
        let mut answer = Vec::new();
        let exchange = async {
            let _ = connection.write_all(bytes).await;
            let _ = connection.read_to_end(&mut answer).await;
        };
        let exchanged = tokio::time::timeout(TEST_TIMEOUT, exchange).await;
        let asked = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
        exchanged.unwrap_or_else(|_| panic!("no answer to {asked}"));
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub async fn admin(&self, method: impl AsRef<str>, path: &str, body: Option<Value>) -> Reply {
        self.ask(method, path).bearer(ADMIN_TOKEN).maybe_json(body).await
    }

    /// Creates a sale; `members` are added to (or replace) a title, a price and the stock.
    pub async fn sale(&self, stock: i64, members: Value) -> String {
        let body = with(json!({"title": "a thing", "price_cents": 100, "stock": stock}), &members);
        // The retry is safe: at worst there is a sale that nobody uses.
        let ask = async || self.admin("POST", "/api/v1/admin/sales", Some(body.clone())).await;
        until_told(ask).await.must_be(201).text("id").to_owned()
    }

    pub async fn admin_sale(
        &self,
        method: impl AsRef<str>,
        sale: &str,
        rest: &str,
        body: Option<Value>,
    ) -> Reply {
        self.admin(method, &format!("/api/v1/admin/sales/{sale}{rest}"), body).await
    }

    pub async fn change(&self, sale: &str, members: Value) -> Reply {
        self.admin_sale("PATCH", sale, "", Some(members)).await
    }

    pub async fn steer(&self, sale: &str, step: &str) -> Value {
        self.admin_sale("POST", sale, &format!("/{step}"), None).await.must_be(200).body
    }

    pub async fn sale_now(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/sales/{id}")).await.must_be(200).body
    }

    /// 256 at a time: of more, a busy machine answers some only after the 2 s in the queue.
    pub async fn all_buy(shoppers: impl IntoIterator<Item = Shopper>, sale: &str) -> Vec<Reply> {
        let buying = stream::iter(shoppers).map(async |shopper: Shopper| shopper.buy(sale).await);
        buying.buffered(256).collect().await
    }

    pub async fn in_redis<T: redis::FromRedisValue>(&self, command: &mut redis::Cmd) -> T {
        command.query_async(&mut self.redis().await).await.expect("redis answers")
    }

    pub async fn execute(&self, statements: &str) {
        let mut connection = self.database.connect().await;
        connection.execute(AssertSqlSafe(statements)).await.expect("executes");
        connection.close().await.expect("close");
    }

    pub async fn value<T>(&self, query: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
    {
        let mut connection = self.database.connect().await;
        let query = sqlx::query_scalar(AssertSqlSafe(query));
        let found = query.fetch_one(&mut connection).await.expect("a value");
        connection.close().await.expect("close");
        found
    }

    pub async fn number(&self, query: &str) -> i64 {
        self.value(query).await
    }

    /// Another session, in a transaction that has executed this.
    pub async fn begin(&self, statements: &str) -> PgConnection {
        let mut connection = self.database.connect().await;
        connection.execute(AssertSqlSafe(format!("BEGIN; {statements}"))).await.expect("executes");
        connection
    }

    pub async fn waiting_for_locks(&self, count: i64) {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        wait_for!(self.number(waiting).await == count);
    }

    /// Cuts every connection to this database and lets no new one in; or lets them in again.
    pub async fn allow_connections(&self, allowed: bool) {
        let mut admin = super::connect(&self.database.address, "postgres").await;
        let name = &self.database.name;
        let alter = format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {allowed}");
        admin.execute(AssertSqlSafe(alter)).await.expect("ALTER DATABASE");
        if !allowed {
            let open = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
            sqlx::query(open).bind(name).execute(&mut admin).await.expect("pg_terminate_backend");
        }
    }

    pub async fn redis(&self) -> MultiplexedConnection {
        super::redis_connection(&self.redis_url).await
    }

    pub async fn audit(&self, sale: &str) -> Audit {
        let sale = sale.parse().expect("an id");
        wait_for!("an audit", self.services.auditor.audit(sale).await.ok())
    }

    pub async fn quiet_audit(&self, sale: &str) -> Audit {
        let quiet = async || Some(self.audit(sale).await).filter(|audit| audit.quiescent);
        eventually("the sale is quiescent", quiet).await
    }

    pub async fn until_sound(&self, sale: &str) -> Audit {
        wait_for!(&format!("sale {sale} is sound"), {
            Some(self.audit(sale).await).filter(|audit| audit.ok && audit.conserved == Some(true))
        })
    }

    pub async fn assert_sound(&self, sale: &str) -> Audit {
        let audit = self.quiet_audit(sale).await;
        assert!(audit.ok && audit.conserved == Some(true), "{audit:#?}");
        audit
    }

    pub async fn assert_sound_with(&self, sale: &str, members: Value) {
        assert_has(&serde_json::to_value(self.assert_sound(sale).await).expect("JSON"), members);
    }
}

impl Drop for TestApp {
    fn drop(&mut self) {
        if self.running.is_some() && !std::thread::panicking() {
            while_dropping(self.end());
        }
    }
}

pub fn while_dropping<T>(ending: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| Handle::current().block_on(ending))
}

pub fn services_without_tasks(
    database: &Database,
    redis_url: &str,
    prefix: &str,
) -> (Services, mpsc::Receiver<AcceptedBatch>) {
    let (handoff, channel) = mpsc::channel(16);
    let handoff = Some(handoff);
    let settings = AdmissionSettings { high_water: 1_000_000, batch_limit: 512, handoff };
    let postgres = flash_sale::postgres::pool(database.options(), 8);
    let redis = Arc::new(Redis::new(redis_url, prefix).expect("redis url"));
    let (databases, payments) = (Databases { postgres, redis }, Arc::new(SimulatedPayments));
    let (metrics, fail_points) = (Metrics::unpublished(), FailPoints::default());
    (Services::new(databases, payments, settings, metrics, fail_points), channel)
}

pub async fn new_sale(services: &Services, stock: i64, per_user_limit: Option<i64>) -> SaleId {
    let title = "a thing".to_owned();
    let sale = NewSale { title, price_cents: 100, stock, per_user_limit, ..NewSale::default() };
    services.catalog.create_sale(sale).await.expect("a sale").sale.id
}

pub async fn must_accept(services: &Services, sale: SaleId) -> (UserId, OrderId) {
    let user = UserId::random();
    match services.admission.purchase(sale, user, None).await {
        Ok(PurchaseResult::Accepted { order_id, .. }) => (user, order_id),
        other => panic!("not accepted: {other:?}"),
    }
}

/// Looks again and again; panics after [`TEST_TIMEOUT`].
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let found = poll::<_, Infallible>(TEST_TIMEOUT, 10, async || Ok(look().await)).await;
    found.ok().flatten().unwrap_or_else(|| panic!("waited in vain: {what}"))
}

pub async fn all_at_once<T: Send + 'static>(
    tasks: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let running: Vec<JoinHandle<T>> = tasks.map(tokio::spawn).collect();
    join_all(running).await.into_iter().map(|result| result.expect("no panic")).collect()
}
