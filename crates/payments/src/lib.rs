//! Payments: the shop's ledger, and a provider's sandbox as its counterpart. It knows nothing of
//! the shop: what a payment does to an order stands behind a trait.

pub mod client; // a provider over HTTP
pub mod provider; // what the ledger asks of a payment provider
pub mod sandbox; // a provider that moves no money
pub mod signature; // how webhooks are signed
