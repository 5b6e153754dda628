//! The composition root: settings → services → shop → router and workers.
//!
//! The listener and the signal to stop come from outside, so a test owns both.

use crate::{
    auth::{AdminToken, TokenSigner},
    bots::{
        Bots,
        limits::{Quotas, SharedLimits, WhenAway},
    },
    config::{ProxyTrust, StoreSettings},
    embedded::{Embedded, EmbeddedError, Options},
    fail_point::Unknown,
    http::{self, ConnectionLimits, HttpState, Limits},
    lab::{Lab, command::CommandError, http::LabState, servers::Servers},
    postgres::{self, Pool, SchemaError},
    redis::Redis,
    room::Rooms,
    sale::ShopError,
    telemetry,
    web::events::Streams,
};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnectOptions;
use std::{
    future::Future,
    io,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use crate::worker::running::{Role, Running};

/// How long requests may take to finish once the program is told to stop; then the lab, and the embedded
/// servers. Together with the grace of the writer and the loops (`worker::running`) below 10 s.
const REQUESTS_GRACE: Duration = Duration::from_secs(2);
const LAB_GRACE: Duration = Duration::from_millis(1_000);
const POOL_GRACE: Duration = Duration::from_millis(500);
const SERVERS_GRACE: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum AppError {
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
        "there is no sale in {0}: run this where the server runs, or with its DATA_DIR, or with its DATABASE_URL and REDIS_URL"
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
    Shop(#[from] ShopError),
    #[error("{0}")]
    Lab(#[from] CommandError),
    #[error("{0}")]
    Traces(#[from] telemetry::traces::TraceError),
    #[error("the lab plays on one Redis server, but REDIS_URL names a Redis Cluster or Sentinels")]
    LabNeedsOneServer,
}

fn io_error(action: impl Into<String>) -> impl FnOnce(io::Error) -> AppError {
    |source| AppError::Io {
        action: action.into(),
        source,
    }
}

/// Where the stores are, and the embedded servers if this process runs them.
pub struct Stores {
    pub postgres: Pool,
    pub redis: Arc<Redis>,
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
        let (options, redis_url, embedded) = match (&settings.database_url, &settings.redis_url) {
            (Some(database), Some(redis)) => {
                let options = postgres_options(database).map_err(AppError::DatabaseUrl)?;
                (options, redis.clone(), None)
            }
            (None, None) => {
                let options = Options {
                    data_dir: settings.data_dir.clone(),
                    redis_fsync: settings.redis_fsync.into(),
                };
                let embedded = Embedded::start(&options).await?;
                let address = embedded.postgres();
                let running = RunningServers {
                    socket_dir: address.socket_dir.clone(),
                    port: address.port,
                    user: address.user.clone(),
                    database: address.database.clone(),
                    redis_url: embedded.redis_url(),
                };
                write_private(
                    &settings.data_dir.join(RUNNING_SERVERS),
                    &serde_json::json!(running).to_string(),
                )?;
                (
                    running.postgres(),
                    running.redis_url.clone(),
                    Some(embedded),
                )
            }
            (Some(_), None) => return Err(AppError::HalfConfigured("DATABASE_URL")),
            (None, Some(_)) => return Err(AppError::HalfConfigured("REDIS_URL")),
        };
        Self::connect(settings, options, &redis_url, embedded).await
    }

    /// Like [`Stores::open`], but joins the embedded servers of a program that is running on the
    /// same DATA_DIR.
    pub async fn join(settings: &StoreSettings) -> Result<Self, AppError> {
        match Self::open(settings).await {
            Err(AppError::Embedded(in_use @ EmbeddedError::InUse { .. })) => {
                let file = settings.data_dir.join(RUNNING_SERVERS);
                let running = std::fs::read_to_string(file)
                    .ok()
                    .and_then(|text| RunningServers::parse(&text))
                    .ok_or(in_use)?;
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
        let postgres = match settings.database_direct_url.as_deref() {
            None => postgres::pool(options, settings.postgres_connections),
            Some(direct) => {
                let direct = postgres_options(direct).map_err(AppError::DatabaseDirectUrl)?;
                postgres::pooled(options, direct, settings.postgres_connections)
            }
        };
        Ok(Self {
            postgres,
            redis: Arc::new(redis),
            embedded,
        })
    }

    /// Servers that a test has started.
    pub fn existing(postgres: Pool, redis: Redis) -> Self {
        Self {
            postgres,
            redis: Arc::new(redis),
            embedded: None,
        }
    }

    pub fn are_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// A lab on these stores. `data_dir`: where it may start servers of its own.
    pub fn lab(&self, data_dir: Option<PathBuf>) -> Lab {
        Lab::new(Servers::new(
            self.postgres.direct(),
            self.redis.clone(),
            data_dir,
        ))
    }

    /// Closes connections and stops embedded servers.
    pub async fn close(self) {
        // Bounded: a connection in the hands of a stuck query must not hold up the end.
        let _ = tokio::time::timeout(POOL_GRACE, self.postgres.close()).await;
        if let Some(embedded) = self.embedded {
            // Longer than this and they are ended as a crash would: the next start recovers.
            let _ = tokio::time::timeout(SERVERS_GRACE, embedded.stop()).await;
        }
    }
}

/// `sqlx` reads only what stands behind the scheme: an address of another kind of database would
/// merely never answer.
fn postgres_options(url: &str) -> Result<PgConnectOptions, sqlx::Error> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(sqlx::Error::Configuration(
            "it does not start with postgres://".into(),
        ));
    }
    PgConnectOptions::from_str(url)
}

impl RunningServers {
    /// `None`: the file is of another version, cut off, or not ours.
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

/// Whether the servers are this program's own. Half a configuration is an error, and is called that
/// before anything else is found missing.
fn runs_embedded(store: &StoreSettings) -> Result<bool, AppError> {
    match (&store.database_url, &store.redis_url) {
        (None, None) => Ok(true),
        (Some(_), Some(_)) => Ok(false),
        (Some(_), None) => Err(AppError::HalfConfigured("DATABASE_URL")),
        (None, Some(_)) => Err(AppError::HalfConfigured("REDIS_URL")),
    }
}

/// The secret that signs tokens: configured, or kept in DATA_DIR when embedded.
pub fn token_secret(configured: Option<&str>, store: &StoreSettings) -> Result<String, AppError> {
    match configured {
        Some(secret) => Ok(secret.to_owned()),
        None if runs_embedded(store)? => Ok(kept_secret(&store.data_dir, "token_secret")?.0),
        None => Err(AppError::TokenSecretMissing),
    }
}

/// The admin token: configured, or kept in DATA_DIR when embedded. The flag says that it is new.
pub fn admin_token(
    configured: Option<&str>,
    store: &StoreSettings,
) -> Result<Option<(String, bool)>, AppError> {
    match configured {
        Some("") => Err(AppError::AdminTokenEmpty),
        Some(token) => Ok(Some((token.to_owned(), false))),
        None if runs_embedded(store)? => kept_secret(&store.data_dir, "admin_token").map(Some),
        None => Ok(None),
    }
}

fn kept_secret(data_dir: &Path, name: &str) -> Result<(String, bool), AppError> {
    let file = data_dir.join(name);
    match std::fs::read_to_string(&file) {
        Ok(secret) if !secret.trim().is_empty() => return Ok((secret.trim().to_owned(), false)),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_error(format!("read {}", file.display()))(error)),
    }
    std::fs::create_dir_all(data_dir)
        .map_err(io_error(format!("create {}", data_dir.display())))?;
    let secret = format!(
        "{}{}",
        uuid::Uuid::new_v4().simple(),
        uuid::Uuid::new_v4().simple()
    );
    write_private(&file, &secret)?;
    Ok((secret, true))
}

/// Writes a file that only this user can read, whole or not at all.
fn write_private(file: &Path, text: &str) -> Result<(), AppError> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let draft = file.with_extension(format!("{}.new", std::process::id()));
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut open| open.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&draft, file));
    written.map_err(io_error(format!("write {}", file.display())))
}

/// What the HTTP side needs besides the shop.
pub struct Front {
    pub tokens: TokenSigner,
    pub admin: Option<AdminToken>,
    pub rate_limit: bool,
    /// Limits that all instances share, and what happens while Redis does not answer; `None`: each instance
    /// counts for itself only.
    pub shared_limits: Option<WhenAway>,
    pub trust_proxy: ProxyTrust,
    /// How long it goes on serving after it was told to stop, while proxies are told to look elsewhere.
    pub drain_notice: Duration,
    pub connections: ConnectionLimits,
    /// `None`: every lab route answers 404.
    pub lab: Option<Lab>,
}

/// Serves until `shutdown`, then finishes requests, ends event streams and drains the writer.
pub async fn serve(
    running: Running,
    listener: TcpListener,
    front: Front,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), AppError> {
    let metrics = telemetry::metrics();
    let draining = CancellationToken::new();
    let leaving = Arc::new(AtomicBool::new(false));
    let limits = front.rate_limit.then(|| Arc::new(Limits::new()));
    if let Some(limits) = &limits {
        let limits = limits.clone();
        running.spawn("limits", move |stop| upkeep(limits.clone(), stop));
    }
    let kept = metrics.clone();
    running.spawn("metrics", move |stop| keep_metrics(kept.clone(), stop));
    let lab = front.lab.map(Arc::new);
    if let Some(lab) = lab.clone() {
        running.spawn("lab", move |stop| lab.clone().upkeep(stop));
    }
    let rooms = Arc::new(Rooms::new(running.shop.clone(), front.tokens.slips()));
    let kept = rooms.clone();
    running.spawn("waiting rooms", move |stop| kept.clone().run(stop));
    let shared_limits = front.shared_limits.map(|when_away| {
        SharedLimits::new(running.shop.redis.clone(), Quotas::default(), when_away)
    });
    let bots = Bots::new(running.shop.clone(), front.tokens.slips(), shared_limits);
    let streams = Streams::new(front.rate_limit, draining.clone());
    let router = http::router(HttpState {
        shop: running.shop.clone(),
        rooms,
        bots: Arc::new(bots),
        tokens: Arc::new(front.tokens),
        admin: front.admin,
        limits,
        metrics: Arc::new(move || metrics.render()),
        streams: streams.clone(),
        draining: draining.clone(),
        leaving: leaving.clone(),
        trust_proxy: front.trust_proxy,
        lab: LabState {
            lab: lab.clone(),
            streams,
            trust_proxy: front.trust_proxy,
            limits: front.rate_limit,
        },
    });
    let mut server = tokio::spawn(http::server::serve(
        listener,
        router,
        front.connections,
        draining.clone(),
        REQUESTS_GRACE,
    ));
    tokio::select! {
        () = shutdown => {}
        _ = &mut server => {
            // Only a bug ends the server before it is told to.
            running.stop().await;
            let source = io::Error::other("the server ended by itself");
            return Err(AppError::Io { action: "serve".into(), source });
        }
    }
    leaving.store(true, Relaxed);
    if !front.drain_notice.is_zero() {
        tracing::info!(notice = ?front.drain_notice, "leaving: still serving, no longer ready");
        tokio::time::sleep(front.drain_notice).await;
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

/// Runs a process that serves no shoppers until `shutdown`, then ends its loops. On `listener` it says of itself
/// how it is.
pub async fn work(
    running: Running,
    listener: Option<TcpListener>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let metrics = telemetry::metrics();
    let kept = metrics.clone();
    running.spawn("metrics", move |stop| keep_metrics(kept.clone(), stop));
    let draining = CancellationToken::new();
    let server = listener.map(|listener| {
        let render = move || metrics.render();
        let router = http::of_a_worker(running.shop.clone(), render, draining.clone());
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
        // Whoever keeps a connection open does not keep the process.
        let end = server.abort_handle();
        if tokio::time::timeout(POOL_GRACE, server).await.is_err() {
            end.abort();
        }
    }
}

async fn upkeep(limits: Arc<Limits>, stop: CancellationToken) {
    tokio::select! {
        () = limits.upkeep() => {}
        () = stop.cancelled() => {}
    }
}

/// Histograms keep raw samples until somebody drains them; without this they would grow for ever.
async fn keep_metrics(
    metrics: metrics_exporter_prometheus::PrometheusHandle,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(5)) => metrics.run_upkeep(),
            () = stop.cancelled() => return,
        }
    }
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
        fn a_servers_file_is_read_back_and_a_cut_one_is_not(socket_dir in "/[ -~]{0,30}", port: u16, user in ".{0,9}", cut in any::<prop::sample::Index>()) {
            let written = RunningServers {
                socket_dir: socket_dir.into(),
                port,
                user,
                database: "flash_sale".to_owned(),
                redis_url: "redis+unix:///tmp/redis.sock".to_owned(),
            };
            let text = serde_json::json!(written).to_string();
            let read = RunningServers::parse(&text).expect("as written");
            prop_assert_eq!((read.socket_dir, read.port, read.user), (written.socket_dir, written.port, written.user));
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
