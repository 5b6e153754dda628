//! Renews a lease as long as its holder lives.
//!
//! ```text
//! guard ──owns──▶ Watchdog ──task──▶ every third of the lease: renew ─┬─ yes: it begins anew
//!                    │                                                ├─ not ours  lost, at once
//!        drop: abort ┘                                                └─ silence: again
//! ```
//!
//! Crashes: the task dies with its process, and the lease ends. A paused process renews too late,
//! and learns of it.
//!
//! Known bugs that this avoids: renewing after an unlock, a failed unlock or a cancelled acquire
//! (the guard owns the task, and the release ends it first); stopping after one failed renewal (it
//! tries until the lease is over); renewing for ever on errors (it ends with the lease).
//!
//! A watchdog also keeps the lock of a holder that hangs: use none if the lock must end at a fixed
//! time.

use super::{
    Hold, LockError, Why,
    wire::{Line, ScriptCall},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};

/// The task that renews one lease. Dropping it ends it.
#[derive(Debug)]
pub struct Watchdog(JoinHandle<()>);

impl Watchdog {
    /// `renew` answers whether the lock is still ours.
    pub(super) fn start<F>(
        hold: Hold,
        lease: Duration,
        mut renew: impl FnMut() -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<bool, LockError>> + Send,
    {
        Self(tokio::spawn(async move {
            loop {
                sleep(lease / 3).await;
                loop {
                    let Some(end) = hold.end().filter(|_| !hold.is_lost()) else {
                        hold.lose(Why::LeaseOver);
                        return;
                    };
                    let sent = Instant::now();
                    match timeout_at(end, renew()).await {
                        Ok(Ok(true)) if hold.renewed(sent, lease) => break,
                        // Renewed too late: the holder has given up.
                        Ok(Ok(true)) => return,
                        Ok(Ok(false)) => {
                            hold.lose(Why::NotOurs);
                            return;
                        }
                        Ok(Err(error)) => {
                            tracing::debug!(%error, "a lease was not renewed; trying again");
                            sleep((lease / 20).max(Duration::from_millis(1))).await;
                        }
                        Err(_) => {}
                    }
                }
            }
        }))
    }

    /// Renews on one node by this script, which answers 1 for "still ours".
    pub(super) fn of_one(hold: Hold, lease: Duration, line: Line, call: ScriptCall) -> Self {
        let renewal = Arc::new((line, call));
        Self::start(hold, lease, move || {
            let renewal = renewal.clone();
            async move {
                let (line, call) = &*renewal;
                let renewed: Result<bool, _> = line.run(call).await;
                renewed.map_err(|error| line.lock_error(error))
            }
        })
    }

    /// Returns when the task has ended: no renewal follows.
    pub async fn stop(mut self) {
        self.0.abort();
        // An error is the abort itself.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.abort();
    }
}
