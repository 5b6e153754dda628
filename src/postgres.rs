//! Postgres: the pool and the schema.

use sqlx::{
    Connection, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use std::time::Duration;

/// How long a request may wait for a connection. Short: a shopper who is told 503 can retry, one who
/// waits cannot.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a command waits for Postgres when it starts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// No statement of the program takes seconds, but for an audit or a rebuild of millions of orders.
const STATEMENT_TIMEOUT: &str = "60s";

/// A pool that connects when it is first used.
///
/// Connections are not tested before they are handed out: that is a round trip for each query, and a
/// broken one shows by its error, after which the pool drops it.
pub fn pool(options: PgConnectOptions, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .connect_lazy_with(
            options
                .application_name("flash-sale")
                .options([("statement_timeout", STATEMENT_TIMEOUT)]),
        )
}

/// The timeline that this primary writes: a promotion starts a new one. 0 where Postgres does not tell
/// (a compatible engine without write-ahead log files). An error on a standby.
pub async fn timeline(postgres: &PgPool) -> Result<i64, sqlx::Error> {
    const UNSUPPORTED: [&str; 3] = [
        "0A000", // feature not supported
        "42501", // insufficient privilege
        "42883", // undefined function
    ];
    // The name of a WAL file begins with its timeline, as 8 hexadecimal digits.
    let asked = sqlx::query_scalar(
        "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint",
    )
    .fetch_one(postgres)
    .await;
    match asked {
        Err(sqlx::Error::Database(error))
            if error
                .code()
                .is_some_and(|code| UNSUPPORTED.contains(&&*code)) =>
        {
            Ok(0)
        }
        other => other,
    }
}

/// Brings the schema up to date; the migrations are compiled into the program. Several instances may
/// do it at once: the migrator takes an advisory lock.
pub async fn migrate(postgres: &PgPool) -> Result<(), sqlx::migrate::MigrateError> {
    // Past the pool, which would only say that it waited in vain: this error says why.
    let options = postgres.connect_options();
    tokio::time::timeout(CONNECT_TIMEOUT, PgConnection::connect_with(&options))
        .await
        .unwrap_or(Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())))?
        .close()
        .await?;
    sqlx::migrate!().run(postgres).await
}
