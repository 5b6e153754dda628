//! The connections of locks: counted, and watched by lessons and tests.
//!
//! ```text
//! lock ──▶ Line / Sql / Zoo ──▶ Tap ──▶ server
//!                                ├─ Meter    counts round trips
//!                                └─ Watcher  sees each request; may hold, fail or lose it
//! ```
//!
//! Locks do not know their watchers: lessons and tests stop a lock between any two requests without
//! a hook in it. `#[track_caller]` gives the watcher the calling line. Without a watcher this costs
//! a counter and a branch.

mod redis;
mod sql;
mod subscribe;
mod tap;
mod wakeups;

pub use self::redis::{Line, LuaScript, ScriptCall};
pub use sql::{Binding, Sql, SqlSession, SqlTransaction};
pub use tap::{Broken, Clock, Meter, Reply, RoundTrips, Sent, Verdict, Watcher, millis};
pub(super) use tap::{Server, Tap};
pub use wakeups::{Wake, Wakeups};
