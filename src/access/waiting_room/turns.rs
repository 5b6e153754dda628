//! Begins turns and refreshes the views of all rooms, every [`PAUSE`] on every instance.

use crate::access::waiting_room::draw::Draw;
use crate::access::waiting_room::functions::{self, Crowd, Steps};
use crate::access::waiting_room::view::View;
use crate::access::waiting_room::{MOST_PEOPLE, Room, WaitingRooms, forgotten_at, room_opens_at};
use crate::auth::random;
use crate::catalog::cached_sale::CachedSale;
use crate::domain::{SaleState, from_unix_ms};
use crate::error::{ServiceError, ServiceResult};
use std::mem;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tasks::Task;

/// How often turns begin, and views are refreshed.
const PAUSE: Duration = Duration::from_millis(200);
/// How often an empty or ended room is read.
const EMPTY_PAUSE: Duration = Duration::from_secs(1);
/// How often waiting users get their own progress.
const TELLING: Duration = Duration::from_secs(1);

impl WaitingRooms {
    pub async fn run(self: Arc<Self>, task: Task) {
        let mut periodic = task.every(PAUSE);
        while periodic.tick(self.step()).await {}
    }

    /// One round over all rooms.
    pub async fn step(&self) -> ServiceResult<()> {
        let now = self.catalog.now();
        let (mut waiting, mut outcome) = (0, Ok(()));
        for cached in self.catalog.cache.cached_sales() {
            let sale = cached.sale();
            let Some(settings) = sale.access_policy.room() else {
                continue;
            };
            if now < room_opens_at(&sale, &settings) || now > forgotten_at(&sale) {
                continue;
            }
            let room = self.room(sale.id);
            let is_empty = room.view.borrow().is_none();
            let is_over = cached.view(now).state == SaleState::Ended;
            let pause = if is_empty || is_over { EMPTY_PAUSE } else { PAUSE / 2 };
            let due = Instant::now().checked_sub(pause);
            // A failure must not hold up the turns of the other rooms.
            outcome = outcome.and(self.read(&room, &cached, due).await.map(drop));
            if let Some(view) = &*room.view.borrow() {
                waiting += view.joined.saturating_sub(view.frontier);
            }
        }
        self.metrics.waiting.set(waiting as f64);
        outcome
    }

    /// Begins turns and reads the room, unless that was done after `not_before`. `None`: it is
    /// empty.
    pub(super) async fn read(
        &self,
        room: &Room,
        cached: &Arc<CachedSale>,
        not_before: Option<Instant>,
    ) -> ServiceResult<Option<Arc<View>>> {
        let mut last = room.reading.lock().await;
        if last.is_some_and(|last| not_before.is_some_and(|due| last > due)) {
            return Ok(room.view.borrow().clone());
        }
        let asked = Instant::now();
        let used = mem::take(&mut *room.used.lock().unwrap_or_else(PoisonError::into_inner));
        let used: Vec<(i64, u64)> = used.into_iter().collect();
        match self.advance(room, cached, &used).await {
            Ok(view) => {
                // Both under the lock: a caller that finds a newer call uses its view.
                tell(room, view.clone());
                *last = Some(asked);
                Ok(view)
            }
            Err(error) => {
                // Reported with the next call. If only the reply was lost, turns count twice: one
                // too many may begin.
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
        cached: &Arc<CachedSale>,
        used: &[(i64, u64)],
    ) -> ServiceResult<Option<Arc<View>>> {
        let sale = cached.sale();
        let settings = sale.access_policy.room().unwrap_or_default();
        let (seen, known) = (cached.view(self.catalog.now()), cached.snapshot());
        let throughput = self.admission.throughput.sample();
        let measured = self.pacer.rate(throughput, Instant::now());
        let per_second = measured.min(f64::from(settings.per_second));
        self.metrics.rate.set(per_second);
        let steps = Steps {
            seed: random(),
            may_begin: seen.state == SaleState::Open,
            epoch: known.as_ref().map_or(-1, |known| known.epoch),
            revision: known.as_ref().map_or(-1, |known| known.revision),
            remaining: known.as_ref().map_or(0, |known| known.remaining),
            per_second,
            turn: Duration::from_secs(settings.turn_secs.unsigned_abs().into()),
            percent: 100 + i64::from(settings.overbooking_percent),
            forgotten_at: forgotten_at(&sale),
            used,
        };
        let mut connection = self.redis.shared().await?;
        let asked = Instant::now();
        let keys = &self.redis.keys;
        let asking = functions::advance(&mut connection, keys, sale.id, &steps);
        let (now_ms, advanced) = asking.await.map_err(|error| self.failed(error))?;
        self.catalog.cache.clock.read(now_ms, asked);
        self.fail_points.at("room.advanced").await?;
        let Some(advanced) = advanced else {
            return Ok(None);
        };
        let last = room.view.borrow().clone();
        let known = last.and_then(|view| view.draw.clone());
        let draw = self.draw(known, &advanced.crowd).await?;
        Ok(Some(Arc::new(View {
            generation: advanced.crowd.generation,
            joined: advanced.crowd.joined,
            draw_at: from_unix_ms(advanced.draw_at_ms),
            draw,
            frontier: advanced.frontier,
            turns: advanced.turns,
            settings,
            state: seen.state,
            remaining: seen.remaining,
            read_at: from_unix_ms(now_ms),
            told_at: from_unix_ms(now_ms),
        })))
    }

    /// The drawn order, once there is a seed; computed once.
    async fn draw(
        &self,
        known: Option<Arc<Draw>>,
        crowd: &Crowd,
    ) -> ServiceResult<Option<Arc<Draw>>> {
        let (Some(seed), Some(people)) = (crowd.seed, crowd.early) else {
            return Ok(None);
        };
        if known.as_ref().is_some_and(|draw| draw.seed == seed) {
            return Ok(known);
        }
        let people = people.min(MOST_PEOPLE);
        // Takes some 30 ms for a million people.
        let drawn = tokio::task::spawn_blocking(move || Draw::new(seed, people));
        let drawn = drawn.await;
        drawn
            .map(|draw| Some(Arc::new(draw)))
            .map_err(|_| ServiceError::unavailable("the waiting room is being drawn"))
    }
}

/// Publishes a view. Followers are woken at once by changes for everybody, else once a second.
fn tell(room: &Room, view: Option<Arc<View>>) {
    room.view.send_if_modified(|last| {
        let is_news = match (&*last, &view) {
            (Some(last), Some(view)) => {
                last.differs_for_all(view) || last.told_before(view, TELLING)
            }
            (None, None) => false,
            _ => true,
        };
        *last = match (&*last, view) {
            // Keeps the time of the last wake-up.
            (Some(last), Some(view)) if !is_news => {
                Some(Arc::new(View { told_at: last.told_at, ..Arc::unwrap_or_clone(view) }))
            }
            (_, view) => view,
        };
        is_news
    });
}
