//! What a charge does: to its payment, and to the order. Applying it again, and in any order,
//! changes nothing.

use super::{Change, Ledger, LedgerError, Orders, PaymentState};
use crate::provider::{Charge, ChargeStatus};
use PaymentState::{Captured, Declined, Pending, Refunded, Refunding};
use sqlx::PgConnection;
use stores::postgres::Transaction;
use stores::sql::{row, run};

/// A payment, locked.
struct Known {
    id: i64,
    order_id: i64,
    amount_cents: i64,
    currency: String,
    state: PaymentState,
    charge_id: Option<String>,
}

type Row = (i64, i64, i64, String, PaymentState, Option<String>);

impl From<Row> for Known {
    fn from((id, order_id, amount_cents, currency, state, charge_id): Row) -> Self {
        Self { id, order_id, amount_cents, currency, state, charge_id }
    }
}

/// By its charge; else by its reference: then it is the first charge that is heard of.
const FIND: &str = "
    SELECT id, order_id, amount_cents, coalesce(currency, $3) AS currency, state::text, charge_id
    FROM payments WHERE charge_id = $1 OR (reference = $2 AND attempt IS NOT NULL)
    ORDER BY charge_id IS NOT DISTINCT FROM $1 DESC LIMIT 1 FOR UPDATE";

impl<O: Orders> Ledger<O> {
    /// Applies a charge as the provider has it.
    pub async fn apply(&self, charge: &Charge) -> Result<Option<Change>, LedgerError> {
        let transaction = self.postgres.begin("BEGIN").await?;
        self.apply_and_commit(transaction, charge).await
    }

    /// Applies a charge, and commits the transaction with what it holds already.
    pub(super) async fn apply_and_commit(
        &self,
        mut transaction: Transaction,
        charge: &Charge,
    ) -> Result<Option<Change>, LedgerError> {
        match self.apply_in(&mut transaction, charge).await {
            Ok(change) => {
                transaction.commit().await?;
                self.tell(change).await;
                Ok(change)
            }
            Err(LedgerError::Postgres(error)) => Err(error.into()),
            Err(refused) => {
                transaction.rollback().await?;
                Err(refused)
            }
        }
    }

    async fn apply_in(
        &self,
        on: &mut PgConnection,
        charge: &Charge,
    ) -> Result<Option<Change>, LedgerError> {
        let values = (&*charge.id, &*charge.reference, &*charge.currency);
        let known: Option<Row> = row(&mut *on, FIND, values).await?;
        let known = known.map(Known::from);
        let known = known.ok_or_else(|| LedgerError::ChargeUnknown {
            charge: charge.id.clone(),
            reference: charge.reference.clone(),
        })?;
        known.must_match(charge)?;
        // The provider has charged one reference twice.
        let is_another = known.charge_id.as_ref().is_some_and(|id| *id != charge.id);
        let state = if is_another { Pending } else { known.state };
        let Some((state, reason)) = self.next(on, &known, state, charge).await? else {
            return Ok(None);
        };
        let changed = match is_another {
            true => known.add(on, charge, state, &reason).await?,
            false => known.update(on, charge, state, &reason).await?,
        };
        let order = known.order_id;
        Ok(changed.then_some(Change { order, state }))
    }

    /// The new state and why; marks the order paid. `None`: the charge tells nothing new.
    async fn next(
        &self,
        on: &mut PgConnection,
        known: &Known,
        state: PaymentState,
        charge: &Charge,
    ) -> sqlx::Result<Option<(PaymentState, String)>> {
        let is_back = charge.amount_cents > 0 && charge.refunded_cents >= charge.amount_cents;
        Ok(Some(match (charge.status, state) {
            (ChargeStatus::Declined, Pending) => {
                let reason = charge.decline_reason.as_deref().unwrap_or_default();
                (Declined, format!("declined: {}", for_postgres(reason)))
            }
            (ChargeStatus::Succeeded, Pending | Declined) if is_back => {
                (Refunded, "provider".to_owned())
            }
            (ChargeStatus::Succeeded, Pending | Declined) => {
                if self.orders.mark_paid(on, known.order_id).await? {
                    return Ok(Some((Captured, String::new())));
                }
                let is_paid: Option<(i64,)> = row(
                    &mut *on,
                    "SELECT id FROM payments WHERE order_id = $1 AND state = 'captured'",
                    (known.order_id,),
                )
                .await?;
                let reason = if is_paid.is_some() { "duplicate" } else { "late" };
                (Refunding, reason.to_owned())
            }
            // Returned at the provider's, or our own refund, whose answer was lost.
            (ChargeStatus::Succeeded, Captured) if is_back => (Refunded, "provider".to_owned()),
            (ChargeStatus::Succeeded, Refunding) if is_back => (Refunded, String::new()),
            _ => return Ok(None),
        }))
    }
}

/// JSON can hold a zero byte, and Postgres' text cannot.
pub(super) fn for_postgres(text: &str) -> String {
    text.replace('\0', " ")
}

impl Known {
    fn must_match(&self, charge: &Charge) -> Result<(), LedgerError> {
        if (self.amount_cents, &self.currency) == (charge.amount_cents, &charge.currency) {
            return Ok(());
        }
        Err(LedgerError::AmountMismatch {
            charge: charge.id.clone(),
            reference: charge.reference.clone(),
            charged: format!("{} {}", charge.amount_cents, charge.currency),
            asked: format!("{} {}", self.amount_cents, self.currency),
        })
    }

    async fn update(
        &self,
        on: &mut PgConnection,
        charge: &Charge,
        state: PaymentState,
        reason: &str,
    ) -> sqlx::Result<bool> {
        let changed = run(
            on,
            "UPDATE payments SET state = $2::payment_state, charge_id = $3,
                 reason = coalesce(nullif($4, ''), reason), updated_at = now(), due_at = now(),
                 paid_at = CASE WHEN $2 = 'captured' THEN now() ELSE paid_at END
             WHERE id = $1",
            (self.id, state.as_str(), &*charge.id, reason),
        );
        Ok(changed.await? == 1)
    }

    /// A charge beside that of the attempt, as a payment of its own.
    async fn add(
        &self,
        on: &mut PgConnection,
        charge: &Charge,
        state: PaymentState,
        reason: &str,
    ) -> sqlx::Result<bool> {
        if state == Declined {
            return Ok(false);
        }
        let values = (
            self.order_id,
            self.amount_cents,
            &*self.currency,
            &*charge.reference,
            state.as_str(),
            reason,
            &*charge.id,
        );
        let added = run(
            on,
            "INSERT INTO payments
                 (order_id, amount_cents, currency, reference, state, reason, charge_id)
             VALUES ($1, $2, $3, $4, $5::payment_state, nullif($6, ''), $7)
             ON CONFLICT (charge_id) DO NOTHING",
            values,
        );
        Ok(added.await? == 1)
    }
}
