//! Why the program cannot start, or a command failed.

use crate::auth::SecretTooShort;
use crate::error::ServiceError;
use crate::fail_point::Unknown;
use crate::postgres::SchemaError;
use crate::telemetry;
use embedded::EmbeddedError;
use lab::command::CommandError;
use payments::sandbox::SandboxError;
use std::io;

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
    TokenSecret(#[from] SecretTooShort),
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
