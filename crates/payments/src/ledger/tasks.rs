//! The tasks of the ledger.

use super::{Ledger, LedgerError, Orders};
use ::tasks::Tasks;
use std::sync::Arc;
use std::time::Duration;

const PAUSE: Duration = Duration::from_secs(1);
const BOOKS_PAUSE: Duration = Duration::from_secs(600);

pub fn spawn<O: Orders>(ledger: &Arc<Ledger<O>>, tasks: &Tasks) {
    tasks.spawn("refunds", ledger, |ledger, task| async move {
        let mut periodic = task.every(PAUSE).or_on(&ledger.refunds_wakeup);
        while periodic.tick(ledger.refund_step()).await {}
    });
    tasks.spawn("reconciliation", ledger, |ledger, task| async move {
        let mut periodic = task.every(PAUSE).without_limit();
        while periodic.tick(ledger.reconcile_step()).await {}
    });
    tasks.spawn("books", ledger, |ledger, task| async move {
        // Not at once, when there is more to do: it reads every payment.
        tokio::select! {
            () = tokio::time::sleep(BOOKS_PAUSE) => {}
            () = task.stop.cancelled() => return,
        }
        let mut periodic = task.every(BOOKS_PAUSE).without_limit();
        let step = async || {
            ledger.forget_step().await?;
            ledger.books().await?;
            Ok::<_, LedgerError>(())
        };
        while periodic.tick(step()).await {}
    });
}
