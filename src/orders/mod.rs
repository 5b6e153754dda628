//! Orders: written from the log into Postgres, and their transitions.

pub mod expiry;
pub mod insert;
pub mod loader;
pub mod log_recovery;
pub mod outbox;
pub mod outcome;
pub mod pending;
pub mod queries;
mod readmission;
pub mod service;
pub mod statements;
pub mod transitions;
pub mod watch;
pub mod writer;

pub use service::Orders;
