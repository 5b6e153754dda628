//! Postgres: the pool and the schema.

use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use std::time::Duration;

/// How long a request may wait for a connection. Short: a shopper who is told 503 can retry, one who
/// waits cannot.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);

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

/// Brings the schema up to date; the migrations are compiled into the program. Several instances may
/// do it at once: the migrator takes an advisory lock.
pub async fn migrate(postgres: &PgPool) -> Result<(), sqlx::migrate::MigrateError> {
    sqlx::migrate!().run(postgres).await
}
