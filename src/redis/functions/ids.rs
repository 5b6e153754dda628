//! `library/ids.lua`: ranges of order numbers.

use super::fenced::unexpected;
use crate::redis::keys::{IdLane, Keys};
use crate::redis::library::{Library, ask};
use redis::RedisError;
use redis::aio::ConnectionLike;
use time::Date;

/// The outcome of a lease. `second` is Unix seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leased {
    Block {
        second: i64,
        first: i64,
    },
    /// `second` lies on another day than the caller said.
    OtherDay {
        second: i64,
    },
    /// Redis has lost its floor or today's counter: Postgres has to give a new floor.
    FloorMissing {
        second: i64,
    },
}

/// See `lease_ids` in `library/ids.lua`.
pub async fn lease_ids(
    connection: &mut impl ConnectionLike,
    library: &Library,
    keys: &Keys,
    lane: IdLane,
    day: Date,
    count: u32,
) -> Result<Leased, RedisError> {
    let keys = [keys.id_clock(lane), keys.id_counter(lane, day)];
    let mut call = library.call("lease_ids", keys.len());
    call.arg(&keys).arg((midnight(day), count));
    let (outcome, second, first): (String, i64, i64) = library.run(&call, connection).await?;
    match outcome.as_str() {
        "ok" => Ok(Leased::Block { second, first }),
        "day" => Ok(Leased::OtherDay { second }),
        "floor" => Ok(Leased::FloorMissing { second }),
        other => Err(unexpected("outcome of lease_ids", other)),
    }
}

/// See `floor_ids` in `library/ids.lua`. `second` is Unix seconds on `day`.
pub async fn floor_ids(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    lane: IdLane,
    day: Date,
    second: i64,
) -> Result<(), RedisError> {
    let keys = [keys.id_clock(lane), keys.id_counter(lane, day)];
    let set = ask::<i64>(connection, "floor_ids", &keys, (second, midnight(day)));
    set.await.map(drop)
}

fn midnight(day: Date) -> i64 {
    day.midnight().assume_utc().unix_timestamp()
}
