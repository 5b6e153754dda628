//! What tests stand on: shared servers, and an application for each test.
//!
//! The servers live as long as the test process. A static is never dropped, so a small shell waits at
//! the other end of a pipe and removes them when this process has gone, however it went.

// Two test binaries include this module, and neither uses all of it.
#![allow(dead_code)]

pub mod app;
pub mod checkers;
pub mod history;
pub mod proxy;
pub mod random;

use flash_sale::embedded::{
    PostgresAddress, PostgresServer, PostgresTuning, RedisServer, RedisSettings,
};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, postgres::PgConnectOptions};
use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};
use tokio::sync::{Mutex, OnceCell};

/// A Postgres and a Redis.
pub struct Servers {
    pub postgres: PostgresServer,
    pub redis: RedisServer,
    dir: PathBuf,
}

impl Servers {
    /// Servers of this test alone, which it may kill.
    pub async fn own() -> Self {
        Self::start(true).await
    }

    async fn start(durable: bool) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "fs-it-{}-servers-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Relaxed)
        );
        let dir = std::env::temp_dir().join(name);
        let tuning = PostgresTuning {
            max_connections: 400,
            durable,
            ..PostgresTuning::default()
        };
        let (postgres, redis) = tokio::join!(
            PostgresServer::start(&dir, tuning),
            RedisServer::start(&dir, RedisSettings::default())
        );
        let servers = Self {
            postgres: postgres.expect("postgres starts"),
            redis: redis.expect("redis starts"),
            dir,
        };
        servers.hire_janitor();
        servers
    }

    /// The servers that tests share.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Servers> = OnceCell::const_new();
        SHARED.get_or_init(|| Self::start(false)).await
    }

    /// Removes servers and files after this process; on Linux the servers end by themselves.
    fn hire_janitor(&self) {
        // Signals to the whole process group (Ctrl-C, `timeout`) must not end it before its work is done.
        let script = "trap '' INT TERM HUP; cat >/dev/null; kill \"$2\" \"$3\" 2>/dev/null; n=0
            while [ $n -lt 200 ]; do rm -rf \"$1\" 2>/dev/null; [ -e \"$1\" ] || exit 0; sleep 0.05; n=$((n + 1)); done";
        let pid = |pid: Option<u32>| pid.map_or_else(|| "0".to_owned(), |pid| pid.to_string());
        let janitor = Command::new("sh")
            .args(["-c", script, "janitor"])
            .arg(&self.dir)
            .args([pid(self.postgres.pid()), pid(self.redis.pid())])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh runs");
        // The pipe closes when this process ends: that is the signal.
        std::mem::forget(janitor);
    }

    /// An empty, migrated database of its own.
    pub async fn database(&self) -> Database {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
        let guard = ONE_AT_A_TIME.lock().await;
        let mut admin = connect(self.postgres.address(), "postgres").await;
        let template_exists: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_database WHERE datname = 'migrated')",
        )
        .fetch_one(&mut admin)
        .await
        .expect("pg_database");
        if !template_exists {
            admin
                .execute("CREATE DATABASE migrated")
                .await
                .expect("CREATE DATABASE");
            let pool = flash_sale::postgres::pool(options(self.postgres.address(), "migrated"), 1);
            flash_sale::postgres::migrate(&pool)
                .await
                .expect("migrations run");
            pool.close().await;
        }
        let name = format!("test_{}", NUMBER.fetch_add(1, Relaxed));
        admin
            .execute(AssertSqlSafe(format!(
                "CREATE DATABASE {name} TEMPLATE migrated"
            )))
            .await
            .expect("CREATE DATABASE from the template");
        admin.close().await.expect("close");
        drop(guard);
        Database {
            address: self.postgres.address().clone(),
            name,
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // Servers of one test: nothing needs them any more. The janitor removes the rest.
        self.postgres.kill();
        self.redis.kill();
    }
}

/// A database of one test.
#[derive(Clone)]
pub struct Database {
    address: PostgresAddress,
    pub name: String,
}

impl Database {
    pub fn options(&self) -> PgConnectOptions {
        options(&self.address, &self.name)
    }

    /// A connection beside the application's own.
    pub async fn connect(&self) -> PgConnection {
        connect(&self.address, &self.name).await
    }

    pub async fn drop(self) {
        let mut admin = connect(&self.address, "postgres").await;
        admin
            .execute(AssertSqlSafe(format!(
                "DROP DATABASE {} WITH (FORCE)",
                self.name
            )))
            .await
            .expect("DROP DATABASE");
    }
}

fn options(address: &PostgresAddress, database: &str) -> PgConnectOptions {
    PgConnectOptions::new()
        .socket(&address.socket_dir)
        .port(address.port)
        .username(&address.user)
        .database(database)
}

async fn connect(address: &PostgresAddress, database: &str) -> PgConnection {
    PgConnection::connect_with(&options(address, database))
        .await
        .expect("postgres takes connections")
}
