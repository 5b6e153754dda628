//! Postgres: the schema and rows of the shop. The pool is in crates/stores.

mod rows;

use sqlx::Connection;
use sqlx::migrate::Migrator;
use std::time::Duration;

pub(crate) use rows::row;
pub use stores::pool::{Pool, pool, pooled, timed_out, within};
pub use stores::postgres::{Transaction, is_unreachable};

/// Migrations only add, unless they say `-- not rolling:`, so an older instance works on a newer
/// schema (tests/it/upgrade.rs).
const MIGRATIONS: &[(&str, &str)] = stores::migrations![
    "0001_sales_and_orders",
    "0002_payments_and_releases",
    "0003_redis_incarnation_and_id_clock",
    "0004_postgres_timeline",
    "0010_redis_incarnations",
    "0011_buckets",
    "0012_waiting_room",
    "0013_bots",
    "0014_archive",
    "0015_no_archive",
    "0016_one_redis_server_a_sale",
    "0017_buyers_in_one_hash",
    "0018_payments_ledger",
    "0019_payments_refused",
];

/// The schema of the sale, from its first version to this one.
pub fn migrator() -> Migrator {
    stores::migrations::migrator(MIGRATIONS)
}

/// For statements that may take as long as Postgres allows: slightly more than its own timeout.
const SILENCE: Duration = Duration::from_secs(65);

/// Bounds a long statement: a machine that died would otherwise be waited for until TCP gives up, a
/// quarter of an hour.
pub async fn unless_silent<T, E: From<sqlx::Error>>(
    statement: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    within(SILENCE, statement).await
}

/// All statements of this transaction see one snapshot.
pub const SNAPSHOT: &str = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// The write-ahead log timeline; a promotion starts a new one. 0 on engines without one. An error
/// on a standby.
pub async fn timeline(postgres: &Pool) -> sqlx::Result<i64> {
    const UNSUPPORTED: [&str; 3] = [
        "0A000", // feature not supported
        "42501", // insufficient privilege
        "42883", // undefined function
    ];
    let is_unsupported = |error: &sqlx::Error| {
        let code = error.as_database_error().and_then(|error| error.code());
        code.is_some_and(|code| UNSUPPORTED.contains(&&*code))
    };
    // The name of a WAL file begins with its timeline, as 8 hexadecimal digits.
    let asked = sqlx::query_scalar(
        "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint",
    )
    .fetch_one(postgres)
    .await;
    match asked {
        Err(error) if is_unsupported(&error) => Ok(0),
        other => other,
    }
}

/// Why the schema cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error("cannot ask postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error(
        "the schema is older than this program (migration {0} is missing): `flash-sale migrate`, \
         `serve` and `worker` bring it up to date"
    )]
    Behind(i64),
}

/// Checks that all migrations of this program are applied; newer ones may be.
pub async fn check_schema(postgres: &Pool) -> Result<(), SchemaError> {
    let mut session = postgres.session().await?;
    let there: Option<String> = sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations')::text")
        .fetch_one(&mut session)
        .await?;
    let applied: Vec<i64> = match there {
        None => Vec::new(),
        Some(_) => {
            sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success")
                .fetch_all(&mut session)
                .await?
        }
    };
    session.close().await?;
    let migrator = migrator();
    let mut missing = migrator.iter().map(|migration| migration.version);
    let missing = missing.find(|version| !applied.contains(version));
    missing.map_or(Ok(()), |version| Err(SchemaError::Behind(version)))
}

/// Applies missing migrations. Instances may do it at once: the migrator takes a session's advisory
/// lock.
pub async fn migrate(postgres: &Pool) -> Result<(), sqlx::migrate::MigrateError> {
    let mut session = postgres.session().await?;
    migrator().run_direct(None, &mut session, false).await?;
    session.close().await?;
    Ok(())
}
