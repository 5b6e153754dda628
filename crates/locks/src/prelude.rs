//! The names that every lock is written with.

pub use crate::{
    driver::Held,
    error::{Answer, LockError},
    hold::{Hold, Why},
    lock::Released,
    protocol::{Attempt, Claim, Ending, Lease, Protocol},
    watchdog::Watchdog,
    wire::{Line, LuaScript, ScriptCall, Sql, lua, millis},
};
pub use redis::cmd;
pub use std::{sync::Arc, time::Duration};
pub use tokio::time::Instant;
pub use tracing::trace;
