//! Postgres' advisory lock of a transaction: a number that ends with it.
//!
//! ```text
//! pg_locks (in Postgres' memory)  hash of NAME → the transaction that has it
//! ```
//!
//! Crashes. Of the holder: its connection ends, its transaction is rolled back, and the lock is
//! free; work *in that transaction* is undone, which no lease can promise. Of the network, in
//! silence: Postgres keeps lock and transaction until TCP gives up. Of Postgres: all transactions
//! and locks end; a new primary knows none of them.
//!
//! The guard lends its transaction to the work: commit and unlock are one step.

use crate::{
    driver::Held,
    hold::{Hold, Why},
    prelude::*,
    watchdog::Watchdog,
    wire::{Sql, SqlTransaction},
};
use std::{io::ErrorKind, sync::Weak};
use tokio::{
    sync::{MappedMutexGuard, Mutex, MutexGuard},
    time::{sleep, timeout},
};

/// The interval and the timeout of the heartbeat on an idle connection.
const HEARTBEAT: Duration = Duration::from_millis(500);
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(1);

const TRY: &str = "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))";
const WAIT: &str = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
/// For this transaction only.
const SET_LOCK_TIMEOUT: &str = "SELECT set_config('lock_timeout', $1, true)";
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// Less than the pool's statement timeout.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// See the head of this file.
#[derive(Clone)]
pub struct AdvisoryLock {
    sql: Sql,
}

/// A held [`AdvisoryLock`], and the transaction that has it.
pub type AdvisoryGuard = Held<AdvisoryLock>;

/// The transaction that has the lock; cancelling the acquire closes its connection.
type Own = Arc<Mutex<Option<SqlTransaction>>>;

impl AdvisoryLock {
    /// Each holder and each waiter keeps one connection of the pool.
    pub fn new(sql: Sql) -> Self {
        Self { sql }
    }

    /// Whether the transaction has the lock before the deadline: Postgres keeps the queue.
    async fn waits(
        transaction: &mut SqlTransaction,
        name: &str,
        deadline: Instant,
    ) -> Result<bool, sqlx::Error> {
        let left = deadline.saturating_duration_since(Instant::now()).min(LONGEST_WAIT);
        if left < Duration::from_millis(1) {
            return Ok(false);
        }
        let wait = left.as_millis().to_string();
        transaction.execute(SET_LOCK_TIMEOUT, |query| query.bind(wait)).await?;
        match transaction.execute(WAIT, |query| query.bind(name)).await {
            Err(sqlx::Error::Database(error))
                if error.code().as_deref() == Some(LOCK_NOT_AVAILABLE) =>
            {
                Ok(false)
            }
            outcome => {
                outcome?;
                // The timeout is not for the work's own row locks.
                transaction.execute(SET_LOCK_TIMEOUT, |query| query.bind("0")).await?;
                Ok(true)
            }
        }
    }
}

impl Protocol for AdvisoryLock {
    type Own = Own;
    const RELEASES: u32 = 1;

    fn token(&self) -> String {
        self.sql.unique_token()
    }

    async fn attempt(&self, claim: &Claim<Own>, deadline: Instant) -> Answer<Attempt> {
        let mut transaction = self.sql.begin().await?;
        let name = &*claim.name;
        //= CURE it belongs to the transaction: no lease to outlast, and it dies with its holder
        let free: Option<(bool,)> = transaction.optional(TRY, |query| query.bind(name)).await?;
        let ours = free == Some((true,)) || Self::waits(&mut transaction, name, deadline).await?;
        if ours {
            *claim.own.lock().await = Some(transaction);
        } else {
            transaction.rollback().await?;
        }
        Ok(Attempt::ours(ours))
    }

    /// After an error nobody knows whether the work was committed; the lock is free either way.
    async fn release(&self, claim: &Claim<Own>, ending: Ending<'_>) -> Answer<Released> {
        // Under the mutex: waits for a running heartbeat, and prevents another one.
        let transaction = claim.own.lock().await.take().ok_or_else(gone)?;
        if ending.hold.is_lost() {
            // Postgres would answer COMMIT with a rollback, without an error.
            transaction.rollback().await?;
            return Ok(Released::NotHeld);
        }
        //= CURE commit and unlock are one step: nobody comes in before the work can be seen
        transaction.commit().await?;
        Ok(Released::Freed)
    }

    /// A heartbeat while nobody uses the connection. It ends with the transaction.
    fn keep(&self, claim: &Claim<Own>, hold: &Hold) -> Option<Watchdog> {
        if let Some(transaction) = claim.own.try_lock().ok()?.as_mut() {
            let hold = hold.clone();
            transaction.told_by(move |error| told(&hold, error));
        }
        tokio::spawn(heartbeat(Arc::downgrade(&claim.own), hold.clone()));
        None
    }
}

async fn heartbeat(transaction: Weak<Mutex<Option<SqlTransaction>>>, hold: Hold) {
    loop {
        sleep(HEARTBEAT).await;
        let Some(transaction) = transaction.upgrade() else {
            return;
        };
        // In use: the work sees errors itself.
        let Ok(mut transaction) = transaction.try_lock() else {
            continue;
        };
        let Some(connection) = transaction.as_mut() else {
            return;
        };
        let beat = sqlx::query("SELECT 1").execute(connection.unwatched());
        if !matches!(timeout(HEARTBEAT_TIMEOUT, beat).await, Ok(Ok(_))) {
            hold.lose(Why::SessionGone);
            // Closes the connection: the lock must not wait for TCP to give up.
            *transaction = None;
            return;
        }
    }
}

/// A refused statement aborts the transaction, whose locks Postgres frees at once. (Behind a
/// savepoint it would not; counting the lock as lost there is the safe answer.)
fn told(hold: &Hold, error: &sqlx::Error) {
    let session_gone = match error {
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            // Ended or crashed (57P…), idle for too long, a broken connection.
            code.starts_with("57P") || code == "25P03" || code.starts_with("08")
        }),
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::Tls(_) => true,
        _ => return,
    };
    hold.lose(if session_gone { Why::SessionGone } else { Why::NotOurs });
}

fn gone() -> LockError {
    LockError::Postgres(sqlx::Error::Io(ErrorKind::ConnectionReset.into()))
}

impl AdvisoryGuard {
    /// The transaction that has the lock: its writes are committed together with the unlock, or not
    /// at all. A failing statement marks the lock as lost.
    ///
    /// To be held for statements only. While it is lent there is no heartbeat, and Postgres ends a
    /// transaction that is idle for too long (`idle_in_transaction_session_timeout`).
    pub async fn transaction(&self) -> Result<MappedMutexGuard<'_, SqlTransaction>, LockError> {
        let transaction = self.undo.claim.own.lock().await;
        MutexGuard::try_map(transaction, Option::as_mut).map_err(|_| gone())
    }

    /// Releases the lock and undoes the work.
    pub async fn roll_back(self) -> Answer<Released> {
        let transaction = self.undo.claim.own.lock().await.take().ok_or_else(gone)?;
        let was_held = !self.hold.is_lost();
        transaction.rollback().await?;
        Ok(Released::freed(was_held))
    }
}
