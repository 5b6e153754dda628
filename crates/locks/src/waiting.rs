//! Waiting for a lock: to be woken by its release, or to ask again after a random pause.
//!
//! The order matters: subscribe, *then* try again, then wait. A release between the first try and
//! the subscription is seen by the second try, a later one by its message. A lost message costs at
//! most the rest of the lease.

use super::wire::{Line, Wake, Wakeups};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// Between half and one and a half of `pause`, so that clients do not retry in step.
pub(crate) fn jitter(pause: Duration) -> Duration {
    let [dice, ..] = *uuid::Uuid::new_v4().as_bytes();
    pause / 2 + pause * u32::from(dice) / 255
}

/// What one acquire waits for.
#[derive(Default)]
pub(crate) struct Waiting {
    wakeups: Option<Wakeups>,
    /// A wake-up that is to be used or passed on.
    woken: Option<Wake>,
}

impl Waiting {
    /// The lock was asked for: no other waiter needs this wake-up.
    pub fn used(&mut self) {
        if let Some(wake) = self.woken.take() {
            wake.used();
        }
    }

    /// A waiter that was woken and got no answer passes the wake-up on.
    pub fn pass_on(&mut self) {
        self.woken = None;
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
        let Some(wakeups) = &self.wakeups else {
            //= CURE subscribed: now try again, and only then sleep
            match timeout_at(deadline, line.subscribe(channel)).await {
                Ok(Ok(subscribed)) => self.wakeups = Some(subscribed),
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
        tokio::select! {
            (wake, is_connected) = wakeups.next() => {
                self.woken = Some(wake);
                if !is_connected {
                    self.wakeups = None;
                }
            }
            () = sleep(remaining) => {}
            () = sleep_until(deadline) => {}
        }
    }
}
