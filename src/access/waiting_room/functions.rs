//! The functions of the waiting room. All keys of a room share the hash tag `{room:ID}`.

use crate::domain::{SaleId, UserId, unix_ms};
use crate::redis::functions::unexpected;
use crate::redis::keys::Keys;
use crate::redis::library::ask;
use redis::RedisError;
use redis::aio::ConnectionLike;
use std::time::Duration;
use time::OffsetDateTime;

/// Identifies one life of a room: Redis may lose it, and it begins again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(pub [u8; 8]);

/// The seed of the draw.
pub type Seed = [u8; 32];

/// The counts of a room, from which places follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crowd {
    pub generation: Generation,
    /// How many users have joined.
    pub joined: u64,
    /// How many take part in the draw; `None` until its time.
    pub early: Option<u64>,
    /// `None` before the draw.
    pub seed: Option<Seed>,
}

impl Crowd {
    fn parse(generation: &[u8], joined: i64, early: i64, seed: &[u8]) -> Result<Self, RedisError> {
        let nonsense = || unexpected("room: a generation or a seed of another length", "");
        let seed = match seed {
            [] => None,
            seed => Some(seed.try_into().map_err(|_| nonsense())?),
        };
        Ok(Self {
            generation: Generation(generation.try_into().map_err(|_| nonsense())?),
            joined: count(joined)?,
            early: (early >= 0).then(|| count(early)).transpose()?,
            seed,
        })
    }
}

fn count(number: i64) -> Result<u64, RedisError> {
    u64::try_from(number).map_err(|_| unexpected("room: a negative number", &number.to_string()))
}

/// A request to a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joining {
    /// Read the user's place.
    Read,
    /// The user's place, or a new one.
    Join,
    /// A new place behind everybody, if the user still has this number, whose turn is over.
    JoinAnew { instead_of: u64 },
}

/// The beginning and end of a room, for its first call.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub opens_at: OffsetDateTime,
    /// A room that begins after the opening is drawn this much later.
    pub settling: Duration,
    /// When its keys expire.
    pub forgotten_at: OffsetDateTime,
    /// The most numbers that it gives out.
    pub most: u64,
}

/// The outcome of a [`Joining`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    /// `number` counts arrivals from 0.
    Here {
        number: u64,
        crowd: Crowd,
    },
    /// The user has no place.
    Absent,
    Full,
}

/// outcome, time in ms, generation, number, joined, early, seed
type JoinReply = (String, i64, Vec<u8>, i64, i64, i64, Vec<u8>);

/// See `room_join` in `library/room.lua`. `generation` is for a new room. Also answers Redis' time,
/// Unix ms.
pub async fn join(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    user: UserId,
    joining: Joining,
    terms: &Terms,
    generation: Generation,
) -> Result<(i64, Joined), RedisError> {
    let (word, instead_of) = match joining {
        Joining::Read => ("read", String::new()),
        Joining::Join => ("join", String::new()),
        Joining::JoinAnew { instead_of } => ("join", instead_of.to_string()),
    };
    let settling = i64::try_from(terms.settling.as_millis()).unwrap_or(i64::MAX);
    let opens = unix_ms(terms.opens_at);
    let times = (opens, settling, unix_ms(terms.forgotten_at));
    let (user_id, generation) = (&user.as_bytes()[..], &generation.0[..]);
    let args = (user_id, word, instead_of, times, generation, terms.most);
    let keys = [keys.room(sale), keys.room_shard(sale, user)];
    let (outcome, now_ms, generation, number, joined, early, seed): JoinReply =
        ask(connection, "room_join", &keys, args).await?;
    let joined = match outcome.as_str() {
        "ok" => Joined::Here {
            number: count(number)?,
            crowd: Crowd::parse(&generation, joined, early, &seed)?,
        },
        "absent" => Joined::Absent,
        "full" => Joined::Full,
        other => return Err(unexpected("outcome of room_join", other)),
    };
    Ok((now_ms, joined))
}

/// The turns that began within one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turns {
    /// Unix seconds.
    pub second: i64,
    /// The first place without a turn then.
    pub frontier: u64,
    pub began: u64,
    /// How many of them have bought.
    pub used: u64,
}

/// Parameters of [`advance`].
#[derive(Debug, Clone)]
pub struct Steps<'a> {
    /// The seed, if this call is the one that draws.
    pub seed: Seed,
    pub may_begin: bool,
    /// A snapshot of the sale.
    pub epoch: i64,
    pub revision: i64,
    pub remaining: i64,
    pub per_second: f64,
    pub turn: Duration,
    /// How many turns there may be at once, in percent of the units left.
    pub percent: i64,
    pub forgotten_at: OffsetDateTime,
    /// Turns used since the last call: their second, and how many.
    pub used: &'a [(i64, u64)],
}

/// A room after a call of [`advance`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advanced {
    pub crowd: Crowd,
    /// Unix ms.
    pub draw_at_ms: i64,
    pub frontier: u64,
    /// By second; turns that ended long ago are left out.
    pub turns: Vec<Turns>,
}

/// outcome, time in ms, generation, draw_at, joined, early, seed, frontier, turns
type AdvanceReply = (String, i64, Vec<u8>, i64, i64, i64, Vec<u8>, i64, Vec<i64>);

/// See `room_advance` in `library/room.lua`. Also answers Redis' time, Unix ms; `None`: nobody has
/// joined.
pub async fn advance(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    steps: &Steps<'_>,
) -> Result<(i64, Option<Advanced>), RedisError> {
    let sale_now = (steps.epoch, steps.revision, steps.remaining);
    let reading = (i64::from(steps.may_begin), sale_now);
    let turn = i64::try_from(steps.turn.as_millis()).unwrap_or(i64::MAX);
    let rate = (steps.per_second, turn, steps.percent);
    let forgotten = unix_ms(steps.forgotten_at);
    let args = (&steps.seed[..], reading, rate, forgotten, steps.used);
    let keys = [keys.room(sale), keys.room_turns(sale)];
    let (outcome, now_ms, generation, draw_at_ms, joined, early, seed, frontier,
        turns): AdvanceReply =
        ask(connection, "room_advance", &keys, args).await?;
    match outcome.as_str() {
        "ok" => {}
        "absent" => return Ok((now_ms, None)),
        other => return Err(unexpected("outcome of room_advance", other)),
    }
    let turns = turns.chunks_exact(4).map(|turn| {
        Ok(Turns {
            second: turn[0],
            frontier: count(turn[1])?,
            began: count(turn[2])?,
            used: count(turn[3])?,
        })
    });
    let advanced = Advanced {
        crowd: Crowd::parse(&generation, joined, early, &seed)?,
        draw_at_ms,
        frontier: count(frontier)?,
        turns: turns.collect::<Result<_, RedisError>>()?,
    };
    Ok((now_ms, Some(advanced)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::stub::{StubConnection, any_value};
    use proptest::prelude::*;
    use redis::Value;

    fn terms() -> Terms {
        Terms {
            opens_at: OffsetDateTime::UNIX_EPOCH,
            settling: Duration::ZERO,
            forgotten_at: OffsetDateTime::UNIX_EPOCH,
            most: 1,
        }
    }

    fn ask(reply: Value) {
        let mut stub = StubConnection(reply);
        let (keys, sale, user) = (Keys::new(""), SaleId::from_i64(1), UserId::random());
        let generation = Generation([0; 8]);
        futures_util::FutureExt::now_or_never(async {
            let terms = terms();
            let _ = join(&mut stub, &keys, sale, user, Joining::Join, &terms, generation).await;
            let steps = Steps {
                seed: [0; 32],
                may_begin: true,
                epoch: 1,
                revision: 1,
                remaining: 1,
                per_second: 1.0,
                turn: Duration::ZERO,
                percent: 100,
                forgotten_at: OffsetDateTime::UNIX_EPOCH,
                used: &[],
            };
            let _ = advance(&mut stub, &keys, sale, &steps).await;
        });
    }

    proptest! {
        #[test]
        fn any_reply_is_read_or_refused(reply in any_value()) {
            ask(reply);
        }

        #[test]
        fn any_numbers_in_a_reply_are_read_or_refused(
            outcome in "ok|absent|full",
            numbers in prop::collection::vec(any::<i64>(), 6),
            generation in prop::collection::vec(any::<u8>(), 7..10),
            seed in prop::collection::vec(any::<u8>(), 30..34),
            turns in prop::collection::vec(any::<i64>(), 0..9),
        ) {
            let [a, b, c, d, e, _] = numbers[..] else { unreachable!("six") };
            let (generation, seed) = (Value::BulkString(generation), Value::BulkString(seed));
            let outcome = Value::BulkString(outcome.into_bytes());
            let int = Value::Int;
            ask(Value::Array(vec![
                outcome.clone(), int(a), generation.clone(), int(b), int(c), int(d), seed.clone(),
            ]));
            let turns = Value::Array(turns.into_iter().map(Value::Int).collect());
            ask(Value::Array(vec![outcome, int(a), generation, int(b), int(c), int(d), seed,
                int(e), turns]));
        }
    }
}
