//! Limits and used solutions in Redis. Each is one key, on a slot of its own.

use crate::domain::SaleId;
use crate::redis::keys::Keys;
use crate::redis::library::ask;
use redis::aio::ConnectionLike;
use redis::{RedisError, cmd};
use std::time::Duration;

/// A burst of requests, and one more after every interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub interval: Duration,
    pub burst: u32,
}

impl Quota {
    pub fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst }
    }
}

/// The result of a request against a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    pub allowed: bool,
    /// Requests that would be allowed now.
    pub left: u64,
    /// Until one is allowed, if this one was not.
    pub wait: Duration,
    /// Until the whole burst is allowed again.
    pub full: Duration,
}

fn micros(number: i64) -> Duration {
    Duration::from_micros(u64::try_from(number).unwrap_or(0))
}

/// See `library/limit.lua`. `key` is one of [`Keys::limit`].
pub async fn take(
    connection: &mut impl ConnectionLike,
    key: &str,
    quota: Quota,
) -> Result<Taken, RedisError> {
    let interval = u64::try_from(quota.interval.as_micros()).unwrap_or(u64::MAX);
    let (keys, args) = ([key.to_owned()], (interval, quota.burst));
    let (allowed, left, wait, full): (bool, i64, i64, i64) =
        ask(connection, "limit", &keys, args).await?;
    Ok(Taken {
        allowed,
        left: u64::try_from(left).unwrap_or(0),
        wait: micros(wait),
        full: micros(full),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spent {
    Now,
    /// Used before, with this mark.
    Before {
        mark: u64,
    },
}

/// Marks a solution as used for `memory`; `mark` identifies the purchase.
pub async fn spend(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    salt: &[u8],
    mark: u64,
    memory: Duration,
) -> Result<Spent, RedisError> {
    let key = keys.spent(sale, salt);
    let millis = u64::try_from(memory.as_millis()).unwrap_or(u64::MAX).max(1);
    let mut set = cmd("SET");
    set.arg(&key).arg(mark).arg("NX").arg("PX").arg(millis);
    let first: Option<String> = set.query_async(connection).await?;
    if first.is_some() {
        return Ok(Spent::Now);
    }
    // If the key has just expired, it counts as another purchase's.
    let before: Option<u64> = cmd("GET").arg(&key).query_async(connection).await?;
    Ok(Spent::Before { mark: before.unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::stub::{StubConnection, any_value};
    use proptest::prelude::*;
    use redis::Value;

    proptest! {
        #[test]
        fn any_reply_is_read_or_refused(reply in any_value(),
            numbers in prop::collection::vec(any::<i64>(), 0..6)) {
            let numbers = Value::Array(numbers.into_iter().map(Value::Int).collect());
            for reply in [reply, numbers] {
                let mut stub = StubConnection(reply);
                let (keys, sale) = (Keys::new(""), SaleId::from_i64(1));
                let quota = Quota { interval: Duration::from_millis(100), burst: 20 };
                futures_util::FutureExt::now_or_never(async {
                    let _ = take(&mut stub, "key", quota).await;
                    let _ = spend(&mut stub, &keys, sale, b"1", 7, Duration::from_secs(1)).await;
                });
            }
        }
    }
}
