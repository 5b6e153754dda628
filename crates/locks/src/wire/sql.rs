//! Postgres, counted and watched like a `Line`: each statement is one round trip.

use super::tap::{Tap, Tapped};
use futures_util::TryStreamExt;
use sqlx::{Column, Either, Error, Executor, FromRow, PgConnection, PgPool, Row, postgres::PgRow};
use std::panic::Location;
use stores::{postgres::Transaction, sql::Values};

/// One client's pool.
pub type Sql = Tapped<PgPool>;

impl Sql {
    pub fn new(pool: PgPool) -> Self {
        Self::around(pool, |trips| &mut trips.postgres, "postgres")
    }

    /// A transaction, begun.
    #[track_caller]
    pub fn begin(&self) -> impl Future<Output = Result<SqlTransaction, Error>> + Send + '_ {
        let at = Location::caller();
        async move {
            let begun = Transaction::begin(&self.connection, "BEGIN");
            let transaction = self.tap.pass(at, word("BEGIN"), |_| word("BEGIN")(), begun).await?;
            Ok(SqlTransaction { transaction, tap: self.tap.clone(), hears: None })
        }
    }
}

/// A transaction. Dropping it unfinished closes its connection (see [`Transaction`]).
pub struct SqlTransaction {
    transaction: Transaction,
    tap: Tap,
    hears: Option<Hears>,
}

/// Told of every statement that fails.
type Hears = Box<dyn Fn(&Error) + Send + Sync>;

impl SqlTransaction {
    pub(crate) fn told_by(&mut self, hears: impl Fn(&Error) + Send + Sync + 'static) {
        self.hears = Some(Box::new(hears));
    }

    /// The connection itself: its requests are neither counted nor watched.
    pub fn unwatched(&mut self) -> &mut PgConnection {
        &mut self.transaction
    }

    #[track_caller]
    pub fn commit(self) -> impl Future<Output = Result<(), Error>> + Send {
        let at = Location::caller();
        let ending = self.transaction.commit();
        async move { self.tap.pass(at, word("COMMIT"), |_| word("COMMIT")(), ending).await }
    }

    #[track_caller]
    pub fn rollback(self) -> impl Future<Output = Result<(), Error>> + Send {
        let at = Location::caller();
        let ending = self.transaction.rollback();
        async move { self.tap.pass(at, word("ROLLBACK"), |_| word("ROLLBACK")(), ending).await }
    }
}

fn word(word: &'static str) -> impl Fn() -> String + Send {
    move || word.to_owned()
}

macro_rules! statements {
    ($of:ty, $self:ident: $receiver:ty, $connection:expr, $told:expr) => {
        impl $of {
            /// A single statement; answers how many rows it touched.
            #[track_caller]
            pub fn run<'a>(
                $self: $receiver,
                sql: &'static str,
                values: impl Values + 'a,
            ) -> impl Future<Output = Result<u64, Error>> + Send + 'a {
                let at = Location::caller();
                async move {
                    let result = statement(&$self.tap, at, $connection, sql, values).await;
                    Ok(result.inspect_err($told)?.0)
                }
            }

            /// A single statement; answers its first row. `T` is a tuple, or derives `FromRow`.
            #[track_caller]
            pub fn row<'a, T: for<'r> FromRow<'r, PgRow> + Send>(
                $self: $receiver,
                sql: &'static str,
                values: impl Values + 'a,
            ) -> impl Future<Output = Result<Option<T>, Error>> + Send + 'a {
                let at = Location::caller();
                async move {
                    let result = statement(&$self.tap, at, $connection, sql, values).await;
                    let row = result.inspect_err($told)?.1;
                    row.map(|row| T::from_row(&row)).transpose()
                }
            }
        }
    };
}

statements!(Sql, self: &'a Self, &mut *self.connection.acquire().await?, |_| ());
statements!(SqlTransaction, self: &'a mut Self, &mut self.transaction, |error| {
    self.hears.iter().for_each(|hears| hears(error));
});

/// How many rows it touched, and the first that it answers.
async fn statement(
    tap: &Tap,
    at: &'static Location<'static>,
    connection: &mut PgConnection,
    sql: &'static str,
    values: impl Values,
) -> Result<(u64, Option<PgRow>), Error> {
    let query = sqlx::query_with(sql, values.bind().map_err(Error::Encode)?);
    let request = async {
        let (mut touched, mut first) = (0, None);
        let mut results = connection.fetch_many(query);
        while let Some(result) = results.try_next().await? {
            match result {
                Either::Left(done) => touched += done.rows_affected(),
                Either::Right(row) => drop(first.get_or_insert(row)),
            }
        }
        Ok((touched, first))
    };
    let text = || sql.split_whitespace().collect::<Vec<_>>().join(" ");
    let show = |result: &(u64, Option<PgRow>)| match result {
        (_, Some(row)) => shown(row),
        (0, None) => "no row".to_owned(),
        (touched, None) => format!("{touched} row(s)"),
    };
    tap.pass(at, text, show, request).await
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
