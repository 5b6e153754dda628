//! A deployment: a private Redis and a private Postgres, some instances of the program, and a proxy
//! of its own between each instance and each store.

use crate::{
    Error,
    instance::{Instance, Role},
    support::proxy::{Address, Fault, Proxy, free_port},
};
use flash_sale::{
    auth::TokenSigner,
    embedded::{PostgresServer, PostgresTuning, RedisFsync, RedisServer, RedisSettings},
};
use sqlx::{Connection as _, PgConnection, postgres::PgConnectOptions};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

pub const ADMIN_TOKEN: &str = "admin-token-of-the-chaos-run";
pub const TOKEN_SECRET: &str = "a secret of the chaos run, of at least thirty-two bytes";

static POSTGRES_VERSION: OnceLock<String> = OnceLock::new();

/// Of the Postgres that was started last; "" before that.
pub fn postgres_version() -> String {
    POSTGRES_VERSION.get().cloned().unwrap_or_default()
}

/// How many processes of each kind.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub servers: u8,
    pub without_writer: u8,
    pub workers: u8,
}

/// A folder that exists as long as this value.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn create() -> Result<Self, Error> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Short, because the paths of unix sockets are.
        let name = format!(
            "fs-chaos-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path)
            .map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        // The program reads `.env` from the nearest folder upwards: this one, which says nothing.
        fs::write(path.join(".env"), "")?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Postgres may still be writing its last file; what remains is removed by the next run.
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Removes the folders of runs that were killed before they could.
pub fn remove_leftovers() {
    let folders = fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten();
    for folder in folders {
        let name = folder.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix("fs-chaos-"));
        let pid = pid.and_then(|rest| rest.split('-').next()?.parse().ok());
        let is_gone = |pid: u32| {
            nix::sys::signal::kill(crate::instance::pid_of(pid), None)
                == Err(nix::errno::Errno::ESRCH)
        };
        if pid.is_some_and(is_gone) {
            fs::remove_dir_all(folder.path()).ok();
        }
    }
}

/// See the head of this file.
pub struct Cluster {
    // Dropped in this order: instances before what they use, the folder last.
    pub instances: Vec<Instance>,
    pub redis_proxies: Vec<Proxy>,
    pub postgres_proxies: Vec<Proxy>,
    /// `None` while somebody works on its files.
    pub redis: Option<RedisServer>,
    pub redis_folder: PathBuf,
    pub redis_port: u16,
    pub postgres: Option<PostgresServer>,
    /// Servers that were promoted in the place of the first one.
    pub promoted: Vec<crate::faults::postgres::Promoted>,
    /// Where Postgres is now, for the runner's own connections.
    pub primary: Arc<Mutex<PgConnectOptions>>,
    pub folder: Folder,
}

impl Cluster {
    pub async fn start(shape: Shape, settings: &[(&str, &str)]) -> Result<Self, Error> {
        let folder = Folder::create()?;
        let redis_folder = folder.0.join("r0");
        let redis_port = free_port();
        let tuning = PostgresTuning {
            max_connections: 200,
            ..PostgresTuning::default()
        };
        let postgres_folder = folder.0.join("p0");
        let (redis, postgres) = tokio::join!(
            start_redis(&redis_folder, redis_port, &[]),
            PostgresServer::start(&postgres_folder, tuning),
        );
        let (redis, postgres) = (redis?, postgres?);
        let address = postgres.address();
        let options = PgConnectOptions::new()
            .socket(&address.socket_dir)
            .port(address.port)
            .username(&address.user)
            .database(&address.database);
        let postgres_socket = address.socket_dir.join(".s.PGSQL.5432");
        let mut cluster = Self {
            instances: Vec::new(),
            redis_proxies: Vec::new(),
            postgres_proxies: Vec::new(),
            redis: Some(redis),
            redis_folder,
            redis_port,
            postgres: Some(postgres),
            promoted: Vec::new(),
            primary: Arc::new(Mutex::new(options)),
            folder,
        };
        // The schema is there before the first instance starts: instances do not wait for each other.
        let pool = flash_sale::postgres::pool(cluster.primary(), 1);
        flash_sale::postgres::migrate(&pool).await?;
        let version = sqlx::query_scalar("SELECT version()")
            .fetch_one(&pool)
            .await?;
        POSTGRES_VERSION.get_or_init(|| version);
        pool.close().await;
        let roles = [
            (Role::Server, shape.servers),
            (Role::ServerWithoutWriter, shape.without_writer),
            (Role::Worker, shape.workers),
        ];
        for (role, count) in roles {
            for _ in 0..count {
                cluster
                    .add_instance(role, &postgres_socket, settings)
                    .await?;
            }
        }
        for instance in &mut cluster.instances {
            instance.start(&[])?;
        }
        cluster.until_serving(Duration::from_secs(30)).await?;
        Ok(cluster)
    }

    async fn add_instance(
        &mut self,
        role: Role,
        postgres: &Path,
        settings: &[(&str, &str)],
    ) -> Result<(), Error> {
        let number = u8::try_from(self.instances.len()).map_err(|_| "at most 255 instances")?;
        let redis = Proxy::start(Address::Unix(self.redis()?.socket())).await;
        let postgres = Proxy::start(Address::Unix(postgres.to_path_buf())).await;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let mut all: Vec<(String, String)> = [
            ("REDIS_URL", format!("redis://{}", redis.address())),
            (
                "DATABASE_URL",
                format!(
                    "postgres://flash_sale@{}/flash_sale?sslmode=disable",
                    postgres.address()
                ),
            ),
            ("LISTEN_ADDR", address.to_string()),
            ("TOKEN_SECRET", TOKEN_SECRET.to_owned()),
            ("ADMIN_TOKEN", ADMIN_TOKEN.to_owned()),
            ("RATE_LIMIT", "off".to_owned()),
            ("RUST_LOG", "info".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        all.extend(
            settings
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let instance = Instance::new(number, role, address, &self.folder.0, all);
        self.instances.push(instance);
        self.redis_proxies.push(redis);
        self.postgres_proxies.push(postgres);
        Ok(())
    }

    pub fn redis(&self) -> Result<&RedisServer, Error> {
        self.redis
            .as_ref()
            .ok_or_else(|| "redis is not running".into())
    }

    pub fn primary(&self) -> PgConnectOptions {
        let primary = self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        primary.clone()
    }

    /// A connection past all proxies, waiting for Postgres to take it if need be.
    pub async fn direct(&self) -> Result<PgConnection, Error> {
        connect(&self.primary).await
    }

    pub fn serving(&self) -> Vec<SocketAddr> {
        let serving = self.instances.iter().filter(|one| one.role.serves());
        serving.map(|one| one.address).collect()
    }

    /// Lets everything work again: no fault in the network, every process running. Servers of stores
    /// are the fault's own to bring back. Answers how many instances were started again.
    pub async fn heal(&mut self) -> Result<(), Error> {
        for proxy in self.redis_proxies.iter().chain(&self.postgres_proxies) {
            proxy.set(Fault::None).await;
        }
        for instance in &mut self.instances {
            instance.signal(nix::sys::signal::Signal::SIGCONT);
            instance.start(&[])?;
        }
        Ok(())
    }

    /// Waits until every instance that serves says that it is ready.
    pub async fn until_serving(&mut self, patience: Duration) -> Result<(), Error> {
        let deadline = tokio::time::Instant::now() + patience;
        for number in 0..self.instances.len() {
            while self.instances[number].role.serves() {
                let instance = &mut self.instances[number];
                let mut connection = crate::http::Connection::new(instance.address);
                let asked = crate::http::request("GET", "/readyz", "", "", "");
                let answer = connection.call(&asked, Duration::from_secs(2)).await;
                if matches!(&answer, crate::http::Ended::Answered(found) if found.status == 200) {
                    break;
                }
                // One that ended because a store was away when it started is started again, as any
                // service manager would.
                instance.start(&[])?;
                if tokio::time::Instant::now() > deadline {
                    return Err(format!(
                        "instance {number} is not ready after {patience:?}: {answer:?}; its log ends with\n{}",
                        tail(&instance.log())
                    )
                    .into());
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        Ok(())
    }
}

/// Connects to wherever Postgres is now; waits for it for up to 30 s.
pub async fn connect(primary: &Mutex<PgConnectOptions>) -> Result<PgConnection, Error> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let options = primary
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let attempt = PgConnection::connect_with(&options);
        let why = match tokio::time::timeout(Duration::from_secs(5), attempt).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in 5 s".to_owned(),
        };
        if tokio::time::Instant::now() > deadline {
            return Err(format!("postgres takes no connection: {why}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Redis with its files in this folder, also reachable on a port (a replica needs one).
pub async fn start_redis(folder: &Path, port: u16, extra: &[&str]) -> Result<RedisServer, Error> {
    let port = port.to_string();
    let mut extra_args = vec![
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--repl-diskless-sync-delay",
        "0",
    ];
    extra_args.extend(extra);
    let settings = RedisSettings {
        fsync: RedisFsync::Always,
        extra_args: extra_args.into_iter().map(str::to_owned).collect(),
    };
    Ok(RedisServer::start(folder, settings).await?)
}

pub fn token_signer() -> TokenSigner {
    TokenSigner::new(TOKEN_SECRET.as_bytes()).expect("the secret is long enough")
}

/// The last lines of a log.
pub fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
