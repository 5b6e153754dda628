//! Money that goes back: an operator's refunds, and the task that carries out all of them.

use super::{Change, Ledger, LedgerError, Orders, PaymentState};
use crate::provider::ProviderError;
use crate::simulated::SIMULATED;
use futures_util::future::join_all;
use stores::sql::{row, rows, run};

/// Refunds that a step carries out, and how many of them at once.
const STEP: usize = 64;
const AT_ONCE: usize = 8;

/// Refunds that are due; repeated until they are done. Instances skip each other's.
const CLAIM: &str = "
    WITH due AS MATERIALIZED (
        SELECT id FROM payments WHERE state = 'refunding' AND due_at <= now()
        ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
    )
    UPDATE payments p SET due_at = now() + interval '10 seconds' FROM due WHERE p.id = due.id
    RETURNING p.id, p.order_id, p.amount_cents, p.reference, coalesce(p.charge_id, p.reference)";

type Due = (i64, i64, i64, String, String);

impl<O: Orders> Ledger<O> {
    /// Returns the money of a paid order, and with `return_unit` cancels it. Repeatable: the money
    /// and the unit go back once.
    pub async fn refund(&self, order: i64, return_unit: bool) -> Result<(), LedgerError> {
        let mut transaction = self.orders.begin("BEGIN").await?;
        let refunding = run(
            &mut *transaction,
            "UPDATE payments SET state = 'refunding', reason = 'operator', updated_at = now(),
                 due_at = now()
             WHERE order_id = $1 AND state = 'captured'",
            (order,),
        );
        let is_new = refunding.await? == 1;
        if !is_new {
            let before: Option<(i64,)> = row(
                &mut *transaction,
                "SELECT id FROM payments WHERE order_id = $1 AND reason IN ('operator', 'provider')
                     AND state IN ('refunding', 'refunded') LIMIT 1",
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
        let mut transaction = self.orders.begin("BEGIN").await?;
        let limit = i64::try_from(STEP).unwrap_or(i64::MAX);
        let due: Vec<Due> = rows(&mut *transaction, CLAIM, (limit,)).await?;
        transaction.commit().await?;
        let mut outcome = Ok(());
        for some in due.chunks(AT_ONCE) {
            // One that fails does not keep the others.
            let done = join_all(some.iter().map(|one| self.carry_out(one))).await;
            outcome = done.into_iter().fold(outcome, Result::and);
        }
        outcome?;
        let mut transaction = self.orders.begin("BEGIN").await?;
        let late: Option<(i64,)> = row(
            &mut *transaction,
            "SELECT count(*) FROM payments
             WHERE state = 'refunding' AND updated_at < now() - interval '1 minute'",
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
        let (id, order, amount_cents, reference, charge) = due;
        let refunded = match amount_cents {
            0 => Ok(()),
            _ if charge.starts_with(SIMULATED) => Ok(()),
            _ => {
                // By the charge, which others at this provider do not have: it is refunded once.
                let key = format!("refund-{charge}");
                self.provider.refund(&key, charge, *amount_cents).await.map(drop)
            }
        };
        match refunded {
            Ok(()) => {
                let mut transaction = self.orders.begin("BEGIN").await?;
                let done = run(
                    &mut *transaction,
                    "UPDATE payments SET state = 'refunded', updated_at = now()
                     WHERE id = $1 AND state = 'refunding'",
                    (*id,),
                );
                let done = done.await? == 1;
                transaction.commit().await?;
                let change = Change { order: *order, state: PaymentState::Refunded };
                self.tell(done.then_some(change)).await;
                Ok(())
            }
            Err(ProviderError::Refused { code, message }) => {
                tracing::error!(%order, charge, code, message, "a refund was refused");
                // It may be that the money has gone back in another way.
                self.look_up(reference).await.map(drop)
            }
            Err(unknown) => Err(unknown.into()),
        }
    }
}
