//! Attempts of which nothing was heard: asks the provider for them, by their reference.

use super::{Ledger, LedgerError, Orders};
use crate::provider::ProviderError;
use futures_util::future::join_all;
use std::sync::atomic::Ordering::Relaxed;
use stores::sql::rows;

/// Attempts that a step asks for, and how many of them at once.
const STEP: usize = 64;
const AT_ONCE: usize = 8;

/// Attempts that are due. Asked for again ever more seldom, at most 30 seconds later: a shopper may
/// take a quarter of an hour on the provider's page, and a lost answer is found within a minute.
const CLAIM: &str = "
    WITH due AS MATERIALIZED (
        SELECT id FROM payments WHERE state = 'intent' AND due_at <= now()
        ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
    )
    UPDATE payments p
    SET due_at = now() + least(greatest((now() - p.created_at) / 10, interval '5 seconds'),
        interval '30 seconds')
    FROM due WHERE p.id = due.id
    RETURNING p.reference, p.order_id";

impl<O: Orders> Ledger<O> {
    /// Asks for the attempts that are due, and applies what the provider knows. Answers how many.
    pub async fn reconcile_step(&self) -> Result<usize, LedgerError> {
        let mut transaction = self.orders.begin("BEGIN").await?;
        let limit = i64::try_from(STEP).unwrap_or(i64::MAX);
        let due: Vec<(String, i64)> = rows(&mut *transaction, CLAIM, (limit,)).await?;
        transaction.commit().await?;
        if due.is_empty() && self.provider_is_away.load(Relaxed) {
            // So that the task goes on failing until the provider is back.
            self.ask("none").await?;
        }
        let mut outcome = Ok(());
        for some in due.chunks(AT_ONCE) {
            let asked = some.iter().map(|(reference, order)| self.reconcile(reference, *order));
            outcome = join_all(asked).await.into_iter().fold(outcome, Result::and);
        }
        outcome.map(|()| due.len())
    }

    /// Asks for one attempt; gives it up if there is no charge and the order was long closed.
    pub async fn reconcile(&self, reference: &str, order: i64) -> Result<(), LedgerError> {
        // Before it asks: a charge may come between the provider's answer and a later look.
        let mut transaction = self.orders.begin("BEGIN").await?;
        let is_over = self.orders.is_long_closed(&mut transaction, order).await?;
        transaction.commit().await?;
        if self.look_up(reference).await? == 0 && is_over {
            self.abandon(reference).await?;
        }
        Ok(())
    }

    /// Applies the charges of a reference. Answers how many there are.
    pub(super) async fn look_up(&self, reference: &str) -> Result<usize, LedgerError> {
        let charges = self.ask(reference).await?;
        for charge in &charges {
            match self.apply(charge).await {
                Err(error @ LedgerError::Postgres(_)) => return Err(error),
                Err(error) => tracing::error!(%error, "a charge cannot be applied"),
                Ok(_) => {}
            }
        }
        Ok(charges.len())
    }

    async fn ask(&self, reference: &str) -> Result<Vec<crate::provider::Charge>, LedgerError> {
        let asked = self.provider.charges(reference).await;
        let is_away = matches!(asked, Err(ProviderError::Unknown(_)));
        self.provider_is_away.store(is_away, Relaxed);
        Ok(asked?)
    }
}
