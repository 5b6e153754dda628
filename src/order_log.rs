//! The order log of a sale: a Redis stream with an entry for every batch that had winners.
//!
//! The admission function appends an entry in the same atomic step that takes the stock; it is
//! deleted after its orders are committed in Postgres. In between it is the only durable copy.
//! Fields: `m` = "epoch created_ms own_writer", `o` = the orders, 33 bytes each: user (16), order
//! id (8), idempotency key (8), slot (1).
//!
//! After a crash, a recovery pass of any instance writes the entries.

use crate::domain::{IdempotencyKey, OrderId, SaleId, UserId};
use crate::redis::Keys;
use crate::telemetry::traces::Traced;
use redis::RedisError;
use redis::aio::ConnectionLike;
use redis::streams::StreamRangeReply;

const ORDER_LEN: usize = 33;

/// An order that Redis has accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedOrder {
    pub id: OrderId,
    pub user: UserId,
    /// Index, from 0, among the user's `per_user_limit` places.
    pub slot: u8,
    pub key: Option<IdempotencyKey>,
}

/// The orders of one log entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedBatch {
    pub sale: SaleId,
    pub epoch: i64,
    /// The stream id, for the acknowledgement. Empty if the reply that named it was lost: a
    /// recovery pass finds the entry.
    pub entry: String,
    /// Redis time of the admission, Unix ms.
    pub created_ms: i64,
    /// Whether the instance that accepted it also writes it; otherwise any worker may.
    pub own_writer: bool,
    pub orders: Vec<AcceptedOrder>,
    /// Orders of traced requests; not in the log.
    pub traced: Vec<Traced>,
}

/// An entry that could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("log entry {entry} of sale {sale} cannot be read: {why}")]
pub struct Unreadable {
    pub sale: SaleId,
    pub entry: String,
    pub why: &'static str,
}

impl AcceptedBatch {
    /// The entry's two fields, as `admit.lua` writes them.
    fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        let own_writer = u8::from(self.own_writer);
        let meta = format!("{} {} {own_writer}", self.epoch, self.created_ms);
        let mut orders = Vec::with_capacity(self.orders.len() * ORDER_LEN);
        for order in &self.orders {
            orders.extend_from_slice(order.user.as_bytes());
            orders.extend_from_slice(&order.id.get().to_be_bytes());
            let key = order.key.map_or(0, IdempotencyKey::get);
            orders.extend_from_slice(&key.to_be_bytes());
            orders.push(order.slot);
        }
        (meta.into_bytes(), orders)
    }

    /// Reads an entry's two fields. Accepts any bytes.
    pub fn decode(
        sale: SaleId,
        entry: &str,
        meta: &[u8],
        orders: &[u8],
    ) -> Result<Self, Unreadable> {
        let unreadable = |why| Unreadable { sale, entry: entry.to_owned(), why };
        let meta = std::str::from_utf8(meta).map_err(|_| unreadable("its header is not text"))?;
        let mut parts = meta.split(' ').map(str::parse::<i64>);
        let (Some(Ok(epoch)), Some(Ok(created_ms)), Some(Ok(own @ (0 | 1))), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(unreadable("its header is not three numbers"));
        };
        if orders.is_empty() || !orders.len().is_multiple_of(ORDER_LEN) {
            return Err(unreadable("its orders are not 33 bytes each"));
        }
        let orders = orders.chunks_exact(ORDER_LEN).map(|order| {
            let number = |bytes: &[u8]| {
                let bytes = bytes.iter();
                bytes.fold(0, |number, byte| (number << 8) | i64::from(*byte))
            };
            let mut user = [0; 16];
            user.copy_from_slice(&order[..16]);
            let key = number(&order[24..32]);
            AcceptedOrder {
                id: OrderId::from_i64(number(&order[16..24])),
                user: UserId::from_bytes(user),
                slot: order[32],
                key: (key != 0).then(|| IdempotencyKey::from_i64(key)),
            }
        });
        Ok(Self {
            sale,
            epoch,
            entry: entry.to_owned(),
            created_ms,
            own_writer: own == 1,
            orders: orders.collect(),
            traced: Vec::new(),
        })
    }
}

/// Reads up to `count` entries of a sale's log after `after` (empty: from the start), oldest first.
pub async fn read(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    after: &str,
    count: usize,
) -> Result<Vec<Result<AcceptedBatch, Unreadable>>, RedisError> {
    let start = match after {
        "" => "-".to_owned(),
        after => format!("({after}"),
    };
    let range = range(keys, sale, &start, count);
    let reply: StreamRangeReply = range.query_async(connection).await?;
    Ok(entries(sale, &reply).collect())
}

/// Asks for the oldest entry of a log; [`read_oldest`] reads the reply.
pub fn ask_oldest(keys: &Keys, sale: SaleId) -> redis::Cmd {
    range(keys, sale, "-", 1)
}

/// The oldest entry, if there is one.
pub fn read_oldest(
    sale: SaleId,
    reply: redis::Value,
) -> Result<Option<Result<AcceptedBatch, Unreadable>>, RedisError> {
    let reply: StreamRangeReply = redis::from_redis_value(reply)?;
    Ok(entries(sale, &reply).next())
}

fn range(keys: &Keys, sale: SaleId, start: &str, count: usize) -> redis::Cmd {
    let mut command = redis::cmd("XRANGE");
    command.arg(keys.log(sale)).arg((start, "+"));
    command.arg("COUNT").arg(count);
    command
}

fn entries(
    sale: SaleId,
    reply: &StreamRangeReply,
) -> impl Iterator<Item = Result<AcceptedBatch, Unreadable>> {
    let field = |entry: &redis::streams::StreamId, name: &str| {
        entry.get::<Vec<u8>>(name).unwrap_or_default()
    };
    reply.ids.iter().map(move |entry| {
        AcceptedBatch::decode(sale, &entry.id, &field(entry, "m"), &field(entry, "o"))
    })
}

/// Whether the key holds a stream or nothing.
pub async fn is_log(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
) -> Result<bool, RedisError> {
    let kind = redis::cmd("TYPE").arg(keys.log(sale)).to_owned();
    let kind: String = kind.query_async(connection).await?;
    Ok(matches!(kind.as_str(), "none" | "stream"))
}

/// Copies orders that cannot be written to the dead letters, whose key it returns. The caller still
/// acknowledges the log entry.
pub async fn dead_letter(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    batch: &AcceptedBatch,
) -> Result<String, RedisError> {
    let aside = keys.unwritable_log(batch.sale, batch.epoch);
    let (meta, orders) = batch.encode();
    let entry = [aside.as_bytes(), b"*", b"m", &meta, b"o", &orders];
    let add = redis::cmd("XADD").arg(&entry).to_owned();
    add.exec_async(connection).await?;
    Ok(aside)
}

/// Renames a log that cannot be read any further, and returns its new key.
pub async fn quarantine(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    epoch: i64,
) -> Result<String, RedisError> {
    let aside = keys.unreadable_log(sale, epoch);
    let rename = redis::cmd("RENAME").arg((keys.log(sale), &aside)).to_owned();
    rename.exec_async(connection).await?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::stub::{StubConnection, any_value};
    use futures_util::FutureExt;
    use proptest::prelude::*;
    use redis::Value;

    proptest! {
        #[test]
        fn any_entry_is_read_or_refused_without_a_panic(meta: Vec<u8>, orders: Vec<u8>) {
            let sale = SaleId::from_i64(1);
            if let Ok(batch) = AcceptedBatch::decode(sale, "1-1", &meta, &orders) {
                prop_assert_eq!(batch.orders.len() * ORDER_LEN, orders.len());
            }
        }

        #[test]
        fn a_well_formed_entry_is_read(epoch in 1i64.., ms in 0i64.., own: bool, user: [u8; 16],
            id in 1..=i64::MAX, key: i64, slot in 0u8..100) {
            let mut order = user.to_vec();
            order.extend(id.to_be_bytes());
            order.extend(key.to_be_bytes());
            order.push(slot);
            let meta = format!("{epoch} {ms} {}", u8::from(own));
            let batch = AcceptedBatch::decode(SaleId::from_i64(1), "1-1", meta.as_bytes(),
                &order).expect("well-formed");
            let expected = AcceptedOrder {
                id: OrderId::from_i64(id),
                user: UserId::from_bytes(user),
                slot,
                key: (key != 0).then(|| IdempotencyKey::from_i64(key)),
            };
            prop_assert_eq!((batch.epoch, batch.created_ms, batch.own_writer), (epoch, ms, own));
            prop_assert_eq!(batch.orders, vec![expected]);
        }
    }

    proptest! {
        /// Another value in the stream's place.
        #[test]
        fn any_reply_is_a_list_of_entries_or_an_error(reply in any_value()) {
            let sale = SaleId::from_i64(1);
            let found = read(&mut StubConnection(reply), &Keys::new(""), sale, "",
                10).now_or_never();
            prop_assert!(found.is_some());
        }

        /// A real stream's reply, with anything in its fields.
        #[test]
        fn any_fields_are_read_or_named(fields in prop::collection::vec(("m|o|[a-z]{0,3}",
            any::<Vec<u8>>()), 0..4)) {
            let bulk = |bytes: &[u8]| Value::BulkString(bytes.to_vec());
            let fields = fields.iter().flat_map(|(name, value)| [bulk(name.as_bytes()),
                bulk(value)]);
            let entry = Value::Array(vec![bulk(b"7-1"), Value::Array(fields.collect())]);
            let found = read(&mut StubConnection(Value::Array(vec![entry])), &Keys::new(""),
                SaleId::from_i64(1), "", 10).now_or_never();
            for entry in found.expect("it waits for nothing")? {
                match entry {
                    Ok(batch) => prop_assert_eq!(batch.entry, "7-1"),
                    Err(unreadable) => prop_assert_eq!(unreadable.entry, "7-1"),
                }
            }
        }
    }
}
