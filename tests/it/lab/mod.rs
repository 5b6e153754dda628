//! The lab: strategies against their promises, and the lab itself from outside.

mod command;
mod conformance;
pub mod http;
mod losses;
mod marks;
mod processes;
mod texts;
mod verdicts;
