//! The lab's own tables, in the schema `lab`. They are apart from the shop's, and so is the record
//! of which migrations have run.

use sqlx::{
    ConnectOptions, Connection, PgConnection, migrate::MigrateError, postgres::PgConnectOptions,
};
use stores::migrations::migrator;

const MIGRATIONS: &[(&str, &str)] = stores::migrations![
    "0001_arenas",
    "0002_lessons",
    "0003_units_and_messages",
    "0004_paid_and_expired",
];

/// Brings the schema up to date. Several processes may do it at once: the migrator takes a lock.
pub async fn migrate(postgres: &PgConnectOptions) -> Result<(), MigrateError> {
    let options = postgres.clone().options([("search_path", "lab")]).disable_statement_logging();
    let mut session = PgConnection::connect_with(&options).await?;
    sqlx::query("SELECT pg_advisory_lock(hashtextextended('lab schema', 0))")
        .execute(&mut session)
        .await?;
    sqlx::query("CREATE SCHEMA IF NOT EXISTS lab").execute(&mut session).await?;
    migrator(MIGRATIONS).run_direct(None, &mut session, false).await?;
    session.close().await?; // and with it the lock
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_migration_is_listed() {
        stores::migrations::assert_complete("migrations", super::MIGRATIONS);
    }
}
