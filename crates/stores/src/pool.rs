//! The pool, which also works through a pooler in transaction mode.
//!
//! Such a pooler lends a session for one transaction. Features that need more:
//!
//! | of a session | through a pooler |
//! |---|---|
//! | settings (`statement_timeout`, …) | `SET LOCAL` at the beginning of each transaction |
//! | prepared statements | each statement in a transaction, see below |
//! | the migrator's lock, the lab | DATABASE_DIRECT_URL |
//! | the lock of the rebuild's election | held by an open transaction: nothing to do |
//! | LISTEN, temporary tables, cursors WITH HOLD | not used (changes are published in Redis) |
//!
//! `sqlx` prepares a statement in one exchange and executes it in the next; between the two a
//! pooler may lend the session to another client. So each statement runs in a transaction, which
//! first deallocates what the session's last user prepared. Four exchanges instead of one: correct,
//! and slow.

use crate::postgres::Transaction;
use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use sqlx::postgres::{
    PgArguments, PgConnectOptions, PgPoolOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo,
};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Either, Execute, Executor, PgConnection, PgPool,
    Postgres, Row, SqlStr,
};
use std::sync::Arc;
use std::time::Duration;

/// How long a command waits for Postgres when it starts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Short: a shopper who gets 503 can retry.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);

/// Only an audit or a rebuild of millions of orders takes seconds.
const STATEMENT_TIMEOUT: &str = "60s";

/// A process that stands still (SIGSTOP, a paused machine) must not keep the rows of a sale or the
/// lock of the rebuild; its transaction ends, and it tries again.
const IDLE_TRANSACTION_TIMEOUT: &str = "10s";

/// How long a returned connection may take to answer outstanding requests.
const RETURN_TIMEOUT: Duration = Duration::from_secs(5);

/// The error of a Postgres that did not answer in time.
pub fn timed_out() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())
}

/// An answer within `limit`, or [`timed_out`].
pub async fn within<T, E: From<sqlx::Error>>(
    limit: Duration,
    asked: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let answer = tokio::time::timeout(limit, asked).await;
    answer.unwrap_or_else(|_| Err(timed_out().into()))
}

/// Connections to Postgres. A type of its own, so that no statement bypasses the transactions that
/// a pooler needs.
#[derive(Debug, Clone)]
pub struct Pool {
    connections: PgPool,
    /// Whether they lead to a pooler in transaction mode.
    is_pooled: bool,
    /// Postgres itself.
    direct: Arc<PgConnectOptions>,
}

/// A pool of sessions that connects when it is first used.
pub fn pool(options: PgConnectOptions, connections: u32) -> Pool {
    let check = PgPoolOptions::new()
        .after_connect(|connection, _| Box::pin(async move { check_session(connection).await }));
    Pool {
        connections: connect_lazily(check, own_session(options.clone()), connections),
        is_pooled: false,
        direct: Arc::new(options),
    }
}

/// A pool through a pooler in transaction mode; `direct` leads to Postgres itself.
pub fn pooled(options: PgConnectOptions, direct: PgConnectOptions, connections: u32) -> Pool {
    let options = for_poolers(options).statement_cache_capacity(0);
    Pool {
        connections: connect_lazily(PgPoolOptions::new(), options, connections),
        is_pooled: true,
        direct: Arc::new(direct),
    }
}

/// No test before checkout: it would cost a round trip for each query, and a broken connection
/// fails and is dropped. `sqlx` pings returned connections without a limit; the bounded flush
/// before that drops silent ones.
fn connect_lazily(pool: PgPoolOptions, options: PgConnectOptions, connections: u32) -> PgPool {
    pool.max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .after_release(|connection, _| {
            Box::pin(async move {
                // Reads outstanding answers and sends nothing. `sqlx` does not document that; a
                // test checks it.
                let flushed = within(RETURN_TIMEOUT, connection.flush()).await;
                flushed.map(|()| true)
            })
        })
        .connect_lazy_with(options)
}

/// Poolers know fewer settings than Postgres, and numbers travel in binary.
fn for_poolers(options: PgConnectOptions) -> PgConnectOptions {
    options.application_name("flash-sale").extra_float_digits(None)
}

/// Sets a mark by which [`check_session`] recognises a session without a pooler.
fn own_session(options: PgConnectOptions) -> PgConnectOptions {
    for_poolers(options).options([
        ("statement_timeout", STATEMENT_TIMEOUT),
        ("idle_in_transaction_session_timeout", IDLE_TRANSACTION_TIMEOUT),
        ("flash_sale.session", "own"),
    ])
}

/// Refuses connections to a pooler: it would mix up prepared statements.
async fn check_session(connection: &mut PgConnection) -> sqlx::Result<()> {
    let mark = connection.fetch_one("SELECT current_setting('flash_sale.session', true)").await?;
    if mark.try_get::<Option<String>, _>(0)?.is_some() {
        return Ok(());
    }
    let why = "the connection leads to a pooler: set DATABASE_DIRECT_URL to Postgres itself";
    tracing::error!("{why}");
    Err(sqlx::Error::Configuration(why.into()))
}

impl Pool {
    /// Begins a transaction with `statement`, a BEGIN of some kind.
    pub async fn begin(&self, statement: &'static str) -> sqlx::Result<Transaction> {
        if !self.is_pooled {
            return Transaction::begin(&self.connections, statement).await;
        }
        // Statement names count from 1 in every connection: without DEALLOCATE two would collide.
        let statement = format!(
            "{statement}; DEALLOCATE ALL; SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT}';
             SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TRANSACTION_TIMEOUT}'"
        );
        Transaction::begin(&self.connections, AssertSqlSafe(statement)).await
    }

    /// The connections themselves. Statements with parameters need a [`Transaction`] there.
    pub fn connections(&self) -> &PgPool {
        &self.connections
    }

    /// The address of Postgres itself, for sessions.
    pub fn direct(&self) -> &PgConnectOptions {
        &self.direct
    }

    /// A session outside the pool, so that a connection error keeps its reason.
    pub async fn session(&self) -> sqlx::Result<PgConnection> {
        // A migration may take long, and its warning would be a whole file of SQL.
        let options = own_session(self.direct().clone()).disable_statement_logging();
        let connecting = async {
            let mut connection = PgConnection::connect_with(&options).await?;
            check_session(&mut connection).await?;
            Ok(connection)
        };
        within(CONNECT_TIMEOUT, connecting).await
    }

    pub fn size(&self) -> u32 {
        self.connections.size()
    }

    pub fn num_idle(&self) -> usize {
        self.connections.num_idle()
    }

    pub async fn close(&self) {
        self.connections.close().await;
    }

    /// One statement in a transaction of its own.
    async fn alone<'q>(
        self,
        mut query: impl Execute<'q, Postgres> + 'q,
    ) -> sqlx::Result<Vec<Either<PgQueryResult, PgRow>>> {
        let arguments: Option<PgArguments> = query.take_arguments().map_err(sqlx::Error::Encode)?;
        let statement = query.sql();
        let mut transaction = self.begin("BEGIN").await?;
        let rows = match arguments {
            Some(arguments) => {
                transaction.fetch_many(sqlx::query_with::<Postgres, _>(statement, arguments))
            }
            None => transaction.fetch_many(sqlx::raw_sql(statement)),
        };
        let answered = rows.try_collect().await;
        match answered {
            Ok(rows) => {
                // The answer must be committed, as after a single statement.
                transaction.commit().await?;
                Ok(rows)
            }
            Err(refusal @ sqlx::Error::Database(_)) => {
                transaction.rollback().await?;
                Err(refusal)
            }
            // Dropping the transaction closes the connection.
            Err(error) => Err(error),
        }
    }
}

/// Connections without a pooler.
impl From<&PgPool> for Pool {
    fn from(connections: &PgPool) -> Self {
        Self {
            connections: connections.clone(),
            is_pooled: false,
            direct: connections.connect_options(),
        }
    }
}

impl From<&Self> for Pool {
    fn from(pool: &Self) -> Self {
        pool.clone()
    }
}

impl<'p> Executor<'p> for &'_ Pool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, sqlx::Result<Either<PgQueryResult, PgRow>>>
    where
        E: 'q + Execute<'q, Postgres>,
    {
        if !self.is_pooled {
            return (&self.connections).fetch_many(query);
        }
        let pool = self.clone();
        let rows = async move {
            let rows = pool.alone(query).await?;
            Ok::<_, sqlx::Error>(stream::iter(rows.into_iter().map(Ok)))
        };
        Box::pin(futures_util::FutureExt::into_stream(rows).try_flatten())
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, sqlx::Result<Option<PgRow>>>
    where
        E: 'q + Execute<'q, Postgres>,
    {
        if !self.is_pooled {
            return (&self.connections).fetch_optional(query);
        }
        let pool = self.clone();
        Box::pin(async move {
            let rows = pool.alone(query).await?;
            Ok(rows.into_iter().find_map(Either::right))
        })
    }

    fn prepare_with<'e>(
        self,
        statement: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, sqlx::Result<PgStatement>>
    where
        'p: 'e,
    {
        // The description of a statement holds for every session.
        let pool = self.clone();
        Box::pin(async move {
            let mut transaction = pool.begin("BEGIN").await?;
            let prepared = transaction.prepare_with(statement, parameters).await?;
            transaction.commit().await?;
            Ok(prepared)
        })
    }
}
