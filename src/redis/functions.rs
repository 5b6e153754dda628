//! A typed wrapper for every function of the library that a sale needs; those of the waiting room and of
//! the defence against bots stand with them (`room/functions.rs`, `bots/functions.rs`).
//!
//! A wrapper knows the function's KEYS, ARGV and reply; nobody else does.

use super::{
    keys::{IdLane, Keys},
    library::{LIBRARY, ask},
};
use crate::domain::{IdempotencyKey, OrderId, Sale, SaleId, UserId};
use redis::{Cmd, ErrorKind, RedisError, ToRedisArgs, Value, aio::ConnectionLike};
use std::sync::Arc;
use time::{Date, OffsetDateTime};

pub fn unexpected(what: &'static str, got: &str) -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, what, got.to_owned()))
}

/// Why a function would not act on a sale: its Redis state is not what the caller thinks it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fenced {
    /// No state: never installed, sealed for a rebuild, or lost.
    Absent,
    /// Another epoch is live.
    Epoch,
    /// This process of Redis was not approved for the sale: it was restarted or promoted since.
    NotApproved,
    /// A key of the sale has a type or a value that the program never writes.
    Corrupt,
}

impl Fenced {
    pub(super) fn parse(outcome: &str) -> Result<Self, RedisError> {
        match outcome {
            "absent" => Ok(Self::Absent),
            "epoch" => Ok(Self::Epoch),
            "not_approved" => Ok(Self::NotApproved),
            "corrupt" => Ok(Self::Corrupt),
            other => Err(unexpected("outcome of a function", other)),
        }
    }
}

/// One buyer as the admission script sees them. `order_id` is what the order will be called if it
/// is accepted; the same one again is the same attempt.
#[derive(Debug, Clone, Copy)]
pub struct Buyer {
    pub user: UserId,
    pub order_id: OrderId,
    pub key: Option<IdempotencyKey>,
}

impl Buyer {
    fn encode(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(self.user.as_bytes());
        bytes[16..24].copy_from_slice(&self.order_id.get().to_be_bytes());
        bytes[24..].copy_from_slice(&self.key.map_or(0, IdempotencyKey::get).to_be_bytes());
        bytes
    }
}

/// The script's word on one buyer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// `slot` is which of the user's `per_user_limit` places the order takes, from 0.
    Accepted {
        slot: u8,
    },
    /// An earlier run of this same attempt had been accepted (its reply was lost). `None`: its unit
    /// was returned since.
    AcceptedBefore {
        slot: Option<u8>,
    },
    Replay(OrderId),
    AlreadyOrdered(OrderId),
    SoldOut,
    NotOpen,
    Paused,
    Ended,
    /// Too many orders wait to be written; no unit was taken.
    BacklogFull,
}

/// What one admission call found and did.
#[derive(Debug)]
pub struct Admitted {
    /// Redis time in Unix milliseconds.
    pub now_ms: i64,
    pub remaining: i64,
    /// Orders admitted in this epoch, ever.
    pub admitted: i64,
    /// Grows with every change of this sale's state; orders two readings.
    pub change: i64,
    /// The log entry that holds the accepted orders of this batch; `None` if there are none.
    pub entry: Option<String>,
    /// One per buyer, in order.
    pub verdicts: Vec<Verdict>,
}

/// How an admission call treats its buyers.
#[derive(Debug, Clone, Copy)]
pub struct AdmitOptions {
    /// The most orders that may wait in the log.
    pub high_water: i64,
    /// This instance writes what it accepts; otherwise any worker may pick it up at once.
    pub own_writer: bool,
    /// The buyers were accepted under an older epoch, at this time (Unix ms): the window was
    /// checked then.
    pub readmitted: Option<i64>,
}

/// outcome, time in ms, remaining, admitted, change, stream id, verdicts, ids, slots
type AdmitReply = (
    String,
    i64,
    i64,
    i64,
    i64,
    String,
    Vec<u8>,
    Vec<u8>,
    Vec<u8>,
);

/// See `library/admit.lua`.
pub async fn admit(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    epoch: i64,
    options: AdmitOptions,
    buyers: &[Buyer],
) -> Result<Result<Admitted, Fenced>, RedisError> {
    let packed: Vec<u8> = buyers.iter().flat_map(Buyer::encode).collect();
    let keys = [keys.state(sale), keys.log(sale), keys.buyers(sale, epoch)];
    let (high_water, own_writer) = (options.high_water, u8::from(options.own_writer));
    let readmitted = options.readmitted.unwrap_or(0);
    let args = (epoch, high_water, own_writer, readmitted, packed);
    let (outcome, now_ms, remaining, admitted, change, entry, letters, ids, slots): AdmitReply =
        ask(connection, "admit", &keys, args).await?;
    if outcome != "ok" {
        return Fenced::parse(&outcome).map(Err);
    }
    Ok(Ok(Admitted {
        now_ms,
        remaining,
        admitted,
        change,
        entry: (!entry.is_empty()).then_some(entry),
        verdicts: decode_verdicts(&letters, &ids, &slots, buyers.len())?,
    }))
}

/// Pairs the letters of the reply with its ids and slots. Total over any bytes.
fn decode_verdicts(
    letters: &[u8],
    ids: &[u8],
    slots: &[u8],
    expected: usize,
) -> Result<Vec<Verdict>, RedisError> {
    let mut ids = ids.chunks_exact(8).map(|id| {
        OrderId::from_i64(
            id.iter()
                .fold(0, |number, byte| (number << 8) | i64::from(*byte)),
        )
    });
    let mut slots = slots.iter();
    let mut slot = || {
        slots
            .next()
            .copied()
            .ok_or_else(|| unexpected("admit: fewer slots than accepted", ""))
    };
    let mut id = || {
        ids.next()
            .ok_or_else(|| unexpected("admit: fewer ids than verdicts need", ""))
    };
    if letters.len() != expected {
        return Err(unexpected(
            "admit: another number of verdicts than buyers",
            &letters.len().to_string(),
        ));
    }
    letters
        .iter()
        .map(|letter| {
            Ok(match letter {
                b'A' => Verdict::Accepted { slot: slot()? },
                b'a' => Verdict::AcceptedBefore {
                    slot: Some(slot()?).filter(|slot| slot & record::RETURNED == 0),
                },
                b'R' => Verdict::Replay(id()?),
                b'D' => Verdict::AlreadyOrdered(id()?),
                b'S' => Verdict::SoldOut,
                b'N' => Verdict::NotOpen,
                b'P' => Verdict::Paused,
                b'E' => Verdict::Ended,
                b'B' => Verdict::BacklogFull,
                other => return Err(unexpected("admit: unknown verdict", &other.to_string())),
            })
        })
        .collect()
}

/// Entries of one log whose orders are rows: for each its id, and how many orders it holds. All
/// were written in `epoch`.
#[derive(Debug)]
pub struct Settled<'a> {
    pub sale: SaleId,
    pub epoch: i64,
    pub entries: Vec<(&'a str, usize)>,
}

/// The acknowledgement of one log; see `ack` in `library/orders.lua`. The reply is how many orders
/// still wait in it.
pub fn ack(keys: &Keys, log: &Settled<'_>) -> Cmd {
    let mut call = LIBRARY.call("ack", 2);
    call.arg(keys.state(log.sale))
        .arg(keys.log(log.sale))
        .arg(log.epoch);
    for (entry, orders) in &log.entries {
        call.arg(entry).arg(orders);
    }
    call
}

/// What is left after units were returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    pub remaining: i64,
    pub change: i64,
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
    let (outcome, remaining, change, returned): (String, i64, i64, i64) =
        ask(connection, "release", &keys, (epoch, packed)).await?;
    if outcome != "ok" {
        return Fenced::parse(&outcome).map(Err);
    }
    Ok(Ok(Released {
        remaining,
        change,
        returned,
    }))
}

/// The outcome of bringing an operator's change to Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionApplied {
    Applied,
    /// Redis has this version, or a newer one.
    Unchanged,
    /// The change takes away more units than remain; nothing was applied.
    Short {
        remaining: i64,
    },
    Fenced(Fenced),
}

pub fn milliseconds(time: OffsetDateTime) -> i64 {
    i64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

/// When the sale ends as Redis judges it: a closed sale has ended always.
fn closes_ms(sale: &Sale) -> i64 {
    if sale.closed {
        0
    } else {
        milliseconds(sale.closes_at)
    }
}

/// See `apply_version` in `library/sale.lua`.
pub async fn apply_version(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: &Sale,
) -> Result<VersionApplied, RedisError> {
    let (keys, args) = ([keys.state(sale.id)], terms(sale));
    let (outcome, remaining): (String, i64) = ask(connection, "apply_version", &keys, args).await?;
    Ok(match outcome.as_str() {
        "ok" => VersionApplied::Applied,
        "unchanged" => VersionApplied::Unchanged,
        "short" => VersionApplied::Short { remaining },
        other => VersionApplied::Fenced(Fenced::parse(other)?),
    })
}

/// What an operator says of a sale, as `apply_version` and `install` take it.
fn terms(sale: &Sale) -> impl ToRedisArgs {
    let paused = i64::from(sale.paused);
    let (stock, limit) = (i64::from(sale.stock), i64::from(sale.per_user_limit));
    let (opens, closes) = (milliseconds(sale.opens_at), closes_ms(sale));
    (
        sale.epoch,
        sale.version,
        stock,
        opens,
        closes,
        paused,
        limit,
    )
}

/// What a seal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// What was live before; 0 if nothing was.
    pub epoch: i64,
    /// Over how many hashes its buyers were spread; 0 if that was one.
    pub shards: i32,
}

/// The outcome of ending a sale's older epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sealed {
    Ended(Ended),
    /// This epoch or a later one is live or being built.
    Newer {
        epoch: i64,
    },
}

/// See `seal` in `library/sale.lua`.
pub async fn seal(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    new_epoch: i64,
) -> Result<Sealed, RedisError> {
    let (outcome, epoch, shards): (String, i64, i32) =
        ask(connection, "seal", &[keys.state(sale)], new_epoch).await?;
    match outcome.as_str() {
        "ok" => Ok(Sealed::Ended(Ended { epoch, shards })),
        "newer" => Ok(Sealed::Newer { epoch }),
        other => Err(unexpected("outcome of seal", other)),
    }
}

/// The outcome of opening an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    Open,
    /// This or a newer epoch is live already, or a newer one is being built.
    Newer,
    /// What was prepared for this epoch is lost.
    Unsealed,
    /// Orders of an older epoch still wait in the log.
    LogNotEmpty,
}

/// See `install` in `library/sale.lua`. `users` is how many there are among the buyers.
pub async fn install(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: &Sale,
    remaining: i64,
    admitted: i64,
    users: usize,
) -> Result<Installed, RedisError> {
    let (id, epoch) = (sale.id, sale.epoch);
    let keys = [keys.state(id), keys.log(id), keys.buyers(id, epoch)];
    let args = (terms(sale), remaining, admitted, users);
    let outcome: String = ask(connection, "install", &keys, args).await?;
    match outcome.as_str() {
        "ok" => Ok(Installed::Open),
        "newer" => Ok(Installed::Newer),
        "unsealed" => Ok(Installed::Unsealed),
        "log" => Ok(Installed::LogNotEmpty),
        other => Err(unexpected("outcome of install", other)),
    }
}

/// See `evict` in `library/sale.lua`. Answers whether the sale's state is gone.
pub async fn evict(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    epoch: i64,
    after: time::Duration,
) -> Result<bool, RedisError> {
    let keys = [keys.state(sale), keys.log(sale), keys.buyers(sale, epoch)];
    let after = i64::try_from(after.whole_milliseconds()).unwrap_or(i64::MAX);
    ask(connection, "evict", &keys, (epoch, after)).await
}

/// A reading of a sale's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub epoch: i64,
    pub version: i64,
    pub stock: i64,
    pub remaining: i64,
    /// Orders admitted in this epoch.
    pub admitted: i64,
    /// Orders waiting in the log.
    pub pending: i64,
    /// Orders the snapshots of one epoch.
    pub change: i64,
    /// The process that may sell it; empty in a state that an older version has left.
    pub approved: Arc<str>,
    /// The process that answered.
    pub process: Arc<str>,
}

/// Asks for a reading; [`Snapshot::from_reply`] reads the reply.
pub fn snapshot(keys: &Keys, sale: SaleId) -> Cmd {
    let mut call = LIBRARY.call_read_only("snapshot", 1);
    call.arg(keys.state(sale));
    call
}

impl Snapshot {
    /// `None`: there is no state, or none that can be read. Total over any reply.
    pub fn from_reply(reply: Value) -> Option<Self> {
        type Reply = (i64, i64, i64, i64, i64, i64, i64, Option<String>, String);
        let (epoch, version, stock, remaining, admitted, pending, change, approved, process): Reply =
            redis::from_redis_value(reply).ok()?;
        Some(Self {
            epoch,
            version,
            stock,
            remaining,
            admitted,
            pending,
            change,
            approved: approved.unwrap_or_default().into(),
            process: process.into(),
        })
    }

    /// Whether the process that answered may sell it.
    pub fn is_approved(&self) -> bool {
        self.approved == self.process
    }
}

/// See `adopt` in `library/sale.lua`. Answers whether it was done.
pub async fn adopt(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    known: &Snapshot,
) -> Result<bool, RedisError> {
    let args = (known.epoch, &*known.approved, &*known.process);
    ask(connection, "adopt", &[keys.state(sale)], args).await
}

/// The outcome of asking for a block of order numbers. `second` is Unix seconds.
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
    /// Redis has no floor or no counter for today: it needs a floor from Postgres.
    FloorMissing {
        second: i64,
    },
}

/// See `lease_ids` in `library/ids.lua`.
pub async fn lease_ids(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    lane: IdLane,
    day: Date,
    count: u32,
) -> Result<Leased, RedisError> {
    let keys = [keys.id_clock(lane), keys.id_counter(lane, day)];
    let args = (midnight(day), count);
    let (outcome, second, first): (String, i64, i64) =
        ask(connection, "lease_ids", &keys, args).await?;
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

/// Asks what a user holds in a sale; [`read_record`] reads the reply.
pub fn ask_record(keys: &Keys, sale: SaleId, epoch: i64, user: UserId) -> Cmd {
    let mut call = LIBRARY.call_read_only("record", 2);
    call.arg(keys.state(sale))
        .arg(keys.buyers(sale, epoch))
        .arg(epoch)
        .arg(&user.as_bytes()[..]);
    call
}

/// The user's orders; `None` if Redis cannot know them: it is not the approved process, or has
/// another epoch. Total over any reply.
pub fn read_record(reply: Value) -> Option<Vec<record::Held>> {
    let (outcome, record): (String, Option<Vec<u8>>) = redis::from_redis_value(reply).ok()?;
    (outcome == "ok").then(|| record::decode(&record.unwrap_or_default()).collect())
}

/// A buyer's record as `library/admit.lua` lays it out: 17 bytes an order.
pub mod record {
    use super::{IdempotencyKey, OrderId};

    const LEN: usize = 17;
    pub const RETURNED: u8 = 128;

    /// One order in a buyer's record.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Held {
        /// Which of the user's `per_user_limit` places it takes.
        pub slot: u8,
        /// Its unit was returned; kept for the replay of its idempotency key.
        pub returned: bool,
        pub order_id: OrderId,
        pub key: Option<IdempotencyKey>,
    }

    impl Held {
        pub fn encode(&self) -> [u8; LEN] {
            let mut bytes = [0; LEN];
            bytes[0] = self.slot | if self.returned { RETURNED } else { 0 };
            bytes[1..9].copy_from_slice(&self.order_id.get().to_be_bytes());
            bytes[9..].copy_from_slice(&self.key.map_or(0, IdempotencyKey::get).to_be_bytes());
            bytes
        }
    }

    /// Reads a record; an incomplete tail (which nothing writes) is left out.
    pub fn decode(record: &[u8]) -> impl Iterator<Item = Held> + '_ {
        record.chunks_exact(LEN).map(|order| {
            let number = |bytes: &[u8]| {
                bytes
                    .iter()
                    .fold(0u64, |n, byte| (n << 8) | u64::from(*byte))
            };
            let key = number(&order[9..]);
            Held {
                slot: order[0] & !RETURNED,
                returned: order[0] & RETURNED != 0,
                order_id: OrderId::from_i64(number(&order[1..9]).cast_signed()),
                key: (key != 0).then(|| IdempotencyKey::from_stored(key.cast_signed())),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{record::Held, *};
    use crate::redis::stub::{StubConnection, any_reply, any_value};
    use futures_util::FutureExt;
    use proptest::prelude::*;

    fn sale() -> Sale {
        Sale {
            id: SaleId::from_i64(1),
            title: String::new(),
            description: String::new(),
            image_url: String::new(),
            currency: "USD".to_owned(),
            price_cents: 1,
            original_price_cents: None,
            stock: 1,
            per_user_limit: 1,
            opens_at: OffsetDateTime::UNIX_EPOCH,
            closes_at: OffsetDateTime::UNIX_EPOCH,
            payment_timeout_secs: 1,
            paused: false,
            closed: false,
            epoch: 1,
            version: 1,
            door: crate::domain::Door::default(),
        }
    }

    /// Calls every wrapper on a Redis that answers with this.
    async fn ask_everything(reply: redis::Value) {
        let (keys, sale) = (Keys::new(""), sale());
        let order = (UserId::from_bytes([1; 16]), OrderId::from_i64(1));
        let options = AdmitOptions {
            high_water: 1,
            own_writer: true,
            readmitted: None,
        };
        let buyer = Buyer {
            user: order.0,
            order_id: order.1,
            key: None,
        };
        let redis = &mut StubConnection(reply.clone());
        for buyers in [&[][..], &[buyer], &[buyer; 3]] {
            if let Ok(Ok(admitted)) = admit(redis, &keys, sale.id, 1, options, buyers).await {
                assert_eq!(admitted.verdicts.len(), buyers.len());
            }
        }
        let _ = release(redis, &keys, sale.id, 1, &[order]).await;
        let _ = apply_version(redis, &keys, &sale).await;
        let _ = seal(redis, &keys, sale.id, 2).await;
        let _ = install(redis, &keys, &sale, 1, 0, 0).await;
        let _ = evict(redis, &keys, sale.id, 1, time::Duration::HOUR).await;
        if let Some(known) = Snapshot::from_reply(reply) {
            let _ = adopt(redis, &keys, sale.id, &known).await;
        }
        let day = OffsetDateTime::UNIX_EPOCH.date();
        let lane = IdLane::all(false)[0];
        let _ = lease_ids(redis, &keys, lane, day, 1).await;
        let _ = floor_ids(redis, &keys, lane, day, 1).await;
    }

    proptest! {
        #[test]
        fn any_reply_to_any_function_is_read_or_an_error(reply in prop_oneof![any_value(), any_reply()]) {
            prop_assert!(ask_everything(reply).now_or_never().is_some());
        }

        #[test]
        fn any_record_is_read_without_a_panic(record: Vec<u8>) {
            let held: Vec<Held> = record::decode(&record).collect();
            prop_assert_eq!(held.len(), record.len() / 17);
        }
    }

    proptest! {
        #[test]
        fn any_reply_is_read_without_a_panic(letters: Vec<u8>, ids: Vec<u8>, slots: Vec<u8>, expected in 0usize..40) {
            if let Ok(verdicts) = decode_verdicts(&letters, &ids, &slots, expected) {
                prop_assert_eq!(verdicts.len(), expected);
            }
        }

        #[test]
        fn a_record_is_read_back_as_it_was_written(slot in 0u8..100, returned: bool, id in 1..=i64::MAX, key: i64) {
            let held = Held {
                slot,
                returned,
                order_id: OrderId::from_i64(id),
                key: (key != 0).then(|| IdempotencyKey::from_stored(key)),
            };
            prop_assert_eq!(record::decode(&held.encode()).collect::<Vec<_>>(), vec![held]);
        }
    }
}
