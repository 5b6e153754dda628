//! What a shop counts for `/metrics`, on one screen. The recorder has to be there before the first shop
//! (`telemetry::metrics`): a handle that was made earlier counts for nobody.
//!
//! A shop of the lab counts nothing here: the figures of a real sale are not to move, and no alert is to
//! sound, because somebody storms an arena.

use crate::domain::{Admission, OrderStatus};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// The handles, looked up once.
pub struct Metrics {
    published: bool,

    accepted: Counter,
    replayed: Counter,
    already_ordered: Counter,
    sold_out: Counter,
    not_open: Counter,
    paused: Counter,
    ended: Counter,
    /// Purchases that could not be judged.
    pub unavailable: Counter,
    /// Buyers in one call of the script.
    pub batch_size: Histogram,
    /// From the call of the script to its answer.
    pub gate_seconds: Histogram,
    /// Batches that the channel to the writer had no room for.
    pub not_handed_off: Counter,

    /// By [`OrderStatus`], in the order of their declaration.
    orders: [Counter; OrderStatus::ALL.len()],

    pub writer_orders: Counter,
    pub writer_seconds: Histogram,
    pub writer_retries: Counter,
    pub unwritable_orders: Counter,
    pub recovered_orders: Counter,
    pub rebuilds: Counter,

    /// Accepted orders that wait to be written, of all sales.
    pub backlog_orders: Gauge,
    /// 1: purchases are judged.
    pub gate_open: Gauge,
    pub redis_connections: PoolGauges,
    pub postgres_connections: PoolGauges,
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

    /// Counts for nobody.
    pub fn unpublished() -> Self {
        Self::new(false)
    }

    /// Whether this is a shop that operators look at.
    pub fn are_published(&self) -> bool {
        self.published
    }

    fn new(published: bool) -> Self {
        // Registering is what makes a series appear, so what is not published is never registered.
        let counter = |register: fn() -> Counter| {
            if published {
                register()
            } else {
                Counter::noop()
            }
        };
        let gauge = |register: fn() -> Gauge| {
            if published { register() } else { Gauge::noop() }
        };
        let histogram = |register: fn() -> Histogram| {
            if published {
                register()
            } else {
                Histogram::noop()
            }
        };
        Self {
            published,
            accepted: counter(|| counter!("flash_sale_admissions_total", "verdict" => "accepted")),
            replayed: counter(|| counter!("flash_sale_admissions_total", "verdict" => "replayed")),
            already_ordered: counter(
                || counter!("flash_sale_admissions_total", "verdict" => "already_ordered"),
            ),
            sold_out: counter(|| counter!("flash_sale_admissions_total", "verdict" => "sold_out")),
            not_open: counter(|| counter!("flash_sale_admissions_total", "verdict" => "not_open")),
            paused: counter(|| counter!("flash_sale_admissions_total", "verdict" => "paused")),
            ended: counter(|| counter!("flash_sale_admissions_total", "verdict" => "ended")),
            unavailable: counter(
                || counter!("flash_sale_admissions_total", "verdict" => "unavailable"),
            ),
            batch_size: histogram(|| histogram!("flash_sale_admission_batch_size")),
            gate_seconds: histogram(|| histogram!("flash_sale_gate_seconds")),
            not_handed_off: counter(|| counter!("flash_sale_handoff_overflow_total")),
            orders: OrderStatus::ALL.map(|status| {
                // Nobody counts how many wait: that is the backlog.
                if published && status != OrderStatus::Queued {
                    counter!("flash_sale_orders_total", "status" => status.as_str())
                } else {
                    Counter::noop()
                }
            }),
            writer_orders: counter(|| counter!("flash_sale_writer_orders_total")),
            writer_seconds: histogram(|| histogram!("flash_sale_writer_seconds")),
            writer_retries: counter(|| counter!("flash_sale_writer_retries_total")),
            unwritable_orders: counter(|| counter!("flash_sale_unwritable_orders_total")),
            recovered_orders: counter(|| counter!("flash_sale_recovered_orders_total")),
            rebuilds: counter(|| counter!("flash_sale_rebuilds_total")),
            backlog_orders: gauge(|| gauge!("flash_sale_backlog_orders")),
            gate_open: gauge(|| gauge!("flash_sale_gate_open")),
            redis_connections: PoolGauges {
                size: gauge(
                    || gauge!("flash_sale_pool_connections", "pool" => "redis", "state" => "size"),
                ),
                idle: gauge(
                    || gauge!("flash_sale_pool_connections", "pool" => "redis", "state" => "idle"),
                ),
            },
            postgres_connections: PoolGauges {
                size: gauge(
                    || gauge!("flash_sale_pool_connections", "pool" => "postgres", "state" => "size"),
                ),
                idle: gauge(
                    || gauge!("flash_sale_pool_connections", "pool" => "postgres", "state" => "idle"),
                ),
            },
        }
    }

    /// The verdicts of this kind.
    pub fn verdicts(&self, admission: &Admission) -> &Counter {
        match admission {
            Admission::Accepted {
                replayed: false, ..
            } => &self.accepted,
            Admission::Accepted { replayed: true, .. } => &self.replayed,
            Admission::AlreadyOrdered { .. } => &self.already_ordered,
            Admission::SoldOut => &self.sold_out,
            Admission::NotOpen { .. } => &self.not_open,
            Admission::Paused => &self.paused,
            Admission::Ended => &self.ended,
        }
    }

    /// The orders that came to this status.
    pub fn orders(&self, status: OrderStatus) -> &Counter {
        &self.orders[status as usize]
    }

    /// 1 while this loop's last step has failed.
    pub fn worker_failing(&self, worker: &'static str) -> Gauge {
        if self.published {
            gauge!("flash_sale_worker_failing", "worker" => worker)
        } else {
            Gauge::noop()
        }
    }
}
