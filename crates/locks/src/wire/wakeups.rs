//! Waiting for messages instead of polling.
//!
//! ```text
//! Line ── channel ─▶ Channel { connection, permit } ◀── any number of waiters
//! ```
//!
//! A message wakes one waiter of this line, since a released lock is for one. A waiter that leaves
//! without an attempt passes the wake-up on ([`Wake`]), or the others would sleep beside a free
//! lock.
//!
//! Messages can be lost (pub/sub delivers at most once, and the connection may break), so waiters
//! rely on them for at most the rest of the lease. When the connection ends, all waiters are woken
//! and subscribe again. It is closed with its last waiter.

use super::tap::Tap;
use futures_util::StreamExt;
use redis::{RedisError, aio::PubSub};
use std::{
    collections::HashMap,
    io,
    panic::Location,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    sync::{Mutex, Notify},
    task::AbortHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// The channels of a line that somebody listens to.
pub(super) type Channels = Mutex<HashMap<String, Weak<Channel>>>;

/// One connection, subscribed to one channel.
pub(super) struct Channel {
    permit: Arc<Notify>,
    /// The connection has gone.
    ended: CancellationToken,
    reader: AbortHandle,
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// One waiter's subscription to one channel.
pub struct Wakeups(Arc<Channel>);

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

/// Subscribes, or joins those who have. Redis has confirmed it when this returns: later messages
/// arrive while the connection lives.
pub(super) async fn subscribe(
    channels: &Channels,
    tap: &Tap,
    at: &'static Location<'static>,
    channel: &str,
    client: &redis::Client,
    limit: Duration,
) -> Result<Wakeups, RedisError> {
    let mut channels = channels.lock().await;
    let known = channels.get(channel).and_then(Weak::upgrade);
    if let Some(alive) = known.filter(|known| !known.ended.is_cancelled()) {
        return Ok(Wakeups(alive));
    }
    let connecting = async {
        let mut connection = client.get_async_pubsub().await?;
        connection.subscribe(channel).await?;
        Ok::<_, RedisError>(connection)
    };
    let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
    let request = async { timeout(limit, connecting).await.map_err(timed_out)? };
    let text = || (format!("SUBSCRIBE {channel}"), None);
    let subscribed = tap.pass(at, text, |_| "subscribed".to_owned(), request).await?;
    let new = Arc::new(listening(subscribed, tap.clone()));
    channels.retain(|_, channel| channel.strong_count() > 0);
    channels.insert(channel.to_owned(), Arc::downgrade(&new));
    Ok(Wakeups(new))
}

fn listening(connection: PubSub, tap: Tap) -> Channel {
    let (permit, ended) = (Arc::new(Notify::new()), CancellationToken::new());
    let (wake, end) = (permit.clone(), ended.clone().drop_guard());
    let reader = tokio::spawn(async move {
        let _end = end;
        let mut messages = connection.into_on_message();
        while let Some(message) = messages.next().await {
            if let Some(watcher) = &tap.watcher {
                let text = String::from_utf8_lossy(message.get_payload_bytes());
                watcher.heard(&tap.client, &tap.node, message.get_channel_name(), &text);
            }
            wake.notify_one();
        }
    });
    Channel { permit, ended, reader: reader.abort_handle() }
}
