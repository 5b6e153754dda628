//! Subscriptions: one connection for all channels and waiters of a line.

use super::{
    redis::Line,
    wakeups::{Channel, Channels, Subscriber, Wakeups, lock},
};
use futures_util::StreamExt;
use redis::RedisError;
use std::{
    panic::Location,
    sync::{Arc, Weak},
};
use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;

impl Line {
    /// Subscribes. Redis has confirmed it when this returns: later messages arrive while the
    /// connection lives.
    #[track_caller]
    pub fn subscribe<'a>(
        &'a self,
        channel: &'a str,
    ) -> impl Future<Output = Result<Wakeups, RedisError>> + Send + 'a {
        let at = Location::caller();
        async move {
            let mut hub = self.wire.hub.0.lock().await;
            let alive = hub.as_ref().filter(|subscriber| !subscriber.ended.is_cancelled());
            if let Some(subscriber) = alive {
                let known = lock(&subscriber.channels).get(channel).and_then(Weak::upgrade);
                if let Some(known) = known {
                    return Ok(Wakeups(known));
                }
            }
            let request = async {
                if hub.as_ref().is_none_or(|subscriber| subscriber.ended.is_cancelled()) {
                    *hub = Some(self.open_subscriber().await?);
                }
                let Some(subscriber) = hub.as_mut() else {
                    return Err(timed_out());
                };
                timeout(self.wire.connect_timeout(), subscriber.sink.subscribe(channel))
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
            let subscribed = self.tap.pass(at, text, |_| "subscribed".to_owned(), request).await;
            if subscribed.is_err() {
                *hub = None;
            }
            subscribed
        }
    }

    async fn open_subscriber(&self) -> Result<Subscriber, RedisError> {
        let connection = timeout(self.wire.connect_timeout(), self.wire.client.get_async_pubsub())
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
        Ok(Subscriber { sink, channels, ended, reader: reader.abort_handle() })
    }
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}
