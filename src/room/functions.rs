//! The functions of the waiting room. All keys of a room share the hash tag `{room:ID}`.

use crate::{
    domain::{SaleId, UserId},
    redis::{
        functions::{milliseconds, unexpected},
        keys::Keys,
        library::ask,
    },
};
use redis::{RedisError, aio::ConnectionLike};
use std::time::Duration;
use time::OffsetDateTime;

/// Tells one life of a room from another: Redis may lose it, and then it begins again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(pub [u8; 8]);

/// What the order of those who came early is drawn from.
pub type Seed = [u8; 32];

/// Who is in a room, as far as places go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crowd {
    pub generation: Generation,
    /// How many have joined, ever.
    pub joined: u64,
    /// How many of them take part in the draw; `None` until that is settled.
    pub early: Option<u64>,
    /// `None` until they are drawn.
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

/// What somebody wants of a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// To be told their place.
    Look,
    /// A place; the one that they have, if they have one.
    Join,
    /// A new place behind everybody, unless they have got another one than this meanwhile: its turn
    /// is over.
    JoinAnew { instead_of: u64 },
}

/// How a room begins and ends, for the call that happens to be its first.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub opens_at: OffsetDateTime,
    /// A room that begins after the opening is drawn this much later.
    pub settling: Duration,
    /// When Redis may forget it.
    pub forgotten_at: OffsetDateTime,
    /// The most numbers that it gives out.
    pub most: u64,
}

/// The outcome of a [`Wish`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    /// `number` counts arrivals from 0.
    Here {
        number: u64,
        crowd: Crowd,
    },
    /// Who only looked has no place.
    Absent,
    Full,
}

/// outcome, time in ms, generation, number, joined, early, seed
type JoinReply = (String, i64, Vec<u8>, i64, i64, i64, Vec<u8>);

/// See `library/room.lua`. `generation` is for a room that begins with this call. Answers with
/// Redis' time in Unix ms as well.
pub async fn join(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    user: UserId,
    wish: Wish,
    terms: &Terms,
    generation: Generation,
) -> Result<(i64, Joined), RedisError> {
    let (word, instead_of) = match wish {
        Wish::Look => ("look", String::new()),
        Wish::Join => ("join", String::new()),
        Wish::JoinAnew { instead_of } => ("join", instead_of.to_string()),
    };
    let settling = i64::try_from(terms.settling.as_millis()).unwrap_or(i64::MAX);
    let (opens, forgotten) = (
        milliseconds(terms.opens_at),
        milliseconds(terms.forgotten_at),
    );
    let times = (opens, settling, forgotten);
    let args = (
        &user.as_bytes()[..],
        word,
        instead_of,
        times,
        &generation.0[..],
        terms.most,
    );
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
    /// Places before this one had their turn by then.
    pub frontier: u64,
    pub began: u64,
    /// How many of them have bought.
    pub used: u64,
}

/// How the turns of a room may begin.
#[derive(Debug, Clone)]
pub struct Steps<'a> {
    /// The seed, if this call is the one that draws.
    pub seed: Seed,
    pub may_begin: bool,
    /// A reading of the sale: its epoch, change and units left.
    pub epoch: i64,
    pub change: i64,
    pub remaining: i64,
    pub per_second: f64,
    pub turn: Duration,
    /// How many turns there may be at once, in percent of the units left.
    pub percent: i64,
    pub forgotten_at: OffsetDateTime,
    /// Turns that were used since the last call: the second in which they began, and how many.
    pub used: &'a [(i64, u64)],
}

/// A room after a call of [`advance`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advanced {
    pub crowd: Crowd,
    /// Unix ms.
    pub draw_at_ms: i64,
    pub frontier: u64,
    /// In the order of their seconds; those that ended long ago are left out.
    pub turns: Vec<Turns>,
}

/// outcome, time in ms, generation, draw_at, joined, early, seed, frontier, turns
type AdvanceReply = (String, i64, Vec<u8>, i64, i64, i64, Vec<u8>, i64, Vec<i64>);

/// See `library/room.lua`. Answers with Redis' time in Unix ms as well; `None`: nobody has joined.
pub async fn advance(
    connection: &mut impl ConnectionLike,
    keys: &Keys,
    sale: SaleId,
    steps: &Steps<'_>,
) -> Result<(i64, Option<Advanced>), RedisError> {
    let reading = (
        i64::from(steps.may_begin),
        steps.epoch,
        steps.change,
        steps.remaining,
    );
    let turn = i64::try_from(steps.turn.as_millis()).unwrap_or(i64::MAX);
    let pace = (steps.per_second, turn, steps.percent);
    let args = (
        &steps.seed[..],
        reading,
        pace,
        milliseconds(steps.forgotten_at),
        steps.used,
    );
    let keys = [keys.room(sale), keys.room_turns(sale)];
    let (outcome, now_ms, generation, draw_at_ms, joined, early, seed, frontier, turns): AdvanceReply =
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
            let _ = join(&mut stub, &keys, sale, user, Wish::Join, &terms, generation).await;
            let steps = Steps {
                seed: [0; 32],
                may_begin: true,
                epoch: 1,
                change: 1,
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
            ask(Value::Array(vec![outcome, int(a), generation, int(b), int(c), int(d), seed, int(e), turns]));
        }
    }
}
