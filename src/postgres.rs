//! Postgres: the pool, transactions that can be dropped, and the schema.

mod pool;

pub use pool::{Pool, pool, pooled};

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Postgres, pool::PoolConnection};
use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};

/// How long a request may wait for a connection. Short: a shopper who is told 503 can retry, one who
/// waits cannot.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a command waits for Postgres when it starts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// No statement of the program takes seconds, but for an audit or a rebuild of millions of orders.
const STATEMENT_TIMEOUT: &str = "60s";

/// How long a transaction may wait for the next word of its process. None of the program does that for
/// more than moments, unless the whole process stands still (SIGSTOP, a paused machine): then it must
/// not keep the rows of a sale, or the lock of the rebuild, from the others for as long as that lasts.
/// When it goes on, its transaction is gone, and it tries again.
const IDLE_TRANSACTION_TIMEOUT: &str = "10s";

/// How often a transaction that only carries a lock says that its process is alive.
const BEAT: Duration = Duration::from_secs(2);

/// How long to wait for a statement that may take as long as Postgres allows: past its own timeout
/// only a Postgres that has fallen silent is still waited for.
pub const SILENCE: Duration = Duration::from_secs(65);

/// How long a connection that comes back may take to answer what it was asked.
const RETURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for a long statement, but not for a Postgres that has fallen silent: a machine that died
/// without a word would otherwise be waited for until TCP gives up, a quarter of an hour.
pub async fn unless_silent<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    tokio::time::timeout(SILENCE, statement)
        .await
        .unwrap_or_else(|_| Err(timed_out()))
}

/// The error of a Postgres that did not answer in time.
pub fn timed_out() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())
}

/// Whether no answer came, rather than a refusal. [`sqlx::Error::Protocol`] is what becomes of a conversation that
/// breaks off in the middle: a balancer with no server behind it takes a connection and closes it, and to
/// `sqlx` that is an odd answer to its first question.
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

/// A transaction that may be dropped anywhere: what has not come to its end takes its connection with
/// it.
///
/// `sqlx`'s own may not: if the future of its `begin` is dropped (a timeout, a client that hung up)
/// after the server has begun, the connection goes back to the pool inside an open transaction, and
/// whoever gets it next never commits.
pub struct Transaction {
    connection: PoolConnection<Postgres>,
    ended: bool,
}

/// Begins a transaction whose statements all see the same moment.
pub const SNAPSHOT: &str = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY";

impl Transaction {
    /// Begins with `statement`, a BEGIN of some kind.
    pub async fn begin(
        postgres: impl Into<Pool>,
        statement: &'static str,
    ) -> Result<Self, sqlx::Error> {
        let pool = postgres.into();
        let mut transaction = Self {
            connection: pool.connections().acquire().await?,
            ended: false,
        };
        match pool.beginning(statement) {
            None => transaction.connection.execute(statement).await?,
            Some(more) => transaction.connection.execute(AssertSqlSafe(more)).await?,
        };
        Ok(transaction)
    }

    /// Does work that takes longer than a transaction may be idle, and keeps this one open meanwhile.
    /// An error if Postgres has ended it all the same, and its locks with it: then the work is given up.
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

/// The timeline that this primary writes: a promotion starts a new one. 0 where Postgres does not tell
/// (a compatible engine without write-ahead log files). An error on a standby.
pub async fn timeline(postgres: &Pool) -> Result<i64, sqlx::Error> {
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

/// Why a command that only looks cannot.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error("cannot ask postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error(
        "the schema is older than this program (migration {0} is missing): `flash-sale migrate`, `serve` and `worker` bring it up to date"
    )]
    Behind(i64),
}

/// A session of its own. Past the pool, which would only say that it waited in vain: this error says why.
async fn session(postgres: &Pool) -> Result<PgConnection, sqlx::Error> {
    let options = pool::own_session(postgres.direct().clone());
    let connecting = async {
        let mut connection = PgConnection::connect_with(&options).await?;
        pool::check_session(&mut connection).await?;
        Ok(connection)
    };
    tokio::time::timeout(CONNECT_TIMEOUT, connecting)
        .await
        .unwrap_or_else(|_| Err(timed_out()))
}

/// Whether the schema is as far as this program, or further. Changes nothing.
pub async fn check_schema(postgres: &Pool) -> Result<(), SchemaError> {
    let mut session = session(postgres).await?;
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
    let missing = sqlx::migrate!()
        .iter()
        .map(|migration| migration.version)
        .find(|version| !applied.contains(version));
    missing.map_or(Ok(()), |version| Err(SchemaError::Behind(version)))
}

/// Brings the schema up to date; the migrations are compiled into the program. Several instances may
/// do it at once: the migrator takes an advisory lock, which is a session's.
pub async fn migrate(postgres: &Pool) -> Result<(), sqlx::migrate::MigrateError> {
    let mut session = session(postgres).await?;
    let mut migrator = sqlx::migrate!();
    // A rolling upgrade: a newer instance has already brought the schema further. Migrations only add, so an older
    // instance that is started again meanwhile works on (tests/it/upgrade.rs holds them to it).
    migrator.set_ignore_missing(true);
    migrator.run_direct(None, &mut session, false).await?;
    session.close().await?;
    Ok(())
}
