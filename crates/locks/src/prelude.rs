//! The names that every lock is written with.

pub use crate::driver::Held;
pub use crate::error::{Answer, LockError};
pub use crate::hold::{Hold, Why};
pub use crate::outcome::Released;
pub use crate::protocol::{Attempt, Claim, Lease, Ours, Protocol};
pub use crate::watchdog::Watchdog;
pub use crate::wire::{Line, LuaScript, ScriptCall, Sql, lua, millis};
pub use redis::cmd;
pub use std::{sync::Arc, time::Duration};
pub use tokio::time::Instant;
pub use tracing::trace;
