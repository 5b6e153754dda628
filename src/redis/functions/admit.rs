//! `library/admit.lua`: one batch of buyers.

use super::fenced::{Fenced, unexpected};
use super::record;
use crate::domain::{IdempotencyKey, OrderId, SaleId, UserId};
use crate::redis::keys::Keys;
use crate::redis::library::ask;
use redis::RedisError;
use redis::aio::ConnectionLike;

/// A buyer in an admission call. Repeating an `order_id` repeats the same attempt.
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

/// The verdict on one buyer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// `slot` is the index, from 0, among the user's `per_user_limit` places.
    Accepted {
        slot: u8,
    },
    /// This attempt was accepted before, and its reply was lost. `None`: its unit was returned
    /// since.
    AcceptedBefore {
        slot: Option<u8>,
    },
    Replay(OrderId),
    AlreadyOrdered(OrderId),
    SoldOut,
    NotOpen,
    Paused,
    Ended,
    /// The log is at its high-water mark; no unit was taken.
    BacklogFull,
}

impl Verdict {
    /// Whether an order has the id of this attempt.
    pub fn is_acceptance(&self) -> bool {
        matches!(self, Self::Accepted { .. } | Self::AcceptedBefore { .. })
    }
}

/// The result of an admission call.
#[derive(Debug)]
pub struct Admitted {
    /// Redis time in Unix milliseconds.
    pub now_ms: i64,
    pub remaining: i64,
    /// Orders admitted in this epoch, ever.
    pub admitted: i64,
    /// Incremented by every change of the sale's state; orders snapshots of one epoch.
    pub revision: i64,
    /// The log entry of the accepted orders; `None` if there are none.
    pub entry: Option<String>,
    /// One per buyer, in order.
    pub verdicts: Vec<Verdict>,
}

/// Options of an admission call.
#[derive(Debug, Clone, Copy)]
pub struct AdmitOptions {
    /// The most orders that may wait in the log.
    pub high_water: i64,
    /// Whether this instance writes what it accepts; otherwise any worker may at once.
    pub own_writer: bool,
    /// When these buyers were admitted in an older epoch (Unix ms): the window was checked then.
    pub readmitted: Option<i64>,
}

/// outcome, time in ms, remaining, admitted, revision, stream id, verdicts, ids, slots
type AdmitReply = (String, i64, i64, i64, i64, String, Bytes, Bytes, Bytes);
type Bytes = Vec<u8>;

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
    let (outcome, now_ms, remaining, admitted, revision, entry, letters, ids, slots): AdmitReply =
        ask(connection, "admit", &keys, args).await?;
    if outcome != "ok" {
        return Fenced::parse(&outcome).map(Err);
    }
    Ok(Ok(Admitted {
        now_ms,
        remaining,
        admitted,
        revision,
        entry: (!entry.is_empty()).then_some(entry),
        verdicts: decode_verdicts(&letters, &ids, &slots, buyers.len())?,
    }))
}

/// Pairs the letters of the reply with its ids and slots. Accepts any bytes without a panic.
pub(super) fn decode_verdicts(
    letters: &[u8],
    ids: &[u8],
    slots: &[u8],
    expected: usize,
) -> Result<Vec<Verdict>, RedisError> {
    let few = |what| move || unexpected(what, "");
    let mut ids = ids.chunks_exact(8).map(|id| {
        let id = id.iter().fold(0, |number, byte| (number << 8) | i64::from(*byte));
        OrderId::from_i64(id)
    });
    let mut id = || ids.next().ok_or_else(few("admit: fewer ids than verdicts need"));
    let mut slots = slots.iter().copied();
    let mut slot = || slots.next().ok_or_else(few("admit: fewer slots than accepted"));
    if letters.len() != expected {
        let what = "admit: another number of verdicts than buyers";
        return Err(unexpected(what, &letters.len().to_string()));
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
