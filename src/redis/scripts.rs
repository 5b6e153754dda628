//! The Lua scripts, one file each in `scripts/`, and a typed wrapper for every one of them.
//!
//! A wrapper knows the script's KEYS, ARGV and reply; nobody else does. All run by EVALSHA; a Redis
//! that does not know a script (a new process, SCRIPT FLUSH) is given it once and asked again, by EVAL:
//! that goes where the keys are, also where the slot is on its way to another node.

pub mod bots;
pub mod room;

use super::keys::{IdLane, Keys, shard_of};
use crate::domain::{IdempotencyKey, OrderId, Sale, SaleId, UserId};
use redis::{
    Arg, Cmd, ErrorKind, FromRedisValue, RedisError, Script, ServerErrorKind, aio::ConnectionLike,
    cmd,
};
use std::sync::LazyLock;
use time::{Date, OffsetDateTime};

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        $(static $name: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!(concat!("scripts/", $file))));)*
    };
}

scripts! {
    ADMIT = "admit.lua";
    ACK = "ack.lua";
    RELEASE = "release.lua";
    PROJECT = "project.lua";
    SEAL = "seal.lua";
    WRITING = "writing.lua";
    INSTALL = "install.lua";
    RETIRE = "retire.lua";
    LEASE_IDS = "lease_ids.lua";
    FLOOR_IDS = "floor_ids.lua";
}

/// A script, and what Redis calls it.
struct Lua {
    code: &'static str,
    hash: String,
}

impl Lua {
    fn new(code: &'static str) -> Self {
        Self {
            code,
            hash: Script::new(code).get_hash().to_owned(),
        }
    }

    /// The same call with the script itself, which Redis then knows.
    fn spelt_out(&self, call: &Cmd) -> Cmd {
        let mut command = cmd("EVAL");
        command.arg(self.code);
        for argument in call.args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }
}

fn evalsha(script: &Lua, keys: usize) -> Cmd {
    let mut command = cmd("EVALSHA");
    command.arg(&script.hash).arg(keys);
    command
}

async fn run<T: FromRedisValue>(
    script: &Lua,
    command: &Cmd,
    connection: &mut impl ConnectionLike,
) -> Result<T, RedisError> {
    match command.query_async(connection).await {
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            script.spelt_out(command).query_async(connection).await
        }
        other => other,
    }
}

fn unexpected(what: &'static str, got: &str) -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, what, got.to_owned()))
}

/// Why a script would not act on a sale: its Redis state is not what the caller thinks it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fenced {
    /// No state: never installed, sealed for a rebuild, or lost.
    Absent,
    /// Another epoch is live.
    Epoch,
    /// A key of the sale has a type or a value that the program never writes.
    Corrupt,
}

impl Fenced {
    fn parse(outcome: &str) -> Result<Self, RedisError> {
        match outcome {
            "absent" => Ok(Self::Absent),
            "epoch" => Ok(Self::Epoch),
            "corrupt" => Ok(Self::Corrupt),
            other => Err(unexpected("outcome of a script", other)),
        }
    }
}

/// One buyer as the admission script sees them. `order_id` is what the order will be called if it is
/// accepted; the same one again is the same attempt.
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
pub enum Judged {
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
    pub verdicts: Vec<Judged>,
}

/// How an admission call treats its buyers.
#[derive(Debug, Clone, Copy)]
pub struct AdmitOptions {
    /// The most orders that may wait in the log.
    pub high_water: i64,
    /// This instance writes what it accepts; otherwise any worker may pick it up at once.
    pub own_writer: bool,
    /// The buyers were accepted under an older epoch, at this time (Unix ms): the window was judged
    /// then.
    pub late: Option<i64>,
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

/// See `scripts/admit.lua`.
pub async fn admit(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    epoch: i64,
    shards: i32,
    options: AdmitOptions,
    buyers: &[Buyer],
) -> Result<Result<Admitted, Fenced>, RedisError> {
    let mut command = evalsha(&ADMIT, 2 + buyers.len());
    command.arg(keys.state(sale)).arg(keys.log(sale));
    let mut shard_keys = keys.shards(sale, epoch);
    for buyer in buyers {
        command.arg(shard_keys.key(shard_of(buyer.user, shards)));
    }
    command
        .arg(epoch)
        .arg(options.high_water)
        .arg(u8::from(options.own_writer))
        .arg(options.late.unwrap_or(0));
    for buyer in buyers {
        command.arg(&buyer.encode()[..]);
    }
    let (outcome, now_ms, remaining, admitted, change, entry, letters, ids, slots): AdmitReply =
        run(&ADMIT, &command, connection).await?;
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
) -> Result<Vec<Judged>, RedisError> {
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
                b'A' => Judged::Accepted { slot: slot()? },
                b'a' => Judged::AcceptedBefore {
                    slot: Some(slot()?).filter(|slot| slot & record::RETURNED == 0),
                },
                b'R' => Judged::Replay(id()?),
                b'D' => Judged::AlreadyOrdered(id()?),
                b'S' => Judged::SoldOut,
                b'N' => Judged::NotOpen,
                b'P' => Judged::Paused,
                b'E' => Judged::Ended,
                b'B' => Judged::BacklogFull,
                other => return Err(unexpected("admit: unknown verdict", &other.to_string())),
            })
        })
        .collect()
}

/// Entries of one log whose orders are rows: for each its id, and how many orders it holds. All were written in
/// `epoch`.
#[derive(Debug)]
pub struct Settled<'a> {
    pub sale: SaleId,
    pub epoch: i64,
    pub entries: Vec<(&'a str, usize)>,
}

/// See `scripts/ack.lua`. All logs in one round trip, so that Redis flushes its own log once for all of them.
/// Answers for each log how many orders still wait in it.
pub async fn ack(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    logs: &[Settled<'_>],
) -> Result<Vec<Result<i64, RedisError>>, RedisError> {
    let command = |log: &Settled| {
        let mut command = evalsha(&ACK, 2);
        command
            .arg(keys.state(log.sale))
            .arg(keys.log(log.sale))
            .arg(log.epoch);
        for (entry, orders) in &log.entries {
            command.arg(entry).arg(orders);
        }
        command
    };
    if let [log] = logs {
        return Ok(vec![run(&ACK, &command(log), connection).await]);
    }
    let mut pipeline = redis::Pipeline::with_capacity(logs.len());
    pipeline.ignore_errors(); // one log of another type must not keep the others
    for log in logs {
        pipeline.add_command(command(log));
    }
    let replies: Vec<redis::Value> = pipeline.query_async(connection).await?;
    if replies.len() != logs.len() {
        let got = replies.len().to_string();
        return Err(unexpected("number of answers to acks", &got));
    }
    let mut acknowledged = Vec::with_capacity(replies.len());
    for (reply, log) in replies.into_iter().zip(logs) {
        let reply = reply
            .extract_error()
            .and_then(|reply| Ok(redis::from_redis_value(reply)?));
        acknowledged.push(match reply {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                run(&ACK, &command(log), connection).await
            }
            other => other,
        });
    }
    Ok(acknowledged)
}

/// What is left after units were returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    pub remaining: i64,
    pub change: i64,
    /// How many of the orders had not been returned before.
    pub returned: i64,
}

/// See `scripts/release.lua`.
pub async fn release(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    epoch: i64,
    shards: i32,
    orders: &[(UserId, OrderId)],
) -> Result<Result<Released, Fenced>, RedisError> {
    let mut command = evalsha(&RELEASE, 1 + orders.len());
    command.arg(keys.state(sale));
    for (user, _) in orders {
        command.arg(keys.shard(sale, epoch, shard_of(*user, shards)));
    }
    command.arg(epoch);
    for (user, order) in orders {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(user.as_bytes());
        bytes[16..].copy_from_slice(&order.get().to_be_bytes());
        command.arg(&bytes[..]);
    }
    let (outcome, remaining, change, returned): (String, i64, i64, i64) =
        run(&RELEASE, &command, connection).await?;
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
pub enum Projected {
    Applied,
    /// Redis has this version, or a newer one.
    Unchanged,
    /// The change takes away more units than remain; nothing was applied.
    Short {
        remaining: i64,
    },
    Fenced(Fenced),
}

fn milliseconds(time: OffsetDateTime) -> i64 {
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

/// See `scripts/project.lua`.
pub async fn project(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: &Sale,
) -> Result<Projected, RedisError> {
    let mut command = evalsha(&PROJECT, 1);
    command
        .arg(keys.state(sale.id))
        .arg(sale.epoch)
        .arg(sale.version)
        .arg(sale.stock)
        .arg(milliseconds(sale.opens_at))
        .arg(closes_ms(sale))
        .arg(u8::from(sale.paused))
        .arg(sale.per_user_limit);
    let (outcome, remaining, _change): (String, i64, i64) =
        run(&PROJECT, &command, connection).await?;
    Ok(match outcome.as_str() {
        "ok" => Projected::Applied,
        "unchanged" => Projected::Unchanged,
        "short" => Projected::Short { remaining },
        other => Projected::Fenced(Fenced::parse(other)?),
    })
}

/// What a seal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// What was live before; 0 if nothing was.
    pub epoch: i64,
    pub shards: i32,
    /// The epoch of which a rebuild that did not come to its end may have left buyers; 0 if there is none.
    pub half_done: i64,
    pub half_done_shards: i32,
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

/// See `scripts/seal.lua`. `shards` are those of the epoch before, as Postgres has them.
pub async fn seal(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    new_epoch: i64,
    shards: i32,
) -> Result<Sealed, RedisError> {
    let mut command = evalsha(&SEAL, 1);
    command.arg(keys.state(sale)).arg(new_epoch).arg(shards);
    let (outcome, epoch, shards, half_done, half_done_shards): (String, i64, i32, i64, i32) =
        run(&SEAL, &command, connection).await?;
    match outcome.as_str() {
        "ok" => Ok(Sealed::Ended(Ended {
            epoch,
            shards,
            half_done,
            half_done_shards,
        })),
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

/// See `scripts/writing.lua`: [`Installed::Open`] if the sale is still sealed for this epoch.
pub async fn begin_writing(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: &Sale,
) -> Result<Installed, RedisError> {
    let mut command = evalsha(&WRITING, 1);
    command
        .arg(keys.state(sale.id))
        .arg(sale.epoch)
        .arg(sale.buyer_shards);
    let outcome: String = run(&WRITING, &command, connection).await?;
    Installed::parse("outcome of writing", &outcome)
}

/// See `scripts/install.lua`.
pub async fn install(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: &Sale,
    remaining: i64,
    admitted: i64,
) -> Result<Installed, RedisError> {
    let mut command = evalsha(&INSTALL, 2);
    command
        .arg(keys.state(sale.id))
        .arg(keys.log(sale.id))
        .arg(sale.epoch)
        .arg(sale.version)
        .arg(sale.stock)
        .arg(milliseconds(sale.opens_at))
        .arg(closes_ms(sale))
        .arg(u8::from(sale.paused))
        .arg(sale.per_user_limit)
        .arg(remaining)
        .arg(admitted)
        .arg(sale.buyer_shards);
    let outcome: String = run(&INSTALL, &command, connection).await?;
    Installed::parse("outcome of install", &outcome)
}

impl Installed {
    fn parse(what: &'static str, outcome: &str) -> Result<Self, RedisError> {
        match outcome {
            "ok" => Ok(Self::Open),
            "newer" => Ok(Self::Newer),
            "unsealed" => Ok(Self::Unsealed),
            "log" => Ok(Self::LogNotEmpty),
            other => Err(unexpected(what, other)),
        }
    }
}

/// See `scripts/retire.lua`. Answers whether the sale's state is gone.
pub async fn retire(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    epoch: i64,
    after: time::Duration,
) -> Result<bool, RedisError> {
    let mut command = evalsha(&RETIRE, 2);
    command
        .arg(keys.state(sale))
        .arg(keys.log(sale))
        .arg(epoch)
        .arg(i64::try_from(after.whole_milliseconds()).unwrap_or(i64::MAX));
    run(&RETIRE, &command, connection).await
}

/// A planted bug: one unit more than there is.
pub async fn invent_a_unit(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
) -> Result<(), RedisError> {
    cmd("HINCRBY")
        .arg(keys.state(sale))
        .arg("remaining")
        .arg(1)
        .exec_async(connection)
        .await
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

/// See `scripts/lease_ids.lua`.
pub async fn lease_ids(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    lane: IdLane,
    day: Date,
    count: u32,
) -> Result<Leased, RedisError> {
    let mut command = evalsha(&LEASE_IDS, 2);
    command
        .arg(keys.id_clock_of(lane))
        .arg(keys.id_counter_of(lane, day))
        .arg(day.midnight().assume_utc().unix_timestamp())
        .arg(count);
    let (outcome, second, first): (String, i64, i64) =
        run(&LEASE_IDS, &command, connection).await?;
    match outcome.as_str() {
        "ok" => Ok(Leased::Block { second, first }),
        "day" => Ok(Leased::OtherDay { second }),
        "floor" => Ok(Leased::FloorMissing { second }),
        other => Err(unexpected("outcome of lease_ids", other)),
    }
}

/// See `scripts/floor_ids.lua`. `second` is Unix seconds on `day`.
pub async fn floor_ids(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    lane: IdLane,
    day: Date,
    second: i64,
) -> Result<(), RedisError> {
    let mut command = evalsha(&FLOOR_IDS, 2);
    command
        .arg(keys.id_clock_of(lane))
        .arg(keys.id_counter_of(lane, day))
        .arg(second)
        .arg(day.midnight().assume_utc().unix_timestamp());
    let _set: i64 = run(&FLOOR_IDS, &command, connection).await?;
    Ok(())
}

/// A buyer's record as `admit.lua` lays it out: 17 bytes an order.
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
    use crate::redis::parrot::{Parrot, any_reply, any_value};
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
            buyer_shards: 1,
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
            late: None,
        };
        let buyer = Buyer {
            user: order.0,
            order_id: order.1,
            key: None,
        };
        let redis = &mut Parrot(reply);
        for buyers in [&[][..], &[buyer], &[buyer; 3]] {
            if let Ok(Ok(admitted)) = admit(redis, &keys, sale.id, 1, 1, options, buyers).await {
                assert_eq!(admitted.verdicts.len(), buyers.len());
            }
        }
        let settled = || Settled {
            sale: sale.id,
            epoch: 1,
            entries: vec![("1-1", 1)],
        };
        let _ = ack(redis, &keys, &[settled()]).await;
        if let Ok(acknowledged) = ack(redis, &keys, &[settled(), settled()]).await {
            assert_eq!(acknowledged.len(), 2);
        }
        let _ = release(redis, &keys, sale.id, 1, 1, &[order]).await;
        let _ = project(redis, &keys, &sale).await;
        let _ = seal(redis, &keys, sale.id, 2, 1).await;
        let _ = begin_writing(redis, &keys, &sale).await;
        let _ = install(redis, &keys, &sale, 1, 0).await;
        let day = OffsetDateTime::UNIX_EPOCH.date();
        let lane = IdLane::all(false)[0];
        let _ = lease_ids(redis, &keys, lane, day, 1).await;
        let _ = floor_ids(redis, &keys, lane, day, 1).await;
    }

    proptest! {
        #[test]
        fn any_reply_to_any_script_is_read_or_an_error(reply in prop_oneof![any_value(), any_reply()]) {
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
