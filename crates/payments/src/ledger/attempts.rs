//! Attempts to pay: each is in the ledger before the provider hears of it.

use super::{Change, Ledger, Orders, PaymentState};
use crate::provider::{Charge, ChargeRequest, CheckoutRequest, PaymentProvider, ProviderError};
use crate::simulated::SimulatedPayments;
use stores::sql::{row, run};

/// The open attempt, or a new one. Locking the known ones makes their states current; an attempt of
/// another transaction that is not visible yet has the same number, and nothing is added.
const ATTEMPT: &str = "
    WITH known AS MATERIALIZED (
        SELECT attempt, state, reference FROM payments WHERE order_id = $1 FOR UPDATE
    ), next AS (
        SELECT coalesce(max(attempt), 0) + 1 AS attempt FROM known
        HAVING NOT coalesce(bool_or(state IN ('intent', 'captured')), false)
    ), added AS (
        INSERT INTO payments
            (order_id, amount_cents, currency, attempt, reference, state, due_at)
        SELECT $1, $2, $3, next.attempt, concat_ws('-', shop.name, $1, next.attempt), 'intent',
            now() + interval '5 seconds'
        FROM next CROSS JOIN payment_shop shop
        ON CONFLICT DO NOTHING
        RETURNING reference
    )
    SELECT reference, true FROM added
    UNION ALL SELECT reference, false FROM known WHERE state = 'intent'";

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
            let mut transaction = self.orders.begin("BEGIN").await?;
            if !self.orders.is_payable(&mut transaction, order).await? {
                transaction.rollback().await?;
                return Ok(None);
            }
            let values = (order, amount_cents, currency);
            let found: Option<(String, bool)> = row(&mut *transaction, ATTEMPT, values).await?;
            transaction.commit().await?;
            if let Some((reference, is_new)) = found {
                let change = Change { order, state: PaymentState::Pending };
                self.tell(is_new.then_some(change)).await;
                let currency = currency.to_owned();
                return Ok(Some(ChargeRequest { reference, amount_cents, currency }));
            }
        }
        Ok(None)
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
        let mut transaction = self.orders.begin("BEGIN").await?;
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
