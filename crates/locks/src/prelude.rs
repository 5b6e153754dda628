//! The names that every lock is written with.

pub use crate::{
    error::{Answer, LockError},
    lock::Released,
    protocol::{Attempt, Claim, Ending, Lease, Protocol},
    wire::{Line, millis},
};
pub use redis::cmd;
pub use std::{sync::Arc, time::Duration};
pub use tokio::time::Instant;
