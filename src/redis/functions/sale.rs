//! `library/sale.lua`: the state of a sale, its epochs and its terms.

use super::fenced::{Fenced, unexpected};
use crate::domain::{Sale, SaleId, unix_ms};
use crate::redis::keys::Keys;
use crate::redis::library::{LIBRARY, ask};
use redis::aio::ConnectionLike;
use redis::{Cmd, RedisError, ToRedisArgs, Value};
use std::sync::Arc;

/// The outcome of `apply_version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionApplied {
    Applied,
    /// Redis has this version, or a newer one.
    Unchanged,
    /// More units would be taken away than remain; nothing was applied.
    Short {
        remaining: i64,
    },
    Fenced(Fenced),
}

/// The end of the sale for Redis; 0 for a closed one.
fn closes_ms(sale: &Sale) -> i64 {
    if sale.closed { 0 } else { unix_ms(sale.closes_at) }
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

/// The terms of a sale, as `apply_version` and `activate` take them.
fn terms(sale: &Sale) -> impl ToRedisArgs {
    let paused = i64::from(sale.paused);
    let (stock, limit) = (i64::from(sale.stock), i64::from(sale.per_user_limit));
    let (opens, closes) = (unix_ms(sale.opens_at), closes_ms(sale));
    let version = (sale.epoch, sale.version);
    (version, stock, opens, closes, paused, limit)
}

/// The epoch that a fence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The live epoch; 0 if there was none.
    pub epoch: i64,
    /// How many hashes held its buyers; 0 for one, as since the function library.
    pub shards: i32,
}

/// The outcome of `fence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fencing {
    Ended(Ended),
    /// This epoch or a later one is live or being built.
    Newer {
        epoch: i64,
    },
}

/// See `fence` in `library/sale.lua`.
pub async fn fence(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    new_epoch: i64,
) -> Result<Fencing, RedisError> {
    let (outcome, epoch, shards): (String, i64, i32) =
        ask(connection, "fence", &[keys.state(sale)], new_epoch).await?;
    match outcome.as_str() {
        "ok" => Ok(Fencing::Ended(Ended { epoch, shards })),
        "newer" => Ok(Fencing::Newer { epoch }),
        other => Err(unexpected("outcome of fence", other)),
    }
}

/// The outcome of `activate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activated {
    Open,
    /// This or a newer epoch is live, or a newer one is being built.
    Newer,
    /// The fence or the buyers of this epoch are lost.
    Unfenced,
    /// Orders of an older epoch still wait in the log.
    LogNotEmpty,
}

/// See `activate` in `library/sale.lua`. `users` is the number of buyers.
pub async fn activate(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: &Sale,
    remaining: i64,
    admitted: i64,
    users: usize,
) -> Result<Activated, RedisError> {
    let (id, epoch) = (sale.id, sale.epoch);
    let keys = [keys.state(id), keys.log(id), keys.buyers(id, epoch)];
    let args = (terms(sale), remaining, admitted, users);
    let outcome: String = ask(connection, "activate", &keys, args).await?;
    match outcome.as_str() {
        "ok" => Ok(Activated::Open),
        "newer" => Ok(Activated::Newer),
        "unfenced" => Ok(Activated::Unfenced),
        "log" => Ok(Activated::LogNotEmpty),
        other => Err(unexpected("outcome of activate", other)),
    }
}

/// See `evict` in `library/sale.lua`. Answers whether the state is gone.
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

/// A snapshot of a sale's state.
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
    pub revision: i64,
    /// The approval token of the state; empty in a state of an older version.
    pub approved: Arc<str>,
    /// The token of the process that answered.
    pub process: Arc<str>,
}

/// Asks for a snapshot; [`Snapshot::from_reply`] reads the reply.
pub fn snapshot(keys: &Keys, sale: SaleId) -> Cmd {
    let mut call = LIBRARY.call_read_only("snapshot", 1);
    call.arg(keys.state(sale));
    call
}

impl Snapshot {
    /// `None`: there is no readable state. Accepts any reply.
    pub fn from_reply(reply: Value) -> Option<Self> {
        type Reply = (i64, i64, i64, i64, i64, i64, i64, Option<String>, String);
        let (epoch, version, stock, remaining, admitted, pending, revision, approved,
            process): Reply =
            redis::from_redis_value(reply).ok()?;
        Some(Self {
            epoch,
            version,
            stock,
            remaining,
            admitted,
            pending,
            revision,
            approved: approved.unwrap_or_default().into(),
            process: process.into(),
        })
    }

    /// Whether the process that answered may sell it.
    pub fn is_approved(&self) -> bool {
        self.approved == self.process
    }
}

/// See `adopt` in `library/sale.lua`. Answers whether the sale was adopted.
pub async fn adopt(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    known: &Snapshot,
) -> Result<bool, RedisError> {
    let args = (known.epoch, &*known.approved, &*known.process);
    ask(connection, "adopt", &[keys.state(sale)], args).await
}
