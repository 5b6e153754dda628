//! Postgres, counted and watched like a `Line`: each statement is one round trip.

use super::tap::{Meter, Server, Tap, Watcher};
use sqlx::{
    Executor, FromRow, PgConnection, PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use std::{panic::Location, sync::Arc};
use stores::postgres::Transaction;

/// A query whose parameters are being bound: `|query| query.bind(name)`.
pub type Binding = Query<'static, Postgres, PgArguments>;

/// One client's pool, counted and watched.
#[derive(Clone)]
pub struct Sql {
    pool: PgPool,
    tap: Tap,
}

impl Sql {
    pub fn new(pool: PgPool) -> Self {
        Self { pool, tap: Tap::new(Server::Postgres) }
    }

    /// Names the client, for watchers.
    pub fn of(mut self, client: &str) -> Self {
        self.tap.client = client.into();
        self
    }

    pub fn watched_by(mut self, watcher: Arc<dyn Watcher>) -> Self {
        self.tap.watcher = Some(watcher);
        self
    }

    pub fn counted_by(mut self, meter: &Meter) -> Self {
        self.tap.meter = meter.clone();
        self
    }

    pub fn meter(&self) -> &Meter {
        &self.tap.meter
    }

    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A unique value.
    pub fn unique_token(&self) -> String {
        format!("{}-{}", self.tap.client, uuid::Uuid::new_v4().simple())
    }

    /// A single statement; answers how many rows it touched.
    #[track_caller]
    pub fn execute<'a>(
        &'a self,
        sql: &'static str,
        bind: impl FnOnce(Binding) -> Binding + Send + 'a,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send + 'a {
        let at = Location::caller();
        async move {
            let mut connection = self.pool.acquire().await?;
            execute(&self.tap, at, &mut connection, sql, bind).await
        }
    }

    /// A single statement; answers its first row. `T` is a tuple, or derives `FromRow`.
    #[track_caller]
    pub fn optional<'a, T: for<'r> FromRow<'r, PgRow> + Send>(
        &'a self,
        sql: &'static str,
        bind: impl FnOnce(Binding) -> Binding + Send + 'a,
    ) -> impl Future<Output = Result<Option<T>, sqlx::Error>> + Send + 'a {
        let at = Location::caller();
        async move {
            let mut connection = self.pool.acquire().await?;
            optional(&self.tap, at, &mut connection, sql, bind).await
        }
    }

    /// A transaction, begun.
    #[track_caller]
    pub fn begin(&self) -> impl Future<Output = Result<SqlTransaction, sqlx::Error>> + Send + '_ {
        self.begin_with("BEGIN")
    }

    /// A transaction, begun by this statement.
    #[track_caller]
    pub fn begin_with(
        &self,
        statement: &'static str,
    ) -> impl Future<Output = Result<SqlTransaction, sqlx::Error>> + Send + '_ {
        let at = Location::caller();
        async move {
            let transaction = self
                .tap
                .pass(
                    at,
                    || (statement.to_owned(), None),
                    |_| statement.to_owned(),
                    Transaction::begin(&self.pool, statement),
                )
                .await?;
            Ok(SqlTransaction { transaction, tap: self.tap.clone() })
        }
    }

    /// A connection of the pool, kept as a session.
    pub async fn session(&self) -> Result<SqlSession, sqlx::Error> {
        Ok(SqlSession { connection: self.pool.acquire().await?, tap: self.tap.clone() })
    }
}

/// A transaction. Dropping it unfinished closes its connection (see [`Transaction`]).
pub struct SqlTransaction {
    transaction: Transaction,
    tap: Tap,
}

impl SqlTransaction {
    #[track_caller]
    pub fn commit(self) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let at = Location::caller();
        async move { end(&self.tap, at, "COMMIT", self.transaction.commit()).await }
    }

    #[track_caller]
    pub fn rollback(self) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let at = Location::caller();
        async move { end(&self.tap, at, "ROLLBACK", self.transaction.rollback()).await }
    }
}

async fn end(
    tap: &Tap,
    at: &'static Location<'static>,
    word: &'static str,
    ending: impl Future<Output = Result<(), sqlx::Error>> + Send,
) -> Result<(), sqlx::Error> {
    tap.pass(at, || (word.to_owned(), None), |()| word.to_owned(), ending).await
}

/// A connection of the pool, with its session.
pub struct SqlSession {
    connection: PoolConnection<Postgres>,
    tap: Tap,
}

impl SqlSession {
    /// Closes the connection, for a session in an unknown state.
    pub fn close_on_drop(&mut self) {
        self.connection.close_on_drop();
    }
}

macro_rules! statements {
    ($of:ty, $connection:ident) => {
        impl $of {
            /// Answers how many rows it touched.
            #[track_caller]
            pub fn execute<'a>(
                &'a mut self,
                sql: &'static str,
                bind: impl FnOnce(Binding) -> Binding + Send + 'a,
            ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send + 'a {
                let at = Location::caller();
                async move { execute(&self.tap, at, &mut self.$connection, sql, bind).await }
            }

            /// Answers the first row. `T` is a tuple, or derives `FromRow`.
            #[track_caller]
            pub fn optional<'a, T: for<'r> FromRow<'r, PgRow> + Send>(
                &'a mut self,
                sql: &'static str,
                bind: impl FnOnce(Binding) -> Binding + Send + 'a,
            ) -> impl Future<Output = Result<Option<T>, sqlx::Error>> + Send + 'a {
                let at = Location::caller();
                async move { optional(&self.tap, at, &mut self.$connection, sql, bind).await }
            }

            /// The connection itself: its requests are neither counted nor watched.
            pub fn unwatched(&mut self) -> &mut PgConnection {
                &mut self.$connection
            }
        }
    };
}

statements!(SqlTransaction, transaction);
statements!(SqlSession, connection);

async fn execute(
    tap: &Tap,
    at: &'static Location<'static>,
    connection: &mut PgConnection,
    sql: &'static str,
    bind: impl FnOnce(Binding) -> Binding + Send,
) -> Result<u64, sqlx::Error> {
    let query = bind(sqlx::query(sql));
    let request = async { Ok(connection.execute(query).await?.rows_affected()) };
    tap.pass(at, || (on_one_line(sql), None), |rows| format!("{rows} row(s)"), request).await
}

async fn optional<T: for<'r> FromRow<'r, PgRow>>(
    tap: &Tap,
    at: &'static Location<'static>,
    connection: &mut PgConnection,
    sql: &'static str,
    bind: impl FnOnce(Binding) -> Binding + Send,
) -> Result<Option<T>, sqlx::Error> {
    let query = bind(sqlx::query(sql));
    let request = async { connection.fetch_optional(query).await };
    let show = |row: &Option<PgRow>| match row {
        Some(_) => "1 row".to_owned(),
        None => "no row".to_owned(),
    };
    let row = tap.pass(at, || (on_one_line(sql), None), show, request).await?;
    row.map(|row| T::from_row(&row)).transpose()
}

fn on_one_line(sql: &str) -> String {
    sql.split_whitespace().collect::<Vec<_>>().join(" ")
}
