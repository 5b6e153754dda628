//! Postgres' advisory locks: numbers that a transaction, or a session, can hold.
//!
//! ```text
//! pg_locks (in Postgres' memory)  hash of NAME → the transaction or session that has it
//! ```
//!
//! Crashes. Of the holder: its connection ends, its transaction is rolled back, and the lock is
//! free; work *in that transaction* is undone, which no lease can promise. Of the network, in
//! silence: Postgres keeps lock and transaction until TCP gives up. Of Postgres: all transactions
//! and locks end; a new primary knows none of them.
//!
//! [`AdvisoryLock`] is tied to a transaction, which the guard lends to the work: commit and unlock
//! are one step. [`SessionAdvisoryLock`] is tied to a session, and behind a pool nobody knows
//! which: it leaks, as shown.

use super::{
    Acquired, Guard, Hold, Lock, LockError, Lost, Released, Retry, Why,
    wire::{Binding, Sql, SqlTransaction},
};
use sqlx::{FromRow, postgres::PgRow};
use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{MappedMutexGuard, Mutex, MutexGuard},
    task::AbortHandle,
    time::{Instant, sleep, timeout},
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

impl AdvisoryLock {
    /// Each holder and each waiter keeps one connection of the pool.
    pub fn new(sql: Sql) -> Self {
        Self { sql }
    }

    /// The transaction, if it has the lock.
    async fn attempt(
        &self,
        name: &str,
        retry: &Retry,
    ) -> Result<Option<SqlTransaction>, sqlx::Error> {
        let mut transaction = self.sql.begin().await?;
        let locked: Option<(bool,)> = transaction.optional(TRY, |query| query.bind(name)).await?;
        if locked == Some((true,)) {
            return Ok(Some(transaction));
        }
        let left = retry.deadline().saturating_duration_since(Instant::now()).min(LONGEST_WAIT);
        if left < Duration::from_millis(1) {
            transaction.rollback().await?;
            return Ok(None);
        }
        let wait = left.as_millis().to_string();
        transaction.execute(SET_LOCK_TIMEOUT, move |query| query.bind(wait)).await?;
        match transaction.execute(WAIT, |query| query.bind(name)).await {
            Ok(_) => {
                // The timeout is not for the work's own row locks.
                transaction.execute(SET_LOCK_TIMEOUT, |query| query.bind("0")).await?;
                Ok(Some(transaction))
            }
            Err(sqlx::Error::Database(error))
                if error.code().as_deref() == Some(LOCK_NOT_AVAILABLE) =>
            {
                transaction.rollback().await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Lock for AdvisoryLock {
    type Guard = AdvisoryGuard;

    /// Cancelling closes the connection, and with it the lock.
    async fn acquire(
        &self,
        name: &str,
        wait: Duration,
    ) -> Result<Acquired<AdvisoryGuard>, LockError> {
        let retry = Retry::new(wait, Duration::from_millis(10));
        loop {
            let outcome = match self.attempt(name, &retry).await {
                Ok(Some(transaction)) => Ok(Acquired::Held(AdvisoryGuard::new(transaction))),
                Ok(None) => Ok(Acquired::Contended { remaining: None }),
                Err(error) => Err(LockError::from(error)),
            };
            if !retry.allows_another(&outcome).await {
                return outcome;
            }
        }
    }
}

/// A held [`AdvisoryLock`], and the transaction that has it.
pub struct AdvisoryGuard {
    transaction: Arc<Mutex<Option<SqlTransaction>>>,
    hold: Hold,
    heartbeat: AbortHandle,
}

impl AdvisoryGuard {
    fn new(transaction: SqlTransaction) -> Self {
        let transaction = Arc::new(Mutex::new(Some(transaction)));
        let hold = Hold::until(None);
        let heartbeat = tokio::spawn({
            let (transaction, hold) = (transaction.clone(), hold.clone());
            async move {
                loop {
                    sleep(HEARTBEAT).await;
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
        });
        Self { transaction, hold, heartbeat: heartbeat.abort_handle() }
    }

    /// The transaction that has the lock: its writes are committed together with the unlock, or not
    /// at all.
    ///
    /// To be held for statements only. While it is lent there is no heartbeat: [`Guard::lost`]
    /// learns of its end from a failing statement only, and Postgres ends a transaction that is
    /// idle for too long (`idle_in_transaction_session_timeout`).
    pub async fn transaction(&self) -> Result<Lent<'_>, LockError> {
        let transaction = self.transaction.lock().await;
        let transaction = MutexGuard::try_map(transaction, Option::as_mut).map_err(|_| gone())?;
        Ok(Lent { transaction, hold: &self.hold })
    }

    /// Releases the lock and undoes the work.
    pub async fn roll_back(self) -> Result<Released, LockError> {
        let transaction = self.transaction.lock().await.take().ok_or_else(gone)?;
        let was_held = !self.hold.is_lost();
        transaction.rollback().await?;
        Ok(if was_held { Released::Freed } else { Released::NotHeld })
    }
}

/// The lent transaction of an [`AdvisoryGuard`]. A failing statement marks the lock as lost:
/// Postgres has freed it, and commits nothing.
pub struct Lent<'a> {
    transaction: MappedMutexGuard<'a, SqlTransaction>,
    hold: &'a Hold,
}

impl Lent<'_> {
    /// As [`SqlTransaction::execute`].
    #[track_caller]
    pub fn execute<'a>(
        &'a mut self,
        sql: &'static str,
        bind: impl FnOnce(Binding) -> Binding + Send + 'a,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send + 'a {
        let hold = self.hold;
        let statement = self.transaction.execute(sql, bind);
        async move { told(hold, statement.await) }
    }

    /// As [`SqlTransaction::optional`].
    #[track_caller]
    pub fn optional<'a, T: for<'r> FromRow<'r, PgRow> + Send + 'a>(
        &'a mut self,
        sql: &'static str,
        bind: impl FnOnce(Binding) -> Binding + Send + 'a,
    ) -> impl Future<Output = Result<Option<T>, sqlx::Error>> + Send + 'a {
        let hold = self.hold;
        let statement = self.transaction.optional(sql, bind);
        async move { told(hold, statement.await) }
    }
}

impl Deref for Lent<'_> {
    type Target = SqlTransaction;

    fn deref(&self) -> &SqlTransaction {
        &self.transaction
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut SqlTransaction {
        &mut self.transaction
    }
}

/// A refused statement aborts the transaction, whose locks Postgres frees at once. (Behind a
/// savepoint it would not; counting the lock as lost there is the safe answer.)
fn told<T>(hold: &Hold, outcome: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
    match &outcome {
        Err(error) if ends_session(error) => hold.lose(Why::SessionGone),
        Err(sqlx::Error::Database(_)) => hold.lose(Why::NotOurs),
        _ => {}
    }
    outcome
}

fn ends_session(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            // Ended or crashed (57P…), idle for too long, a broken connection.
            code.starts_with("57P") || code == "25P03" || code.starts_with("08")
        }),
        other => {
            matches!(other, sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::Tls(_))
        }
    }
}

fn gone() -> LockError {
    LockError::Postgres(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()))
}

impl Guard for AdvisoryGuard {
    /// None: writes in the guard's own transaction need none.
    fn fencing(&self) -> Option<u64> {
        None
    }

    fn lost(&self) -> Lost {
        self.hold.lost()
    }

    /// Commits. After an error nobody knows whether the work was committed; the lock is free either
    /// way. [`Released::NotHeld`]: a refused statement had freed the lock, and nothing is
    /// committed.
    async fn release(self) -> Result<Released, LockError> {
        // Under the mutex: waits for a running heartbeat, and prevents another one.
        let transaction = self.transaction.lock().await.take().ok_or_else(gone)?;
        if self.hold.is_lost() {
            // Postgres would answer COMMIT with a rollback, without an error.
            transaction.rollback().await?;
            return Ok(Released::NotHeld);
        }
        transaction.commit().await?;
        Ok(Released::Freed)
    }
}

impl Drop for AdvisoryGuard {
    fn drop(&mut self) {
        self.heartbeat.abort();
        self.hold.lose(Why::Released);
    }
}

// --- the one that leaks

/// The session-level lock, used as a pool suggests: each statement on any free connection.
///
/// THE FLAW: the lock belongs to a *session*. The unlock may reach another one, which answers
/// `false`; the lock stays with an idle connection of the pool, whose next user can take it again,
/// because to Postgres that is the same session.
#[derive(Clone)]
pub struct SessionAdvisoryLock {
    sql: Sql,
}

impl SessionAdvisoryLock {
    pub fn new(sql: Sql) -> Self {
        Self { sql }
    }
}

impl Lock for SessionAdvisoryLock {
    type Guard = SessionAdvisoryGuard;

    async fn acquire(
        &self,
        name: &str,
        wait: Duration,
    ) -> Result<Acquired<SessionAdvisoryGuard>, LockError> {
        const TRY: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
        let retry = Retry::new(wait, Duration::from_millis(10));
        loop {
            let locked: Result<Option<(bool,)>, _> =
                self.sql.optional(TRY, |query| query.bind(name)).await;
            let outcome = match locked {
                Ok(Some((true,))) => Ok(Acquired::Held(SessionAdvisoryGuard {
                    sql: self.sql.clone(),
                    name: name.to_owned(),
                })),
                Ok(_) => Ok(Acquired::Contended { remaining: None }),
                Err(error) => Err(LockError::from(error)),
            };
            if !retry.allows_another(&outcome).await {
                return outcome;
            }
        }
    }
}

/// A held [`SessionAdvisoryLock`]; it does not know its session.
pub struct SessionAdvisoryGuard {
    sql: Sql,
    name: String,
}

impl Guard for SessionAdvisoryGuard {
    fn fencing(&self) -> Option<u64> {
        None
    }

    fn lost(&self) -> Lost {
        Lost::never()
    }

    async fn release(self) -> Result<Released, LockError> {
        const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
        let name = self.name.clone();
        let unlocked: Option<(bool,)> =
            self.sql.optional(UNLOCK, move |query| query.bind(name)).await?;
        Ok(match unlocked {
            Some((true,)) => Released::Freed,
            _ => Released::NotHeld,
        })
    }
}
