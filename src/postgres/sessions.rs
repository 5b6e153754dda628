//! Whose Postgres session a connection is: its own, or one that a pooler lends it for each transaction.
//!
//! Found out by asking, since an address does not tell. A connection that asks for a setting of its own
//! when it connects has it if it is a session, and has not if a pooler stands in between: poolers refuse
//! or ignore such settings, because a session that many use cannot have them.
//!
//! What does not survive in a pooler's transaction mode, and what the program does about it:
//!
//! | of a session | here |
//! |---|---|
//! | settings (`statement_timeout`, …) | `SET LOCAL` at the beginning of each transaction |
//! | prepared statements | followed by the pooler, or each in a transaction: see [`super::Pool`] |
//! | session advisory locks | the rebuild is elected by a lock of a transaction that is held open; the migrator takes one of a transaction |
//! | LISTEN, temporary tables, cursors WITH HOLD | not used (changes are published in Redis) |
//!
//! The lab's lessons are about sessions, so it needs `DATABASE_DIRECT_URL`.

use super::{CONNECT_TIMEOUT, IDLE_TRANSACTION_TIMEOUT, STATEMENT_TIMEOUT, timed_out};
use sqlx::{Connection, Executor, PgConnection, Row, postgres::PgConnectOptions};

/// The setting that a session of the program's own has.
pub(super) const MARK: &str = "flash_sale.session";
/// Reads it; null where it is not set.
const READ_MARK: &str = "SELECT current_setting('flash_sale.session', true)";

/// Whose sessions connections are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sessions {
    /// Each connection is a session of its own.
    Own,
    /// A pooler lends sessions for a transaction each, and prepares in them what the connection has
    /// prepared (PgBouncer from 1.21 on, if its `max_prepared_statements` is not 0).
    LentWithStatements,
    /// A pooler lends sessions for a transaction each, and knows nothing of prepared statements.
    Lent,
}

impl Sessions {
    /// `begin`, and what has to be said in the same breath. One exchange in any case.
    pub(super) fn beginning(self, begin: &str) -> Option<String> {
        let forget = match self {
            Self::Own => return None,
            Self::LentWithStatements => "",
            // Names of statements count from 1 in every connection: without this, two would meet.
            Self::Lent => "DEALLOCATE ALL; ",
        };
        Some(format!(
            "{begin}; {forget}SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT}';
             SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TRANSACTION_TIMEOUT}'"
        ))
    }

    /// How the connections are made.
    pub(super) fn options(self, options: PgConnectOptions) -> PgConnectOptions {
        let options = options
            .application_name("flash-sale")
            // Numbers travel in binary here; poolers know fewer settings than Postgres.
            .extra_float_digits(None);
        match self {
            Self::Own => options.options([
                ("statement_timeout", STATEMENT_TIMEOUT),
                (
                    "idle_in_transaction_session_timeout",
                    IDLE_TRANSACTION_TIMEOUT,
                ),
                (MARK, "own"),
            ]),
            Self::LentWithStatements => options,
            Self::Lent => options.statement_cache_capacity(0),
        }
    }
}

/// Whether a new connection is what it was taken for. A pooler that was put in between later would mix
/// up what is prepared, so it is noticed here and the connection refused.
pub(super) async fn check_own(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mark = connection.fetch_one(READ_MARK).await?;
    if mark.try_get::<Option<String>, _>(0)?.is_some() {
        return Ok(());
    }
    tracing::error!(
        "a connection pooler stands between this process and Postgres since it was started: restart it"
    );
    Err(sqlx::Error::Configuration(
        "the connection is not a Postgres session of its own".into(),
    ))
}

/// Asks whose sessions connections with these options are.
pub async fn sessions_of(options: &PgConnectOptions) -> Result<Sessions, sqlx::Error> {
    tokio::time::timeout(CONNECT_TIMEOUT, ask(options))
        .await
        .unwrap_or_else(|_| Err(timed_out()))
}

async fn ask(options: &PgConnectOptions) -> Result<Sessions, sqlx::Error> {
    let own = Sessions::Own.options(options.clone());
    match PgConnection::connect_with(&own).await {
        Ok(mut connection) => {
            let mark = connection.fetch_one(READ_MARK).await?;
            let mark: Option<String> = mark.try_get(0)?;
            connection.close().await?;
            if mark.is_some() {
                return Ok(Sessions::Own);
            }
        }
        Err(error) if refuses_settings(&error) => {}
        Err(error) => return Err(error),
    }
    let lent = Sessions::LentWithStatements.options(options.clone());
    let mut connection = PgConnection::connect_with(&lent).await?;
    let are_followed = follows_statements(&mut connection).await?;
    connection.close().await?;
    Ok(if are_followed {
        Sessions::LentWithStatements
    } else {
        Sessions::Lent
    })
}

/// A pooler that does not know a setting says so as a violation of the protocol; Postgres would not.
fn refuses_settings(error: &sqlx::Error) -> bool {
    let Some(refusal) = error.as_database_error() else {
        return false;
    };
    refusal.code().as_deref() == Some("08P01")
        && refusal.message().contains("unsupported startup parameter")
}

/// A pooler that follows prepared statements gives them names of its own; one that does not passes on
/// the name that `sqlx` has given, which may be taken already by somebody else's.
async fn follows_statements(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    connection.execute("BEGIN").await?;
    let passed_on = sqlx::query_scalar::<_, bool>(
        "SELECT EXISTS (SELECT FROM pg_prepared_statements
                        WHERE name LIKE 'sqlx%' AND statement LIKE '%' || $1 || '%')",
    )
    .bind("statement LIKE '%' || $1")
    .fetch_one(&mut *connection)
    .await;
    match passed_on {
        Ok(false) => {
            connection.execute("COMMIT").await?;
            Ok(true)
        }
        Ok(true) => {
            connection.execute("DEALLOCATE ALL; COMMIT").await?;
            Ok(false)
        }
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42P05") => {
            connection.execute("ROLLBACK").await?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_session_of_ones_own_begins_without_more() {
        assert_eq!(Sessions::Own.beginning("BEGIN"), None);
        let lent = Sessions::Lent.beginning("BEGIN").expect("more");
        assert!(lent.starts_with("BEGIN; DEALLOCATE ALL; SET LOCAL"));
        // It would forget statements that the pooler believes to be prepared.
        let followed = Sessions::LentWithStatements.beginning("BEGIN");
        assert!(!followed.expect("more").contains("DEALLOCATE"));
    }
}
