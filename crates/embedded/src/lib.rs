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
//! `postgres`, `redis` and `zookeeper`; `both` starts the pair. The lab starts more of them when it
//! needs them: [`RedisServer`]s without persistence, and a [`ZooKeeperServer`].
//!
//! Crashes: a child that dies is restarted on the same socket. When this program dies, its children
//! end by themselves (Linux) or are ended by the next start (elsewhere); data survive.

mod binaries;
mod both;
mod error;
mod place;
mod postgres;
mod process;
mod redis;
mod server;
mod supervisor;
mod zookeeper;

pub use both::{Embedded, Options};
pub use error::EmbeddedError;
pub use place::data_dir;
pub use postgres::{PostgresAddress, PostgresServer, PostgresTuning};
pub use redis::{RedisFsync, RedisServer, RedisSettings};
pub use zookeeper::{ZooKeeperServer, ZooKeeperSettings};
