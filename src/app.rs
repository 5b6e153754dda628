//! The composition root: settings → services → router and tasks.
//!
//! The caller passes the listener and the shutdown signal, so a test owns both.

use crate::access::bots::limits::{Quotas, SharedLimits, WhenAway};
use crate::access::waiting_room::WaitingRooms;
use crate::auth::{AdminToken, TokenSigner};
use crate::config::{ProxyTrust, StoreSettings};
use crate::error::ServiceError;
use crate::fail_point::Unknown;
use crate::http::{self, AccessPolicies, ConnectionLimits, Draining, HttpState, Limits};
use crate::in_lab::ThisShop;
use crate::payments::provider::{PaymentLink, SimulatedPayments};
use crate::postgres::{self, Pool, SchemaError};
use crate::redis::Redis;
use tasks::Tasks;
use crate::telemetry;
use embedded::{Embedded, EmbeddedError, Options};
use lab::Lab;
use lab::command::CommandError;
use lab::http::LabState;
use lab::servers::Servers;
use payments::sandbox::SandboxError;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnectOptions;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use web::events::Streams;

pub use crate::running::{Role, Running};

/// The time at shutdown for requests; then for the lab, the pools, and the embedded servers.
/// Together with those of `running.rs` below 10 s.
const REQUESTS_GRACE: Duration = Duration::from_secs(2);
const LAB_GRACE: Duration = Duration::from_millis(1_000);
const POOL_GRACE: Duration = Duration::from_millis(500);
const SERVERS_GRACE: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("PAYMENT_URL: {0}")]
    PaymentUrl(String),
    #[error("set both DATABASE_URL and REDIS_URL, or neither to run embedded; only {0} is set")]
    HalfConfigured(&'static str),
    #[error("DATABASE_URL is not a Postgres address: {0}")]
    DatabaseUrl(#[source] sqlx::Error),
    #[error("DATABASE_DIRECT_URL is not a Postgres address: {0}")]
    DatabaseDirectUrl(#[source] sqlx::Error),
    #[error("REDIS_URL is not a Redis address: {0}")]
    RedisUrl(#[source] redis::RedisError),
    #[error("{0}")]
    Embedded(#[from] EmbeddedError),
    #[error("cannot bring the schema up to date: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    #[error("{0}")]
    Schema(#[from] SchemaError),
    #[error(
        "there is no sale in {0}: run this where the server runs, or with its DATA_DIR, or with \
         its DATABASE_URL and REDIS_URL"
    )]
    NoSaleHere(String),
    #[error("TOKEN_SECRET must be set (at least 32 bytes) when DATABASE_URL and REDIS_URL are")]
    TokenSecretMissing,
    #[error("TOKEN_SECRET: {0}")]
    TokenSecret(#[from] crate::auth::SecretTooShort),
    #[error("ADMIN_TOKEN must not be empty")]
    AdminTokenEmpty,
    #[error("cannot {action}: {source}")]
    Io { action: String, source: io::Error },
    #[error("{0}")]
    FailPoint(#[from] Unknown),
    #[error("{0}")]
    Shop(#[from] ServiceError),
    #[error("{0}")]
    Lab(#[from] CommandError),
    #[error("{0}")]
    Sandbox(#[from] SandboxError),
    #[error("{0}")]
    Traces(#[from] telemetry::traces::TraceError),
    #[error("the lab plays on one Redis server, but REDIS_URL names a Redis Cluster or Sentinels")]
    LabNeedsOneServer,
}

impl AppError {
    /// Wraps an I/O error with the action that failed.
    pub fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Io { action: action.into(), source }
    }
}

/// The stores, and the embedded servers if this process runs them.
pub struct Stores {
    pub postgres: Pool,
    pub redis: Arc<Redis>,
    pub payments: PaymentLink,
    embedded: Option<Embedded>,
}

/// Written into DATA_DIR while embedded servers run, so that other commands find them.
#[derive(Serialize, Deserialize)]
struct RunningServers {
    socket_dir: PathBuf,
    port: u16,
    user: String,
    database: String,
    redis_url: String,
}

const RUNNING_SERVERS: &str = "servers.json";

impl Stores {
    /// Connects to the configured servers, or starts the embedded ones.
    pub async fn open(settings: &StoreSettings) -> Result<Self, AppError> {
        if let Some((database, redis)) = configured(settings)? {
            let options = postgres_options(database).map_err(AppError::DatabaseUrl)?;
            return Self::connect(settings, options, redis, None).await;
        }
        let options = Options {
            data_dir: settings.data_dir.clone(),
            redis_fsync: settings.redis_fsync.into(),
        };
        let embedded = Embedded::start(&options).await?;
        let address = embedded.postgres.address();
        let running = RunningServers {
            socket_dir: address.socket_dir.clone(),
            port: address.port,
            user: address.user.clone(),
            database: address.database.clone(),
            redis_url: embedded.redis.url(),
        };
        let file = settings.data_dir.join(RUNNING_SERVERS);
        write_private(&file, &serde_json::json!(running).to_string())?;
        let (options, redis_url) = (running.postgres(), &running.redis_url);
        Self::connect(settings, options, redis_url, Some(embedded)).await
    }

    /// Like [`Stores::open`], but joins embedded servers that another process runs on this
    /// DATA_DIR.
    pub async fn join(settings: &StoreSettings) -> Result<Self, AppError> {
        match Self::open(settings).await {
            Err(AppError::Embedded(in_use @ EmbeddedError::InUse { .. })) => {
                let text = std::fs::read_to_string(settings.data_dir.join(RUNNING_SERVERS));
                let running = text.ok().and_then(|text| RunningServers::parse(&text));
                let running = running.ok_or(in_use)?;
                Self::connect(settings, running.postgres(), &running.redis_url, None).await
            }
            other => other,
        }
    }

    async fn connect(
        settings: &StoreSettings,
        options: PgConnectOptions,
        redis_url: &str,
        embedded: Option<Embedded>,
    ) -> Result<Self, AppError> {
        let redis = Redis::new(redis_url, &settings.redis_prefix).map_err(AppError::RedisUrl)?;
        let connections = settings.postgres_connections;
        let postgres = match settings.database_direct_url.as_deref() {
            None => postgres::pool(options, connections),
            Some(direct) => {
                let direct = postgres_options(direct).map_err(AppError::DatabaseDirectUrl)?;
                postgres::pooled(options, direct, connections)
            }
        };
        let payments = settings.payment.link().map_err(AppError::PaymentUrl)?;
        Ok(Self { embedded, payments, ..Self::existing(postgres, redis) })
    }

    /// Connections to existing servers.
    pub fn existing(postgres: Pool, redis: Redis) -> Self {
        let payments = Arc::new(SimulatedPayments).into();
        Self { postgres, redis: Arc::new(redis), payments, embedded: None }
    }

    pub fn are_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// A lab on these stores, with its schema up to date. `data_dir`: for servers of its own.
    pub async fn lab(&self, data_dir: Option<PathBuf>) -> Result<Lab, AppError> {
        lab::schema::migrate(self.postgres.direct()).await?;
        Ok(Lab::new(Servers::new(
            self.postgres.direct(),
            self.redis.url(),
            self.redis.keys.prefix(),
            Arc::new(ThisShop),
            data_dir,
        )))
    }

    /// Closes connections and stops embedded servers.
    pub async fn close(self) {
        // Bounded: a stuck query must not hold up the shutdown.
        let _ = tokio::time::timeout(POOL_GRACE, self.postgres.close()).await;
        if let Some(embedded) = self.embedded {
            // After the limit they are killed, and recover at the next start.
            let _ = tokio::time::timeout(SERVERS_GRACE, embedded.stop()).await;
        }
    }
}

/// `sqlx` ignores the scheme, and would connect to another kind of database in vain.
fn postgres_options(url: &str) -> sqlx::Result<PgConnectOptions> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        let why = "it does not start with postgres://";
        return Err(sqlx::Error::Configuration(why.into()));
    }
    PgConnectOptions::from_str(url)
}

impl RunningServers {
    /// `None`: the file is incomplete or of another version.
    fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    fn postgres(&self) -> PgConnectOptions {
        PgConnectOptions::new()
            .socket(&self.socket_dir)
            .port(self.port)
            .username(&self.user)
            .database(&self.database)
    }
}

/// DATABASE_URL and REDIS_URL; `None`: embedded. Half a configuration is the first error.
fn configured(store: &StoreSettings) -> Result<Option<(&str, &str)>, AppError> {
    match (&store.database_url, &store.redis_url) {
        (None, None) => Ok(None),
        (Some(database), Some(redis)) => Ok(Some((database, redis))),
        (Some(_), None) => Err(AppError::HalfConfigured("DATABASE_URL")),
        (None, Some(_)) => Err(AppError::HalfConfigured("REDIS_URL")),
    }
}

/// The signer of user tokens, by the configured secret, or the one in DATA_DIR when embedded.
pub fn token_signer(secret: Option<&str>, store: &StoreSettings) -> Result<TokenSigner, AppError> {
    let secret = match secret {
        Some(secret) => secret.to_owned(),
        None if configured(store)?.is_none() => kept_secret(&store.data_dir, "token_secret")?.0,
        None => return Err(AppError::TokenSecretMissing),
    };
    Ok(TokenSigner::new(secret.as_bytes())?)
}

/// The configured admin token, or the one in DATA_DIR when embedded, and whether it is new.
pub fn admin_token(
    token: Option<&str>,
    store: &StoreSettings,
) -> Result<Option<(String, bool)>, AppError> {
    match token {
        Some("") => Err(AppError::AdminTokenEmpty),
        Some(token) => Ok(Some((token.to_owned(), false))),
        None if configured(store)?.is_some() => Ok(None),
        None => kept_secret(&store.data_dir, "admin_token").map(Some),
    }
}

fn kept_secret(data_dir: &Path, name: &str) -> Result<(String, bool), AppError> {
    let file = data_dir.join(name);
    match std::fs::read_to_string(&file) {
        Ok(secret) if !secret.trim().is_empty() => return Ok((secret.trim().to_owned(), false)),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(AppError::io(format!("read {}", file.display()))(error));
        }
        _ => {}
    }
    embedded::data_dir(data_dir)?;
    let half = || uuid::Uuid::new_v4().simple().to_string();
    let secret = half() + &half();
    write_private(&file, &secret)?;
    Ok((secret, true))
}

/// Atomically writes a file that only this user can read.
fn write_private(file: &Path, text: &str) -> Result<(), AppError> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let draft = file.with_extension(format!("{}.new", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(&draft);
    let written = written.and_then(|mut open| open.write_all(text.as_bytes()));
    let written = written.and_then(|()| std::fs::rename(&draft, file));
    written.map_err(AppError::io(format!("write {}", file.display())))
}

/// The settings of the HTTP server, besides the services.
pub struct Front {
    pub tokens: TokenSigner,
    pub admin: Option<AdminToken>,
    pub rate_limit: bool,
    /// Shared limits, and their behaviour while Redis is away; `None`: off.
    pub shared_limits: Option<WhenAway>,
    pub trust_proxy: ProxyTrust,
    /// How long it serves on after SIGTERM while `/readyz` already says no.
    pub drain_notice: Duration,
    pub connections: ConnectionLimits,
    /// `None`: every lab route answers 404.
    pub lab: Option<Lab>,
}

/// Serves until `shutdown`; then finishes requests, ends event streams and drains the writer.
pub async fn serve(
    running: Running,
    listener: TcpListener,
    front: Front,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), AppError> {
    let (draining, connections) = (CancellationToken::new(), front.connections);
    let drain_notice = front.drain_notice;
    let own_port = listener.local_addr().map_or(0, |address| address.port());
    let postgres = running.services.databases.postgres.connections();
    let own_ports = [own_port, postgres.connect_options().get_port()];
    let state = http_state(&running, front, draining.clone(), own_ports);
    let (announced, lab) = (state.draining.clone(), state.lab.lab.clone());
    let (router, until) = (http::router(state), draining.clone());
    let server = http::server::serve(listener, router, connections, until, REQUESTS_GRACE);
    let mut server = tokio::spawn(server);
    tokio::select! {
        () = shutdown => {}
        _ = &mut server => {
            // Only a bug ends the server early.
            running.stop().await;
            return Err(AppError::io("serve")(io::Error::other("the server ended by itself")));
        }
    }
    announced.announce();
    if !drain_notice.is_zero() {
        tracing::info!(notice = ?drain_notice, "draining: still serving, no longer ready");
        tokio::time::sleep(drain_notice).await;
    }
    tracing::info!("stopping: finishing requests, then writing what is accepted");
    draining.cancel();
    let _ = server.await;
    if let Some(lab) = lab {
        let _ = tokio::time::timeout(LAB_GRACE, lab.close()).await;
    }
    running.stop().await;
    Ok(())
}

/// The state of the handlers; starts their tasks.
fn http_state(
    running: &Running,
    front: Front,
    draining: CancellationToken,
    own_ports: [u16; 2],
) -> HttpState {
    let (tasks, services) = (running.tasks(), running.services.clone());
    let limits = front.rate_limit.then(|| Arc::new(Limits::new()));
    if let Some(limits) = &limits {
        tasks.spawn("limits", limits, |limits, task| async move {
            tokio::select! {
                () = limits.upkeep() => {}
                () = task.stop.cancelled() => {}
            }
        });
    }
    spawn_metrics(tasks);
    let lab = front.lab.map(Arc::new);
    if let Some(lab) = &lab {
        tasks.spawn("lab", lab, |lab, task| lab.upkeep(task.stop));
    }
    let redis = &services.databases.redis;
    let shared = |away| SharedLimits::new(redis.clone(), Quotas::default(), away);
    let shared_limits = front.shared_limits.map(shared);
    let access = AccessPolicies::new(&services, &front.tokens, shared_limits);
    tasks.spawn("waiting rooms", &access.rooms, WaitingRooms::run);
    let streams = Streams::new(front.rate_limit, draining);
    let metrics = telemetry::metrics();
    HttpState {
        services,
        access: Arc::new(access),
        tokens: Arc::new(front.tokens),
        admin: front.admin,
        limits,
        metrics: Arc::new(move || metrics.render()),
        streams: streams.clone(),
        draining: Draining::default(),
        trust_proxy: front.trust_proxy,
        lab: LabState {
            lab,
            streams,
            trust_proxy: front.trust_proxy,
            own_ports: own_ports.into(),
            limits: front.rate_limit,
        },
    }
}

/// Runs a worker until `shutdown`. Serves health and metrics on `listener`.
pub async fn work(
    running: Running,
    listener: Option<TcpListener>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let metrics = telemetry::metrics();
    let tasks = running.tasks();
    spawn_metrics(tasks);
    let draining = CancellationToken::new();
    let server = listener.map(|listener| {
        let render = move || metrics.render();
        let router = http::of_a_worker(running.services.health.clone(), render, draining.clone());
        let until = draining.clone().cancelled_owned();
        tokio::spawn(async move {
            let served = axum::serve(listener, router).with_graceful_shutdown(until);
            if let Err(error) = served.await {
                tracing::error!(%error, "metrics are served no more");
            }
        })
    });
    shutdown.await;
    draining.cancel();
    running.stop().await;
    if let Some(server) = server {
        // An open connection must not keep the process alive.
        let end = server.abort_handle();
        if tokio::time::timeout(POOL_GRACE, server).await.is_err() {
            end.abort();
        }
    }
}

/// Drains the raw samples of histograms, which would grow for ever.
fn spawn_metrics(tasks: &Tasks) {
    let metrics = Arc::new(telemetry::metrics());
    tasks.spawn("metrics", &metrics, |metrics, task| async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(5)) => metrics.run_upkeep(),
                () = task.stop.cancelled() => return,
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_servers_file_is_read_or_none(text in ".{0,80}|[\\[\\]{}\":,a-z0-9]{0,80}") {
            RunningServers::parse(&text);
        }

        #[test]
        fn a_servers_file_is_read_back_and_a_cut_one_is_not(socket_dir in "/[ -~]{0,30}",
            port: u16, user in ".{0,9}", cut in any::<prop::sample::Index>()) {
            let written = RunningServers {
                socket_dir: socket_dir.into(),
                port,
                user,
                database: "flash_sale".to_owned(),
                redis_url: "redis+unix:///tmp/redis.sock".to_owned(),
            };
            let text = serde_json::json!(written).to_string();
            let read = RunningServers::parse(&text).expect("as written");
            prop_assert_eq!((read.socket_dir, read.port, read.user), (written.socket_dir,
                written.port, written.user));
            let mut end = cut.index(text.len());
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            prop_assert!(RunningServers::parse(&text[..end]).is_none());
        }

        #[test]
        fn any_database_url_is_options_or_an_error(text in ".{0,60}", rest in "[ -~]{0,60}") {
            let _ = postgres_options(&text);
            let _ = postgres_options(&format!("postgres://{rest}"));
            let _ = Redis::new(&format!("redis://{rest}"), "");
            let _ = Redis::new(&text, &rest);
        }
    }
}
