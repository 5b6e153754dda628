//! Postgres and Redis, started and stopped as one.

use crate::{
    binaries,
    error::Result,
    postgres::{PostgresServer, PostgresTuning},
    process::blocking,
    redis::{RedisFsync, RedisServer, RedisSettings},
};
use std::path::PathBuf;

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
