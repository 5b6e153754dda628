//! One statement with its values in a tuple: `run(&pool, "UPDATE …", (a, b))`.

use sqlx::{
    Arguments, Encode, Error, FromRow, PgExecutor, Postgres, SqlSafeStr, Type,
    error::BoxDynError,
    postgres::{PgArguments, PgRow},
};

/// A tuple of values for `$1`, `$2`, …
pub trait Values: Send {
    fn bind(self) -> Result<PgArguments, BoxDynError>;
}

macro_rules! tuples {
    ($($name:ident)*) => {
        #[allow(non_snake_case)]
        impl<$($name),*> Values for ($($name,)*)
        where
            $($name: for<'q> Encode<'q, Postgres> + Type<Postgres> + Send,)*
        {
            fn bind(self) -> Result<PgArguments, BoxDynError> {
                let ($($name,)*) = self;
                #[allow(unused_mut)]
                let mut arguments = PgArguments::default();
                $(arguments.add($name)?;)*
                Ok(arguments)
            }
        }
    };
}

tuples!();
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);

/// Runs a statement; how many rows it touched.
pub async fn run<'e>(
    on: impl PgExecutor<'e>,
    sql: impl SqlSafeStr,
    values: impl Values,
) -> Result<u64, Error> {
    let values = values.bind().map_err(Error::Encode)?;
    Ok(sqlx::query_with(sql, values).execute(on).await?.rows_affected())
}

/// All rows of an answer.
pub async fn rows<'e, T>(
    on: impl PgExecutor<'e>,
    sql: impl SqlSafeStr,
    values: impl Values,
) -> Result<Vec<T>, Error>
where
    T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    let values = values.bind().map_err(Error::Encode)?;
    sqlx::query_as_with(sql, values).fetch_all(on).await
}

/// The row of an answer, if there is one.
pub async fn row<'e, T>(
    on: impl PgExecutor<'e>,
    sql: impl SqlSafeStr,
    values: impl Values,
) -> Result<Option<T>, Error>
where
    T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    let values = values.bind().map_err(Error::Encode)?;
    sqlx::query_as_with(sql, values).fetch_optional(on).await
}
