//! Waiting for a message instead of asking again and again.
//!
//! ```text
//! Hub (one a Line) ── one subscriber connection ── channel ─▶ Channel { permit } ◀── any number of waiters
//! ```
//!
//! One message wakes one waiter of this line: a released lock is for one. Whoever is woken and goes
//! away without having tried passes the wake-up on ([`Wake`]), otherwise the others would sleep beside
//! a free lock.
//!
//! A message can be lost (pub/sub delivers at most once, and the connection may break): waiters never
//! rely on it for longer than the lease that they wait for. When the connection ends, all waiters are
//! woken and subscribe again.

use super::Line;
use futures_util::StreamExt;
use redis::{RedisError, aio::PubSubSink};
use std::{
    collections::HashMap,
    panic::Location,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use tokio::{sync::Notify, task::AbortHandle, time::timeout};
use tokio_util::sync::CancellationToken;

const UNSUBSCRIBE_TIMEOUT: Duration = Duration::from_millis(500);

/// The subscriptions of one [`Line`].
#[derive(Default)]
pub(super) struct Hub(Arc<tokio::sync::Mutex<Option<Subscriber>>>);

struct Subscriber {
    sink: PubSubSink,
    channels: Channels,
    ended: CancellationToken,
    reader: AbortHandle,
}

type Channels = Arc<Mutex<HashMap<String, Weak<Channel>>>>;

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.reader.abort();
        self.ended.cancel();
    }
}

struct Channel {
    name: String,
    permit: Notify,
    /// The connection that would bring messages has gone.
    ended: CancellationToken,
    hub: Arc<tokio::sync::Mutex<Option<Subscriber>>>,
}

/// One waiter's subscription to one channel.
pub struct Wakeups(Arc<Channel>);

/// Somebody was woken. Unless it says [`Wake::used`], somebody else is woken in its place.
pub struct Wake(Option<Arc<Channel>>);

impl Line {
    /// Subscribes. When this returns Redis has confirmed it: a message published from now on arrives,
    /// as long as the connection lives.
    #[track_caller]
    pub fn subscribe<'a>(
        &'a self,
        channel: &'a str,
    ) -> impl Future<Output = Result<Wakeups, RedisError>> + Send + 'a {
        let at = Location::caller();
        async move {
            let mut hub = self.wire.hub.0.lock().await;
            let alive = hub
                .as_ref()
                .filter(|subscriber| !subscriber.ended.is_cancelled());
            if let Some(subscriber) = alive {
                let known = lock(&subscriber.channels)
                    .get(channel)
                    .and_then(Weak::upgrade);
                if let Some(known) = known {
                    return Ok(Wakeups(known));
                }
            }
            let request = async {
                if hub
                    .as_ref()
                    .is_none_or(|subscriber| subscriber.ended.is_cancelled())
                {
                    *hub = Some(self.open_subscriber().await?);
                }
                let Some(subscriber) = hub.as_mut() else {
                    return Err(timed_out());
                };
                timeout(
                    self.wire.connect_timeout(),
                    subscriber.sink.subscribe(channel),
                )
                .await
                .map_err(|_| timed_out())??;
                let new = Arc::new(Channel {
                    name: channel.to_owned(),
                    permit: Notify::new(),
                    ended: subscriber.ended.clone(),
                    hub: self.wire.hub.0.clone(),
                });
                lock(&subscriber.channels).insert(channel.to_owned(), Arc::downgrade(&new));
                Ok(Wakeups(new))
            };
            let text = || (format!("SUBSCRIBE {channel}"), None);
            let subscribed = self
                .tap
                .pass(at, text, |_| "subscribed".to_owned(), request)
                .await;
            if subscribed.is_err() {
                *hub = None;
            }
            subscribed
        }
    }

    async fn open_subscriber(&self) -> Result<Subscriber, RedisError> {
        let connection = timeout(
            self.wire.connect_timeout(),
            self.wire.client.get_async_pubsub(),
        )
        .await
        .map_err(|_| timed_out())??;
        let (sink, mut messages) = connection.split();
        let channels = Channels::default();
        let ended = CancellationToken::new();
        let reader = tokio::spawn({
            let (channels, ended, tap) = (channels.clone(), ended.clone(), self.tap.clone());
            async move {
                while let Some(message) = messages.next().await {
                    let name = message.get_channel_name();
                    if let Some(watcher) = &tap.watcher {
                        let text = String::from_utf8_lossy(message.get_payload_bytes());
                        watcher.heard(&tap.client, &tap.node, name, &text);
                    }
                    let channel = lock(&channels).get(name).and_then(Weak::upgrade);
                    if let Some(channel) = channel {
                        channel.permit.notify_one();
                    }
                }
                ended.cancel();
            }
        });
        Ok(Subscriber {
            sink,
            channels,
            ended,
            reader: reader.abort_handle(),
        })
    }
}

impl Wakeups {
    /// The next message; or at once, and with false, if none can come any more: subscribe again.
    pub async fn next(&self) -> (Wake, bool) {
        tokio::select! {
            () = self.0.permit.notified() => (Wake(Some(self.0.clone())), true),
            () = self.0.ended.cancelled() => (Wake(None), false),
        }
    }
}

impl Wake {
    /// The lock was asked for: if it was not free, its holder's release will wake again.
    pub fn used(mut self) {
        self.0 = None;
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        if let Some(channel) = self.0.take() {
            channel.permit.notify_one();
        }
    }
}

/// The last waiter has gone: nothing more is wanted from this channel.
impl Drop for Channel {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (hub, name) = (self.hub.clone(), std::mem::take(&mut self.name));
        runtime.spawn(async move {
            let mut hub = hub.lock().await;
            let Some(subscriber) = hub.as_mut() else {
                return;
            };
            {
                let mut channels = lock(&subscriber.channels);
                // Somebody may have subscribed anew since.
                if channels
                    .get(&name)
                    .is_none_or(|channel| channel.strong_count() > 0)
                {
                    return;
                }
                channels.remove(&name);
            }
            // A connection that is silent must not keep the next subscriber waiting: a new one then.
            let unsubscribed = timeout(UNSUBSCRIBE_TIMEOUT, subscriber.sink.unsubscribe(&name));
            if !matches!(unsubscribed.await, Ok(Ok(()))) {
                *hub = None;
            }
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}
