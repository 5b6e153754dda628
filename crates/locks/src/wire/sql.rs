//! Postgres, counted and watched like a `Line`: each statement is one round trip.

use super::tap::{Tap, Tapped};
use crate::asking::Asking;
use futures_util::{FutureExt, TryFutureExt, TryStreamExt};
use sqlx::postgres::PgRow;
use sqlx::{Column, Either, Error, FromRow, PgConnection, PgExecutor, PgPool, Row};
use stores::{postgres::Transaction, sql::Values};

/// One client's pool.
pub type Sql = Tapped<PgPool>;

impl Sql {
    pub fn new(pool: PgPool) -> Self {
        Self::around(pool, |trips| &mut trips.postgres, "postgres")
    }

    /// A transaction, begun.
    #[track_caller]
    pub fn begin(&self) -> impl Asking<SqlTransaction, Error> {
        let beginning = Transaction::begin(&self.connection, "BEGIN");
        let begun = Tap::pass(&self.tap, || "BEGIN".into(), |_| "BEGIN".into(), beginning);
        begun.map_ok(|begun| SqlTransaction { begun, tap: self.tap.clone(), hears: None })
    }
}

/// A transaction. Dropping it unfinished closes its connection (see [`Transaction`]).
pub struct SqlTransaction {
    begun: Transaction,
    tap: Tap,
    /// Is told of every statement that fails.
    pub(crate) hears: Option<Hears>,
}

type Hears = Box<dyn Fn(&Error) + Send + Sync>;

impl SqlTransaction {
    /// The connection itself: its requests are neither counted nor watched.
    pub fn unwatched(&mut self) -> &mut PgConnection {
        &mut self.begun
    }

    #[track_caller]
    pub fn commit(self) -> impl Asking<(), Error> {
        Tap::pass(self.tap, || "COMMIT".into(), |()| "COMMIT".into(), self.begun.commit())
    }

    #[track_caller]
    pub fn rollback(self) -> impl Asking<(), Error> {
        Tap::pass(self.tap, || "ROLLBACK".into(), |()| "ROLLBACK".into(), self.begun.rollback())
    }
}

macro_rules! statements {
    ($of:ty, $self:ident: $receiver:ty, $on:expr, $told:expr) => {
        impl $of {
            /// A single statement; answers how many rows it touched.
            #[track_caller]
            pub fn run(
                $self: $receiver,
                sql: &'static str,
                values: impl Values,
            ) -> impl Asking<u64, Error> {
                let done = statement(&$self.tap, $on, sql, values);
                done.inspect_err($told).map_ok(|(touched, _)| touched)
            }

            /// A single statement; answers its first row. `T` is a tuple, or derives `FromRow`.
            #[track_caller]
            pub fn row<T: for<'r> FromRow<'r, PgRow>>(
                $self: $receiver,
                sql: &'static str,
                values: impl Values,
            ) -> impl Asking<Option<T>, Error> {
                let done = statement(&$self.tap, $on, sql, values);
                let decoded = |row: PgRow| T::from_row(&row);
                done.inspect_err($told).map(move |done| done?.1.map(decoded).transpose())
            }
        }
    };
}

statements!(Sql, self: &Self, &self.connection, |_| ());
statements!(SqlTransaction, self: &mut Self, &mut *self.begun, |error| {
    self.hears.iter().for_each(|hears| hears(error));
});

/// How many rows it touched, and the first that it answers.
type Done = (u64, Option<PgRow>);

#[track_caller]
fn statement<'a>(
    tap: &Tap,
    on: impl PgExecutor<'a>,
    sql: &'static str,
    values: impl Values,
) -> impl Asking<Done, Error> {
    let request = async move {
        let query = sqlx::query_with(sql, values.bind().map_err(Error::Encode)?);
        let (mut touched, mut first) = (0, None);
        let mut results = on.fetch_many(query);
        while let Some(result) = results.try_next().await? {
            match result {
                Either::Left(done) => touched += done.rows_affected(),
                Either::Right(row) => drop(first.get_or_insert(row)),
            }
        }
        Ok((touched, first))
    };
    let text = || sql.split_whitespace().collect::<Vec<_>>().join(" ");
    let show = |done: &Done| match done {
        (_, Some(row)) => shown(row),
        (0, None) => "no row".to_owned(),
        (touched, None) => format!("{touched} row(s)"),
    };
    Tap::pass(tap, text, show, request)
}

/// `stock → 1`.
fn shown(row: &PgRow) -> String {
    let value = |at: usize| {
        let number = row.try_get(at).or_else(|_| row.try_get::<i32, _>(at).map(i64::from));
        let number = number.map(|number: i64| number.to_string());
        let word = number.or_else(|_| row.try_get::<bool, _>(at).map(|yes| yes.to_string()));
        word.or_else(|_| row.try_get(at)).unwrap_or_default()
    };
    let columns =
        row.columns().iter().map(|one| format!("{} → {}", one.name(), value(one.ordinal())));
    columns.collect::<Vec<_>>().join(", ")
}
