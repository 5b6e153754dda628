//! Periodic tasks.

use futures_util::FutureExt;
use metrics::Gauge;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError<E: Display> {
    #[error("{0}")]
    Failed(E),
    /// The panic hook has logged the message.
    #[error("panicked")]
    Panicked,
    /// A server is silent; the step may or may not have taken effect.
    #[error("did not finish in time")]
    TimedOut,
}

/// The time limit of a step. Statements take milliseconds; a silent server would hold up the task
/// until TCP gives up.
pub const STEP_LIMIT: Duration = Duration::from_secs(10);

/// Catches a panic of a step, so that later steps run. Half-done work is undone by its transaction
/// or repeated.
pub async fn survive<T, E: Display>(
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, StepError<E>> {
    AssertUnwindSafe(step)
        .catch_unwind()
        .await
        .map_err(|_| StepError::Panicked)?
        .map_err(StepError::Failed)
}

/// A task, as passed to its own code.
#[derive(Clone)]
pub struct Task {
    pub(super) name: &'static str,
    pub(super) is_failing: Gauge,
    /// Cancelled when the task is to end.
    pub stop: CancellationToken,
}

impl Task {
    /// A step now, and then every `pause`.
    pub fn every<'a>(self, pause: Duration) -> PeriodicTask<'a> {
        PeriodicTask { task: self, pause, wakeup: None, failing: false, limit: STEP_LIMIT }
    }
}

/// `while periodic.tick(step()).await {}` runs a step now, then every pause or on a wakeup, until
/// the task is to stop. A failing step is logged once per streak and tried again after the pause.
pub struct PeriodicTask<'a> {
    task: Task,
    pause: Duration,
    wakeup: Option<&'a Notify>,
    failing: bool,
    limit: Duration,
}

impl<'a> PeriodicTask<'a> {
    /// Also runs a step on this wakeup.
    pub fn or_on(self, wakeup: &'a Notify) -> Self {
        Self { wakeup: Some(wakeup), ..self }
    }

    /// For steps that bound themselves.
    pub fn without_limit(self) -> Self {
        Self { limit: Duration::MAX, ..self }
    }

    /// Runs a step and waits for the next round; `false` when it is time to stop.
    pub async fn tick<T, E: Display>(&mut self, step: impl Future<Output = Result<T, E>>) -> bool {
        let outcome = tokio::time::timeout(self.limit, survive(step))
            .await
            .unwrap_or(Err(StepError::TimedOut));
        let name = self.task.name;
        let is_failing = f64::from(u8::from(outcome.is_err()));
        self.task.is_failing.set(is_failing);
        match outcome {
            Ok(_) if self.failing => {
                self.failing = false;
                tracing::info!(task = name, "works again");
            }
            Ok(_) => {}
            Err(error) if self.failing => tracing::debug!(task = name, %error, "still failing"),
            Err(error) => {
                self.failing = true;
                tracing::warn!(task = name, %error, "failed, will retry");
            }
        }
        let woken = async {
            match self.wakeup {
                Some(wakeup) => wakeup.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.task.stop.cancelled() => false,
            () = tokio::time::sleep(self.pause) => true,
            () = woken => true,
        }
    }
}
