//! The stores of a process: configured servers, or embedded ones with the secrets in DATA_DIR and a
//! payment provider's sandbox beside them.

use super::error::AppError;
use crate::auth::TokenSigner;
use crate::config::StoreSettings;
use crate::in_lab::ThisShop;
use crate::payments::provider::{PaymentLink, SimulatedPayments};
use crate::postgres::{self, Pool};
use crate::redis::Redis;
use embedded::{Embedded, EmbeddedError, Options};
use futures_util::future::{OptionFuture, join};
use lab::Lab;
use lab::loopback::OwnPort;
use lab::servers::Servers;
use payments::sandbox::{self, Sandbox};
use payments::settings::PaymentSettings;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnectOptions;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The time at shutdown for the pool; then for what runs beside this process.
const POOL_GRACE: Duration = Duration::from_millis(500);
const SERVERS_GRACE: Duration = Duration::from_secs(3);

/// The stores, and the embedded servers if this process runs them.
pub struct Stores {
    pub postgres: Pool,
    pub redis: Arc<Redis>,
    pub payments: PaymentLink,
    embedded: Option<Embedded>,
    sandbox: Option<(Sandbox, OwnPort)>,
}

/// Written into DATA_DIR while embedded servers run, so that other commands find them.
#[derive(Serialize, Deserialize)]
struct RunningServers {
    socket_dir: PathBuf,
    port: u16,
    user: String,
    database: String,
    redis_url: String,
    sandbox_url: Option<String>,
}

const RUNNING_SERVERS: &str = "servers.json";

/// A command alone has the sandbox's books, too, for the audit; webhooks wait for a shop.
const NO_SHOP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

impl Stores {
    /// Connects to the configured servers, or starts the embedded ones, and for a shop at this
    /// address without a payment provider a sandbox of one.
    pub async fn open(
        settings: &StoreSettings,
        shop: Option<SocketAddr>,
    ) -> Result<Self, AppError> {
        if let Some((database, redis)) = configured(settings)? {
            let options = postgres_options(database).map_err(AppError::DatabaseUrl)?;
            return Self::connect(settings, options, redis, &settings.payment);
        }
        let options = Options {
            data_dir: settings.data_dir.clone(),
            redis_fsync: settings.redis_fsync.into(),
        };
        let embedded = Embedded::start(&options).await?;
        let sandbox = match shop.filter(|_| settings.payment.payment_url.is_none()) {
            Some(shop) => {
                let sandbox = start_sandbox(&settings.data_dir, shop).await?;
                let port = OwnPort::new(sandbox.address.port());
                Some((sandbox, port))
            }
            None => None,
        };
        let address = embedded.postgres.address();
        let running = RunningServers {
            socket_dir: address.socket_dir.clone(),
            port: address.port,
            user: address.user.clone(),
            database: address.database.clone(),
            redis_url: embedded.redis.url(),
            sandbox_url: sandbox.as_ref().map(|(sandbox, _)| sandbox.url()),
        };
        let file = settings.data_dir.join(RUNNING_SERVERS);
        write_private(&file, &serde_json::json!(running).to_string())?;
        let stores = running.connect(settings)?;
        Ok(Self { embedded: Some(embedded), sandbox, ..stores })
    }

    /// Like [`Stores::open`], but joins embedded servers that another process runs on this
    /// DATA_DIR.
    pub async fn join(settings: &StoreSettings) -> Result<Self, AppError> {
        match Self::open(settings, Some(NO_SHOP)).await {
            Err(AppError::Embedded(in_use @ EmbeddedError::InUse { .. })) => {
                let text = std::fs::read_to_string(settings.data_dir.join(RUNNING_SERVERS));
                let running = text.ok().and_then(|text| RunningServers::parse(&text));
                running.ok_or(in_use)?.connect(settings)
            }
            other => other,
        }
    }

    fn connect(
        settings: &StoreSettings,
        options: PgConnectOptions,
        redis_url: &str,
        payment: &PaymentSettings,
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
        let payments = payment.link().map_err(AppError::PaymentUrl)?;
        Ok(Self { payments, ..Self::existing(postgres, redis) })
    }

    /// Connections to existing servers.
    pub fn existing(postgres: Pool, redis: Redis) -> Self {
        let payments = Arc::new(SimulatedPayments).into();
        Self { postgres, redis: Arc::new(redis), payments, embedded: None, sandbox: None }
    }

    pub fn are_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// The address of the payment sandbox, if this process runs one.
    pub fn sandbox_url(&self) -> Option<String> {
        self.sandbox.as_ref().map(|(sandbox, _)| sandbox.url())
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

    /// Closes connections and stops embedded servers and the sandbox. The shop has to stop before:
    /// webhooks that it no longer takes are sent after the next start.
    pub async fn close(self) {
        // Bounded: a stuck query must not hold up the shutdown.
        let _ = tokio::time::timeout(POOL_GRACE, self.postgres.close()).await;
        let sandbox = OptionFuture::from(self.sandbox.map(|(sandbox, _)| sandbox.stop()));
        let embedded = OptionFuture::from(self.embedded.map(Embedded::stop));
        // After the limit they are killed, and recover at the next start.
        let _ = tokio::time::timeout(SERVERS_GRACE, join(sandbox, embedded)).await;
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

    fn connect(&self, settings: &StoreSettings) -> Result<Stores, AppError> {
        let payment = match &self.sandbox_url {
            Some(url) if settings.payment.payment_url.is_none() => {
                let (key, secret) = sandbox_secrets(&settings.data_dir)?;
                &PaymentSettings {
                    payment_url: Some(url.clone()),
                    payment_key: Some(key),
                    payment_webhook_secret: Some(secret),
                }
            }
            _ => &settings.payment,
        };
        let options = PgConnectOptions::new()
            .socket(&self.socket_dir)
            .port(self.port)
            .username(&self.user)
            .database(&self.database);
        Stores::connect(settings, options, &self.redis_url, payment)
    }
}

async fn start_sandbox(data_dir: &Path, shop: SocketAddr) -> Result<Sandbox, AppError> {
    let (key, secret) = sandbox_secrets(data_dir)?;
    let settings = sandbox::Settings::beside(shop, data_dir, key, secret);
    Ok(sandbox::start_anywhere(settings).await?)
}

/// The key of the sandbox's API, and the secret of its webhooks.
fn sandbox_secrets(data_dir: &Path) -> Result<(String, String), AppError> {
    let (key, _) = kept_secret(data_dir, "payment_key")?;
    Ok((key, kept_secret(data_dir, "payment_webhook_secret")?.0))
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
                sandbox_url: None,
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
