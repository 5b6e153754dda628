//! Admission: which buyers get a unit.
//!
//! ```text
//! purchase ─▶ refused from memory? ─▶ queue ─▶ batch ─▶ admit.lua ─▶ verdicts ─▶ replies
//!             (refusals)                                (retry, admit)
//!                                                           └─▶ accepted orders ─▶ writer
//! ```
//!
//! Group commit for a stock counter: the more buyers wait, the more share one round trip, one log
//! append and one fsync.
//!
//! **Failures.** A batch whose reply is lost is asked again with the same order ids, and Redis
//! recognises attempts that it has accepted. After at most 2.5 seconds without an answer the whole
//! batch gets 503. Its orders may exist: then the log has them, and a retry names them.
//!
//! **Crashes.** The queues are lost before anybody in them was answered; accepted orders are in the
//! log.

mod admit;
mod batch;
pub mod ids;
mod queue;
pub mod refusals;
mod retry;
mod service;
pub mod throughput;

pub use admit::Decided;
pub use service::{Admission, AdmissionSettings};
