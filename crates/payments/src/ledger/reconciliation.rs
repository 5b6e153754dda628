//! Attempts of which nothing was heard: asks the provider for them, by their reference.

use super::attempts::SIMULATED_ATTEMPT;
use super::{Ledger, LedgerError, Orders};
use crate::provider::{Charge, ProviderError};
use futures_util::future::join_all;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use stores::pool::within;
use stores::sql::rows;

/// Attempts that are claimed together, how many of them are asked for at once, and how often a step
/// claims some: a step takes on 4,096.
const CLAIMED: usize = 256;
const AT_ONCE: usize = 32;
const CLAIMS: usize = 16;

/// How long a claim or the question for one attempt may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Attempts that are due. Asked for again ever more seldom, at most 30 seconds later: a shopper may
/// take a quarter of an hour on the provider's page, and a lost answer is found within a minute.
/// Without a provider only those that none knows of ($2).
const CLAIM: &str = "
    WITH due AS MATERIALIZED (
        SELECT id FROM payments WHERE state = 'intent' AND due_at <= now()
            AND ($2::text IS NULL OR reason = $2)
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
        if self.provider_is_away.load(Relaxed) {
            // First whether it is back: nothing is claimed in vain, so all is due when it is.
            self.ask("none").await?;
        }
        let mut count = 0;
        for _ in 0..CLAIMS {
            let due = within(LIMIT, self.claim()).await?;
            let mut outcome = Ok(());
            for some in due.chunks(AT_ONCE) {
                // One that fails does not keep the others.
                let asked = some
                    .iter()
                    .map(|(reference, order)| within(LIMIT, self.reconcile(reference, *order)));
                outcome = join_all(asked).await.into_iter().fold(outcome, Result::and);
                if self.provider_is_away.load(Relaxed) {
                    break;
                }
            }
            outcome?;
            count += due.len();
            if due.len() < CLAIMED {
                break;
            }
        }
        Ok(count)
    }

    async fn claim(&self) -> Result<Vec<(String, i64)>, LedgerError> {
        let mut transaction = self.postgres.begin("BEGIN").await?;
        let limit = i64::try_from(CLAIMED).unwrap_or(i64::MAX);
        let only = self.provider.is_simulated().then_some(SIMULATED_ATTEMPT);
        let due = rows(&mut *transaction, CLAIM, (limit, only)).await?;
        transaction.commit().await?;
        Ok(due)
    }

    /// Asks for one attempt; gives it up if there is no charge and the order was long closed.
    pub async fn reconcile(&self, reference: &str, order: i64) -> Result<(), LedgerError> {
        // Before it asks: a charge may come between the provider's answer and a later look.
        let mut transaction = self.postgres.begin("BEGIN").await?;
        let is_over = self.orders.is_long_closed(&mut transaction, order).await?;
        transaction.commit().await?;
        let charges = self.ask(reference).await?;
        if charges.is_empty() && is_over {
            self.abandon(reference).await?;
        }
        for charge in &charges {
            match self.apply(charge).await {
                Err(error @ LedgerError::Postgres(_)) => return Err(error),
                Err(error) => tracing::error!(%error, "a charge cannot be applied"),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// The charges of a reference.
    pub(super) async fn ask(&self, reference: &str) -> Result<Vec<Charge>, LedgerError> {
        let asked = self.provider.charges(reference).await;
        let is_away = matches!(asked, Err(ProviderError::Unknown(_)));
        self.provider_is_away.store(is_away, Relaxed);
        Ok(asked?)
    }
}
