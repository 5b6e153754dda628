//! Payments: the shop's ledger, and a provider's sandbox as its counterpart. It knows nothing of
//! the shop: what a payment does to an order stands behind a trait.

pub mod client; // a provider over HTTP
pub mod ledger; // attempts, captures, refunds, the inbox of webhooks, reconciliation, the books
pub mod problem; // refused webhooks in HTTP
pub mod provider; // what the ledger asks of a payment provider
pub mod sandbox; // a provider that moves no money
pub mod settings; // which provider
pub mod signature; // signed webhooks
pub mod simulated; // a provider that accepts everything
