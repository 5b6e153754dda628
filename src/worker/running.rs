//! A shop and the loops behind it, started and stopped as one. The program runs one; the lab runs
//! more, each on stores of its own.

use super::{spawn_views, spawn_writers, supervise::supervise, writer};
use crate::{
    config::SaleSettings,
    fail_point::{FailPoints, Unknown},
    postgres::Pool,
    redis::Redis,
    sale::{Shop, ShopSettings, metrics::Metrics, payment::SimulatedPayments},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Mutex, mpsc},
    task::AbortHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Batches between the gates and the writer: at most `batch_limit` orders each.
const HANDOFF_BATCHES: usize = 1_024;

/// How long the writer may take to end, and then the loops.
const WRITER_GRACE: Duration = Duration::from_millis(2_500);
const LOOPS_GRACE: Duration = Duration::from_millis(500);

/// A shop with its workers. Stop it with [`Running::stop`].
pub struct Running {
    pub shop: Arc<Shop>,
    loops: TaskTracker,
    stop_loops: CancellationToken,
    writer: TaskTracker,
    stop_writer: CancellationToken,
    writing: Option<AbortHandle>,
}

/// Which loops a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Takes orders and writes them.
    Server,
    /// Takes orders; somebody else writes them.
    ServerWithoutWriter,
    /// Writes what others take.
    Worker,
    /// Answers one command; nothing runs in the background.
    Command,
}

impl Running {
    /// Builds the shop on these stores and starts the loops of `role`. Does not wait for any server.
    pub fn start(
        postgres: &Pool,
        redis: &Arc<Redis>,
        sale: &SaleSettings,
        role: Role,
        metrics: Metrics,
    ) -> Result<Self, Unknown> {
        let fail_points = FailPoints::default();
        fail_points.set(&sale.fail_points)?;
        // A worker readmits late orders and hands nothing to itself.
        let settings = ShopSettings {
            high_water: sale.backlog_limit,
            batch_limit: usize::from(sale.batch_limit),
            own_writer: role == Role::Server,
        };
        let (handoff, channel) = mpsc::channel(HANDOFF_BATCHES);
        let shop = Arc::new(Shop::new(
            postgres.clone(),
            redis.clone(),
            Arc::new(SimulatedPayments),
            handoff,
            settings,
            metrics,
            fail_points,
        ));
        let mut running = Self {
            shop,
            loops: TaskTracker::new(),
            stop_loops: CancellationToken::new(),
            writer: TaskTracker::new(),
            stop_writer: CancellationToken::new(),
            writing: None,
        };
        if role != Role::Command {
            spawn_views(&running.shop, &running.loops, &running.stop_loops);
        }
        if matches!(role, Role::Server | Role::Worker) {
            spawn_writers(&running.shop, &running.loops, &running.stop_loops);
        }
        if role == Role::Server {
            // Shared, so that a writer that is started again goes on with the same channel.
            let channel = Arc::new(Mutex::new(channel));
            let (shop, stop) = (&running.shop, &running.stop_writer);
            let writing = supervise(shop, &running.writer, "writer", stop, move |shop, stop| {
                let channel = channel.clone();
                async move { writer::run(shop, &mut *channel.lock().await, stop).await }
            });
            running.writing = Some(writing.abort_handle());
        }
        Ok(running)
    }

    /// Runs something beside the loops, until they end.
    pub fn spawn<F: Future<Output = ()> + Send + 'static>(
        &self,
        name: &'static str,
        mut task: impl FnMut(CancellationToken) -> F + Send + 'static,
    ) {
        let (loops, stop) = (&self.loops, &self.stop_loops);
        supervise(&self.shop, loops, name, stop, move |_, stop| task(stop));
    }

    /// Waits until purchases can be judged, or `patience` is over. Answers whether they can.
    pub async fn gate_opened(&self, patience: Duration) -> bool {
        let opened = async {
            while !(self.shop.refresh_catalogue().await.is_ok()
                && self.shop.sells_something().await.is_ok())
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(patience, opened).await.is_ok()
    }

    /// Ends as a crash would: the writer where it stands, with whatever is still in the channel.
    pub fn crash(self) {
        if let Some(writing) = &self.writing {
            writing.abort();
        }
        self.stop_loops.cancel();
    }

    /// Drains the channel into Postgres, then ends the loops. Bounded.
    pub async fn stop(self) {
        self.writer.close();
        self.stop_writer.cancel();
        if tokio::time::timeout(WRITER_GRACE, self.writer.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                "stopping before every accepted order is written; the log keeps the others"
            );
        }
        self.loops.close();
        self.stop_loops.cancel();
        let _ = tokio::time::timeout(LOOPS_GRACE, self.loops.wait()).await;
    }
}
