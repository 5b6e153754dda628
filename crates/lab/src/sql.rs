//! Statements as strategies send them, one line each:
//!
//! ```text
//! tx.run("UPDATE lab.stock SET remaining = $2 WHERE arena = $1", (arena, 3)).await?    rows
//! tx.one::<i32>("SELECT remaining FROM lab.stock WHERE arena = $1", (arena,)).await?   a value
//! tx.maybe::<(i32, i64)>("SELECT remaining, version …", (arena,)).await?               or None
//! ```
//!
//! Each is counted, and the line that sent it is noted.

use crate::{
    meter::Meter,
    selling::{Outcome, Trouble},
};
use sqlx::{Decode, PgConnection, Postgres, Row, Type, pool::PoolConnection, postgres::PgRow};
use std::{panic::Location, sync::Arc};
use stores::{postgres, sql::Values};

/// A connection, with or without an open transaction.
pub struct Sql {
    connection: Connection,
    meter: Arc<Meter>,
}

enum Connection {
    /// Each statement is a transaction of its own.
    Session(PoolConnection<Postgres>),
    Transaction(postgres::Transaction),
}

impl Sql {
    pub(crate) fn session(connection: PoolConnection<Postgres>, meter: Arc<Meter>) -> Self {
        Self { connection: Connection::Session(connection), meter }
    }

    pub(crate) fn transaction(transaction: postgres::Transaction, meter: Arc<Meter>) -> Self {
        Self { connection: Connection::Transaction(transaction), meter }
    }

    /// The connection, for one statement.
    #[track_caller]
    pub fn send(&mut self) -> &mut PgConnection {
        self.meter.statement(Location::caller());
        match &mut self.connection {
            Connection::Session(session) => session,
            Connection::Transaction(transaction) => transaction,
        }
    }

    /// Answers how many rows it touched.
    #[track_caller]
    pub fn run<'a>(
        &'a mut self,
        sql: &'static str,
        binds: impl Values + 'a,
    ) -> impl Future<Output = Result<u64, Trouble>> + Send + 'a {
        let connection = self.send();
        async move {
            let query = sqlx::query_with(sql, binds.bind().map_err(sqlx::Error::Encode)?);
            Ok(query.execute(connection).await?.rows_affected())
        }
    }

    /// Answers the first row, which must be there.
    #[track_caller]
    pub fn one<'a, T: Columns>(
        &'a mut self,
        sql: &'static str,
        binds: impl Values + 'a,
    ) -> impl Future<Output = Result<T, Trouble>> + Send + 'a {
        let row = self.maybe(sql, binds);
        async move { Ok(row.await?.ok_or(sqlx::Error::RowNotFound)?) }
    }

    /// Answers the first row, if there is one.
    #[track_caller]
    pub fn maybe<'a, T: Columns>(
        &'a mut self,
        sql: &'static str,
        binds: impl Values + 'a,
    ) -> impl Future<Output = Result<Option<T>, Trouble>> + Send + 'a {
        let connection = self.send();
        async move {
            let query = sqlx::query_with(sql, binds.bind().map_err(sqlx::Error::Encode)?);
            let row = query.fetch_optional(connection).await?;
            Ok(row.map(|row| T::read(&row)).transpose()?)
        }
    }

    /// Ends the connection instead of giving it back: for a session that holds more than its pool
    /// should know of.
    pub fn close_on_drop(&mut self) {
        if let Connection::Session(session) = &mut self.connection {
            session.close_on_drop();
        }
    }

    /// Commits a sale, rolls back everything else.
    pub async fn end(self, outcome: Result<Outcome, Trouble>) -> Result<Outcome, Trouble> {
        match outcome {
            Ok(Outcome::Sold { .. }) => self.commit().await?,
            // Not dropped: that would cost the connection.
            _ => self.rollback().await?,
        }
        outcome
    }

    #[track_caller]
    pub fn commit(self) -> impl Future<Output = Result<(), Trouble>> + Send {
        self.meter.statement(Location::caller());
        async move {
            match self.connection {
                Connection::Session(_) => Ok(()),
                Connection::Transaction(transaction) => Ok(transaction.commit().await?),
            }
        }
    }

    #[track_caller]
    pub fn rollback(self) -> impl Future<Output = Result<(), Trouble>> + Send {
        self.meter.statement(Location::caller());
        async move {
            match self.connection {
                Connection::Session(_) => Ok(()),
                Connection::Transaction(transaction) => Ok(transaction.rollback().await?),
            }
        }
    }
}

/// What a row is read as: a value, or a tuple of values.
pub trait Columns: Sized + Send {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error>;
}

macro_rules! tuples {
    ($(($($name:ident $at:tt),*))*) => {$(
        impl<$($name),*> Columns for ($($name,)*)
        where
            $($name: for<'r> Decode<'r, Postgres> + Type<Postgres> + Send,)*
        {
            fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
                Ok(($(row.try_get($at)?,)*))
            }
        }
    )*};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
}

macro_rules! values {
    ($($value:ty)*) => {$(
        impl Columns for $value {
            fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
                row.try_get(0)
            }
        }
    )*};
}

values!(bool i32 i64 String);
