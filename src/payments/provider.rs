//! Payment, simulated, without card data. A real provider would implement [`PaymentProvider`].

use crate::domain::Order;
use std::future::Future;
use std::pin::Pin;

/// An accepted charge, by the provider's reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    pub reference: String,
}

/// The provider declined, with a reason for the shopper.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Declined {
    pub reason: String,
}

pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Charges and refunds, both idempotent by order: paying again after a crash charges once. A charge
/// whose order expires after such a crash stays; a real provider needs a reconciliation.
pub trait PaymentProvider: Send + Sync + 'static {
    fn charge<'a>(&'a self, order: &'a Order) -> Pending<'a, Result<Charge, Declined>>;

    /// Refunds a charge whose order expired or was cancelled meanwhile.
    fn refund<'a>(&'a self, order: &'a Order, charge: &'a Charge) -> Pending<'a, ()>;
}

/// Accepts everything at once.
pub struct SimulatedPayments;

impl PaymentProvider for SimulatedPayments {
    fn charge<'a>(&'a self, order: &'a Order) -> Pending<'a, Result<Charge, Declined>> {
        Box::pin(async move { Ok(Charge { reference: format!("simulated-{}", order.id) }) })
    }

    fn refund<'a>(&'a self, order: &'a Order, charge: &'a Charge) -> Pending<'a, ()> {
        Box::pin(async move {
            tracing::info!(order = %order.id, reference = charge.reference, "simulated refund");
        })
    }
}
