//! Droppable transactions, and the classification of Postgres errors.

use sqlx::{Executor, PgConnection, PgPool, Postgres, SqlSafeStr, pool::PoolConnection};
use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};

/// The keep-alive interval of a transaction that only carries a lock.
const BEAT: Duration = Duration::from_secs(2);

/// A transaction that may be dropped anywhere: an unfinished one closes its connection.
///
/// With `sqlx`'s own, dropping the future of `begin` (a timeout, a client that hung up) can return
/// the connection to the pool inside an open transaction, and its next user never commits.
pub struct Transaction {
    connection: PoolConnection<Postgres>,
    ended: bool,
}

impl Transaction {
    /// Begins with `statement`, a BEGIN of some kind.
    pub async fn begin(postgres: &PgPool, statement: impl SqlSafeStr) -> Result<Self, sqlx::Error> {
        let statement = sqlx::raw_sql(statement);
        let mut transaction = Self { connection: postgres.acquire().await?, ended: false };
        transaction.connection.execute(statement).await?;
        Ok(transaction)
    }

    /// Keeps the transaction open during long work. An error if Postgres has ended it, and its
    /// locks with it: then the work is cancelled.
    pub async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, sqlx::Error> {
        let lost = async {
            loop {
                tokio::time::sleep(BEAT).await;
                if let Err(error) = self.connection.execute("SELECT 1").await {
                    return error;
                }
            }
        };
        tokio::select! {
            done = work => Ok(done),
            error = lost => Err(error),
        }
    }

    pub async fn commit(self) -> Result<(), sqlx::Error> {
        self.end("COMMIT").await
    }

    pub async fn rollback(self) -> Result<(), sqlx::Error> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        self.connection.execute(statement).await?;
        self.ended = true;
        Ok(())
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.ended {
            self.connection.close_on_drop();
        }
    }
}

/// Whether no answer came. [`sqlx::Error::Protocol`] is included: a balancer without servers
/// accepts a connection and closes it, which `sqlx` takes for an odd answer.
pub fn is_unreachable(error: &sqlx::Error) -> bool {
    matches!(
        error,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
    )
}

/// Whether a retry can help: Postgres is unreachable, busy, starting, stopping, or a standby.
pub fn is_away(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => error.code().is_some_and(|code| is_passing_sqlstate(&code)),
        error => is_unreachable(error),
    }
}

/// PostgreSQL, appendix A: 08 connection exception, 28 invalid authorization, 3D no such database,
/// 40 transaction rollback, 53 insufficient resources, 57P operator intervention, 57014 statement
/// timeout, 55P03 lock timeout, 55000 no connections, 25006 read-only. An operator may have to
/// repair some of them, but later retries succeed.
fn is_passing_sqlstate(code: &str) -> bool {
    ["08", "28", "3D", "40", "53", "57P"].iter().any(|class| code.starts_with(class))
        || ["57014", "55P03", "55000", "25006"].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passing_troubles_of_postgres_are_told_by_their_state() {
        for code in
            ["08006", "28P01", "3D000", "57P01", "57P03", "53300", "55000", "40001", "25006"]
        {
            assert!(is_passing_sqlstate(code), "{code}");
        }
        for code in ["23505", "42P01", "22003"] {
            assert!(!is_passing_sqlstate(code), "{code}");
        }
    }
}
