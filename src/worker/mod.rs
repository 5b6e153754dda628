//! The loops behind the purchase path. Each has a `step` that does one round and can be called from
//! a test; [`Pace`] runs it on a timer and when its bell rings. All are idempotent and may run on
//! any number of instances.
//!
//! | loop | does |
//! |---|---|
//! | [`writer`] | accepted orders from the channel into Postgres |
//! | [`recovery`] | accepted orders that a dead, slow or writerless process left in the log |
//! | [`expiry`] | orders whose time to pay is over |
//! | [`scrub`] | compares Redis with Postgres, and has a sale rebuilt that they disagree about |
//! | [`refresh`] | the board: rows from Postgres, snapshots from Redis, subscribers |
//! | [`rebuild`] | Redis from Postgres, after a loss, a restart or a failover |
//! | `late` | orders of an epoch that has ended ask again, for the writer |
//! | [`retire`] | sales that have long been over, out of Redis |
//!
//! [`running`] starts and stops them together with a shop; [`mod@supervise`] starts one again that
//! has died.
//!
//! Returning units ([`crate::sale::releases`]) and following orders ([`crate::sale::watch`]) are one
//! step each and need no more than a [`Pace`].

pub mod expiry;
mod late;
pub mod rebuild;
pub mod recovery;
pub mod refresh;
pub mod retire;
pub mod running;
pub mod scrub;
pub mod supervise;
pub mod writer;

use crate::sale::Shop;
use futures_util::FutureExt;
use metrics::Gauge;
use std::{fmt::Display, panic::AssertUnwindSafe, sync::Arc, time::Duration};
use supervise::supervise;
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Why a step did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum StepError<E: Display> {
    #[error("{0}")]
    Failed(E),
    /// The panic's own words are in the log, from the panic hook.
    #[error("panicked")]
    Panicked,
    /// A server has fallen silent; what it was asked may or may not have happened.
    #[error("did not finish in time")]
    TimedOut,
}

/// How long a step of an ordinary loop may take. Its statements take milliseconds; this is for the
/// server that says nothing any more, which would hold up the loop until TCP gives up.
const STEP_LIMIT: Duration = Duration::from_secs(10);

/// Lets a loop survive its step's panic: a bug in one step must not stop all later ones. Everything
/// that a step leaves half-done is undone by its transaction, or done again by the next step.
pub async fn survive<T, E: Display>(
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, StepError<E>> {
    AssertUnwindSafe(step)
        .catch_unwind()
        .await
        .map_err(|_| StepError::Panicked)?
        .map_err(StepError::Failed)
}

/// The rhythm of a loop: `while pace.rest(step()).await {}` runs a step now, then every `pause` or
/// when `bell` rings, until `stop`. A failing step is logged once per streak and tried again after
/// the pause.
pub struct Pace<'a> {
    name: &'static str,
    pause: Duration,
    bell: Option<&'a Notify>,
    stop: CancellationToken,
    failing: bool,
    is_failing: Gauge,
    limit: Duration,
}

impl<'a> Pace<'a> {
    pub fn new(
        shop: &Shop,
        name: &'static str,
        pause: Duration,
        bell: Option<&'a Notify>,
        stop: &CancellationToken,
    ) -> Self {
        Self {
            name,
            pause,
            bell,
            stop: stop.clone(),
            failing: false,
            is_failing: shop.metrics.worker_failing(name),
            limit: STEP_LIMIT,
        }
    }

    /// For steps that bound themselves.
    pub fn without_limit(self) -> Self {
        Self {
            limit: Duration::MAX,
            ..self
        }
    }

    /// Runs a step and waits for the next round; `false` when it is time to stop.
    pub async fn rest<T, E: Display>(&mut self, step: impl Future<Output = Result<T, E>>) -> bool {
        let outcome = tokio::time::timeout(self.limit, survive(step))
            .await
            .unwrap_or(Err(StepError::TimedOut));
        self.is_failing.set(f64::from(u8::from(outcome.is_err())));
        match outcome {
            Ok(_) if self.failing => {
                self.failing = false;
                tracing::info!(worker = self.name, "works again");
            }
            Ok(_) => {}
            Err(error) if self.failing => {
                tracing::debug!(worker = self.name, %error, "still failing")
            }
            Err(error) => {
                self.failing = true;
                tracing::warn!(worker = self.name, %error, "failed, will retry");
            }
        }
        let rung = async {
            match self.bell {
                Some(bell) => bell.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = tokio::time::sleep(self.pause) => true,
            () = rung => true,
        }
    }
}

/// Starts the loops that every serving process needs to know what is going on.
pub fn spawn_views(shop: &Arc<Shop>, tasks: &TaskTracker, stop: &CancellationToken) {
    refresh::spawn(shop, tasks, stop);
    rebuild::spawn(shop, tasks, stop);
    supervise(shop, tasks, "order watch", stop, |shop, stop| async move {
        let bell: &Notify = &shop.watch.bell;
        let mut pace = Pace::new(&shop, "order watch", QUARTER_SECOND, Some(bell), &stop);
        while pace.rest(shop.watch.step(&shop.postgres)).await {
            // The writer rings at every batch; followers need not hear of each at once.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

const QUARTER_SECOND: Duration = Duration::from_millis(250);

/// Starts the loops that write or mend: recovery, scrubber, expiry, releases and retirement.
pub fn spawn_writers(shop: &Arc<Shop>, tasks: &TaskTracker, stop: &CancellationToken) {
    supervise(shop, tasks, "recovery", stop, |shop, stop| async move {
        let pause = Duration::from_millis(100);
        // It drains whole backlogs; each of its writes is bounded.
        let mut pace = Pace::new(&shop, "recovery", pause, None, &stop).without_limit();
        while pace.rest(recovery::step(&shop)).await {}
    });
    supervise(shop, tasks, "expiry", stop, |shop, stop| async move {
        // A hundred thousand may be due at once; each statement is bounded.
        let mut pace = Pace::new(&shop, "expiry", QUARTER_SECOND, None, &stop).without_limit();
        while pace.rest(expiry::step(&shop)).await {}
    });
    supervise(shop, tasks, "retirement", stop, |shop, stop| async move {
        let mut pace = Pace::new(&shop, "retirement", Duration::from_secs(60), None, &stop);
        while pace.rest(retire::step(&shop)).await {}
    });
    supervise(shop, tasks, "scrubber", stop, |shop, stop| async move {
        let mut scrubber = scrub::Scrubber::default();
        let mut pace = Pace::new(&shop, "scrubber", scrub::PAUSE, None, &stop);
        while pace.rest(scrubber.step(&shop)).await {}
    });
    supervise(shop, tasks, "releases", stop, |shop, stop| async move {
        let bell = Some(&shop.release_bell);
        let mut pace = Pace::new(&shop, "releases", QUARTER_SECOND, bell, &stop);
        while pace.rest(shop.release_all()).await {}
    });
}
