//! The lab: strategies against their promises, and the lab itself from outside.

mod command;
mod conformance;
pub mod http;
mod marks;
mod texts;
mod verdicts;
