//! The services with their tasks, started and stopped as one. The program runs one set; the lab
//! runs more, each on its own stores.
//!
//! | task | does |
//! |---|---|
//! | [`writer`] | writes accepted orders from the channel to Postgres |
//! | [`log_recovery`] | writes orders that a dead, slow or writerless process left in the log |
//! | [`expiry`] | expires unpaid orders |
//! | [`scrubber`] | compares Redis with Postgres, and calls for a rebuild where they differ |
//! | [`refresh`] | refreshes the cache and notifies subscribers |
//! | [`rebuild`] | rebuilds Redis after a loss, a restart or a failover |
//! | [`eviction`] | evicts long-ended sales from Redis |
//! | releases | returns units from the outbox to Redis ([`crate::orders::outbox`]) |
//! | order watch | refreshes watched orders ([`crate::orders::watch`]) |

use crate::admission::AdmissionSettings;
use crate::audit::scrubber;
use crate::catalog::{eviction, refresh};
use crate::config::SaleSettings;
use crate::fail_point::{FailPoints, Unknown};
use crate::payments::provider::SimulatedPayments;
use crate::postgres::Pool;
use crate::rebuild;
use crate::redis::Redis;
use crate::services::Services;
use crate::tasks::Tasks;
use crate::telemetry::instruments::Metrics;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;

/// The capacity of the channel to the writer, in batches of at most `batch_limit` orders.
const HANDOFF_BATCHES: usize = 1_024;

/// The time at shutdown for the writer, and then for the other tasks.
const WRITER_GRACE: Duration = Duration::from_millis(2_500);
const TASKS_GRACE: Duration = Duration::from_millis(500);

/// The services with their tasks. Stop them with [`Running::stop`].
pub struct Running {
    pub services: Services,
    tasks: Tasks,
    /// Stopped first, once the channel is empty.
    writer: Tasks,
    writing: Option<AbortHandle>,
}

/// The tasks that a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Takes orders and writes them.
    Server,
    /// Takes orders, which other processes write.
    ServerWithoutWriter,
    /// Writes the orders of other processes.
    Worker,
    /// Runs one command, without tasks.
    Command,
}

impl Running {
    /// Builds the services and starts the tasks of `role`. Waits for no server.
    pub fn start(
        postgres: &Pool,
        redis: &Arc<Redis>,
        sale: &SaleSettings,
        role: Role,
        metrics: Metrics,
    ) -> Result<Self, Unknown> {
        let fail_points = FailPoints::default();
        fail_points.set(&sale.fail_points)?;
        // A worker hands nothing to a writer of its own.
        let settings = AdmissionSettings {
            high_water: sale.backlog_limit,
            batch_limit: usize::from(sale.batch_limit),
            own_writer: role == Role::Server,
        };
        let (handoff, channel) = mpsc::channel(HANDOFF_BATCHES);
        let services = Services::new(
            postgres.clone(),
            redis.clone(),
            Arc::new(SimulatedPayments),
            handoff,
            settings,
            metrics,
            fail_points,
        );
        let tasks = || Tasks::new(services.liveness.clone(), services.metrics.clone());
        let (tasks, writer) = (tasks(), tasks());
        let mut running = Self { services, tasks, writer, writing: None };
        if role != Role::Command {
            spawn_views(&running.services, &running.tasks);
        }
        if matches!(role, Role::Server | Role::Worker) {
            spawn_writers(&running.services, &running.tasks);
        }
        if role == Role::Server {
            // Shared: a restarted writer continues with the same channel.
            let channel = Arc::new(Mutex::new(channel));
            let (orders, tasks) = (&running.services.orders, &running.writer);
            let writing = tasks.spawn("writer", orders, move |orders, task| {
                let channel = channel.clone();
                async move {
                    let mut channel = channel.lock().await;
                    orders.run_writer(&mut channel, task.stop).await;
                }
            });
            running.writing = Some(writing.abort_handle());
        }
        Ok(running)
    }

    /// The tasks, for others to join.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Waits until purchases are admitted, for at most `limit`. Answers whether they are.
    pub async fn admission_opened(&self, limit: Duration) -> bool {
        let opened = async {
            while !(self.services.catalog.refresh_catalogue().await.is_ok()
                && self.services.catalog.sells_something().await.is_ok())
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(limit, opened).await.is_ok()
    }

    /// Stops like a crash: the writer is aborted with a filled channel.
    pub fn crash(self) {
        if let Some(writing) = &self.writing {
            writing.abort();
        }
        self.tasks.cancel();
    }

    /// Drains the channel into Postgres, then ends the other tasks. Bounded.
    pub async fn stop(self) {
        if !self.writer.stop(WRITER_GRACE).await {
            tracing::warn!(
                "stopping before every accepted order is written; the log keeps the others"
            );
        }
        self.tasks.stop(TASKS_GRACE).await;
    }
}

const QUARTER_SECOND: Duration = Duration::from_millis(250);

/// Starts the tasks of every process but commands: refresh, rebuild, order watch.
fn spawn_views(services: &Services, tasks: &Tasks) {
    refresh::spawn(&services.catalog, tasks);
    rebuild::spawn(&services.rebuild, tasks);
    tasks.spawn("order watch", &services.orders, |orders, task| async move {
        let mut periodic = task.every(QUARTER_SECOND).or_on(&orders.watch.wakeup);
        while periodic.tick(orders.watch.step(&orders.postgres)).await {
            // The writer notifies after every batch; followers need fewer updates.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

/// Starts the tasks that write: recovery, scrubber, expiry, releases and eviction.
fn spawn_writers(services: &Services, tasks: &Tasks) {
    tasks.spawn("recovery", &services.orders, |orders, task| async move {
        // It may drain a whole backlog; each of its writes is bounded.
        let mut periodic = task.every(Duration::from_millis(100)).without_limit();
        while periodic.tick(orders.recover_step()).await {}
    });
    tasks.spawn("expiry", &services.orders, |orders, task| async move {
        // Many orders may be due at once; each statement is bounded.
        let mut periodic = task.every(QUARTER_SECOND).without_limit();
        while periodic.tick(orders.expire_step()).await {}
    });
    tasks.spawn("eviction", &services.catalog, |catalog, task| async move {
        let mut periodic = task.every(Duration::from_secs(60));
        while periodic.tick(eviction::step(&catalog)).await {}
    });
    tasks.spawn("scrubber", &services.catalog, |catalog, task| async move {
        let mut scrubber = scrubber::Scrubber::default();
        let mut periodic = task.every(scrubber::PAUSE);
        while periodic.tick(scrubber.step(&catalog)).await {}
    });
    tasks.spawn("releases", &services.orders, |orders, task| async move {
        let mut periodic = task.every(QUARTER_SECOND).or_on(&orders.release_wakeup);
        while periodic.tick(orders.release_all()).await {}
    });
}
