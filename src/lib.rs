//! A flash sale.
//!
//! The modules stand in reading order, which is also the order of their imports: each imports only
//! modules below it (`scripts/check_imports.py` checks that). The README lists the files of a
//! purchase, in order.

/// The commands of the program.
pub mod cli;

/// The composition root: settings → services → router and tasks.
pub mod app;

/// HTTP: routes, extractors, errors, event streams, pages.
pub mod http;

/// Access policies of a sale: waiting room, proof of work, passes, shared limits.
pub mod access;

/// The real shop as the lab (crates/lab) uses it: purchases and order numbers.
pub mod in_lab;

/// The services with their tasks, started and stopped as one.
pub mod running;

/// All services of a process, on the same stores.
pub mod services;

/// Rebuilding Redis from Postgres after a loss, a restart or a failover.
pub mod rebuild;

/// The audit: do Redis and Postgres agree?
pub mod audit;

/// Paying orders, by the ledger (crates/payments).
pub mod payments;

/// Orders: the log, the writer, transitions, the outbox.
pub mod orders;

/// Admission: the queue of a sale, batches, order ids.
pub mod admission;

/// The sale cache, its refresh, and the changes that operators make.
pub mod catalog;

/// Accepted orders between Redis and Postgres: the log of a sale.
pub mod order_log;

/// Service errors; they know nothing of HTTP.
pub mod error;

/// The two databases of a shop, for the services.
pub mod databases;

/// Redis: connections, keys, and the function library with its typed wrappers.
pub mod redis;

/// Postgres: the schema and the rows.
pub mod postgres;

/// Authentication: signed user tokens and the admin token.
pub mod auth;

/// Logs, metrics, traces.
pub mod telemetry;

/// Settings: flags, environment, `.env`.
pub mod config;

/// Fail points for tests; compiled out of an ordinary build.
pub mod fail_point;

/// The domain: identifiers, a sale, an order, the outcomes of a purchase.
pub mod domain;
