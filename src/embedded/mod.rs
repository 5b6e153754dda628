//! Private Postgres and Redis servers: child processes of this program on unix sockets in its data folder, so that
//! one command runs a sale on real servers without anything being configured.
//!
//! ```text
//! Embedded ─┬─▶ PostgresServer ─▶ Supervisor ─▶ postgres     cluster, log, socket, lock in DATA_DIR
//!           └─▶ RedisServer    ─▶ Supervisor ─▶ redis-server
//! ```
//!
//! In reading order: `error`, `binaries` finds the programs, `place` their folders, `process` keeps one child alive,
//! `postgres`, `redis` and `zookeeper` know what is special about each. The lab starts more of them when it needs them:
//! [`RedisServer`]s without persistence, each in a folder of its own, and a [`ZooKeeperServer`].
//!
//! What happens on a crash: a child that dies is restarted on the same socket. When this program dies, however
//! suddenly, its children end by themselves (Linux) or are ended by the next start (elsewhere); data survive, and
//! the next start needs no help.

mod binaries;
mod error;
mod place;
mod postgres;
mod process;
mod redis;
mod zookeeper;

use std::path::PathBuf;

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
    postgres: PostgresServer,
    redis: RedisServer,
}

impl Embedded {
    /// Starts both at once and returns when both answer: some 50 ms, and half a second more the first time.
    pub async fn start(options: &Options) -> Result<Embedded, EmbeddedError> {
        blocking(binaries::check_all).await?;
        let redis_settings = RedisSettings {
            fsync: options.redis_fsync,
            ..RedisSettings::default()
        };
        let (postgres, redis) = tokio::join!(
            PostgresServer::start(&options.data_dir, PostgresTuning::default()),
            RedisServer::start(&options.data_dir, redis_settings),
        );
        match (postgres, redis) {
            (Ok(postgres), Ok(redis)) => Ok(Embedded { postgres, redis }),
            (Ok(postgres), Err(error)) => {
                postgres.stop().await;
                Err(error)
            }
            (Err(error), Ok(redis)) => {
                redis.stop().await;
                Err(error)
            }
            (Err(error), Err(_)) => Err(error),
        }
    }

    pub fn postgres(&self) -> &PostgresAddress {
        self.postgres.address()
    }

    pub fn postgres_server(&self) -> &PostgresServer {
        &self.postgres
    }

    pub fn redis_url(&self) -> String {
        self.redis.url()
    }

    pub fn redis_server(&self) -> &RedisServer {
        &self.redis
    }

    /// Ends both, normally within 100 ms, at the worst within seven seconds. Both save first.
    pub async fn stop(self) {
        tokio::join!(self.redis.stop(), self.postgres.stop());
    }
}

/// Runs file and process work off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EmbeddedError> + Send + 'static,
) -> Result<T, EmbeddedError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(EmbeddedError::ShuttingDown),
        },
    }
}
