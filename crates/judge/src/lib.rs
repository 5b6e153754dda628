//! Storms anybody's flash sale over HTTP, keeps a history of every request, compares it with what
//! is stored, and proves what went wrong. It knows nothing of the shop beside it.

pub mod command;
pub mod run; // setup, storm, fault, last call, verdict

mod closing; // who was left out asks again, and the store comes to rest
mod storm; // many buyers at once

pub mod config;
pub mod event; // what happens meanwhile // what to do to which server

pub mod adapter; // how a server is spoken to
mod client; // one connection
mod faults; // --kill and --start
mod server; // the server outside of the storm
mod stored; // what the server, or its database, has stored
mod template; // {variables} of an adapter
mod trickle; // a slow client

pub mod report; // the verdict in words, as JSON and as a page

mod misfit; // where the adapter misreads the server
pub mod verdict; // history in, findings out
mod view; // a history by buyer and by order

pub mod history; // every request, every stored order

pub use config::Config;
pub use event::{Event, Progress};
pub use run::{Error, run};
