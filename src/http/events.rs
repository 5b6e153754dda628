//! Server-sent events: a sale's changing part, an order's life.
//!
//! Every subscriber reads a `watch` channel that the shop feeds once for all of them, so a subscriber
//! costs a write, never a query; a slow one skips what is no longer current. A stream ends when its
//! subject does, when its channel closes, or when the server drains: an open stream would otherwise
//! hold up a graceful shutdown for ever. Clients come back by themselves.

use super::{
    App,
    error::Problem,
    extract::{Caller, Id, Shopper},
    limits::Address,
    openapi::refusals,
    seats::{Seat, Seats},
};
use crate::{
    domain::{Order, OrderId, SaleId, SaleState},
    sale::SalePulse,
};
use axum::{
    extract::State,
    http::{HeaderName, HeaderValue},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{Stream, StreamExt, stream};
use metrics::Gauge;
use serde::Serialize;
use std::{convert::Infallible, sync::Arc, time::Duration};
use time::OffsetDateTime;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};
use utoipa::ToSchema;

/// The most streams of a process. Each holds a socket and some 10 KiB.
const MOST_STREAMS: usize = 20_000;
/// The most streams of one address, where addresses are limited: wide, many shoppers may share it.
const MOST_STREAMS_OF_ADDRESS: usize = 2_000;
/// A sale tells a subscriber at most this often.
const SALE_PACE: Duration = Duration::from_millis(200);
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The part of a sale that changes while one looks at it.
#[derive(Serialize, ToSchema)]
pub struct SaleEvent {
    remaining: i64,
    state: SaleState,
    #[serde(with = "time::serde::rfc3339")]
    server_time: OffsetDateTime,
}

impl From<&SalePulse> for SaleEvent {
    fn from(pulse: &SalePulse) -> Self {
        Self {
            remaining: pulse.remaining,
            state: pulse.state,
            server_time: pulse.server_time,
        }
    }
}

refusals!(SaleRefusals: SALE_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);
refusals!(OrderRefusals: UNAUTHENTICATED, ORDER_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);

/// Follow a sale: event `sale`, at once and on every change, at most 5 a second.
#[utoipa::path(
    get, path = "/api/v1/sales/{id}/events", tag = "shopping", operation_id = "follow_sale",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "Server-sent events", body = SaleEvent, content_type = "text/event-stream"), SaleRefusals),
)]
pub async fn sale(
    State(app): State<App>,
    Caller(address): Caller,
    Id(sale): Id<SaleId>,
) -> Result<Response, Problem> {
    let gauge = metrics::gauge!("flash_sale_sse_subscribers", "stream" => "sale");
    let place = app.streams.take_place(address, gauge)?;
    let pulses = app.shop.watch_sale(sale).await?;
    let events = follow(
        pulses,
        SALE_PACE,
        |_| false,
        |pulse| event("sale", &SaleEvent::from(pulse)),
    );
    Ok(respond(&app, events, place))
}

/// Follow one of my orders: event `order`, at once and on every change, until a terminal state.
#[utoipa::path(
    get, path = "/api/v1/orders/{id}/events", tag = "shopping", operation_id = "follow_order",
    params(("id" = OrderId, Path, description = "The order")),
    responses((status = 200, description = "Server-sent events", body = Order, content_type = "text/event-stream"), OrderRefusals),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn order(
    State(app): State<App>,
    Shopper(shopper): Shopper,
    Caller(address): Caller,
    Id(order): Id<OrderId>,
) -> Result<Response, Problem> {
    let gauge = metrics::gauge!("flash_sale_sse_subscribers", "stream" => "order");
    let place = app.streams.take_place(address, gauge)?;
    let states = app.shop.watch_order(shopper.user_id, order).await?;
    let ends = |order: &Order| order.status.is_terminal();
    let events = follow(states, Duration::ZERO, ends, |order| event("order", order));
    Ok(respond(&app, events, place))
}

/// The places for streams of one process.
#[derive(Clone)]
pub struct Streams {
    free: Arc<Semaphore>,
    seats: Seats,
}

impl Streams {
    pub fn new(by_address: bool) -> Self {
        Self::with(MOST_STREAMS, by_address.then_some(MOST_STREAMS_OF_ADDRESS))
    }

    pub fn with(most: usize, most_of_address: Option<usize>) -> Self {
        Self {
            free: Arc::new(Semaphore::new(most)),
            seats: Seats::new(most_of_address),
        }
    }

    pub(super) fn take_place(&self, address: Address, gauge: Gauge) -> Result<Place, Problem> {
        let seat = self.seats.take(address);
        let seat = seat.ok_or_else(|| Problem::rate_limited(HEARTBEAT))?;
        let free = self.free.clone().try_acquire_owned();
        let permit =
            free.map_err(|_| Problem::unavailable("too many event streams are open", HEARTBEAT))?;
        gauge.increment(1.0);
        Ok(Place {
            gauge,
            _permit: permit,
            _seat: seat,
        })
    }
}

/// One open stream: counted, and one of a bounded number, until it is dropped.
pub(super) struct Place {
    gauge: Gauge,
    _permit: OwnedSemaphorePermit,
    _seat: Seat,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gauge.decrement(1.0);
    }
}

/// The values of `values`: the present one at once, then changes, `pace` apart at least, up to and
/// including one that `is_last`.
fn follow<T: Send + Sync + 'static>(
    mut values: watch::Receiver<T>,
    pace: Duration,
    is_last: impl Fn(&T) -> bool + Send + 'static,
    show: impl Fn(&T) -> Event + Send + 'static,
) -> impl Stream<Item = Event> + Send {
    values.mark_changed();
    let following = Some((values, Instant::now()));
    stream::unfold(
        (following, is_last, show),
        move |(following, is_last, show)| async move {
            let (mut values, not_before) = following?;
            values.changed().await.ok()?;
            tokio::time::sleep_until(not_before).await;
            let (event, ended) = {
                let value = values.borrow_and_update();
                (show(&value), is_last(&value))
            };
            let following = (!ended).then(|| (values, Instant::now() + pace));
            Some((event, (following, is_last, show)))
        },
    )
}

pub(super) fn event(name: &str, value: &impl Serialize) -> Event {
    Event::default()
        .event(name)
        .json_data(value)
        .unwrap_or_else(|error| {
            tracing::error!(%error, "an event could not be written");
            Event::default().comment("unwritable")
        })
}

pub(super) fn respond(
    app: &App,
    events: impl Stream<Item = Event> + Send + 'static,
    place: Place,
) -> Response {
    let events = events
        .take_until(app.draining.clone().cancelled_owned())
        .map(move |event| {
            let _held_until_the_stream_is_dropped = &place;
            Ok::<_, Infallible>(event)
        });
    let stream =
        Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT).text("heartbeat"));
    // nginx would otherwise collect events before passing them on.
    let unbuffered = (
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    ([unbuffered], stream).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing;

    fn numbers(values: watch::Receiver<u32>, pace: Duration) -> impl Stream<Item = String> + Unpin {
        let events = follow(
            values,
            pace,
            |value| *value >= 9,
            |value| Event::default().data(value.to_string()),
        );
        Box::pin(events.map(|event| format!("{event:?}")))
    }

    async fn next(events: &mut (impl Stream<Item = String> + Unpin)) -> Option<String> {
        tokio::time::timeout(Duration::from_secs(2), events.next())
            .await
            .expect("within 2 s")
    }

    #[tokio::test]
    async fn the_present_value_comes_at_once_and_a_last_one_ends_it() {
        let (sender, receiver) = watch::channel(1);
        let mut events = numbers(receiver, Duration::ZERO);
        assert!(
            next(&mut events)
                .await
                .is_some_and(|event| event.contains("1"))
        );
        sender.send_replace(9);
        assert!(
            next(&mut events)
                .await
                .is_some_and(|event| event.contains("9"))
        );
        assert_eq!(next(&mut events).await, None);
    }

    #[tokio::test]
    async fn a_closed_channel_ends_it_after_its_last_value() {
        let (sender, receiver) = watch::channel(1);
        drop(sender);
        let mut events = numbers(receiver, Duration::ZERO);
        assert!(next(&mut events).await.is_some());
        assert_eq!(next(&mut events).await, None);
    }

    #[tokio::test]
    async fn a_fast_sender_is_slowed_down_to_the_newest_value() {
        let (sender, receiver) = watch::channel(1);
        let began = Instant::now();
        let mut events = numbers(receiver, Duration::from_millis(100));
        next(&mut events).await;
        sender.send_replace(2);
        sender.send_replace(3);
        assert!(
            next(&mut events)
                .await
                .is_some_and(|event| event.contains("3"))
        );
        assert!(began.elapsed() >= Duration::from_millis(100));
    }

    #[test]
    fn an_address_has_its_share_of_the_streams() {
        let streams = Streams::with(3, Some(2));
        let place = |host| {
            let place = streams.take_place(Address::V4([10, 0, 0, host]), Gauge::noop());
            place.map_err(|problem| problem.kind().code)
        };
        let held = (place(1), place(1));
        assert!(held.0.is_ok() && held.1.is_ok());
        assert_eq!(place(1).err(), Some("rate_limited"));
        let last = place(2);
        assert!(last.is_ok());
        assert_eq!(place(3).err(), Some("unavailable"));
        drop(held);
        assert!(place(1).is_ok());
    }

    #[tokio::test]
    async fn draining_ends_every_stream_and_gives_its_place_back() {
        let app = testing::app_with(|state| state.streams = Streams::with(1, None));
        let (_sender, receiver) = watch::channel(1);
        let events = follow(
            receiver,
            Duration::ZERO,
            |_| false,
            |value: &u32| Event::default().data(value.to_string()),
        );
        let place = || app.streams.take_place(Address::V4([0; 4]), Gauge::noop());
        let only = place().expect("the only place");
        assert!(place().is_err());

        let mut body = respond(&app, events, only).into_body().into_data_stream();
        assert!(
            body.next()
                .await
                .is_some_and(|chunk| chunk.is_ok_and(|chunk| chunk.ends_with(b"\n\n")))
        );
        app.draining.cancel();
        assert!(body.next().await.is_none());
        drop(body);
        assert!(place().is_ok());
    }
}
