//! A view of a room: its counts, the draw, its turns; and the standing of a user in it.

use crate::access::waiting_room::draw::Draw;
use crate::access::waiting_room::functions::{Generation, Turns};
use crate::domain::{RoomSettings, SaleState, from_unix_ms};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

const RATE_WINDOW: i64 = 10;
/// The bounds of a page's polling interval.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The interval once nothing is left: returned units go to the front of the queue.
const SOLD_OUT_WAIT: Duration = Duration::from_secs(5);
/// Spreads the requests of pages that wait for the draw.
const DRAW_SPREAD_MS: u64 = 2_000;
/// Without a measured rate: one more second for this many people ahead.
const AHEAD_PER_SECOND: u64 = 200;

/// A room as it was at `read_at`.
#[derive(Debug, Clone)]
pub struct View {
    pub generation: Generation,
    pub joined: u64,
    /// Users who joined by then take part in the draw.
    pub draw_at: OffsetDateTime,
    /// `None` before the draw.
    pub draw: Option<Arc<Draw>>,
    /// The first place without a turn.
    pub frontier: u64,
    pub turns: Vec<Turns>,
    pub settings: RoomSettings,
    pub state: SaleState,
    pub remaining: i64,
    /// Redis' time.
    pub read_at: OffsetDateTime,
    /// When followers were last woken.
    pub told_at: OffsetDateTime,
}

/// The standing of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Joined before the draw.
    Early,
    /// With so many people ahead.
    Waiting { ahead: u64 },
    /// The user's turn, which began in `second`.
    Turn { second: i64, ends_at: OffsetDateTime },
    /// The user's turn is over.
    Missed,
}

impl View {
    /// The standing of arrival `number` at `now`.
    pub fn standing(&self, number: u64, now: OffsetDateTime) -> Standing {
        let Some(draw) = &self.draw else {
            return Standing::Early;
        };
        let place = draw.place(number);
        if place >= self.frontier {
            return Standing::Waiting { ahead: place - self.frontier };
        }
        let turn = self.turns.iter().find(|turn| place < turn.frontier);
        match turn {
            // Old turns are left out: the first in the list may not be the user's.
            Some(turn) if place.saturating_add(turn.began) >= turn.frontier => {
                let ends_at = self.end_of(turn.second);
                if now < ends_at {
                    Standing::Turn { second: turn.second, ends_at }
                } else {
                    Standing::Missed
                }
            }
            _ => Standing::Missed,
        }
    }

    /// The end of the turns that began in this second.
    fn end_of(&self, second: i64) -> OffsetDateTime {
        let length = i64::from(self.settings.turn_secs);
        let end = second.saturating_add(1).saturating_add(length);
        from_unix_ms(end.saturating_mul(1_000))
    }

    /// Turns that are neither over nor used.
    pub fn open_turns(&self, now: OffsetDateTime) -> u64 {
        let open = self.turns.iter();
        let open = open.filter(|turn| now < self.end_of(turn.second));
        open.map(|turn| turn.began.saturating_sub(turn.used)).fold(0, u64::saturating_add)
    }

    /// Turns a second, as measured over the last ten; `None`: none began.
    pub fn rate(&self) -> Option<f64> {
        let now = self.read_at.unix_timestamp();
        let recent = |turn: &&Turns| (now - RATE_WINDOW..now).contains(&turn.second);
        let began = self.turns.iter().filter(recent).map(|turn| turn.began);
        let began = began.fold(0, u64::saturating_add);
        let since_draw = now - self.draw_at.unix_timestamp();
        let seconds = since_draw.clamp(1, RATE_WINDOW);
        (began > 0).then(|| began as f64 / seconds as f64)
    }

    /// Whether more people are ahead, or have their turn, than units are left.
    pub fn is_beyond_stock(&self, ahead: u64) -> bool {
        let claimed = ahead.saturating_add(self.open_turns(self.read_at));
        claimed >= u64::try_from(self.remaining).unwrap_or(0)
    }

    /// The time until the turn of a user with so many ahead; `None` while no turns begin, and where
    /// nothing may be left.
    pub fn estimate(&self, ahead: u64) -> Option<Duration> {
        if self.state != SaleState::Open || self.is_beyond_stock(ahead) {
            return None;
        }
        let seconds = ahead.saturating_add(1) as f64 / self.rate()?;
        Some(Duration::from_secs_f64(seconds.min(86_400.0)))
    }

    /// The polling interval of a page: shorter near the front.
    pub fn ask_again_after(
        &self,
        number: u64,
        standing: Standing,
        now: OffsetDateTime,
    ) -> Duration {
        let until = |at: OffsetDateTime| Duration::try_from(at - now).unwrap_or(Duration::ZERO);
        match standing {
            Standing::Early => {
                let spread = Duration::from_millis(number % DRAW_SPREAD_MS);
                (until(self.draw_at) + spread).clamp(SHORTEST_WAIT, LONGEST_WAIT)
            }
            Standing::Waiting { .. } if self.state == SaleState::SoldOut => SOLD_OUT_WAIT,
            Standing::Waiting { ahead } => {
                let by_distance = || SHORTEST_WAIT + Duration::from_secs(ahead / AHEAD_PER_SECOND);
                let estimate = self.estimate(ahead);
                let wait = estimate.map_or_else(by_distance, |wait| wait / 3);
                wait.clamp(SHORTEST_WAIT, LONGEST_WAIT)
            }
            Standing::Turn { ends_at, .. } => until(ends_at).clamp(SHORTEST_WAIT, LONGEST_WAIT),
            Standing::Missed => SHORTEST_WAIT,
        }
    }

    /// Whether all followers are woken at once.
    pub fn differs_for_all(&self, newer: &Self) -> bool {
        self.generation != newer.generation
            || self.state != newer.state
            || self.draw.is_some() != newer.draw.is_some()
    }

    /// Whether the last wake-up was this long before `newer`.
    pub fn told_before(&self, newer: &Self, pause: Duration) -> bool {
        newer.read_at - self.told_at >= pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2026-11-20 10:00:30 UTC);

    fn view(frontier: u64, turns: Vec<Turns>) -> View {
        View {
            generation: Generation([1; 8]),
            joined: 1_000,
            draw_at: datetime!(2026-11-20 10:00 UTC),
            draw: Some(Arc::new(Draw::new([0; 32], 0))),
            frontier,
            turns,
            settings: RoomSettings { turn_secs: 10, ..RoomSettings::default() },
            state: SaleState::Open,
            remaining: 500,
            read_at: NOW,
            told_at: NOW,
        }
    }

    /// Turns that began `ago` seconds ago.
    fn turns(ago: i64, frontier: u64, began: u64) -> Turns {
        Turns { second: NOW.unix_timestamp() - ago, frontier, began, used: 0 }
    }

    #[test]
    fn turns_begin_pass_and_are_over() {
        // 0..5 are forgotten, 5..10 over, 10..30 have their turn, 30 is next.
        let view = view(30, vec![turns(20, 10, 5), turns(10, 20, 10), turns(1, 30, 10)]);
        assert_eq!(view.standing(0, NOW), Standing::Missed);
        assert_eq!(view.standing(4, NOW), Standing::Missed);
        assert_eq!(view.standing(9, NOW), Standing::Missed);
        let ends_at = NOW + Duration::from_secs(1);
        let second = NOW.unix_timestamp() - 10;
        assert_eq!(view.standing(10, NOW), Standing::Turn { second, ends_at });
        assert_eq!(view.standing(19, ends_at), Standing::Missed);
        assert!(matches!(view.standing(29, NOW), Standing::Turn { .. }));
        assert_eq!(view.standing(30, NOW), Standing::Waiting { ahead: 0 });
        assert_eq!(view.standing(999, NOW), Standing::Waiting { ahead: 969 });
        assert_eq!(view.open_turns(NOW), 20);
    }

    #[test]
    fn an_estimate_is_what_was_measured_or_none() {
        let moving = view(40, vec![turns(2, 20, 20), turns(1, 40, 20)]);
        assert_eq!(moving.rate(), Some(4.0));
        assert_eq!(moving.estimate(39), Some(Duration::from_secs(10)));
        assert_eq!(moving.estimate(459), Some(Duration::from_secs(115)));
        assert_eq!(moving.estimate(460), None, "460 ahead, 40 with their turn, 500 units");
        assert_eq!(view(40, vec![turns(15, 40, 40)]).estimate(3), None, "nobody moves");
        let sold_out = View { state: SaleState::SoldOut, ..moving };
        assert_eq!(sold_out.estimate(0), None);
    }

    #[test]
    fn who_stands_far_away_asks_seldom() {
        let view = view(0, Vec::new());
        let wait = |ahead| view.ask_again_after(0, Standing::Waiting { ahead }, NOW);
        assert_eq!(wait(0), SHORTEST_WAIT);
        assert_eq!(wait(1_000), Duration::from_secs(6));
        assert_eq!(wait(1_000_000), LONGEST_WAIT);
    }

    proptest! {
        #[test]
        fn any_room_has_a_standing_for_everybody(
            frontier in 0u64..1 << 60, number: u64, remaining: i64, turn_secs: i32,
            turns in prop::collection::vec(any::<(i64, u64, u64, u64)>(), 0..5),
        ) {
            let turns = turns.into_iter().map(|(second, frontier, began, used)| {
                let began = began % (frontier / 2 + 1);
                Turns { second, frontier: frontier / 2, began, used }
            });
            let mut view = view(frontier / 2, turns.collect());
            (view.remaining, view.settings.turn_secs) = (remaining, turn_secs);
            let standing = view.standing(number / 2, NOW);
            let wait = view.ask_again_after(number / 2, standing, NOW);
            prop_assert!((SHORTEST_WAIT..=LONGEST_WAIT).contains(&wait));
            view.estimate(number / 2);
        }
    }
}
