//! Payment, simulated: no card data anywhere. A real provider would implement [`PaymentProvider`].

use crate::domain::Order;
use std::{future::Future, pin::Pin};

/// A charge that the provider has accepted, by the provider's name for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    pub reference: String,
}

/// The provider said no, in words for the shopper.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Declined {
    pub reason: String,
}

pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Takes money for an order and gives it back. Both must be idempotent for each order: a shopper who
/// pays again after a crash between the charge and the row that records it is charged once. Nothing
/// here gives back a charge whose order expires after such a crash; a real provider needs a
/// reconciliation of its own.
pub trait PaymentProvider: Send + Sync + 'static {
    fn charge<'a>(&'a self, order: &'a Order) -> Pending<'a, Result<Charge, Declined>>;

    /// Gives a charge back whose order could not be marked paid any more (it expired or was
    /// cancelled meanwhile).
    fn refund<'a>(&'a self, order: &'a Order, charge: &'a Charge) -> Pending<'a, ()>;
}

/// Says yes to everything, at once.
pub struct SimulatedPayments;

impl PaymentProvider for SimulatedPayments {
    fn charge<'a>(&'a self, order: &'a Order) -> Pending<'a, Result<Charge, Declined>> {
        Box::pin(async move {
            Ok(Charge {
                reference: format!("simulated-{}", order.id),
            })
        })
    }

    fn refund<'a>(&'a self, order: &'a Order, charge: &'a Charge) -> Pending<'a, ()> {
        Box::pin(async move {
            tracing::info!(order = %order.id, reference = charge.reference, "simulated refund");
        })
    }
}
