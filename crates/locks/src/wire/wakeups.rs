//! Waiting for messages instead of polling.
//!
//! ```text
//! Hub (one a Line) ── one connection ── channel ─▶ Channel { permit } ◀── any number of waiters
//! ```
//!
//! A message wakes one waiter of this line, since a released lock is for one. A waiter that leaves
//! without an attempt passes the wake-up on ([`Wake`]), or the others would sleep beside a free
//! lock.
//!
//! Messages can be lost (pub/sub delivers at most once, and the connection may break), so waiters
//! rely on them for at most the rest of the lease. When the connection ends, all waiters are woken
//! and subscribe again.

use redis::aio::PubSubSink;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use tokio::{sync::Notify, task::AbortHandle, time::timeout};
use tokio_util::sync::CancellationToken;

const UNSUBSCRIBE_TIMEOUT: Duration = Duration::from_millis(500);

/// The subscriptions of one `Line`.
#[derive(Default)]
pub(super) struct Hub(pub Arc<tokio::sync::Mutex<Option<Subscriber>>>);

pub(super) struct Subscriber {
    pub sink: PubSubSink,
    pub channels: Channels,
    pub ended: CancellationToken,
    pub reader: AbortHandle,
}

pub(super) type Channels = Arc<Mutex<HashMap<String, Weak<Channel>>>>;

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.reader.abort();
        self.ended.cancel();
    }
}

pub(super) struct Channel {
    pub name: String,
    pub permit: Notify,
    /// The connection that would bring messages has gone.
    pub ended: CancellationToken,
    pub hub: Arc<tokio::sync::Mutex<Option<Subscriber>>>,
}

/// One waiter's subscription to one channel.
pub struct Wakeups(pub(super) Arc<Channel>);

/// A wake-up. Unless [`Wake::used`] is called, dropping it wakes another waiter.
pub struct Wake(Option<Arc<Channel>>);

impl Wakeups {
    /// The next message; or false if the connection has ended: subscribe again.
    pub async fn next(&self) -> (Wake, bool) {
        tokio::select! {
            () = self.0.permit.notified() => (Wake(Some(self.0.clone())), true),
            () = self.0.ended.cancelled() => (Wake(None), false),
        }
    }
}

impl Wake {
    /// The lock was asked for: if it was not free, its release wakes again.
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

/// The last waiter has gone: unsubscribe.
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
                // Another waiter may have subscribed meanwhile.
                if channels.get(&name).is_none_or(|channel| channel.strong_count() > 0) {
                    return;
                }
                channels.remove(&name);
            }
            // A silent connection is replaced: it must not delay the next subscriber.
            let unsubscribed = timeout(UNSUBSCRIBE_TIMEOUT, subscriber.sink.unsubscribe(&name));
            if !matches!(unsubscribed.await, Ok(Ok(()))) {
                *hub = None;
            }
        });
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
