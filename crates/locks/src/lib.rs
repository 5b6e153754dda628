//! Locks: ways to let one client in at a time, sound or famous for its failures.
//!
//! A lock is a [`Protocol`]: how it is asked for, renewed and released. One driver does the rest
//! for all of them.
//!
//! ```text
//! acquire ─▶ driver ── one token for all attempts ─▶ Protocol::attempt ─▶ ours │ taken │ no answer
//!              │  waits: jitter, or the message of a release, at most the rest of the lease
//!              │  doubts: an attempt without a reply may hold the lock, so giving up undoes it
//!              ▼  counts the lease from before the request, less the clocks' drift
//!            Held ── Watchdog: Protocol::renew, every third of the lease
//!              │
//! release ─▶ the watchdog ends ──▶ Protocol::release, again after a lost reply ─▶ Freed │ NotHeld
//! ```
//!
//! In reading order:
//!
//! | file | the lock | in one line |
//! |---|---|---|
//! | `setnx_expire` | [`SetnxExpire`] | two commands: a crash between them locks for ever |
//! | `setnx_getset` | [`SetnxGetset`] | the clients' clocks are in the value, GETSET decides |
//! | `set_px_no_owner` | [`SetPxNoOwner`] | one command, but any client's DEL frees it |
//! | `token` | [`TokenLock`] | a unique value, compared before it is deleted |
//! | `reentrant` | [`ReentrantLock`] | one owner many times, woken, renewed |
//! | `multi` | [`MultiLock`] | all of several independent Redis nodes |
//! | `redlock` | [`Redlock`] | a majority of them |
//! | `advisory` | [`AdvisoryLock`] | Postgres' own, for a transaction |
//! | `table` | [`TableLock`] | a row in Postgres |
//! | `zookeeper` | [`ZooKeeperLock`] | a queue of ephemeral nodes |
//! | `fencing` | | the resource's side: older numbers are refused |
//! | `protocol`, `outcome`, `error` | | a lock from inside, what comes of it, its failures |
//! | `driver` | | a lock from outside |
//! | `hold`, `watchdog`, `waiting`, `asking` | | what all of them share |
//!
//! `wire` is their transport: counted, and watched if a lesson or a test asks for it. Nothing here
//! knows of sales.
//!
//! Three answers are distinguished everywhere. *Contended*: another client has it ([`Acquired`]).
//! *Unreachable*: nobody knows ([`LockError`]). *Not held*: a release came too late ([`Released`]).
//!
//! The head of each file says what happens after a crash. `//= FLAW` and `//= CURE` (in Lua `--=`)
//! stand above the lines that decide, which pages quote.

pub mod advisory;
mod asking;
mod driver;
mod error;
pub mod fencing;
mod hold;
pub mod multi;
mod nodes;
mod outcome;
mod prelude;
mod protocol;
mod queue;
pub mod redlock;
pub mod reentrant;
pub mod set_px_no_owner;
pub mod setnx_expire;
pub mod setnx_getset;
pub mod table;
pub mod token;
mod waiting;
mod watchdog;
pub mod wire;
pub mod zookeeper;

pub use self::{advisory::AdvisoryLock, table::TableLock, token::TokenLock};
pub use self::{multi::MultiLock, redlock::Redlock, reentrant::ReentrantLock};
pub use asking::Asking;
pub use driver::{Held, Lock};
pub use error::{Answer, LockError};
pub use hold::{Hold, Why, drift};
pub use outcome::{Acquired, Released};
pub use protocol::{Attempt, Claim, Lease, Ours, Protocol};
pub use set_px_no_owner::SetPxNoOwner;
pub use setnx_expire::SetnxExpire;
pub use setnx_getset::SetnxGetset;
pub use zookeeper::ZooKeeperLock;
/// For tests, which ask the server themselves.
#[cfg(feature = "zookeeper")]
pub use zookeeper_client;
