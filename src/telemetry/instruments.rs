//! The metrics of a process. The recorder must be installed first (`telemetry::metrics`): handles
//! of an earlier time count nothing.
//!
//! Services of lab arenas count nothing: a storm must not move the figures of a real sale, nor
//! raise an alert.

use crate::domain::{OrderStatus, PurchaseResult};
use ::payments::ledger::PaymentState;
use metrics::{
    Counter, Gauge, Histogram, NoopRecorder, counter, gauge, histogram, with_local_recorder,
};
use std::sync::atomic::AtomicU64;

/// Round trips of purchases, from the queue to the acknowledgement of the log entry.
#[derive(Debug, Default)]
pub struct RoundTrips {
    pub redis: AtomicU64,
    pub postgres: AtomicU64,
}

/// The handles, registered once.
pub struct Metrics {
    published: bool,

    accepted: Counter,
    replayed: Counter,
    already_ordered: Counter,
    sold_out: Counter,
    not_open: Counter,
    paused: Counter,
    ended: Counter,
    /// Purchases that could not be decided on.
    pub unavailable: Counter,
    /// Buyers in one call of the script.
    pub batch_size: Histogram,
    /// One batch, from leaving the queue to its replies.
    pub admission_seconds: Histogram,
    /// Batches that the channel to the writer had no room for.
    pub not_handed_off: Counter,

    /// By [`OrderStatus`], in the order of their declaration.
    orders: [Counter; OrderStatus::ALL.len()],

    /// By [`PaymentState`], in the order of their declaration.
    payments: [Counter; PaymentState::ALL.len()],
    /// What does not agree in the books.
    pub books_drift: Gauge,

    pub writer_orders: Counter,
    pub writer_seconds: Histogram,
    pub writer_retries: Counter,
    pub unwritable_orders: Counter,
    pub recovered_orders: Counter,
    pub rebuilds: Counter,

    /// Accepted orders that wait to be written, of all sales.
    pub backlog_orders: Gauge,
    /// 1: purchases are admitted.
    pub admission_open: Gauge,
    pub redis_connections: PoolGauges,
    pub postgres_connections: PoolGauges,

    /// Of this process' purchases, for the lab.
    pub round_trips: RoundTrips,
}

pub struct PoolGauges {
    pub size: Gauge,
    pub idle: Gauge,
}

impl Metrics {
    /// Counts in the figures of this process.
    pub fn published() -> Self {
        Self::new(true)
    }

    /// Counts nothing.
    pub fn unpublished() -> Self {
        Self::new(false)
    }

    /// Whether operators see these metrics.
    pub fn are_published(&self) -> bool {
        self.published
    }

    fn new(published: bool) -> Self {
        match published {
            true => Self::register(published),
            // Registering is what makes a series appear.
            false => with_local_recorder(&NoopRecorder, || Self::register(published)),
        }
    }

    fn register(published: bool) -> Self {
        let verdict = |verdict| counter!("flash_sale_admissions_total", "verdict" => verdict);
        let connections =
            |pool, state| gauge!("flash_sale_pool_connections", "pool" => pool, "state" => state);
        let pool =
            |name| PoolGauges { size: connections(name, "size"), idle: connections(name, "idle") };
        Self {
            published,
            accepted: verdict("accepted"),
            replayed: verdict("replayed"),
            already_ordered: verdict("already_ordered"),
            sold_out: verdict("sold_out"),
            not_open: verdict("not_open"),
            paused: verdict("paused"),
            ended: verdict("ended"),
            unavailable: verdict("unavailable"),
            batch_size: histogram!("flash_sale_admission_batch_size"),
            admission_seconds: histogram!("flash_sale_admission_seconds"),
            not_handed_off: counter!("flash_sale_handoff_overflow_total"),
            orders: OrderStatus::ALL.map(|status| match status {
                // The backlog counts queued orders.
                OrderStatus::Queued => Counter::noop(),
                _ => counter!("flash_sale_orders_total", "status" => status.as_str()),
            }),
            payments: PaymentState::ALL
                .map(|state| counter!("flash_sale_payments_total", "state" => state.as_str())),
            books_drift: gauge!("flash_sale_books_drift"),
            writer_orders: counter!("flash_sale_writer_orders_total"),
            writer_seconds: histogram!("flash_sale_writer_seconds"),
            writer_retries: counter!("flash_sale_writer_retries_total"),
            unwritable_orders: counter!("flash_sale_unwritable_orders_total"),
            recovered_orders: counter!("flash_sale_recovered_orders_total"),
            rebuilds: counter!("flash_sale_rebuilds_total"),
            backlog_orders: gauge!("flash_sale_backlog_orders"),
            admission_open: gauge!("flash_sale_admission_open"),
            redis_connections: pool("redis"),
            postgres_connections: pool("postgres"),
            round_trips: RoundTrips::default(),
        }
    }

    /// The counter of this result.
    pub fn verdicts(&self, admission: &PurchaseResult) -> &Counter {
        match admission {
            PurchaseResult::Accepted { replayed: true, .. } => &self.replayed,
            PurchaseResult::Accepted { .. } => &self.accepted,
            PurchaseResult::AlreadyOrdered { .. } => &self.already_ordered,
            PurchaseResult::SoldOut => &self.sold_out,
            PurchaseResult::NotOpen { .. } => &self.not_open,
            PurchaseResult::Paused => &self.paused,
            PurchaseResult::Ended => &self.ended,
        }
    }

    /// The counter of transitions to this status.
    pub fn orders(&self, status: OrderStatus) -> &Counter {
        &self.orders[status as usize]
    }

    /// The counter of transitions to this state.
    pub fn payments(&self, state: PaymentState) -> &Counter {
        &self.payments[state as usize]
    }
}
