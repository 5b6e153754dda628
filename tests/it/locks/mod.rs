//! The locks: each known bug of the big libraries once, and the historical locks failing as
//! described.

mod historical;
mod regressions;
