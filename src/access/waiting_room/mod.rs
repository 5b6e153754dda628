//! The waiting room of a sale: early shoppers are drawn, later ones queue, and each has one place.
//!
//! ```text
//! join ─▶ a number of arrival ─▶ at the opening: early ones are drawn ([`draw`]) ─▶ a place
//!                                late ones stand where they came            ─▶ a place
//! turns begin ─▶ the frontier passes the place ─▶ a token, signed for user, sale and turn
//! purchase with the token ─▶ the turn is used: one order for each turn
//! ```
//!
//! **State.** In Redis, under the tag `{room:ID}`: a few numbers for a room, a number for each
//! person, and an entry for each second in which turns began. Places are computed from the seed by
//! every instance, which keeps a [`view::View`] of each room and reads it five times a second.
//!
//! **Turns.** Every instance begins turns, by a script that reads Redis' clock: as many as the time
//! since the last call allows at the caller's rate, and at most one for each unit that is left and
//! not spoken for (with a margin, because some never buy). There is no leader.
//!
//! **One purchase for each turn.** The token of a turn stands for an idempotency key, so
//! `admit.lua` treats its second use as a retry. That costs no round trip, and survives a rebuild
//! of Redis like every key.
//!
//! **Loss.** If Redis loses the room, its places are lost. Before the opening pages just join
//! again; after it, shoppers who come back within [`SETTLING`] are drawn anew, and the others
//! queue. Tokens of turns stay valid: they are signed, not stored.

pub mod draw;
pub mod functions;
mod pacer;
mod turns;
pub mod view;

use crate::access::waiting_room::functions::{Generation, Joined, Joining, Terms};
use crate::access::waiting_room::view::{Standing, View};
use crate::admission::Admission;
use crate::auth::random;
use crate::auth::signed_token::{BadToken, Purpose, SignedTokens};
use crate::catalog::Catalog;
use crate::catalog::cached_sale::{CachedSale, EVICT_AFTER};
use crate::domain::{IdempotencyKey, RoomSettings, Sale, SaleId, SaleState, UserId};
use crate::error::ServiceError;
use crate::fail_point::FailPoints;
use crate::redis::Redis;
use dashmap::DashMap;
use metrics::{Counter, Gauge, counter, gauge};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use tokio::sync::watch;

/// The delay of the draw in a room that begins after the opening (it was lost, or empty before).
pub const SETTLING: Duration = Duration::from_secs(2);
/// The most people of one room: some 40 bytes each in Redis, 4 in each instance.
pub const MOST_PEOPLE: u64 = 5_000_000;

/// Why a user has no place.
#[derive(Debug, thiserror::Error)]
pub enum RoomError {
    #[error("the sale has no waiting room")]
    NoRoom,
    #[error("the waiting room opens at {opens_at}")]
    NotOpenYet { opens_at: OffsetDateTime, now: OffsetDateTime },
    #[error("the sale has ended")]
    Ended,
    #[error("nothing is left to queue for")]
    SoldOut,
    /// They did not join, or their place was lost.
    #[error("not in the waiting room")]
    NotHere,
    #[error(transparent)]
    Shop(#[from] ServiceError),
}

/// A user's place, and the view of the room it is based on.
#[derive(Debug, Clone)]
pub struct Place {
    pub number: u64,
    pub standing: Standing,
    pub view: Arc<View>,
}

/// A verified turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    second: i64,
    /// The idempotency key of all its uses.
    pub key: IdempotencyKey,
}

/// The waiting rooms of all sales.
pub struct WaitingRooms {
    catalog: Arc<Catalog>,
    admission: Arc<Admission>,
    redis: Arc<Redis>,
    fail_points: FailPoints,
    signed_tokens: SignedTokens,
    rooms: DashMap<SaleId, Arc<Room>>,
    pacer: pacer::Pacer,
    metrics: RoomMetrics,
}

/// One room.
struct Room {
    view: watch::Sender<Option<Arc<View>>>,
    /// Turns used here that Redis does not know of yet, by the second in which they began.
    used: Mutex<HashMap<i64, u64>>,
    /// One call of `advance` at a time; when the last one was made.
    reading: tokio::sync::Mutex<Option<Instant>>,
}

struct RoomMetrics {
    joins: Counter,
    used: Counter,
    forged: Counter,
    expired: Counter,
    waiting: Gauge,
    rate: Gauge,
}

impl RoomMetrics {
    fn new() -> Self {
        let refused = |why| counter!("flash_sale_room_admissions_refused_total", "why" => why);
        Self {
            joins: counter!("flash_sale_room_joins_total"),
            used: counter!("flash_sale_room_turns_used_total"),
            forged: refused("invalid"),
            expired: refused("expired"),
            waiting: gauge!("flash_sale_room_waiting"),
            rate: gauge!("flash_sale_room_turns_per_second_allowed"),
        }
    }
}

impl WaitingRooms {
    pub fn new(
        catalog: Arc<Catalog>,
        admission: Arc<Admission>,
        redis: Arc<Redis>,
        fail_points: FailPoints,
        signed_tokens: SignedTokens,
    ) -> Self {
        Self {
            catalog,
            admission,
            redis,
            fail_points,
            signed_tokens,
            rooms: DashMap::new(),
            pacer: pacer::Pacer::default(),
            metrics: RoomMetrics::new(),
        }
    }

    /// Joins the room, or reads the user's place. After a missed turn the new place is behind
    /// everybody.
    pub async fn join(&self, sale: SaleId, user: UserId) -> Result<Place, RoomError> {
        let (cached, _) = self.cached(sale).await?;
        let joining = self.may_join(&cached)?;
        match self.ask(&cached, user, joining).await? {
            Some(place) if place.standing == Standing::Missed && joining == Joining::Join => {
                let instead_of = place.number;
                let anew = Joining::JoinAnew { instead_of };
                let place = self.ask(&cached, user, anew).await?;
                place.ok_or(RoomError::NotHere)
            }
            Some(place) => Ok(place),
            None => Err(RoomError::SoldOut),
        }
    }

    /// How the room can be joined now: when nothing is left, only users in it keep their place.
    pub fn may_join(&self, cached: &CachedSale) -> Result<Joining, RoomError> {
        let (sale, now) = (cached.sale(), self.catalog.now());
        let settings = sale.access_policy.room().ok_or(RoomError::NoRoom)?;
        let opens_at = room_opens_at(&sale, &settings);
        match cached.view(now).state {
            SaleState::Ended => Err(RoomError::Ended),
            // Places are kept: units may come back.
            SaleState::SoldOut => Ok(Joining::Read),
            _ if now < opens_at => Err(RoomError::NotOpenYet { opens_at, now }),
            _ => Ok(Joining::Join),
        }
    }

    /// The user's place.
    pub async fn place(&self, sale: SaleId, user: UserId) -> Result<Place, RoomError> {
        let (cached, _) = self.cached(sale).await?;
        let place = self.ask(&cached, user, Joining::Read).await?;
        place.ok_or(RoomError::NotHere)
    }

    /// Changes of the room that the user has a place in.
    pub async fn follow(
        &self,
        sale: SaleId,
        user: UserId,
    ) -> Result<(Place, watch::Receiver<Option<Arc<View>>>), RoomError> {
        let place = self.place(sale, user).await?;
        Ok((place, self.room(sale).view.subscribe()))
    }

    /// The signed token for the purchase, during the user's turn.
    pub fn admission(&self, sale: SaleId, user: UserId, place: &Place) -> Option<String> {
        let Standing::Turn { second, ends_at } = place.standing else {
            return None;
        };
        let (generation, number) = (&place.view.generation.0[..], place.number.to_be_bytes());
        let body = [generation, &number, &second.to_be_bytes()].concat();
        let tokens = &self.signed_tokens;
        Some(tokens.write(Purpose::Turn, user, sale, ends_at, &body))
    }

    /// The turn of a token, if it is this user's for this sale, and not over.
    pub fn verify(&self, sale: SaleId, user: UserId, admission: &str) -> Result<Turn, BadToken> {
        let now = self.catalog.now();
        let tokens = &self.signed_tokens;
        let verified = tokens.verify(Purpose::Turn, user, sale, admission, now);
        let token = verified.inspect_err(|why| match why {
            BadToken::Forged => self.metrics.forged.increment(1),
            BadToken::Expired => self.metrics.expired.increment(1),
        })?;
        let parts = token.body.split_last_chunk::<8>();
        let (turn, second) = parts.ok_or(BadToken::Forged)?;
        // The key is made of generation and number, whatever the token's expiry.
        let turn: String = turn.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("admission{turn}");
        Ok(Turn {
            second: i64::from_be_bytes(*second),
            key: IdempotencyKey::parse(name.as_bytes()).ok_or(BadToken::Forged)?,
        })
    }

    /// Counts a used turn.
    pub fn used(&self, sale: SaleId, turn: Turn) {
        self.metrics.used.increment(1);
        let room = self.room(sale);
        let mut used = room.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used.entry(turn.second).or_default() += 1;
    }

    async fn cached(&self, sale: SaleId) -> Result<(Arc<CachedSale>, RoomSettings), RoomError> {
        let cached = self.catalog.cached(sale).await?;
        let settings = cached.sale().access_policy.room();
        let settings = settings.ok_or(RoomError::NoRoom)?;
        cached.touch();
        Ok((cached, settings))
    }

    fn room(&self, sale: SaleId) -> Arc<Room> {
        let room = self.rooms.entry(sale).or_insert_with(|| {
            Arc::new(Room {
                view: watch::channel(None).0,
                used: Mutex::default(),
                reading: tokio::sync::Mutex::new(None),
            })
        });
        room.clone()
    }

    /// Asks Redis, and computes the place. `None`: the user has none.
    async fn ask(
        &self,
        cached: &Arc<CachedSale>,
        user: UserId,
        joining: Joining,
    ) -> Result<Option<Place>, RoomError> {
        let sale = cached.sale();
        let terms = Terms {
            opens_at: sale.opens_at,
            settling: SETTLING,
            forgotten_at: forgotten_at(&sale),
            most: MOST_PEOPLE,
        };
        let mut connection = self.redis.shared().await.map_err(ServiceError::from)?;
        let generation = Generation(random());
        let asked = Instant::now();
        let reached = self.fail_points.at("room.joining").await;
        reached.map_err(ServiceError::from)?;
        let keys = &self.redis.keys;
        let (connection, id) = (&mut connection, sale.id);
        let asking = functions::join(connection, keys, id, user, joining, &terms, generation);
        let (now_ms, joined) = asking.await.map_err(|error| self.failed(error))?;
        let answered = Instant::now();
        self.catalog.cache.clock.read(now_ms, asked);
        let (number, crowd) = match joined {
            Joined::Here { number, crowd } => (number, crowd),
            Joined::Absent => return Ok(None),
            Joined::Full => {
                return Err(ServiceError::unavailable("the waiting room is full").into());
            }
        };
        if joining != Joining::Read {
            self.metrics.joins.increment(1);
        }
        let room = self.room(sale.id);
        let known = room.view.borrow().clone();
        let is_current = |view: &Arc<View>| {
            view.generation == crowd.generation && view.draw.is_some() == crowd.seed.is_some()
        };
        let view = match known.filter(is_current) {
            Some(view) => Some(view),
            // An older view may not include this user.
            None => self.read(&room, cached, Some(answered)).await?,
        };
        let view = match (view.filter(|view| view.generation == crowd.generation), joining) {
            (Some(view), _) => view,
            // The room was lost in between.
            (None, Joining::Read) => return Ok(None),
            (None, _) => {
                return Err(ServiceError::unavailable("the waiting room has just been lost").into());
            }
        };
        let standing = view.standing(number, self.catalog.now());
        Ok(Some(Place { number, standing, view }))
    }

    /// The next caller reconnects if that may help.
    fn failed(&self, error: redis::RedisError) -> ServiceError {
        if stores::redis::is_away(&error) {
            self.redis.suspect_shared();
        }
        ServiceError::Redis(error)
    }
}

/// When the room of this sale opens.
pub fn room_opens_at(sale: &Sale, settings: &RoomSettings) -> OffsetDateTime {
    sale.opens_at - time::Duration::seconds(i64::from(settings.opens_before_secs))
}

/// As long as the sale itself is kept in Redis.
fn forgotten_at(sale: &Sale) -> OffsetDateTime {
    sale.closes_at + EVICT_AFTER
}
