//! Long-running tasks. A periodic task has a `step` for one round, which tests can call. All are
//! idempotent, and run on any number of instances.

mod liveness;
mod periodic;

pub use liveness::Liveness;
pub use periodic::{PeriodicTask, STEP_LIMIT, StepError, Task, survive};

use futures_util::FutureExt;
use metrics::{Gauge, gauge};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Tasks that end together. One that panics or ends by itself is restarted.
#[derive(Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
    liveness: Arc<Liveness>,
    are_counted: bool,
}

impl Tasks {
    /// `are_counted`: whether operators see which of them fail.
    pub fn new(liveness: Arc<Liveness>, are_counted: bool) -> Self {
        Self { tracker: TaskTracker::new(), stop: CancellationToken::new(), liveness, are_counted }
    }

    /// Runs a task of `service` until [`Self::stop`]. `/readyz` says no while it is dead.
    pub fn spawn<T, F>(
        &self,
        name: &'static str,
        service: &Arc<T>,
        mut run: impl FnMut(Arc<T>, Task) -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        T: Send + Sync + ?Sized + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (service, liveness) = (service.clone(), self.liveness.clone());
        // 1 while the last step has failed.
        let is_failing = match self.are_counted {
            true => gauge!("flash_sale_worker_failing", "worker" => name),
            false => Gauge::noop(),
        };
        let task = Task { name, is_failing, stop: self.stop.clone() };
        self.tracker.spawn(async move {
            loop {
                let running = async { run(service.clone(), task.clone()).await };
                let ended = AssertUnwindSafe(running).catch_unwind().await;
                if task.stop.is_cancelled() {
                    return;
                }
                liveness.died(name);
                task.is_failing.set(1.0);
                let panicked = ended.is_err();
                // A panic while logging must not end the supervision.
                let _ = catch_unwind(|| {
                    tracing::error!(task = name, panicked, "a task has ended; starting it again");
                });
                tokio::select! {
                    () = tokio::time::sleep(RESTART_PAUSE) => {}
                    () = task.stop.cancelled() => return,
                }
                liveness.lives(name);
                task.is_failing.set(0.0);
            }
        })
    }

    /// Tells the tasks to end.
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// Tells the tasks to end and waits for at most `grace`. Answers whether all have ended.
    pub async fn stop(&self, grace: Duration) -> bool {
        self.tracker.close();
        self.stop.cancel();
        let ended = tokio::time::timeout(grace, self.tracker.wait());
        ended.await.is_ok()
    }
}
