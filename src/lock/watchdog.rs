//! Renewing a lease for as long as its holder lives.
//!
//! ```text
//! guard ──owns──▶ Watchdog ──task──▶ every third of the lease: renew ─┬─ yes       the lease begins anew
//!                    │                                                ├─ not ours  lost, at once
//!        drop: abort ┘                                                └─ no answer again, until the lease is truly over
//! ```
//!
//! What happens on a crash: the task dies with its process, and the lease ends by itself. A process
//! that only stands still renews too late and is told.
//!
//! The bugs that this file is there to not have: renewing after the unlock, or after an unlock that
//! failed, or for an acquire that was given up (the guard owns the task, and the release ends it first);
//! ending after one failed renewal (it tries until the lease is over); renewing for ever when the
//! answer is an error (the lease's end is the end).
//!
//! A watchdog keeps a lock alive for a holder that hangs. Who wants the lock to end after a fixed time
//! does not use one.

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
                        // Renewed, but we had given it up already.
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

    /// Renews on one node with this script, which answers 1 for "still ours".
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

    /// Returns when it has ended: no renewal is sent after this.
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
