//! Lets turns begin, and keeps the views of all rooms fresh: one round every [`PAUSE`] on every instance.

use super::{
    Room, Rooms,
    draw::Draw,
    fill, forgotten_at,
    functions::{self, Crowd, Steps},
    room_opens_at,
    view::View,
};
use crate::{
    domain::SaleState,
    sale::{
        ShopError,
        board::{Listing, from_ms},
        capacity::Reading,
    },
    worker::Pace,
};
use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// How often turns begin, and everybody hears that nothing is left.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a room that nobody has joined is looked at.
const EMPTY_PAUSE: Duration = Duration::from_secs(1);
/// How often those who wait are told what changes for each of them only.
const TELLING: Duration = Duration::from_secs(1);
/// Over how long the capacity is measured.
const MEASURING: Duration = Duration::from_millis(500);
/// The rate as long as nothing was measured.
const FIRST_RATE: f64 = 50.0;
/// The share of the measured capacity that is given to people from waiting rooms: the rest is for retries, and
/// for what a measurement of the recent past does not know.
const SHARE: f64 = 0.5;
/// However slow everything is, turns begin at this rate: otherwise nothing would be measured any more.
const SLOWEST: f64 = 1.0;

/// How many turns a second this process can bear, by what its gates measured.
#[derive(Default)]
pub(super) struct Pacer(Mutex<Pacing>);

#[derive(Default)]
struct Pacing {
    last: Option<(Instant, Reading)>,
    /// Purchases a second; `None`: no gate was ever busy.
    capacity: Option<f64>,
}

impl Pacer {
    /// Turns a second that the gates can bear, given what they have measured until `now`.
    fn rate(&self, reading: Reading, now: Instant) -> f64 {
        let mut pacing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, last) = pacing.last.unwrap_or((now, reading));
        if pacing.last.is_none() {
            pacing.last = Some((now, reading));
        } else if now.duration_since(since) >= MEASURING {
            pacing.last = Some((now, reading));
            if let Some(measured) = reading.since(&last) {
                // The latest half second counts for half: a stall is felt at once, a lucky batch is not.
                let known = pacing.capacity.unwrap_or(measured);
                pacing.capacity = Some((known + measured) / 2.0);
            }
        }
        pacing
            .capacity
            .map_or(FIRST_RATE, |capacity| (capacity * SHARE).max(SLOWEST))
    }
}

impl Rooms {
    /// Until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shop, "waiting rooms", PAUSE, None, &stop);
        while pace.rest(self.step()).await {}
    }

    /// One round over all rooms.
    pub async fn step(&self) -> Result<(), ShopError> {
        let now = self.shop.now();
        let mut waiting = 0;
        for listing in self.shop.board.listings() {
            let sale = listing.sale();
            let Some(settings) = sale.door.room() else {
                continue;
            };
            if now < room_opens_at(&sale, &settings) || now > forgotten_at(&sale) {
                continue;
            }
            let room = self.room(sale.id);
            let is_empty = room.view.borrow().is_none();
            let is_over = listing.view(now).state == SaleState::Ended;
            let pause = if is_empty || is_over {
                EMPTY_PAUSE
            } else {
                PAUSE / 2
            };
            let due = Instant::now().checked_sub(pause);
            if let Some(view) = self.read(&room, &listing, due).await? {
                waiting += view.joined.saturating_sub(view.frontier);
            }
        }
        self.metrics.waiting.set(waiting as f64);
        Ok(())
    }

    /// Lets the turns of a room begin and reads how it stands, unless that was done after `not_before`. `None`:
    /// nobody has joined.
    pub(super) async fn read(
        &self,
        room: &Room,
        listing: &Arc<Listing>,
        not_before: Option<Instant>,
    ) -> Result<Option<Arc<View>>, ShopError> {
        let mut last = room.reading.lock().await;
        if last.is_some_and(|last| not_before.is_some_and(|due| last > due)) {
            return Ok(room.view.borrow().clone());
        }
        let asked = Instant::now();
        let used = mem::take(&mut *room.used.lock().unwrap_or_else(PoisonError::into_inner));
        let used: Vec<(i64, u64)> = used.into_iter().collect();
        match self.advance(room, listing, &used).await {
            Ok(view) => {
                // Both before the next one has the lock: who finds that there was a reading takes what it brought.
                tell(room, view.clone());
                *last = Some(asked);
                Ok(view)
            }
            Err(error) => {
                // What was used is told next time. If only the answer was lost it counts twice: then a turn
                // too many may begin, and somebody may hear that all is sold.
                let mut unknown = room.used.lock().unwrap_or_else(PoisonError::into_inner);
                for (second, count) in used {
                    *unknown.entry(second).or_default() += count;
                }
                Err(error)
            }
        }
    }

    async fn advance(
        &self,
        room: &Room,
        listing: &Arc<Listing>,
        used: &[(i64, u64)],
    ) -> Result<Option<Arc<View>>, ShopError> {
        let sale = listing.sale();
        let settings = sale.door.room().unwrap_or_default();
        let (seen, known) = (listing.view(self.shop.now()), listing.snapshot());
        let measured = self
            .pacer
            .rate(self.shop.capacity.reading(), Instant::now());
        let per_second = measured.min(f64::from(settings.per_second));
        self.metrics.rate.set(per_second);
        let mut steps = Steps {
            seed: [0; 32],
            may_begin: seen.state == SaleState::Open,
            epoch: known.as_ref().map_or(-1, |known| known.epoch),
            change: known.as_ref().map_or(-1, |known| known.change),
            remaining: known.as_ref().map_or(0, |known| known.remaining),
            per_second,
            turn: Duration::from_secs(settings.turn_secs.unsigned_abs().into()),
            percent: 100 + i64::from(settings.overbooking_percent),
            forgotten_at: forgotten_at(&sale),
            used,
        };
        fill(&mut steps.seed);
        let mut connection = self.connection().await?;
        let asked = Instant::now();
        let answer =
            functions::advance(&mut connection, &self.shop.redis.keys, sale.id, &steps).await;
        let (now_ms, advanced) = answer.map_err(|error| self.failed(error))?;
        self.shop.board.clock.read(now_ms, asked);
        let fail_points = &self.shop.fail_points;
        fail_points.at("room.advanced").await?;
        let Some(advanced) = advanced else {
            return Ok(None);
        };
        let known = room
            .view
            .borrow()
            .as_ref()
            .and_then(|view| view.draw.clone());
        let draw = self.draw(known, &advanced.crowd).await?;
        Ok(Some(Arc::new(View {
            generation: advanced.crowd.generation,
            joined: advanced.crowd.joined,
            draw_at: from_ms(advanced.draw_at_ms),
            draw,
            frontier: advanced.frontier,
            turns: advanced.turns,
            settings,
            state: seen.state,
            remaining: seen.remaining,
            read_at: from_ms(now_ms),
            told_at: from_ms(now_ms),
        })))
    }

    /// The order of those who came early, once there is a seed; computed once for each.
    async fn draw(
        &self,
        known: Option<Arc<Draw>>,
        crowd: &Crowd,
    ) -> Result<Option<Arc<Draw>>, ShopError> {
        let (Some(seed), Some(people)) = (crowd.seed, crowd.early) else {
            return Ok(None);
        };
        if known.as_ref().is_some_and(|draw| draw.seed == seed) {
            return Ok(known);
        }
        let people = people.min(super::MOST_PEOPLE);
        // Some 30 ms for a million: other tasks go on meanwhile.
        let drawn = tokio::task::spawn_blocking(move || Draw::new(seed, people));
        let drawn = drawn.await;
        drawn
            .map(|draw| Some(Arc::new(draw)))
            .map_err(|_| super::unavailable("the waiting room is being drawn"))
    }
}

/// Puts a new view up. Everybody is woken at once by what concerns everybody, and otherwise once a second.
fn tell(room: &Room, view: Option<Arc<View>>) {
    room.view.send_if_modified(|shown| {
        let is_news = match (&*shown, &view) {
            (Some(shown), Some(view)) => {
                shown.differs_for_all(view) || shown.told_before(view, TELLING)
            }
            (None, None) => false,
            _ => true,
        };
        *shown = match (&*shown, view) {
            // Who is not woken now is woken a second after the last time.
            (Some(shown), Some(view)) if !is_news => Some(Arc::new(View {
                told_at: shown.told_at,
                ..Arc::unwrap_or_clone(view)
            })),
            (_, view) => view,
        };
        is_news
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sale::capacity::Capacity;

    #[test]
    fn the_rate_follows_what_the_gates_measure() {
        let (pacer, capacity, start) = (Pacer::default(), Capacity::default(), Instant::now());
        let rate = |at_ms| pacer.rate(capacity.reading(), start + Duration::from_millis(at_ms));
        assert_eq!(rate(0), FIRST_RATE);
        assert_eq!(rate(600), FIRST_RATE, "nothing was measured");
        capacity.note(100, Duration::from_millis(100));
        assert_eq!(rate(700), FIRST_RATE, "not yet");
        assert_eq!(rate(1_200), 500.0, "half of 1,000 a second");
        capacity.note(0, Duration::from_secs(2));
        assert_eq!(rate(1_800), 250.0, "a stall");
        for round in 0u32..20 {
            capacity.note(0, Duration::from_secs(2));
            rate(2_400 + 600 * u64::from(round));
        }
        assert_eq!(rate(60_000), SLOWEST);
        capacity.note(1_000, Duration::from_millis(100));
        assert!(rate(61_000) > 1_000.0);
    }
}
