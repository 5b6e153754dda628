//! Waiting for messages instead of polling.
//!
//! ```text
//! Line ── channel ─▶ Channel { connection, permit } ◀── any number of waiters
//! ```
//!
//! A message wakes one waiter of this line, since a released lock is for one. A waiter that leaves
//! without an attempt passes the wake-up on, or the others would sleep beside a free lock.
//!
//! Messages can be lost (pub/sub delivers at most once, and the connection may break), so waiters
//! rely on them for at most the rest of the lease. When the connection ends, all waiters are woken
//! and subscribe again. It is closed with its last waiter.

use super::tap::Tap;
use futures_util::StreamExt;
use redis::aio::PubSub;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tokio::sync::{Mutex, Notify};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// The channels of a line that somebody listens to.
pub(super) type Channels = Mutex<HashMap<String, Weak<Channel>>>;

/// One connection, subscribed to one channel.
pub(super) struct Channel {
    permit: Arc<Notify>,
    /// The connection has gone.
    pub(super) ended: CancellationToken,
    _reader: AbortOnDropHandle<()>,
}

/// One waiter's subscription to one channel.
pub struct Wakeups {
    pub(super) channel: Arc<Channel>,
    /// By a message that is neither used nor passed on.
    pub(super) woken: bool,
}

impl Wakeups {
    /// Waits for the next message; false if the connection has ended: subscribe again.
    pub async fn next(&mut self) -> bool {
        self.pass_on();
        tokio::select! {
            () = self.channel.permit.notified() => self.woken = true,
            () = self.channel.ended.cancelled() => {}
        }
        self.woken
    }

    /// The lock was asked for: if it was not free, its release wakes again. Without an answer
    /// another waiter has to try.
    pub fn asked(&mut self, was_answered: bool) {
        self.woken &= !was_answered;
        self.pass_on();
    }

    /// Wakes another waiter, if this one was woken for nothing.
    pub fn pass_on(&mut self) {
        if std::mem::take(&mut self.woken) {
            self.channel.permit.notify_one();
        }
    }
}

impl Drop for Wakeups {
    fn drop(&mut self) {
        self.pass_on();
    }
}

/// Wakes the waiters of a subscribed connection.
pub(super) fn listening(connection: PubSub, tap: Tap) -> Channel {
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
    Channel { permit, ended, _reader: AbortOnDropHandle::new(reader) }
}
