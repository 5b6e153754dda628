//! The waiting room: joining it, reading a place, following it.

use super::access_policy::AccessPolicies;
use super::error::{
    ENDED, HttpResult, NOT_IN_WAITING_ROOM, Problem, SOLD_OUT, WAITING_ROOM_NOT_FOUND,
    WAITING_ROOM_NOT_OPEN, not_before,
};
use super::extract::{Caller, Id, MaybeCredentials, PacedShopper, Shopper};
use super::openapi::refusals;
use crate::access::waiting_room::view::{Standing, View};
use crate::access::waiting_room::{Place, RoomError, WaitingRooms};
use crate::catalog::Catalog;
use crate::domain::{SaleId, SaleState, UserId};
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::sse::Event;
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::Instant;
use utoipa::ToSchema;
use web::body::{self, NoBody};
use web::events::{Streams, event};

/// The state of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum PlaceState {
    /// Joined before the draw; places are drawn at `draw_at`.
    Early,
    Waiting,
    /// Buy with `admission_token` before `turn_ends_at`.
    Turn,
    /// The turn is over. Joining again gives a new place, behind everybody.
    Missed,
}

/// A place in a waiting room, as it is at `server_time`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Place)]
pub struct PlaceBody {
    sale_id: SaleId,
    state: PlaceState,
    sale_state: SaleState,
    /// Units left.
    remaining: i64,
    /// How many people have joined so far.
    joined: u64,
    /// 1 is next; null before the draw and once the turn has begun.
    #[schema(required)]
    position: Option<u64>,
    /// Until the turn begins, by the rate of the last ten seconds; null when unknown.
    #[schema(required)]
    estimate_secs: Option<u64>,
    /// More people stand ahead, or have their turn, than there are units left.
    more_ahead_than_left: bool,
    /// Everybody who has joined by then takes part in the draw.
    #[serde(with = "time::serde::rfc3339")]
    draw_at: OffsetDateTime,
    /// During the turn.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    turn_ends_at: Option<OffsetDateTime>,
    /// During the turn: the `Admission-Token` that the purchase needs.
    #[schema(required)]
    admission_token: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    server_time: OffsetDateTime,
    /// The polling interval for clients that do not follow the events.
    poll_after_ms: u64,
}

impl PlaceBody {
    fn of(
        rooms: &WaitingRooms,
        now: OffsetDateTime,
        sale_id: SaleId,
        user: UserId,
        place: &Place,
    ) -> Self {
        let view = &place.view;
        let (state, ahead, turn_ends_at) = match place.standing {
            Standing::Early => (PlaceState::Early, None, None),
            Standing::Waiting { ahead } => (PlaceState::Waiting, Some(ahead), None),
            Standing::Turn { ends_at, .. } => (PlaceState::Turn, None, Some(ends_at)),
            Standing::Missed => (PlaceState::Missed, None, None),
        };
        let estimate = ahead.and_then(|ahead| view.estimate(ahead));
        let wait = view.ask_again_after(place.number, place.standing, now);
        Self {
            sale_id,
            state,
            sale_state: view.state,
            remaining: view.remaining,
            joined: view.joined,
            position: ahead.map(|ahead| ahead.saturating_add(1)),
            estimate_secs: estimate.map(|wait| wait.as_secs().max(1)),
            more_ahead_than_left: ahead.is_some_and(|ahead| view.is_beyond_stock(ahead)),
            draw_at: view.draw_at,
            turn_ends_at,
            admission_token: rooms.admission(sale_id, user, place),
            server_time: now,
            poll_after_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn answer(&self) -> HttpResult {
        let mut response = body::json(StatusCode::OK, self)?;
        let seconds = self.poll_after_ms.div_ceil(1_000);
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        Ok(response)
    }
}

impl From<RoomError> for Problem {
    fn from(error: RoomError) -> Self {
        match error {
            RoomError::NoRoom => Self::new(&WAITING_ROOM_NOT_FOUND),
            RoomError::NotOpenYet { opens_at, now } => {
                not_before(&WAITING_ROOM_NOT_OPEN, opens_at, now)
            }
            RoomError::Ended => Self::new(&ENDED),
            RoomError::SoldOut => Self::new(&SOLD_OUT),
            RoomError::NotHere => Self::new(&NOT_IN_WAITING_ROOM),
            RoomError::Shop(error) => error.into(),
        }
    }
}

refusals!(JoinRefusals:
    UNAUTHENTICATED, CROSS_ORIGIN, SALE_NOT_FOUND, WAITING_ROOM_NOT_FOUND, WAITING_ROOM_NOT_OPEN,
        ENDED, SOLD_OUT,
    CHALLENGE_REQUIRED, CHALLENGE_FAILED, CHALLENGE_EXPIRED,
    TOO_LARGE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(PlaceRefusals:
    UNAUTHENTICATED, SALE_NOT_FOUND, WAITING_ROOM_NOT_FOUND, NOT_IN_WAITING_ROOM, RATE_LIMITED,
        UNAVAILABLE
);

/// Join the waiting room of a sale.
///
/// Joining again changes nothing: a user has one place, in however many tabs. After a missed turn
/// it gives a new one.
#[utoipa::path(
    post, path = "/api/v1/sales/{id}/waiting-room", tag = "shopping", operation_id =
        "join_waiting_room",
    params(
        ("id" = SaleId, Path, description = "The sale"),
        ("Challenge-Solution" = Option<String>, Header, description = "Where the sale asks for \
            work: `CHALLENGE:NUMBER`"),
    ),
    responses(
        (status = 200, description = "The place; Retry-After says when to ask again", body =
            PlaceBody,
         headers(("Retry-After" = u64, description = "Seconds"))),
        JoinRefusals
    ),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn join(
    State(access): State<Arc<AccessPolicies>>,
    State(catalog): State<Arc<Catalog>>,
    PacedShopper(user): PacedShopper,
    Id(sale): Id<SaleId>,
    MaybeCredentials(credentials): MaybeCredentials,
    _: NoBody,
) -> HttpResult {
    let place = access.join(sale, user, credentials.as_ref()).await?;
    PlaceBody::of(&access.rooms, catalog.now(), sale, user, &place).answer()
}

/// My place in the waiting room of a sale.
#[utoipa::path(
    get, path = "/api/v1/sales/{id}/waiting-room", tag = "shopping", operation_id = "get_place",
    params(("id" = SaleId, Path, description = "The sale")),
    responses(
        (status = 200, description = "The place; Retry-After says when to ask again", body =
            PlaceBody,
         headers(("Retry-After" = u64, description = "Seconds"))),
        PlaceRefusals
    ),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn place(
    State(rooms): State<Arc<WaitingRooms>>,
    State(catalog): State<Arc<Catalog>>,
    Shopper(shopper): Shopper,
    Id(sale): Id<SaleId>,
) -> HttpResult {
    let place = rooms.place(sale, shopper.user_id).await?;
    PlaceBody::of(&rooms, catalog.now(), sale, shopper.user_id, &place).answer()
}

/// Follow my place: event `place`, at once, when the sale or my state changes, and now and then in
/// between; until the turn, the sale or the token is over.
#[utoipa::path(
    get, path = "/api/v1/sales/{id}/waiting-room/events", tag = "shopping", operation_id =
        "follow_place",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "Server-sent events", body = PlaceBody, content_type =
        "text/event-stream"), PlaceRefusals),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn events(
    State(rooms): State<Arc<WaitingRooms>>,
    State(catalog): State<Arc<Catalog>>,
    State(streams): State<Streams>,
    Shopper(shopper): Shopper,
    Caller(address): Caller,
    Id(sale): Id<SaleId>,
) -> HttpResult {
    let gauge = metrics::gauge!("flash_sale_sse_subscribers", "stream" => "waiting_room");
    let stream = streams.take_place(address, gauge)?;
    let user = shopper.user_id;
    let (place, views) = rooms.follow(sale, user).await?;
    let valid_for = Duration::try_from(shopper.expires_at - catalog.now()).unwrap_or_default();
    let following = Following { rooms, catalog, sale, user, place, views, told: None };
    Ok(stream.respond(following.events().take_until(tokio::time::sleep(valid_for))))
}

/// The interval of updates for users far from the front.
const FAR_PACE: Duration = Duration::from_secs(10);
/// Users in front of this position get every change.
const NEAR: u64 = 100;

/// A followed place.
struct Following {
    rooms: Arc<WaitingRooms>,
    catalog: Arc<Catalog>,
    sale: SaleId,
    user: UserId,
    place: Place,
    views: watch::Receiver<Option<Arc<View>>>,
    /// The last event, and when it was sent.
    told: Option<(Place, Instant)>,
}

impl Following {
    fn events(self) -> impl Stream<Item = Event> + Send {
        stream::unfold(Some(self), |following| async move {
            let mut following = following?;
            following.wait_for_news().await?;
            let place = following.place.clone();
            let Following { rooms, catalog, sale, user, .. } = &following;
            let body = PlaceBody::of(rooms, catalog.now(), *sale, *user, &place);
            let is_last =
                place.standing == Standing::Missed || place.view.state == SaleState::Ended;
            following.told = Some((place, Instant::now()));
            Some((event("place", &body), (!is_last).then_some(following)))
        })
    }

    /// Returns when there is news; `None` when the place is gone.
    async fn wait_for_news(&mut self) -> Option<()> {
        while !self.is_news() {
            // A turn ends by the clock, even if no turns begin any more.
            let turn_over = match self.place.standing {
                Standing::Turn { ends_at, .. } => {
                    Duration::try_from(ends_at - self.catalog.now()).unwrap_or_default()
                }
                _ => Duration::MAX,
            };
            tokio::select! {
                changed = self.views.changed() => changed.ok()?,
                () = tokio::time::sleep(turn_over) => {}
            }
            let view = self.views.borrow_and_update().clone();
            match view.filter(|view| view.generation == self.place.view.generation) {
                Some(view) => {
                    let standing = view.standing(self.place.number, self.catalog.now());
                    (self.place.view, self.place.standing) = (view, standing);
                }
                // The room was lost and has begun again: join again.
                None => self.place = self.rooms.join(self.sale, self.user).await.ok()?,
            }
        }
        Some(())
    }

    fn is_news(&self) -> bool {
        let Some((told, at)) = &self.told else {
            return true;
        };
        let (before, after) = (&told.standing, &self.place.standing);
        let is_near = matches!(after, Standing::Waiting { ahead } if *ahead < NEAR);
        std::mem::discriminant(before) != std::mem::discriminant(after)
            || told.view.differs_for_all(&self.place.view)
            || (before != after && (is_near || at.elapsed() >= FAR_PACE))
            || at.elapsed() >= FAR_PACE
    }
}
