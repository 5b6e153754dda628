//! Payment without a provider: every charge succeeds, without card data or a record.

use crate::provider::{
    Charge, ChargeRequest, ChargeStatus, CheckoutRequest, PaymentProvider, Pending, ProviderError,
    Refund, Transaction,
};
use std::future::ready;

/// Accepts everything at once. It remembers nothing: what has a reference was charged.
pub struct SimulatedPayments;

/// The head of its charges' ids.
pub const SIMULATED: &str = "simulated-";

fn refused(message: &str) -> ProviderError {
    ProviderError::Refused { code: "simulated".to_owned(), message: message.to_owned() }
}

impl PaymentProvider for SimulatedPayments {
    fn charge<'a>(&'a self, request: &'a ChargeRequest) -> Pending<'a, Charge> {
        Box::pin(ready(Ok(Charge {
            id: format!("{SIMULATED}{}", request.reference),
            reference: request.reference.clone(),
            status: ChargeStatus::Succeeded,
            amount_cents: request.amount_cents,
            refunded_cents: 0,
            currency: request.currency.clone(),
            decline_reason: None,
        })))
    }

    fn checkout<'a>(&'a self, _: &'a CheckoutRequest) -> Pending<'a, String> {
        Box::pin(ready(Err(refused("payment is simulated: there is no page to pay on"))))
    }

    fn refund<'a>(
        &'a self,
        key: &'a str,
        charge: &'a str,
        amount_cents: i64,
    ) -> Pending<'a, Refund> {
        if !charge.starts_with(SIMULATED) {
            let why = "a provider made this charge, and this process knows none".to_owned();
            return Box::pin(ready(Err(ProviderError::Unknown(why))));
        }
        let (id, charge) = (format!("{SIMULATED}{key}"), charge.to_owned());
        Box::pin(ready(Ok(Refund { id, charge, amount_cents })))
    }

    /// None: an attempt that broke off is made anew, with the same reference.
    fn charges<'a>(&'a self, _: &'a str) -> Pending<'a, Vec<Charge>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn transactions(&self, _: u64) -> Pending<'_, Vec<Transaction>> {
        Box::pin(ready(Err(refused("payment is simulated: there are no transactions"))))
    }

    fn is_simulated(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_returns_only_what_it_has_charged() {
        let (reference, currency) = ("shop-1-1".to_owned(), "USD".to_owned());
        let request = ChargeRequest { reference, amount_cents: 5, currency };
        let charge = SimulatedPayments.charge(&request).await.expect("accepted");
        assert!(SimulatedPayments.refund("key", &charge.id, 5).await.is_ok());
        let real = SimulatedPayments.refund("key", "ch_1", 5).await;
        assert!(matches!(real, Err(ProviderError::Unknown(_))), "{real:?}");
    }
}
