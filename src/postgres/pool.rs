//! The pool that the shop uses, which also works through a pooler in transaction mode.
//!
//! `sqlx` sends a statement with parameters in two exchanges: first it is prepared, then it is executed.
//! A pooler in transaction mode may give the session to somebody else between the two, and an old one
//! (PgBouncer before 1.21) does not know that anything was prepared: the second exchange would find no
//! statement, or one of somebody else's. There each statement goes inside a transaction, which keeps the
//! session for both, and begins by forgetting what the session's last user has prepared. That is four
//! exchanges instead of one: correct, and slow. A pooler that follows prepared statements costs nothing.

use super::{Sessions, Transaction};
use futures_util::{
    TryStreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use sqlx::{
    Either, Execute, Executor, PgPool, Postgres, SqlStr,
    pool::PoolConnection,
    postgres::{PgArguments, PgConnectOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo},
};
use std::sync::Arc;

/// Connections to Postgres, and whose sessions they are. An executor like `sqlx`'s own pool; not that
/// pool, so that nothing can go past the transactions that a pooler may need.
#[derive(Debug, Clone)]
pub struct Pool {
    connections: PgPool,
    sessions: Sessions,
}

impl Pool {
    pub(super) fn new(connections: PgPool, sessions: Sessions) -> Self {
        Self {
            connections,
            sessions,
        }
    }

    pub fn sessions(&self) -> Sessions {
        self.sessions
    }

    /// The connections themselves, for who needs one in particular. Statements with parameters need a
    /// [`Transaction`] there, see above.
    pub fn connections(&self) -> &PgPool {
        &self.connections
    }

    pub fn connect_options(&self) -> Arc<PgConnectOptions> {
        self.connections.connect_options()
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
impl From<PgPool> for Pool {
    fn from(connections: PgPool) -> Self {
        Self::new(connections, Sessions::Own)
    }
}

/// What gives out connections, and knows whose sessions they are.
pub trait Lends {
    fn lend(
        &self,
    ) -> impl Future<Output = Result<(PoolConnection<Postgres>, Sessions), sqlx::Error>> + Send;
}

impl Lends for Pool {
    async fn lend(&self) -> Result<(PoolConnection<Postgres>, Sessions), sqlx::Error> {
        Ok((self.connections.acquire().await?, self.sessions))
    }
}

impl Lends for PgPool {
    async fn lend(&self) -> Result<(PoolConnection<Postgres>, Sessions), sqlx::Error> {
        Ok((self.acquire().await?, Sessions::Own))
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
        if self.sessions != Sessions::Lent {
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
        if self.sessions != Sessions::Lent {
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
