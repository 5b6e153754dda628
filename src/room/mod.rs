//! The waiting room of a sale: whoever comes early is drawn, whoever comes later queues, and everybody has one
//! place.
//!
//! ```text
//! join ─▶ a number of arrival ─▶ at the opening: early ones are drawn ([`draw`]) ─▶ a place
//!                                late ones stand where they came            ─▶ a place
//! turns begin ─▶ the frontier passes the place ─▶ an admission: signed, for this user, sale and turn
//! purchase with the admission ─▶ the turn is used: one order comes of it
//! ```
//!
//! **Where it stands.** In Redis, under the tag `{room:ID}`: a few numbers for a room, a number for each person,
//! and a line for each second in which turns began. Places are never written: every instance computes them from
//! the seed. An instance keeps a [`view::View`] of each room, which it reads five times a second.
//!
//! **Who lets turns begin.** Every instance, by a script that looks at Redis' clock: as many as the time since
//! the last call allows at the rate of the caller, and at most one for each unit that is left and not spoken
//! for (with a margin, because some never buy). Nobody leads; an instance that dies is not missed.
//!
//! **One purchase for each turn.** The admission stands for an idempotency key: `admit.lua` judges it like any
//! retry, so showing it again names the order that came of it, and never makes another one. It costs no
//! question of its own, and holds through a rebuild of Redis as every key does.
//!
//! **When Redis loses the room**, its places are lost: it is nobody's truth. Before the opening that costs
//! nothing, because no places are drawn yet; pages join again. After it, whoever comes back within
//! [`SETTLING`] is drawn anew, and the others queue. Admissions stand: they are signed, not stored.

pub mod draw;
pub mod functions;
mod turns;
pub mod view;

use self::{
    functions::{Generation, Joined, Terms, Wish},
    view::{Standing, View},
};
use crate::{
    domain::{IdempotencyKey, RoomSettings, Sale, SaleId, SaleState, UserId},
    redis::Connection,
    sale::{
        Shop, ShopError,
        board::{Listing, RETIREMENT},
    },
    slip::{BadSlip, Purpose, Slips},
};
use dashmap::DashMap;
use metrics::{Counter, Gauge, counter, gauge};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use time::OffsetDateTime;
use tokio::sync::watch;

/// A room that begins after the opening, because it was lost or nobody came before, is drawn this much later.
pub const SETTLING: Duration = Duration::from_secs(2);
/// The most people of one room. Their numbers take some 40 bytes each in Redis, their places 4 in each instance.
pub const MOST_PEOPLE: u64 = 5_000_000;
/// How long a client waits before it asks once more for what could not be answered.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why somebody has no place.
#[derive(Debug, thiserror::Error)]
pub enum RoomError {
    #[error("the sale has no waiting room")]
    NoRoom,
    #[error("the waiting room opens at {opens_at}")]
    NotOpenYet {
        opens_at: OffsetDateTime,
        now: OffsetDateTime,
    },
    #[error("the sale has ended")]
    Ended,
    #[error("nothing is left to queue for")]
    SoldOut,
    /// They did not join, or their place was lost.
    #[error("not in the waiting room")]
    NotHere,
    #[error(transparent)]
    Shop(#[from] ShopError),
}

/// Somebody's place in a room, and the room as it was then.
#[derive(Debug, Clone)]
pub struct Place {
    pub number: u64,
    pub standing: Standing,
    pub view: Arc<View>,
}

/// An admission that was shown with a purchase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    second: i64,
    /// What the purchase is known by: the same for every use of the turn.
    pub key: IdempotencyKey,
}

/// All waiting rooms, as one process knows them.
pub struct Rooms {
    shop: Arc<Shop>,
    slips: Slips,
    rooms: DashMap<SaleId, Arc<Room>>,
    pacer: turns::Pacer,
    metrics: RoomMetrics,
}

/// One room.
struct Room {
    view: watch::Sender<Option<Arc<View>>>,
    /// Turns used here that Redis does not know of yet: the second in which they began, and how many.
    used: Mutex<HashMap<i64, u64>>,
    /// One reading at a time; when the last one was made.
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

impl Rooms {
    pub fn new(shop: Arc<Shop>, slips: Slips) -> Self {
        Self {
            shop,
            slips,
            rooms: DashMap::new(),
            pacer: turns::Pacer::default(),
            metrics: RoomMetrics::new(),
        }
    }

    /// Joins the room, or finds the place that the user has. One whose turn is over gets a new place, behind
    /// everybody.
    pub async fn join(&self, sale: SaleId, user: UserId) -> Result<Place, RoomError> {
        let (listing, _) = self.listing(sale).await?;
        let wish = self.may_join(&listing)?;
        match self.ask(&listing, user, wish).await? {
            Some(place) if place.standing == Standing::Missed && wish == Wish::Join => {
                let anew = Wish::JoinAnew {
                    instead_of: place.number,
                };
                let place = self.ask(&listing, user, anew).await?;
                place.ok_or(RoomError::NotHere)
            }
            Some(place) => Ok(place),
            None => Err(RoomError::SoldOut),
        }
    }

    /// Whether the room can be joined now: by everybody, or, when nothing is left, only by those who are in it.
    pub fn may_join(&self, listing: &Listing) -> Result<Wish, RoomError> {
        let (sale, now) = (listing.sale(), self.shop.now());
        let settings = sale.door.room().ok_or(RoomError::NoRoom)?;
        let opens_at = room_opens_at(&sale, &settings);
        match listing.view(now).state {
            SaleState::Ended => Err(RoomError::Ended),
            // There is nothing to queue for. Who stands there already keeps their place: units may come back.
            SaleState::SoldOut => Ok(Wish::Look),
            _ if now < opens_at => Err(RoomError::NotOpenYet { opens_at, now }),
            _ => Ok(Wish::Join),
        }
    }

    /// The user's place.
    pub async fn look(&self, sale: SaleId, user: UserId) -> Result<Place, RoomError> {
        let (listing, _) = self.listing(sale).await?;
        let place = self.ask(&listing, user, Wish::Look).await?;
        place.ok_or(RoomError::NotHere)
    }

    /// Changes of the room that the user has a place in.
    pub async fn follow(
        &self,
        sale: SaleId,
        user: UserId,
    ) -> Result<(Place, watch::Receiver<Option<Arc<View>>>), RoomError> {
        let place = self.look(sale, user).await?;
        Ok((place, self.room(sale).view.subscribe()))
    }

    /// What the user shows with their purchase, while it is their turn.
    pub fn admission(&self, sale: SaleId, user: UserId, place: &Place) -> Option<String> {
        let Standing::Turn { second, ends_at } = place.standing else {
            return None;
        };
        let body = [
            &place.view.generation.0[..],
            &place.number.to_be_bytes(),
            &second.to_be_bytes(),
        ];
        let body = body.concat();
        Some(
            self.slips
                .write(Purpose::Admission, user, sale, ends_at, &body),
        )
    }

    /// The turn that an admission stands for, if it is this user's for this sale, and not over.
    pub fn verify(&self, sale: SaleId, user: UserId, admission: &str) -> Result<Turn, BadSlip> {
        let now = self.shop.now();
        let verified = self
            .slips
            .verify(Purpose::Admission, user, sale, admission, now)
            .inspect_err(|why| match why {
                BadSlip::Forged => self.metrics.forged.increment(1),
                BadSlip::Expired => self.metrics.expired.increment(1),
            })?;
        let (turn, second) = verified
            .body
            .split_last_chunk::<8>()
            .ok_or(BadSlip::Forged)?;
        // Generation and number: the same whatever the slip's expiry.
        let mut name = "admission".to_owned();
        for byte in turn {
            name.push_str(&format!("{byte:02x}"));
        }
        Ok(Turn {
            second: i64::from_be_bytes(*second),
            key: IdempotencyKey::parse(name.as_bytes()).ok_or(BadSlip::Forged)?,
        })
    }

    /// Notes that an order came of this turn.
    pub fn used(&self, sale: SaleId, turn: Turn) {
        self.metrics.used.increment(1);
        let room = self.room(sale);
        let mut used = room.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used.entry(turn.second).or_default() += 1;
    }

    async fn listing(&self, sale: SaleId) -> Result<(Arc<Listing>, RoomSettings), RoomError> {
        let listing = self.shop.listing(sale).await?;
        let settings = listing.sale().door.room().ok_or(RoomError::NoRoom)?;
        listing.touch();
        Ok((listing, settings))
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

    /// One question to Redis, and the place that its answer makes. `None`: who only looks has none.
    async fn ask(
        &self,
        listing: &Arc<Listing>,
        user: UserId,
        wish: Wish,
    ) -> Result<Option<Place>, RoomError> {
        let sale = listing.sale();
        let terms = Terms {
            opens_at: sale.opens_at,
            settling: SETTLING,
            forgotten_at: forgotten_at(&sale),
            most: MOST_PEOPLE,
        };
        let mut connection = self.connection().await?;
        let mut generation = Generation([0; 8]);
        fill(&mut generation.0);
        let asked = Instant::now();
        let points = &self.shop.fail_points;
        points.at("room.joining").await.map_err(ShopError::from)?;
        let keys = &self.shop.redis.keys;
        let answer = functions::join(
            &mut connection,
            keys,
            sale.id,
            user,
            wish,
            &terms,
            generation,
        )
        .await;
        let (now_ms, joined) = answer.map_err(|error| self.failed(error))?;
        let answered = Instant::now();
        self.shop.board.clock.read(now_ms, asked);
        let (number, crowd) = match joined {
            Joined::Here { number, crowd } => (number, crowd),
            Joined::Absent => return Ok(None),
            Joined::Full => return Err(unavailable("the waiting room is full").into()),
        };
        if wish != Wish::Look {
            self.metrics.joins.increment(1);
        }
        let room = self.room(sale.id);
        let known = room.view.borrow().clone();
        let is_current = |view: &Arc<View>| {
            view.generation == crowd.generation && view.draw.is_some() == crowd.seed.is_some()
        };
        let view = match known.filter(is_current) {
            Some(view) => Some(view),
            // A reading that began before the answer may know nothing of whom it is about.
            None => self.read(&room, listing, Some(answered)).await?,
        };
        let view = match (
            view.filter(|view| view.generation == crowd.generation),
            wish,
        ) {
            (Some(view), _) => view,
            // It was lost between the two questions.
            (None, Wish::Look) => return Ok(None),
            (None, _) => return Err(unavailable("the waiting room has just been lost").into()),
        };
        let standing = view.standing(number, self.shop.now());
        Ok(Some(Place {
            number,
            standing,
            view,
        }))
    }

    async fn connection(&self) -> Result<Connection, ShopError> {
        Ok(self.shop.redis.shared().await?)
    }

    /// After an error on the connection, the next one who asks makes a new one.
    fn failed(&self, error: redis::RedisError) -> ShopError {
        if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() {
            self.shop.redis.drop_shared();
        }
        ShopError::Redis(error)
    }
}

/// From when on the room of this sale can be joined.
pub fn room_opens_at(sale: &Sale, settings: &RoomSettings) -> OffsetDateTime {
    sale.opens_at - time::Duration::seconds(i64::from(settings.opens_before_secs))
}

/// As long as the sale itself is kept in Redis.
fn forgotten_at(sale: &Sale) -> OffsetDateTime {
    sale.closes_at + RETIREMENT
}

fn unavailable(what: &'static str) -> ShopError {
    ShopError::Unavailable {
        what,
        retry_after: RETRY_AFTER,
    }
}

/// Bytes that nobody can guess.
fn fill(bytes: &mut [u8]) {
    // It fails only where the system has no randomness at all; then no token could be trusted either.
    aws_lc_rs::rand::fill(bytes).expect("the system gives random bytes");
}
