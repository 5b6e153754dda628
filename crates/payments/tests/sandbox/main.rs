//! The sandbox of a payment provider, over HTTP on this machine.

mod calls;
mod journal;
mod misbehaving;
mod page;
mod support;
mod webhooks;
