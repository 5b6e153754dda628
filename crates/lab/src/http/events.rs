//! Streams that are told as a story: one event after the other, until it ends or nobody listens.

use axum::response::sse::Event;
use futures_util::{Stream, stream};
use tokio::sync::mpsc::{Sender, channel, error::SendError};

/// Nobody listens any more.
pub type Unheard = SendError<Event>;

/// The events that `tell` sends.
pub fn told<F>(tell: impl FnOnce(Sender<Event>) -> F) -> impl Stream<Item = Event> + Send
where
    F: Future<Output = Result<(), Unheard>> + Send + 'static,
{
    let (sender, mut events) = channel(1);
    let telling = tokio::spawn(tell(sender));
    let abort = tokio_util::task::AbortOnDropHandle::new(telling);
    stream::poll_fn(move |context| {
        let _told_until_the_stream_is_dropped = &abort;
        events.poll_recv(context)
    })
}
