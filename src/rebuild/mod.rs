//! Rebuilding Redis from Postgres, and detecting when that is needed.
//!
//! Redis sells a sale only in the process in which it was activated, and in the epoch of Postgres
//! (`redis/library/prelude.lua`). [`step`] checks for processes that Postgres has not approved, and
//! for sales that Redis may not sell. If there are any, one instance is elected (a Postgres
//! advisory lock that ends with its transaction) and rebuilds:
//!
//! 1. **fence Redis**: deletes the old state there. Nothing is admitted from here on.
//! 2. **let the writers finish**: orders in a channel are written in the old epoch, so that nobody
//!    else takes their units. Bounded; later ones are readmitted.
//! 3. **fence Postgres**: raises the epoch there, which refuses writers of the older one from here
//!    on.
//! 4. **drain**: writes the rest of the log to Postgres.
//! 5. **recompute**: live orders become buyers of the new epoch, under a key of their own.
//! 6. **activate**: opens the sale in this process of Redis, unless a newer epoch is live or being
//!    built, or another process was fenced.
//! 7. **approve**: records the process in Postgres.
//!
//! After a crash the lock is free, and the next instance starts at 1 with a higher epoch. From an
//! instance that stands still, Postgres takes the lock after a while; when it goes on, it gives up,
//! or is overtaken at its next step: a fence or log entries of a higher epoch. Its own
//! writes went to a key that nobody reads and that expires.

mod epochs;
mod restore;
mod run;
mod service;

pub use run::spawn;
pub use service::Rebuild;
