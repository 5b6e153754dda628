//! Server-sent event streams: a bounded number, their pace, heartbeat and end.
//!
//! A stream ends with its subject, its channel, or the server: an open one would hold up a graceful
//! shutdown for ever. Clients reconnect by themselves.

use super::{
    address::Address,
    address_limit::{Full, Limits, Share},
    problem::Problem,
};
use axum::{
    http::{HeaderName, HeaderValue},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{Stream, StreamExt, stream};
use metrics::Gauge;
use serde::Serialize;
use std::{convert::Infallible, time::Duration};
use tokio::sync::mpsc::{Sender, channel, error::SendError};
use tokio::{sync::watch, time::Instant};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// The most streams of a process. Each holds a socket and some 10 KiB.
const MOST_STREAMS: usize = 20_000;
/// The most streams of one address, where limited: wide, many shoppers may share it.
const MOST_STREAMS_OF_ADDRESS: usize = 2_000;
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The stream slots of one process.
#[derive(Clone)]
pub struct Streams {
    limits: Limits,
    /// Cancelled at shutdown: every stream ends.
    draining: CancellationToken,
}

/// For a process without a front.
impl Default for Streams {
    fn default() -> Self {
        Self::new(false, CancellationToken::new())
    }
}

impl Streams {
    pub fn new(by_address: bool, draining: CancellationToken) -> Self {
        let most_of_address = by_address.then_some(MOST_STREAMS_OF_ADDRESS);
        Self::with(MOST_STREAMS, most_of_address, draining)
    }

    fn with(most: usize, most_of_address: Option<usize>, draining: CancellationToken) -> Self {
        Self { limits: Limits::new(most, most_of_address), draining }
    }

    pub fn take_place(&self, address: Address, gauge: Gauge) -> Result<Place, Problem> {
        let share = self.limits.take(Some(address)).map_err(|full| match full {
            Full::Address => Problem::rate_limited(HEARTBEAT),
            Full::All => Problem::unavailable("too many event streams are open", HEARTBEAT),
        })?;
        gauge.increment(1.0);
        Ok(Place { gauge, draining: self.draining.clone(), _share: share })
    }
}

/// An open stream; holds one slot until it is dropped.
pub struct Place {
    gauge: Gauge,
    draining: CancellationToken,
    _share: Share,
}

impl Place {
    /// The stream as an answer.
    pub fn respond(self, events: impl Stream<Item = Event> + Send + 'static) -> Response {
        let events = events.take_until(self.draining.clone().cancelled_owned()).map(move |event| {
            let _held_until_the_stream_is_dropped = &self;
            Ok::<_, Infallible>(event)
        });
        let stream =
            Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT).text("heartbeat"));
        // Otherwise nginx buffers events.
        let unbuffered =
            (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        ([unbuffered], stream).into_response()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gauge.decrement(1.0);
    }
}

/// The current value at once, then changes, at least `pace` apart, up to and including a last one.
pub fn follow<T: Send + Sync + 'static>(
    mut values: watch::Receiver<T>,
    pace: Duration,
    is_last: impl Fn(&T) -> bool + Send + 'static,
    show: impl Fn(&T) -> Event + Send + 'static,
) -> impl Stream<Item = Event> + Send {
    values.mark_changed();
    let following = Some((values, Instant::now()));
    stream::unfold((following, is_last, show), move |(following, is_last, show)| async move {
        let (mut values, not_before) = following?;
        values.changed().await.ok()?;
        tokio::time::sleep_until(not_before).await;
        let (event, ended) = {
            let value = values.borrow_and_update();
            (show(&value), is_last(&value))
        };
        let following = (!ended).then(|| (values, Instant::now() + pace));
        Some((event, (following, is_last, show)))
    })
}

/// Nobody listens any more.
pub type Unheard = SendError<Event>;

/// A stream that is told as a story: the events that `tell` sends, until it ends or nobody listens.
pub fn told<F>(tell: impl FnOnce(Sender<Event>) -> F) -> impl Stream<Item = Event> + Send
where
    F: Future<Output = Result<(), Unheard>> + Send + 'static,
{
    let (sender, mut events) = channel(1);
    let telling = tokio::spawn(tell(sender));
    let abort = AbortOnDropHandle::new(telling);
    stream::poll_fn(move |context| {
        let _told_until_the_stream_is_dropped = &abort;
        events.poll_recv(context)
    })
}

pub fn event(name: &str, value: &impl Serialize) -> Event {
    Event::default().event(name).json_data(value).unwrap_or_else(|error| {
        tracing::error!(%error, "an event could not be written");
        Event::default().comment("unwritable")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        tokio::time::timeout(Duration::from_secs(2), events.next()).await.expect("within 2 s")
    }

    #[tokio::test]
    async fn the_present_value_comes_at_once_and_a_last_one_ends_it() {
        let (sender, receiver) = watch::channel(1);
        let mut events = numbers(receiver, Duration::ZERO);
        assert!(next(&mut events).await.is_some_and(|event| event.contains("1")));
        sender.send_replace(9);
        assert!(next(&mut events).await.is_some_and(|event| event.contains("9")));
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
        assert!(next(&mut events).await.is_some_and(|event| event.contains("3")));
        assert!(began.elapsed() >= Duration::from_millis(100));
    }

    #[test]
    fn an_address_has_its_share_of_the_streams() {
        let streams = Streams::with(3, Some(2), CancellationToken::new());
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
        let draining = CancellationToken::new();
        let streams = Streams::with(1, None, draining.clone());
        let (_sender, receiver) = watch::channel(1);
        let events = follow(
            receiver,
            Duration::ZERO,
            |_| false,
            |value: &u32| Event::default().data(value.to_string()),
        );
        let place = || streams.take_place(Address::V4([0; 4]), Gauge::noop());
        let only = place().expect("the only place");
        assert!(place().is_err());

        let mut body = only.respond(events).into_body().into_data_stream();
        assert!(
            body.next()
                .await
                .is_some_and(|chunk| chunk.is_ok_and(|chunk| chunk.ends_with(b"\n\n")))
        );
        draining.cancel();
        assert!(body.next().await.is_none());
        drop(body);
        assert!(place().is_ok());
    }
}
