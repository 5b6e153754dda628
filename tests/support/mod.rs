//! Servers that live as long as the test process, after which a small shell removes them.

// Three test binaries include this module, and none uses all of it.
#![allow(dead_code, unused_macros)]

/// Waits until it is so, or until there is something: see `support::app::eventually`.
macro_rules! wait_for {
    ($what:expr, $found:expr) => {
        $crate::support::app::eventually($what, async || $found).await
    };
    ($condition:expr) => {
        wait_for!(stringify!($condition), ($condition).then_some(()))
    };
}

/// A table of tests, each of which runs the same function on its own case.
macro_rules! cases {
    ($run:path: $($(#[$doc:meta])* $name:ident => $case:expr),* $(,)?) => {
        $(
            $(#[$doc])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $run($case).await;
            }
        )*
    };
}

pub mod app;
pub mod buggy_sale;
pub mod checkers;
pub mod driver;
pub mod history;
pub mod launch;
pub mod lessons;
pub mod load;
pub mod locks;
pub mod people;
pub mod plant;
pub mod postgres_servers;
pub mod prelude;
pub mod processes;
pub mod program;
pub mod proxy;
pub mod random;
pub mod redis_servers;
pub mod routes;
pub mod stores;
pub mod test_lab;
pub mod trace;

use embedded::{PostgresAddress, PostgresServer, PostgresTuning, RedisServer, RedisSettings};
use prelude::*;
use std::{io::Write, process::ChildStdin};
use tokio::sync::OnceCell;

pub struct Servers {
    pub postgres: PostgresServer,
    pub redis: RedisServer,
    pub is_shared: bool,
    dir: PathBuf,
    janitor: ChildStdin,
}

impl Servers {
    pub async fn own() -> Self {
        Self::start(temporary_folder(), true).await
    }

    pub async fn start(dir: PathBuf, durable: bool) -> Self {
        copy_cluster(&dir).await;
        let tuning = PostgresTuning { max_connections: 400, durable };
        let (postgres, redis) = tokio::join!(
            PostgresServer::start(&dir, tuning),
            RedisServer::start(&dir, RedisSettings::default())
        );
        let postgres = postgres.expect("postgres starts");
        let redis = redis.expect("redis starts");
        let janitor = hire_janitor(&dir, &[postgres.pid(), redis.pid()]);
        Self { postgres, redis, is_shared: !durable, dir, janitor }
    }

    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Servers> = OnceCell::const_new();
        SHARED.get_or_init(|| Self::start(temporary_folder(), false)).await
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub async fn database(&self) -> Database {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let guard = ONE_AT_A_TIME.lock().await;
        let address = self.postgres.address().clone();
        let mut admin = connect(&address, "postgres").await;
        let name = format!("test_{}", NUMBER.fetch_add(1, Relaxed));
        let create = format!("CREATE DATABASE {name} TEMPLATE migrated");
        admin.execute(AssertSqlSafe(create)).await.expect("CREATE DATABASE from the template");
        admin.close().await.expect("close");
        drop(guard);
        Database { address, name, proxy: None, is_pooled: false }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // Nothing needs the servers of one test any more, nor their files.
        self.postgres.kill();
        self.redis.kill();
        let _ = self.janitor.write_all(b"ended\n");
    }
}

/// Once the pipe is closed, at the latest by this process' end. `ended`: only the files go.
#[expect(clippy::zombie_processes, reason = "it may outlive this process")]
fn hire_janitor(dir: &Path, servers: &[Option<u32>]) -> ChildStdin {
    // A signal to the whole process group (Ctrl-C) must not end it before its work is done.
    let script = "trap '' INT TERM HUP; read -r word; dir=$1; shift
        [ \"$word\" = ended ] || kill \"$@\" 2>/dev/null; n=0
        while [ $n -lt 200 ]; do
            rm -rf \"$dir\" 2>/dev/null; [ -e \"$dir\" ] || exit 0; sleep 0.05; n=$((n + 1))
        done";
    let mut janitor = Command::new("sh")
        .args(["-c", script, "janitor"])
        .arg(dir)
        .args(servers.iter().flatten().map(u32::to_string))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh runs");
    janitor.stdin.take().expect("a pipe")
}

/// Made once and copied: `initdb` waits for the disk, and migrations are always the same.
async fn copy_cluster(dir: &Path) {
    static ORIGINAL: OnceCell<PathBuf> = OnceCell::const_new();
    let original = ORIGINAL.get_or_init(async || {
        let dir = temporary_folder();
        let tuning = PostgresTuning { durable: false, ..PostgresTuning::default() };
        let server = PostgresServer::start(&dir, tuning).await;
        // Kept until this process ends.
        std::mem::forget(hire_janitor(&dir, &[]));
        let server = server.expect("postgres starts");
        make_template(server.address()).await;
        server.stop().await;
        dir
    });
    let original = original.await.join("pg");
    std::fs::create_dir_all(dir).expect("a folder");
    let mut copy = tokio::process::Command::new("cp");
    // With its owner; and what a link leads to, not the link.
    copy.arg("-pRH").arg(original).arg(dir.join("pg"));
    let copied = copy.status().await.expect("cp runs");
    assert!(copied.success(), "the cluster is copied: {copied}");
}

async fn make_template(address: &PostgresAddress) {
    let mut admin = connect(address, "postgres").await;
    admin.execute("CREATE DATABASE migrated").await.expect("CREATE DATABASE");
    admin.close().await.expect("close");
    let pool = flash_sale::postgres::pool(options(address, "migrated"), 1);
    flash_sale::postgres::migrate(&pool).await.expect("migrations run");
    pool.close().await;
    lab::schema::migrate(&options(address, "migrated")).await.expect("the lab's migrations run");
}

#[derive(Clone)]
pub struct Database {
    pub address: PostgresAddress,
    pub name: String,
    /// Where the application reaches it; by its own socket if `None`.
    proxy: Option<SocketAddr>,
    is_pooled: bool,
}

impl Database {
    pub fn through(self, proxy: SocketAddr) -> Self {
        Self { proxy: Some(proxy), ..self }
    }

    pub fn options(&self) -> PgConnectOptions {
        match self.proxy {
            None => self.direct_options(),
            Some(proxy) => PgConnectOptions::new()
                .host(&proxy.ip().to_string())
                .port(proxy.port())
                .username(&self.address.user)
                .database(&self.name),
        }
    }

    pub fn direct_options(&self) -> PgConnectOptions {
        options(&self.address, &self.name)
    }

    pub async fn connect(&self) -> PgConnection {
        connect(&self.address, &self.name).await
    }

    pub async fn drop(self) {
        let mut admin = connect(&self.address, "postgres").await;
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        admin.execute(AssertSqlSafe(drop)).await.expect("DROP DATABASE");
    }
}

fn temporary_folder() -> PathBuf {
    launch::name_in(&std::env::temp_dir(), "fs-it-servers-")
}

fn options(address: &PostgresAddress, database: &str) -> PgConnectOptions {
    PgConnectOptions::new()
        .socket(&address.socket_dir)
        .port(address.port)
        .username(&address.user)
        .database(database)
}

/// The client's own limits, half a second for an answer, are too short on a busy machine.
pub async fn connect_redis(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    let limit = Some(Duration::from_secs(15));
    let config = redis::AsyncConnectionConfig::new();
    let config = config.set_connection_timeout(limit).set_response_timeout(limit);
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

pub async fn redis_connection(url: &str) -> MultiplexedConnection {
    connect_redis(url).await.expect("redis")
}

pub async fn connect(address: &PostgresAddress, database: &str) -> PgConnection {
    let connected = PgConnection::connect_with(&options(address, database)).await;
    connected.expect("postgres takes connections")
}

/// A server that does this with each connection, until the test ends.
pub async fn serve_each<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(serve(connection));
        }
    });
    address
}

/// Also after another has panicked with it.
pub fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// On stderr: the harness hides what a passing test prints, but not this.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "\n*** {text} ***");
}

/// Says what this machine cannot exercise; in `make proof` that fails, unless ALLOW_MISSING is set.
#[track_caller]
pub fn not_exercised(what: &str) {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    assert!(!is_set("PROOF") || is_set("ALLOW_MISSING"), "not exercised: {what}");
    say(&format!("NOT EXERCISED: {what}"));
}
