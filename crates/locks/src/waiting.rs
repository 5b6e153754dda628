//! Waiting for a lock: to be woken by its release, or to ask again after a random pause.
//!
//! The order matters: subscribe, *then* try again, then wait. A release between the first try and
//! the subscription is seen by the second try, a later one by its message. A lost message costs at
//! most the rest of the lease.

use crate::hold::later;
use crate::wire::{Line, Wakeups};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Between half and one and a half of `pause`, so that clients do not retry in step.
pub(crate) fn jitter(pause: Duration) -> Duration {
    let [dice, ..] = *uuid::Uuid::new_v4().as_bytes();
    pause / 2 + pause * u32::from(dice) / 255
}

/// What one acquire waits for.
#[derive(Default)]
pub(crate) struct Waiting(Option<Wakeups>);

impl Waiting {
    /// The lock was asked for: if it was not free, its release wakes again. Without an answer
    /// another waiter has to try.
    pub fn asked(&mut self, was_answered: bool) {
        let message = self.0.as_mut().and_then(|wakeups| wakeups.woken.take());
        if let Some(message) = message
            && was_answered
        {
            message.forget();
        } // otherwise it is dropped, which wakes another one
    }

    /// Waits until another attempt may succeed. The first time it only subscribes: the lock may
    /// have been freed before that.
    pub async fn wait(
        &mut self,
        line: &Line,
        channel: &str,
        deadline: Instant,
        remaining: Option<Duration>,
        pause: Duration,
    ) {
        let Some(wakeups) = &mut self.0 else {
            //= CURE subscribed: now try again, and only then sleep
            match timeout_at(deadline, line.subscribe(channel)).await {
                Ok(Ok(subscribed)) => self.0 = Some(subscribed),
                Err(_) => {} // the time is over: one last attempt
                Ok(Err(error)) => {
                    tracing::debug!(%error, "no wake-ups; asking again instead");
                    sleep_until(deadline.min(Instant::now() + jitter(pause))).await;
                }
            }
            return;
        };
        // A lock without an expiry is not of this kind: nobody announces its end.
        let remaining = remaining.unwrap_or(Duration::from_secs(1)) + Duration::from_millis(1);
        let is_connected = timeout_at(deadline.min(later(remaining)), wakeups.next()).await;
        if is_connected == Ok(false) {
            self.0 = None;
        }
    }
}
