//! Attempts to pay: each is in the ledger before the provider hears of it.

use super::{Change, Ledger, Orders, PaymentState};
use crate::provider::{Charge, ChargeRequest, CheckoutRequest, PaymentProvider, ProviderError};
use crate::simulated::SimulatedPayments;
use sqlx::PgConnection;
use stores::sql::{row, rows, run};

/// The payments of an order, which are locked before the order is.
const KNOWN: &str = "
    SELECT coalesce(attempt, 0), state::text, reference, reason FROM payments
    WHERE order_id = $1 ORDER BY id FOR UPDATE";

/// A new attempt. One of another transaction that was not visible has the same number, and nothing
/// is added.
const ADD: &str = "
    INSERT INTO payments
        (order_id, amount_cents, currency, attempt, reference, state, reason, due_at)
    SELECT $1, $2, $3, $4, concat_ws('-', shop.name, $1, $4), 'intent', $5,
        now() + interval '5 seconds'
    FROM payment_shop shop
    ON CONFLICT DO NOTHING
    RETURNING reference";

/// The reason of an attempt that only an instance without a provider knows: others may have been
/// charged at the provider.
pub(super) const SIMULATED_ATTEMPT: &str = "simulated";

type Known = (i32, PaymentState, String, Option<String>);

/// An attempt that others made at the same moment is found at the next try.
const TRIES: usize = 3;

impl<O: Orders> Ledger<O> {
    /// The order's open attempt, which paying at once and the provider's page share. `None`: the
    /// order cannot be paid, or others are just paying it.
    pub async fn attempt(
        &self,
        order: i64,
        amount_cents: i64,
        currency: &str,
    ) -> sqlx::Result<Option<ChargeRequest>> {
        for _ in 0..TRIES {
            let mut transaction = self.postgres.begin("BEGIN").await?;
            let known: Vec<Known> = rows(&mut *transaction, KNOWN, (order,)).await?;
            if !self.orders.is_payable(&mut transaction, order).await? {
                transaction.rollback().await?;
                return Ok(None);
            }
            let open = known.iter().find(|(_, state, ..)| *state == PaymentState::Pending);
            let reference = match open {
                Some(open) => Some(self.go_on(&mut transaction, open).await?),
                None if known.iter().any(|(_, state, ..)| *state == PaymentState::Captured) => None,
                None => {
                    let attempt = known.iter().map(|(attempt, ..)| attempt + 1).max().unwrap_or(1);
                    let reason = self.provider.is_simulated().then_some(SIMULATED_ATTEMPT);
                    let values = (order, amount_cents, currency, attempt, reason);
                    let added: Option<(String,)> = row(&mut *transaction, ADD, values).await?;
                    added.map(|(reference,)| reference)
                }
            };
            transaction.commit().await?;
            if let Some(reference) = reference {
                let change = Change { order, state: PaymentState::Pending };
                self.tell(open.is_none().then_some(change)).await;
                let currency = currency.to_owned();
                return Ok(Some(ChargeRequest { reference, amount_cents, currency }));
            }
        }
        Ok(None)
    }

    /// Takes up an open attempt. From now on the provider may know of it.
    async fn go_on(&self, on: &mut PgConnection, open: &Known) -> sqlx::Result<String> {
        let (_, _, reference, reason) = open;
        if reason.is_some() && !self.provider.is_simulated() {
            let known =
                "UPDATE payments SET reason = NULL WHERE reference = $1 AND state = 'intent'";
            run(on, known, (&**reference,)).await?;
        }
        Ok(reference.clone())
    }

    /// Charges the attempt; the result has to be applied. After a lost answer, reconciliation asks.
    pub async fn charge(&self, request: &ChargeRequest) -> Result<Charge, ProviderError> {
        let charged = match request.amount_cents {
            0 => SimulatedPayments.charge(request).await, // nothing to charge
            _ => self.provider.charge(request).await,
        };
        if let Err(ProviderError::Unknown(why)) = &charged {
            tracing::warn!(reference = request.reference, why, "the answer to a charge is lost");
        }
        charged
    }

    /// The address of the provider's page for the attempt.
    pub async fn checkout(&self, request: &CheckoutRequest) -> Result<String, ProviderError> {
        self.provider.checkout(request).await
    }

    /// Gives up an attempt of which the provider knows nothing.
    pub(super) async fn abandon(&self, reference: &str) -> sqlx::Result<()> {
        let mut transaction = self.postgres.begin("BEGIN").await?;
        run(
            &mut *transaction,
            "UPDATE payments SET state = 'failed', reason = 'abandoned', updated_at = now()
             WHERE reference = $1 AND attempt IS NOT NULL AND state = 'intent'",
            (reference,),
        )
        .await?;
        transaction.commit().await
    }
}
