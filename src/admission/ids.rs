//! The id generator: `seconds since 2025-01-01 UTC (31 bits) << 32 | sequence (32 bits)`.
//!
//! Instances lease blocks of the sequence with INCRBY from one Redis counter per UTC day, which so
//! tells how many numbers a day took. The layout is that of the course notes 《秒杀》; leasing saves a
//! round trip for each order.
//!
//! Why two ids are never equal:
//! - Within a day all sequence numbers differ, so a clock that steps back changes nothing.
//! - Second and day come from one reading of Redis' clock, in the script that leases; a lease is
//!   used with that second only, and for a second at most. So a number is only paired with seconds
//!   of the day whose counter it came from.
//! - A lost or rolled back counter would repeat the day's numbers. So a process of Redis that was
//!   restarted or promoted, or that lost its counter or floor, leases nothing until Postgres has
//!   set a floor: a second later than any floor before, than Redis' clock, and than any stored
//!   order.
//! - In a cluster the numbers of a day are split into lanes ([`IdLane`]), each with a counter and a
//!   floor: ids of different lanes differ, and within a lane all of the above holds.
//!
//! On a crash the rest of a lease is skipped; no number is repeated.

use crate::domain::OrderId;
use crate::error::ServiceError;
use crate::fail_point::{FailPoints, Injected};
use crate::postgres::Pool;
use crate::redis::Redis;
use crate::redis::functions::{self, Leased};
use crate::redis::keys::IdLane;
use crate::redis::library::{LIBRARY, Library};
use redis::aio::ConnectionLike;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use time::macros::datetime;
use time::{Date, OffsetDateTime};
use tokio::sync::Mutex;
use tokio::time::timeout;

const EPOCH: i64 = datetime!(2025-01-01 00:00 UTC).unix_timestamp();

/// How long a lease may be used: the second of an id is at most this old by Redis' clock.
const LEASE_LIFE: Duration = Duration::from_secs(1);
/// The timeout of one lane.
const LANE_TIMEOUT: Duration = Duration::from_millis(200);
const SMALLEST_LEASE: u32 = 64;
const LARGEST_LEASE: u32 = 65_536;

/// Why no id could be had.
#[derive(Debug, thiserror::Error)]
pub enum IdError {
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("all order numbers of this day are used up")]
    DayExhausted,
    #[error("the clock reads {0} Unix seconds, which an id cannot carry (2025 to 2093)")]
    ClockOutOfRange(i64),
    #[error(transparent)]
    Injected(#[from] Injected),
    #[error("redis kept losing the id counter while it was being restored")]
    Unsettled,
}

impl From<IdError> for ServiceError {
    fn from(error: IdError) -> Self {
        match error {
            IdError::Redis(error) => Self::Redis(error),
            IdError::Postgres(error) => Self::Postgres(error),
            IdError::Injected(error) => Self::Injected(error),
            other => Self::Ids(other.to_string()),
        }
    }
}

/// An id of this Unix second, or `None` if the second does not fit in 31 bits from 2025 on.
pub fn encode(unix_second: i64, sequence: u32) -> Option<OrderId> {
    let seconds = unix_second.checked_sub(EPOCH)?;
    if !(0..1 << 31).contains(&seconds) || (seconds == 0 && sequence == 0) {
        return None;
    }
    Some(OrderId::from_i64(seconds << 32 | i64::from(sequence)))
}

/// The Unix second and the sequence number of an id.
pub fn decode(id: OrderId) -> (i64, u32) {
    ((id.get() >> 32) + EPOCH, (id.get() & 0xffff_ffff) as u32)
}

/// When an id was made, to the second.
pub fn made_at(id: OrderId) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(decode(id).0).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// A block of numbers that this process owns, for ids of one second.
struct Lease {
    second: i64,
    next: u32,
    left: u32,
    size: u32,
    taken: Instant,
}

/// Hands out ids to all admission queues of the process.
pub struct IdGenerator {
    redis: Arc<Redis>,
    postgres: Pool,
    /// One for a single server.
    lanes: Vec<Lane>,
    /// The lane that answered last.
    answering: AtomicUsize,
    /// Another version of the library, for the lesson.
    library: Option<Library>,
    fail_points: FailPoints,
}

struct Lane {
    lane: IdLane,
    lease: Mutex<Option<Lease>>,
}

impl IdGenerator {
    pub fn new(redis: Arc<Redis>, postgres: Pool, fail_points: FailPoints) -> Self {
        let lanes = IdLane::all(redis.is_cluster());
        let lane = |lane| Lane { lane, lease: Mutex::new(None) };
        Self {
            redis,
            postgres,
            lanes: lanes.into_iter().map(lane).collect(),
            answering: AtomicUsize::new(0),
            library: None,
            fail_points,
        }
    }

    /// The same, leasing by another version of the library.
    pub fn with(self, library: Library) -> Self {
        Self { library: Some(library), ..self }
    }

    /// Appends `count` fresh ids, leasing over `connection` when needed. A lane whose server does
    /// not answer is skipped.
    pub async fn take(
        &self,
        connection: &mut impl ConnectionLike,
        count: usize,
        ids: &mut Vec<OrderId>,
    ) -> Result<(), IdError> {
        let first = self.answering.load(Relaxed);
        let wanted = ids.len() + count;
        let mut failed = None;
        for number in (first..).take(self.lanes.len()) {
            let lane = &self.lanes[number % self.lanes.len()];
            match self.take_from(lane, connection, wanted, ids).await {
                Err(IdError::Redis(error)) => {
                    self.answering.store(number + 1, Relaxed);
                    failed = Some(error);
                }
                other => return other,
            }
        }
        Err(failed.map_or(IdError::Unsettled, IdError::Redis))
    }

    async fn take_from(
        &self,
        lane: &Lane,
        connection: &mut impl ConnectionLike,
        wanted: usize,
        ids: &mut Vec<OrderId>,
    ) -> Result<(), IdError> {
        let mut held = lane.lease.lock().await;
        while ids.len() < wanted {
            let usable =
                held.as_mut().filter(|lease| lease.left > 0 && lease.taken.elapsed() < LEASE_LIFE);
            let Some(lease) = usable else {
                let missing = u32::try_from(wanted - ids.len()).unwrap_or(u32::MAX);
                let size = next_size(held.as_ref()).max(missing);
                self.fail_points.at("ids.leasing").await?;
                *held = Some(self.lease(connection, lane.lane, size).await?);
                self.fail_points.at("ids.leased").await?;
                continue;
            };
            let id = encode(lease.second, lease.next);
            ids.push(id.ok_or(IdError::ClockOutOfRange(lease.second))?);
            lease.next = lease.next.wrapping_add(1); // past the last number nothing is left
            lease.left -= 1;
        }
        Ok(())
    }

    /// Drops the leases, when Redis may be another process than before.
    pub async fn discard_leases(&self) {
        for lane in &self.lanes {
            *lane.lease.lock().await = None;
        }
    }

    /// Raises the floor of every lane before a process is approved: another one may have given out
    /// higher numbers. A silent lane gets its floor at its first lease.
    pub async fn settle(&self) -> Result<(), IdError> {
        let floor = self.raise_floor(OffsetDateTime::now_utc().unix_timestamp());
        let (floor, keys) = (floor.await?, &self.redis.keys);
        let day = day_of(floor)?;
        let connection = self.redis.pooled().await?;
        let settling = self.lanes.iter().map(async |lane| {
            functions::floor_ids(&mut connection.another(), keys, lane.lane, day, floor).await
        });
        for settled in futures_util::future::join_all(settling).await {
            if let Err(error) = settled {
                tracing::debug!(%error, "a lane of the order numbers has no floor yet");
            }
        }
        Ok(())
    }

    async fn lease(
        &self,
        connection: &mut impl ConnectionLike,
        lane: IdLane,
        size: u32,
    ) -> Result<Lease, IdError> {
        let size = size.clamp(SMALLEST_LEASE, LARGEST_LEASE);
        let mut day = OffsetDateTime::now_utc().date(); // a first guess; Redis corrects it
        // A wrong day costs one more round, a lost counter two; more means that it is lost again
        // and again.
        for _ in 0..8 {
            let taken = Instant::now();
            let (library, keys) = (self.library.as_ref().unwrap_or(&LIBRARY), &self.redis.keys);
            let asked = functions::lease_ids(connection, library, keys, lane, day, size);
            let leased = match lane {
                IdLane::Whole => asked.await,
                IdLane::Part(_) => timeout(LANE_TIMEOUT, asked).await.unwrap_or_else(|_| {
                    Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
                }),
            };
            match leased? {
                Leased::Block { second, first } => {
                    let last = lane.sequence(first + i64::from(size) - 1);
                    last.ok_or(IdError::DayExhausted)?;
                    let next = lane.sequence(first).ok_or(IdError::DayExhausted)?;
                    return Ok(Lease { second, next, left: size, size, taken });
                }
                Leased::OtherDay { second } => day = day_of(second)?,
                Leased::FloorMissing { second } => {
                    let floor = self.raise_floor(second).await?;
                    let (keys, day) = (&self.redis.keys, day_of(floor)?);
                    functions::floor_ids(connection, keys, lane, day, floor).await?;
                }
            }
        }
        Err(IdError::Unsettled)
    }

    /// A Unix second later than `now` and than that of any stored order.
    async fn raise_floor(&self, now: i64) -> sqlx::Result<i64> {
        let query = sqlx::query_scalar(
            "UPDATE id_clock SET second = GREATEST(
                 second, $1, $2 + COALESCE((SELECT max(id) >> 32 FROM orders), 0)) + 1
             RETURNING second",
        );
        query.bind(now).bind(EPOCH).fetch_one(&self.postgres).await
    }
}

fn day_of(second: i64) -> Result<Date, IdError> {
    let time = OffsetDateTime::from_unix_timestamp(second);
    time.map(OffsetDateTime::date).map_err(|_| IdError::ClockOutOfRange(second))
}

/// Leases double when they run out within their second, and halve when half is wasted.
fn next_size(last: Option<&Lease>) -> u32 {
    match last {
        None => SMALLEST_LEASE,
        Some(lease) if lease.left == 0 => lease.size.saturating_mul(2).min(LARGEST_LEASE),
        Some(lease) if lease.left > lease.size / 2 => (lease.size / 2).max(SMALLEST_LEASE),
        Some(lease) => lease.size,
    }
}

/// Ids that were offered to buyers who were refused. Reusing them saves numbers (and leases) when a
/// crowd is refused.
#[derive(Default)]
pub(super) struct SpareIds {
    ids: Vec<OrderId>,
    /// When the oldest of them was given back.
    since: Option<Instant>,
}

impl SpareIds {
    /// Keeps the second of an id close to the time of its order.
    const LIFE: Duration = Duration::from_secs(1);

    pub fn take(&mut self, count: usize) -> Vec<OrderId> {
        if self.since.is_some_and(|since| since.elapsed() > Self::LIFE) {
            *self = Self::default();
        }
        let left = self.ids.len().saturating_sub(count);
        self.ids.split_off(left)
    }

    pub fn give_back(&mut self, unused: impl Iterator<Item = OrderId>) {
        self.since.get_or_insert_with(Instant::now);
        self.ids.extend(unused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decode_undoes_encode(second in EPOCH + 1..EPOCH + (1 << 31), sequence: u32) {
            let id = encode(second, sequence).expect("in range");
            prop_assert!(id.get() > 0);
            prop_assert_eq!(decode(id), (second, sequence));
        }

        #[test]
        fn ids_sort_by_second_first(a in 1i64..1 << 31, b in 1i64..1 << 31, x: u32, y: u32) {
            prop_assume!(a != b);
            let (first, second) = (encode(EPOCH + a, x).expect("in range"), encode(EPOCH + b,
                y).expect("in range"));
            prop_assert_eq!(a < b, first < second);
        }

        #[test]
        fn a_second_outside_of_31_bits_is_refused(second: i64, sequence: u32) {
            prop_assume!(!(EPOCH..EPOCH + (1 << 31)).contains(&second));
            prop_assert_eq!(encode(second, sequence), None);
        }
    }

    /// A crowd that is refused again and again must not keep ids of its beginning.
    #[test]
    fn spare_ids_grow_old_while_they_are_used() {
        let mut spare = SpareIds::default();
        spare.give_back(encode(EPOCH, 1).into_iter());
        for left in [1, 0] {
            spare.since = spare.since.and_then(|since| since.checked_sub(SpareIds::LIFE * 2 / 3));
            let taken = spare.take(1);
            assert_eq!(taken.len(), left);
            spare.give_back(taken.into_iter());
        }
    }
}
