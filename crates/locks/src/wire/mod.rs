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
//! a counter and an entry in a set of lines.

mod meter;
mod redis;
mod script;
mod sql;
mod tap;
mod wakeups;
pub(crate) mod zoo;

pub use self::redis::Line;
pub use meter::{Meter, RoundTrips, Server};
pub use script::{LuaScript, Request, ScriptCall};
pub use sql::{Sql, SqlTransaction};
pub use tap::{Clock, Reply, Sent, Tapped, Verdict, Watcher, millis};
pub use wakeups::Wakeups;
pub use zoo::{Zoo, ZooError, ZooSession, ZooWatch};

/// The script of this name in the folder `scripts` beside the caller's file.
#[macro_export]
macro_rules! lua {
    ($name:literal) => {
        $crate::wire::LuaScript::new($name, include_str!(concat!("scripts/", $name)))
    };
}
pub use lua;
