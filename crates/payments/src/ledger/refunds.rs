//! Money that goes back: an operator's refunds, and the task that carries out all of them.

use super::apply::for_postgres;
use super::{Change, Ledger, LedgerError, Orders, PaymentState};
use crate::provider::ProviderError;
use crate::simulated::SIMULATED;
use futures_util::future::join_all;
use stores::sql::{row, rows, run};

/// Refunds that a step carries out, and how many of them at once.
const STEP: usize = 64;
const AT_ONCE: usize = 8;

/// Refunds that are due; repeated until they are done or refused. Instances skip each other's.
const CLAIM: &str = "
    WITH due AS MATERIALIZED (
        SELECT id FROM payments WHERE state = 'refunding' AND refused IS NULL AND due_at <= now()
            AND ($2 OR amount_cents = 0 OR coalesce(charge_id, reference) LIKE 'simulated-%')
        ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
    )
    UPDATE payments p SET due_at = now() + interval '10 seconds' FROM due WHERE p.id = due.id
    RETURNING p.id, p.order_id, p.amount_cents, p.reference, coalesce(p.charge_id, p.reference)";

/// What an operator asks for. A refund that was refused is tried again instead: a charge that the
/// order keeps goes back only with its unit ($2).
const BEGIN: &str = "
    WITH locked AS MATERIALIZED (
        SELECT id, state = 'refunding' AND refused IS NOT NULL AS is_refused
        FROM payments WHERE order_id = $1 ORDER BY id FOR UPDATE
    )
    UPDATE payments p
    SET state = 'refunding', refused = NULL, updated_at = now(), due_at = now(),
        reason = CASE p.state WHEN 'captured' THEN 'operator' ELSE p.reason END
    FROM locked
    WHERE p.id = locked.id
        AND (locked.is_refused
            OR p.state = 'captured' AND ($2 OR NOT (SELECT bool_or(is_refused) FROM locked)))";

/// Id, order, amount, reference, charge.
type Due = (i64, i64, i64, String, String);

impl<O: Orders> Ledger<O> {
    /// Returns the money of a paid order, and with `return_unit` cancels it. Repeatable: the money
    /// and the unit go back once.
    pub async fn refund(&self, order: i64, return_unit: bool) -> Result<(), LedgerError> {
        let mut transaction = self.postgres.begin("BEGIN").await?;
        let is_new = run(&mut *transaction, BEGIN, (order, return_unit)).await? > 0;
        if !is_new {
            let before: Option<(i64,)> = row(
                &mut *transaction,
                "SELECT id FROM payments WHERE order_id = $1 AND (state = 'refunding'
                     OR state = 'refunded' AND reason IN ('operator', 'provider')) LIMIT 1",
                (order,),
            )
            .await?;
            if before.is_none() {
                transaction.rollback().await?;
                return Err(LedgerError::NothingCaptured);
            }
        }
        if return_unit {
            self.orders.take_back(&mut transaction, order).await?;
        }
        transaction.commit().await?;
        self.tell(is_new.then_some(Change { order, state: PaymentState::Refunding })).await;
        Ok(())
    }

    /// Carries out the refunds that are due. Answers how many were; an error if some wait for long,
    /// although others went well.
    pub async fn refund_step(&self) -> Result<usize, LedgerError> {
        let mut transaction = self.postgres.begin("BEGIN").await?;
        let limit = i64::try_from(STEP).unwrap_or(i64::MAX);
        let due: Vec<Due> =
            rows(&mut *transaction, CLAIM, (limit, !self.provider.is_simulated())).await?;
        transaction.commit().await?;
        let mut outcome = Ok(());
        for some in due.chunks(AT_ONCE) {
            // One that fails does not keep the others.
            let done = join_all(some.iter().map(|one| self.carry_out(one))).await;
            outcome = done.into_iter().fold(outcome, Result::and);
        }
        outcome?;
        let mut transaction = self.postgres.begin("BEGIN").await?;
        let late: Option<(i64,)> = row(
            &mut *transaction,
            "SELECT count(*) FROM payments
             WHERE state = 'refunding' AND refused IS NULL
                 AND updated_at < now() - interval '1 minute'",
            (),
        )
        .await?;
        transaction.commit().await?;
        match late {
            Some((late,)) if late > 0 => Err(LedgerError::RefundsWait(late)),
            _ => Ok(due.len()),
        }
    }

    async fn carry_out(&self, due: &Due) -> Result<(), LedgerError> {
        let (id, order, amount_cents, _, charge) = due;
        let is_real = *amount_cents > 0 && !charge.starts_with(SIMULATED);
        let returned = if is_real { self.return_money(due).await } else { Ok(()) };
        let refused = match returned {
            Ok(()) => None,
            Err(LedgerError::Provider(ProviderError::Refused { code, message })) => {
                tracing::error!(order, charge, code, message, "a refund is refused");
                Some(for_postgres(&format!("{code}: {message}")))
            }
            Err(other) => return Err(other),
        };
        let is_refunded = refused.is_none();
        let state = if is_refunded { PaymentState::Refunded } else { PaymentState::Refunding };
        let done = run(
            &self.postgres,
            "UPDATE payments SET state = $2::payment_state, refused = $3, updated_at = now()
             WHERE id = $1 AND state = 'refunding'",
            (*id, state.as_str(), refused),
        );
        let is_new = done.await? == 1 && is_refunded;
        self.tell(is_new.then_some(Change { order: *order, state })).await;
        Ok(())
    }

    /// Has the provider return a charge: what it still holds of it.
    async fn return_money(&self, due: &Due) -> Result<(), LedgerError> {
        let (_, _, amount_cents, reference, charge) = due;
        // By the charge, which others at this provider do not have: it is refunded once.
        let key = format!("refund-{charge}");
        let refused = match self.provider.refund(&key, charge, *amount_cents).await {
            Err(refused @ ProviderError::Refused { .. }) => refused,
            answered => return Ok(answered.map(drop)?),
        };
        // It may be that all or a part has gone back in another way.
        let found = self.ask(reference).await;
        let found = found.map_err(|error| ProviderError::Unknown(error.to_string()))?;
        let found = found.iter().find(|found| found.id == *charge);
        match found.map(|found| found.amount_cents - found.refunded_cents) {
            Some(..=0) => Ok(()),
            Some(left) if left < *amount_cents => {
                let key = format!("refund-{charge}-{left}");
                Ok(self.provider.refund(&key, charge, left).await.map(drop)?)
            }
            _ => Err(refused.into()),
        }
    }
}
