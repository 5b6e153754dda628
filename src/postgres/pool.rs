//! The pool that the shop uses, which also works through a pooler in transaction mode.
//!
//! Such a pooler lends a session for one transaction. What needs more, and what is done about it:
//!
//! | of a session | through a pooler |
//! |---|---|
//! | settings (`statement_timeout`, …) | `SET LOCAL` at the beginning of each transaction |
//! | prepared statements | each statement in a transaction, see below |
//! | the migrator's lock, the lab | DATABASE_DIRECT_URL |
//! | the lock that elects who rebuilds | a transaction's, held open: nothing to do |
//! | LISTEN, temporary tables, cursors WITH HOLD | not used (changes are published in Redis) |
//!
//! `sqlx` prepares a statement in one exchange and executes it in the next. Between the two a pooler
//! may lend the session to somebody else. A transaction keeps it for both, and begins by forgetting
//! what the session's last user has prepared. Four exchanges instead of one: correct, and slow.

use super::{
    ACQUIRE_TIMEOUT, IDLE_TRANSACTION_TIMEOUT, RETURN_TIMEOUT, STATEMENT_TIMEOUT, Transaction,
    timed_out,
};
use futures_util::{
    TryStreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use sqlx::{
    Connection, Either, Execute, Executor, PgConnection, PgPool, Postgres, Row, SqlStr,
    postgres::{
        PgArguments, PgConnectOptions, PgPoolOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo,
    },
};
use std::sync::Arc;

/// Connections to Postgres. An executor like `sqlx`'s own pool; not that pool, so that nothing can go
/// past the transactions that a pooler needs.
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

/// Connections are not tested before they are handed out: that is a round trip for each query, and a
/// broken one shows by its error, after which the pool drops it. They are tested when they come
/// back, behind the answer, by `sqlx` itself, which sends a round trip and waits for ever. So before
/// that a query that was given up is waited for here, and a connection that stays silent is dropped.
/// One that owes no answer costs nothing here.
fn connect_lazily(pool: PgPoolOptions, options: PgConnectOptions, connections: u32) -> PgPool {
    pool.max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .after_release(|connection, _| {
            Box::pin(async move {
                // Reads what is outstanding and sends nothing. Not in the documentation of `sqlx`; a test
                // notices if it becomes something else.
                tokio::time::timeout(RETURN_TIMEOUT, connection.flush())
                    .await
                    .unwrap_or_else(|_| Err(timed_out()))
                    .map(|()| true)
            })
        })
        .connect_lazy_with(options)
}

/// Numbers travel in binary, and poolers know fewer settings than Postgres.
fn for_poolers(options: PgConnectOptions) -> PgConnectOptions {
    options
        .application_name("flash-sale")
        .extra_float_digits(None)
}

/// With a mark, by which [`check_session`] knows that nobody else has this session.
pub(super) fn own_session(options: PgConnectOptions) -> PgConnectOptions {
    for_poolers(options).options([
        ("statement_timeout", STATEMENT_TIMEOUT),
        (
            "idle_in_transaction_session_timeout",
            IDLE_TRANSACTION_TIMEOUT,
        ),
        ("flash_sale.session", "own"),
    ])
}

/// A pooler that ignores settings would mix up what is prepared, so its connections are refused.
pub(super) async fn check_session(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mark = connection
        .fetch_one("SELECT current_setting('flash_sale.session', true)")
        .await?;
    if mark.try_get::<Option<String>, _>(0)?.is_some() {
        return Ok(());
    }
    let why = "the connection leads to a pooler: set DATABASE_DIRECT_URL to Postgres itself";
    tracing::error!("{why}");
    Err(sqlx::Error::Configuration(why.into()))
}

impl Pool {
    /// `begin`, and what has to be said in the same breath behind a pooler. One exchange in any case.
    pub(super) fn beginning(&self, begin: &str) -> Option<String> {
        // Names of statements count from 1 in every connection: without DEALLOCATE two would meet.
        self.is_pooled.then(|| {
            format!(
                "{begin}; DEALLOCATE ALL; SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT}';
                 SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TRANSACTION_TIMEOUT}'"
            )
        })
    }

    /// The connections themselves, for who needs one in particular. Statements with parameters need a
    /// [`Transaction`] there, see above.
    pub fn connections(&self) -> &PgPool {
        &self.connections
    }

    /// Where Postgres itself is, for who needs a session.
    pub fn direct(&self) -> &PgConnectOptions {
        &self.direct
    }

    /// How many there are.
    pub fn size(&self) -> u32 {
        self.connections.size()
    }

    /// How many of them nobody uses.
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
    ) -> Result<Vec<Either<PgQueryResult, PgRow>>, sqlx::Error> {
        let arguments: Option<PgArguments> = query.take_arguments().map_err(sqlx::Error::Encode)?;
        let statement = query.sql();
        let mut transaction = Transaction::begin(&self, "BEGIN").await?;
        let answered = match arguments {
            Some(arguments) => {
                let query = sqlx::query_with::<Postgres, _>(statement, arguments);
                transaction.fetch_many(query).try_collect().await
            }
            None => {
                let query = sqlx::raw_sql(statement);
                transaction.fetch_many(query).try_collect().await
            }
        };
        match answered {
            Ok(rows) => {
                // What this answers is committed, as with a statement that stands alone.
                transaction.commit().await?;
                Ok(rows)
            }
            Err(refusal @ sqlx::Error::Database(_)) => {
                transaction.rollback().await?;
                Err(refusal)
            }
            // Dropped: the connection goes with its transaction.
            Err(error) => Err(error),
        }
    }
}

/// Connections of its own to Postgres, which are as good as sessions.
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
    ) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
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

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
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
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'p: 'e,
    {
        // What it learns of the statement is true for every session.
        let pool = self.clone();
        Box::pin(async move {
            let mut transaction = Transaction::begin(&pool, "BEGIN").await?;
            let prepared = transaction.prepare_with(statement, parameters).await?;
            transaction.commit().await?;
            Ok(prepared)
        })
    }

    fn describe<'e>(
        self,
        statement: SqlStr,
    ) -> BoxFuture<'e, Result<sqlx::Describe<Postgres>, sqlx::Error>>
    where
        'p: 'e,
    {
        (&self.connections).describe(statement)
    }
}
