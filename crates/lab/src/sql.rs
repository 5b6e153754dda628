//! Statements as strategies send them, one line each:
//!
//! ```text
//! tx.run("UPDATE lab.stock SET remaining = $2 WHERE arena = $1", (arena, 3)).await?    rows
//! tx.one::<i32>("SELECT remaining FROM lab.stock WHERE arena = $1", (arena,)).await?   a value
//! tx.maybe::<i32>("SELECT remaining FROM …", (arena,)).await?                          or None
//! tx.row::<(i32, i64)>("SELECT remaining, version FROM …", (arena,)).await?            values
//! ```
//!
//! Each is counted, and the line that sent it is noted.

use crate::interleaving::Purchase;
use crate::selling::{Outcome, Result, Trying};
use futures_util::{FutureExt, TryFutureExt};
use locks::wire::{Meter, Server};
use sqlx::{FromRow, PgConnection, Postgres, pool::PoolConnection, postgres::PgRow};
use std::{any::Any, panic::Location};
use stores::postgres;
use stores::sql::{self, Values};

/// Where statements are counted.
pub(crate) const POSTGRES: Server = |trips| &mut trips.postgres;

/// A row that can be read as `T`.
pub trait Row: for<'r> FromRow<'r, PgRow> + Send + Unpin {}

impl<T: for<'r> FromRow<'r, PgRow> + Send + Unpin> Row for T {}

/// A connection, with or without an open transaction.
pub struct Sql {
    pub(crate) connection: Connection,
    pub(crate) meter: Meter,
}

pub(crate) enum Connection {
    /// Each statement is a transaction of its own.
    Session(PoolConnection<Postgres>),
    Transaction(postgres::Transaction),
}

impl Sql {
    /// The connection, for one statement.
    #[track_caller]
    fn send(&mut self) -> &mut PgConnection {
        self.meter.count(POSTGRES, Location::caller());
        match &mut self.connection {
            Connection::Session(session) => session,
            Connection::Transaction(transaction) => transaction,
        }
    }

    /// Answers how many rows it touched.
    #[track_caller]
    pub fn run(&mut self, sql: &'static str, values: impl Values) -> impl Trying<u64> + Send {
        sql::run(self.send(), sql, values).err_into()
    }

    /// Answers the first value of the first row, which must be there.
    #[track_caller]
    pub fn one<T>(&mut self, sql: &'static str, values: impl Values) -> impl Trying<T> + Send
    where
        (T,): Row,
        T: 'static,
    {
        self.row::<(T,)>(sql, values).map_ok(|(value,)| {
            // For the two buyers that are shown side by side.
            if let Some(number) = (&value as &dyn Any).downcast_ref::<i32>() {
                Purchase::has_read(*number);
            }
            value
        })
    }

    /// Answers the first value of the first row, if there is one.
    #[track_caller]
    pub fn maybe<T>(
        &mut self,
        sql: &'static str,
        values: impl Values,
    ) -> impl Trying<Option<T>> + Send
    where
        (T,): Row,
    {
        sql::row(self.send(), sql, values).map_ok(|row| row.map(|(value,)| value)).err_into()
    }

    /// Answers the first row, which must be there.
    #[track_caller]
    pub fn row<T: Row>(&mut self, sql: &'static str, values: impl Values) -> impl Trying<T> + Send {
        let row = sql::row(self.send(), sql, values);
        row.map(|row| Ok(row?.ok_or(sqlx::Error::RowNotFound)?))
    }

    /// Ends the connection instead of giving it back: for a session that holds more than its pool
    /// should know of.
    pub fn close_on_drop(&mut self) {
        if let Connection::Session(session) = &mut self.connection {
            session.close_on_drop();
        }
    }

    /// Commits a sale, rolls back everything else.
    pub async fn end(self, outcome: Result<Outcome>) -> Result<Outcome> {
        // Not dropped: that would cost the connection.
        self.finish(matches!(outcome, Ok(Outcome::Sold { .. }))).await?;
        outcome
    }

    #[track_caller]
    pub fn commit(self) -> impl Trying<()> + Send {
        self.finish(true)
    }

    #[track_caller]
    pub fn rollback(self) -> impl Trying<()> + Send {
        self.finish(false)
    }

    #[track_caller]
    fn finish(self, commit: bool) -> impl Trying<()> + Send {
        self.meter.count(POSTGRES, Location::caller());
        async move {
            match self.connection {
                Connection::Session(_) => Ok(()),
                Connection::Transaction(transaction) if commit => Ok(transaction.commit().await?),
                Connection::Transaction(transaction) => Ok(transaction.rollback().await?),
            }
        }
    }
}
