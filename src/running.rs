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
//! | releases | returns units from the outbox to Redis ([`outbox`]) |
//! | refunds, reconciliation, books | money: [`ledger::tasks`] |
//! | order watch | refreshes watched orders ([`watch`]) |

use crate::admission::AdmissionSettings;
use crate::audit::scrubber;
use crate::catalog::{eviction, refresh};
use crate::config::SaleSettings;
use crate::databases::Databases;
use crate::fail_point::{FailPoints, Unknown};
use crate::orders::{expiry, log_recovery, outbox, watch, writer};
use crate::payments::provider::PaymentLink;
use crate::postgres::Pool;
use crate::rebuild;
use crate::redis::Redis;
use crate::services::Services;
use crate::telemetry::instruments::Metrics;
use ::payments::ledger;
use std::sync::Arc;
use std::time::Duration;
use tasks::Tasks;
use tokio::sync::mpsc;
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
        link: impl Into<PaymentLink>,
        sale: &SaleSettings,
        role: Role,
        metrics: Metrics,
    ) -> Result<Self, Unknown> {
        let fail_points = FailPoints::default();
        fail_points.set(&sale.fail_points)?;
        let (handoff, channel) = mpsc::channel(HANDOFF_BATCHES);
        let settings = AdmissionSettings {
            high_water: sale.backlog_limit,
            batch_limit: usize::from(sale.batch_limit),
            handoff: (role == Role::Server).then_some(handoff),
        };
        let databases = Databases { postgres: postgres.clone(), redis: redis.clone() };
        let services = Services::new(databases, link, settings, metrics, fail_points);
        let tasks = || Tasks::new(services.liveness.clone(), services.metrics.are_published());
        let mut running = Self { tasks: tasks(), writer: tasks(), writing: None, services };
        let (services, tasks) = (&running.services, &running.tasks);
        if role != Role::Command {
            refresh::spawn(&services.catalog, tasks);
            rebuild::spawn(&services.rebuild, tasks);
            watch::spawn(&services.orders.watch, tasks);
        }
        if matches!(role, Role::Server | Role::Worker) {
            log_recovery::spawn(&services.orders, tasks);
            expiry::spawn(&services.orders, tasks);
            eviction::spawn(&services.catalog, tasks);
            scrubber::spawn(&services.auditor, tasks);
            outbox::spawn(&services.orders, tasks);
            ledger::tasks::spawn(&services.payments.ledger, tasks);
        }
        if role == Role::Server {
            let writing = writer::spawn(&services.orders, &running.writer, channel);
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
