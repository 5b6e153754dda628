//! Private Postgres and Redis servers: child processes on unix sockets in the data folder, so that
//! one command runs a sale on real servers without configuration.
//!
//! ```text
//! Embedded ─┬─▶ PostgresServer ─▶ Supervisor ─▶ postgres   cluster, log, socket in DATA_DIR
//!           └─▶ RedisServer    ─▶ Supervisor ─▶ redis-server
//! ```
//!
//! In reading order: `error`; `binaries` finds the programs, `place` their folders; `process` runs
//! and ends them; `supervisor` keeps a child alive; `server` is common to the three kinds,
//! `postgres`, `redis` and `zookeeper`. The lab starts more of them when it needs them:
//! [`RedisServer`]s without persistence, and a [`ZooKeeperServer`].
//!
//! Crashes: a child that dies is restarted on the same socket. When this program dies, its children
//! end by themselves (Linux) or are ended by the next start (elsewhere); data survive.

mod binaries;
mod error;
mod place;
mod postgres;
mod process;
mod redis;
mod server;
mod supervisor;
mod zookeeper;

use error::Result;
use std::{panic::resume_unwind, path::PathBuf};

pub use error::EmbeddedError;
pub use postgres::{PostgresAddress, PostgresServer, PostgresTuning};
pub use redis::{RedisFsync, RedisServer, RedisSettings};
pub use zookeeper::{ZooKeeperServer, ZooKeeperSettings};

#[derive(Debug, Clone)]
pub struct Options {
    pub data_dir: PathBuf,
    pub redis_fsync: RedisFsync,
}

/// Both servers, running.
pub struct Embedded {
    pub postgres: PostgresServer,
    pub redis: RedisServer,
}

impl Embedded {
    /// Starts both and returns when both answer: some 50 ms, the first time half a second more.
    pub async fn start(options: &Options) -> Result<Embedded> {
        blocking(binaries::check_all).await?;
        let redis_settings =
            RedisSettings { fsync: options.redis_fsync, ..RedisSettings::default() };
        let (postgres, redis) = tokio::join!(
            PostgresServer::start(&options.data_dir, PostgresTuning::default()),
            RedisServer::start(&options.data_dir, redis_settings),
        );
        // If one fails to start, dropping the other ends it.
        let (postgres, redis) = (postgres?, redis?);
        Ok(Embedded { postgres, redis })
    }

    /// Saves and ends both, normally within 100 ms, at most within eight seconds.
    pub async fn stop(self) {
        tokio::join!(self.redis.stop(), self.postgres.stop());
    }
}

/// Runs file and process work off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        Err(_) => Err(EmbeddedError::ShuttingDown),
    }
}
