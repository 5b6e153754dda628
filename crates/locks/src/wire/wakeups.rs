//! Waiting for messages instead of polling.
//!
//! ```text
//! Line ── channel ─▶ Channel { connection, permits } ◀── any number of waiters
//! ```
//!
//! A message is a permit for one waiter of this line, since a released lock is for one. A waiter
//! that leaves without an attempt drops its permit, which goes to the next: the others would sleep
//! beside a free lock.
//!
//! Messages can be lost (pub/sub delivers at most once, and the connection may break), so waiters
//! rely on them for at most the rest of the lease. When the connection ends, all waiters are woken
//! and subscribe again. It is closed with its last waiter.

use super::tap::Tap;
use futures_util::StreamExt;
use redis::aio::PubSub;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;

/// The channels of a line that somebody listens to.
pub(super) type Channels = Mutex<HashMap<String, Weak<Channel>>>;

/// One connection, subscribed to one channel.
pub(super) struct Channel {
    /// A message adds one only while none is free. Closed when the connection has gone.
    pub(super) permits: Arc<Semaphore>,
    _reader: AbortOnDropHandle<()>,
}

/// One waiter's subscription to one channel.
pub struct Wakeups {
    pub(super) channel: Arc<Channel>,
    /// The message that led to no attempt yet; dropped, it wakes another waiter.
    pub(crate) woken: Option<OwnedSemaphorePermit>,
}

impl Wakeups {
    /// Waits for the next message; false if the connection has ended: subscribe again.
    pub async fn next(&mut self) -> bool {
        self.woken = None;
        self.woken = self.channel.permits.clone().acquire_owned().await.ok();
        self.woken.is_some()
    }
}

/// However the reader ends, its waiters are told.
struct Ended(Arc<Semaphore>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Wakes the waiters of a subscribed connection.
pub(super) fn listening(connection: PubSub, tap: Tap) -> Channel {
    let permits = Arc::new(Semaphore::new(0));
    let wake = permits.clone();
    let ended = Ended(permits.clone());
    let reader = tokio::spawn(async move {
        let _ended = ended;
        let mut messages = connection.into_on_message();
        while let Some(message) = messages.next().await {
            if let Some(watcher) = &tap.watcher {
                let text = String::from_utf8_lossy(message.get_payload_bytes());
                watcher.heard(message.get_channel_name(), &text);
            }
            if wake.available_permits() == 0 {
                wake.add_permits(1);
            }
        }
    });
    Channel { permits, _reader: AbortOnDropHandle::new(reader) }
}
