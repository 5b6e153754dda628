//! Keeps a loop alive: one that panics, or ends before it should, is started again.

use crate::sale::Shop;
use futures_util::FutureExt;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};
use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Runs `task` until `stop`. While it is dead, before it is started again, `/readyz` says no.
pub fn supervise<F: Future<Output = ()> + Send + 'static>(
    shop: &Arc<Shop>,
    tasks: &TaskTracker,
    name: &'static str,
    stop: &CancellationToken,
    mut task: impl FnMut(Arc<Shop>, CancellationToken) -> F + Send + 'static,
) -> JoinHandle<()> {
    let (shop, stop) = (shop.clone(), stop.clone());
    tasks.spawn(async move {
        loop {
            let run = async { task(shop.clone(), stop.clone()).await };
            let ended = AssertUnwindSafe(run).catch_unwind().await;
            if stop.is_cancelled() {
                return;
            }
            shop.liveness.died(name);
            shop.metrics.worker_failing(name).set(1.0);
            let panicked = ended.is_err();
            // Guarded like the task itself: a log that fails must not end the supervision.
            let _ = catch_unwind(|| {
                tracing::error!(
                    worker = name,
                    panicked,
                    "a loop has ended; starting it again"
                );
            });
            tokio::select! {
                () = tokio::time::sleep(RESTART_PAUSE) => {}
                () = stop.cancelled() => return,
            }
            shop.liveness.lives(name);
            shop.metrics.worker_failing(name).set(0.0);
        }
    })
}
