//! `library/orders.lua`: acknowledging log entries, releasing units, reading a record.

use super::fenced::Fenced;
use super::record::{self, Held};
use crate::domain::{OrderId, SaleId, UserId};
use crate::redis::keys::Keys;
use crate::redis::library::{LIBRARY, ask};
use redis::aio::ConnectionLike;
use redis::{Cmd, RedisError, Value};

/// Entries of one log whose orders are rows, with the number of orders in each. All are of `epoch`.
#[derive(Debug)]
pub struct Settled<'a> {
    pub sale: SaleId,
    pub epoch: i64,
    pub entries: Vec<(&'a str, usize)>,
}

/// See `ack` in `library/orders.lua`. The reply is how many orders still wait in the log.
pub fn ack(keys: &Keys, log: &Settled<'_>) -> Cmd {
    let mut call = LIBRARY.call("ack", 2);
    let keys = [keys.state(log.sale), keys.log(log.sale)];
    call.arg(&keys).arg(log.epoch).arg(&log.entries);
    call
}

/// The result of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    pub remaining: i64,
    pub revision: i64,
    /// How many of the orders had not been returned before.
    pub returned: i64,
}

/// See `release` in `library/orders.lua`.
pub async fn release(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    epoch: i64,
    orders: &[(UserId, OrderId)],
) -> Result<Result<Released, Fenced>, RedisError> {
    let mut packed = Vec::with_capacity(24 * orders.len());
    for (user, order) in orders {
        packed.extend_from_slice(user.as_bytes());
        packed.extend_from_slice(&order.get().to_be_bytes());
    }
    let keys = [keys.state(sale), keys.buyers(sale, epoch)];
    let (outcome, remaining, revision, returned): (String, i64, i64, i64) =
        ask(connection, "release", &keys, (epoch, packed)).await?;
    if outcome != "ok" {
        return Fenced::parse(&outcome).map(Err);
    }
    Ok(Ok(Released { remaining, revision, returned }))
}

/// Asks for the record of a user in a sale; [`read_record`] reads the reply.
pub fn ask_record(keys: &Keys, sale: SaleId, epoch: i64, user: UserId) -> Cmd {
    let mut call = LIBRARY.call_read_only("record", 2);
    let keys = [keys.state(sale), keys.buyers(sale, epoch)];
    call.arg(&keys).arg(epoch).arg(&user.as_bytes()[..]);
    call
}

/// The user's orders; `None` if this Redis is not approved or has another epoch. Accepts any reply.
pub fn read_record(reply: Value) -> Option<Vec<Held>> {
    let (outcome, record): (String, Option<Vec<u8>>) = redis::from_redis_value(reply).ok()?;
    (outcome == "ok").then(|| record::decode(&record.unwrap_or_default()).collect())
}
