//! The domain: identifiers, a sale, an order, and the outcomes of a purchase.
//!
//! Nothing here does I/O. Ordinary refusals (sold out, already ordered, not open) are variants of
//! [`PurchaseResult`], because they are answers; errors are for what went wrong.

mod ids;
mod order;
mod sale;
mod time;

pub use ids::{IdempotencyKey, MalformedId, OrderId, SaleId, UserId};
pub use order::{Order, OrderStatus, PurchaseResult};
pub use sale::{AccessPolicy, RoomSettings, Sale, SaleState, SaleView, read_room};
pub use time::{from_unix_ms, unix_ms};
