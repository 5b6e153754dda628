//! Loans between the buckets of a sale: `scripts/lend.lua`, `receive.lua` and `settle.lua`, with their typed
//! wrappers, and what a bucket's state says of them.
//!
//! Units are taken before they are given, so they can be on their way, but never in two places:
//! at every instant the stock is what remains in all buckets, plus the live orders, plus what is on its way.

use super::{
    Keys,
    scripts::{Fenced, Lua, evalsha, run},
};
use crate::domain::Bucket;
use redis::{RedisError, aio::ConnectionLike};
use std::{collections::HashMap, sync::LazyLock};

static LEND: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("scripts/lend.lua")));
static RECEIVE: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("scripts/receive.lua")));
static SETTLE: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("scripts/settle.lua")));

/// What a bucket has after one step of a loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub remaining: i64,
    pub change: i64,
    /// Units that are on their way to other buckets.
    pub lent: i64,
}

/// A loan between two buckets, which it does not name: `number` counts the loans of this pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loan {
    pub number: i64,
    pub amount: i64,
}

/// The outcome of asking a bucket for units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lent {
    /// Taken out of the lender now.
    Taken(Loan, Left),
    /// Taken out earlier, and not yet settled.
    Open(Loan, Left),
    Dry(Left),
}

/// See `scripts/lend.lua`.
pub async fn lend(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    lender: Bucket,
    epoch: i64,
    borrower: u16,
    wanted: i64,
) -> Result<Result<Lent, Fenced>, RedisError> {
    let mut command = evalsha(&LEND, 1);
    command
        .arg(keys.state(lender))
        .arg(epoch)
        .arg(borrower)
        .arg(wanted);
    let (outcome, number, amount, remaining, change, lent): (String, i64, i64, i64, i64, i64) =
        run(&LEND, &command, connection).await?;
    let loan = Loan { number, amount };
    let left = Left {
        remaining,
        change,
        lent,
    };
    Ok(Ok(match outcome.as_str() {
        "ok" => Lent::Taken(loan, left),
        "open" => Lent::Open(loan, left),
        "dry" => Lent::Dry(left),
        other => return Fenced::parse(other).map(Err),
    }))
}

/// outcome, remaining, change, lent
type StepReply = (String, i64, i64, i64);

/// See `scripts/receive.lua`. The flag says whether it was received just now.
pub async fn receive(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    borrower: Bucket,
    epoch: i64,
    lender: u16,
    loan: Loan,
) -> Result<Result<(bool, Left), Fenced>, RedisError> {
    let mut command = evalsha(&RECEIVE, 1);
    command
        .arg(keys.state(borrower))
        .arg(epoch)
        .arg(lender)
        .arg(loan.number)
        .arg(loan.amount);
    let (outcome, remaining, change, lent): StepReply = run(&RECEIVE, &command, connection).await?;
    let left = Left {
        remaining,
        change,
        lent,
    };
    match outcome.as_str() {
        "ok" => Ok(Ok((true, left))),
        "before" => Ok(Ok((false, left))),
        other => Fenced::parse(other).map(Err),
    }
}

/// See `scripts/settle.lua`.
pub async fn settle(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    lender: Bucket,
    epoch: i64,
    borrower: u16,
    number: i64,
) -> Result<Result<Left, Fenced>, RedisError> {
    let mut command = evalsha(&SETTLE, 1);
    command
        .arg(keys.state(lender))
        .arg(epoch)
        .arg(borrower)
        .arg(number);
    let (outcome, remaining, change, lent): StepReply = run(&SETTLE, &command, connection).await?;
    if outcome != "ok" {
        return Fenced::parse(&outcome).map(Err);
    }
    Ok(Ok(Left {
        remaining,
        change,
        lent,
    }))
}

/// A planted bug: units that nobody has lent, or that were received already.
pub async fn invent(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    bucket: Bucket,
    amount: i64,
) -> Result<(), RedisError> {
    redis::pipe()
        .atomic()
        .hincr(keys.state(bucket), "remaining", amount)
        .ignore()
        .hincr(keys.state(bucket), "change", 1)
        .ignore()
        .exec_async(connection)
        .await
}

/// What one bucket's state says of its loans.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Books {
    /// Loans to other buckets that are not settled, by the borrower's index.
    pub open: HashMap<u16, Loan>,
    /// The last loan received from each bucket, by the lender's index.
    pub received: HashMap<u16, i64>,
}

impl Books {
    /// Reads them out of all fields of a bucket's state. Total over any fields; what cannot be read is left out.
    pub fn read(fields: &HashMap<String, Vec<u8>>) -> Self {
        let mut books = Self::default();
        for (name, value) in fields {
            let Ok(value) = std::str::from_utf8(value) else {
                continue;
            };
            if let Some(borrower) = name.strip_prefix("loan:").and_then(|at| at.parse().ok()) {
                let Some((Ok(number), Ok(amount))) = value
                    .split_once(' ')
                    .map(|(number, amount)| (number.parse(), amount.parse()))
                else {
                    continue;
                };
                if amount > 0 {
                    books.open.insert(borrower, Loan { number, amount });
                }
            } else if let Some(lender) = name.strip_prefix("got:").and_then(|at| at.parse().ok())
                && let Ok(number) = value.parse()
            {
                books.received.insert(lender, number);
            }
        }
        books
    }
}

/// The books of a bucket as they are now.
pub async fn read(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    bucket: Bucket,
) -> Result<Books, RedisError> {
    let fields: HashMap<String, Vec<u8>> = redis::cmd("HGETALL")
        .arg(keys.state(bucket))
        .query_async(connection)
        .await?;
    Ok(Books::read(&fields))
}

/// How many units are in no bucket at this moment: taken out of their lender, and not yet received.
pub fn in_flight(books: &[Books]) -> i64 {
    let mut units = 0;
    for (lender, from) in books.iter().enumerate() {
        for (borrower, loan) in &from.open {
            let received = books
                .get(usize::from(*borrower))
                .and_then(|to| to.received.get(&(lender as u16)))
                .copied()
                .unwrap_or(0);
            if received < loan.number {
                units += loan.amount;
            }
        }
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::SaleId,
        redis::parrot::{Parrot, any_reply, any_value},
    };
    use futures_util::FutureExt;
    use proptest::prelude::*;

    async fn ask_everything(reply: redis::Value) {
        let (redis, keys) = (&mut Parrot(reply), Keys::new(""));
        let bucket = Bucket::from(SaleId::from_i64(1));
        let loan = Loan {
            number: 1,
            amount: 1,
        };
        let _ = lend(redis, &keys, bucket, 1, 1, 1).await;
        let _ = receive(redis, &keys, bucket, 1, 1, loan).await;
        let _ = settle(redis, &keys, bucket, 1, 1, 1).await;
        let _ = read(redis, &keys, bucket).await;
    }

    proptest! {
        #[test]
        fn any_reply_to_any_step_is_read_or_an_error(reply in prop_oneof![any_value(), any_reply()]) {
            prop_assert!(ask_everything(reply).now_or_never().is_some());
        }

        #[test]
        fn any_fields_are_books(fields in prop::collection::hash_map("(loan:|got:)?.{0,5}", any::<Vec<u8>>(), 0..6)) {
            Books::read(&fields);
        }
    }

    #[test]
    fn a_loan_is_in_flight_until_it_is_received() {
        let books = |fields: &[(&str, &str)]| {
            let fields = fields.iter();
            Books::read(
                &fields
                    .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                    .collect(),
            )
        };
        let lender = books(&[("loan:1", "3 5"), ("loan:2", "9 0"), ("remaining", "4")]);
        assert_eq!(in_flight(&[lender.clone(), books(&[("got:0", "2")])]), 5);
        assert_eq!(in_flight(&[lender.clone(), books(&[])]), 5);
        assert_eq!(in_flight(&[lender, books(&[("got:0", "3")])]), 0);
    }
}
