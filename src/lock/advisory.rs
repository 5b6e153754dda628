//! Postgres' advisory locks: numbers that a transaction, or a session, can hold.
//!
//! ```text
//! pg_locks (in Postgres' memory)  hash of NAME → the transaction or session that has it
//! ```
//!
//! What happens on a crash: of the holder: its connection ends, its transaction is rolled back, the lock
//! goes; work done *in that transaction* goes with it, which no lease can promise. Of the network in
//! silence: Postgres keeps lock and transaction until TCP gives up. Of Postgres: all transactions end,
//! all locks go, and after a failover a new primary knows none of them.
//!
//! [`AdvisoryLock`] is tied to a transaction, which the guard lends to the work: commit and unlock are one
//! step, so nobody can come in between them. [`SessionAdvisoryLock`] is tied to a session, and behind a
//! pool nobody knows which session that is: it leaks, as shown.

use super::{
    Acquired, Guard, Hold, Lock, LockError, Lost, Patience, Released, Why,
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

/// How often an idle connection is asked whether it is still there; and for how long it may think.
const HEARTBEAT: Duration = Duration::from_millis(500);
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(1);

const TRY: &str = "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))";
const WAIT: &str = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
/// For this transaction only.
const PATIENCE: &str = "SELECT set_config('lock_timeout', $1, true)";
const NO_PATIENCE_LEFT: &str = "55P03"; // lock_not_available

/// One wait in Postgres is kept shorter than the pool's statement timeout.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// See the head of this file.
#[derive(Clone)]
pub struct AdvisoryLock {
    sql: Sql,
}

impl AdvisoryLock {
    /// Each holder and each who waits keeps one connection of the pool.
    pub fn new(sql: Sql) -> Self {
        Self { sql }
    }

    /// The transaction, if it has the lock.
    async fn attempt(
        &self,
        name: &str,
        patience: &Patience,
    ) -> Result<Option<SqlTransaction>, sqlx::Error> {
        let mut transaction = self.sql.begin().await?;
        let locked: Option<(bool,)> = transaction.optional(TRY, |query| query.bind(name)).await?;
        if locked == Some((true,)) {
            return Ok(Some(transaction));
        }
        let left = patience
            .deadline()
            .saturating_duration_since(Instant::now())
            .min(LONGEST_WAIT);
        if left < Duration::from_millis(1) {
            transaction.rollback().await?;
            return Ok(None);
        }
        let wait = left.as_millis().to_string();
        transaction
            .execute(PATIENCE, move |query| query.bind(wait))
            .await?;
        match transaction.execute(WAIT, |query| query.bind(name)).await {
            Ok(_) => {
                // The work may wait for its rows as long as it likes.
                transaction
                    .execute(PATIENCE, |query| query.bind("0"))
                    .await?;
                Ok(Some(transaction))
            }
            Err(sqlx::Error::Database(error))
                if error.code().as_deref() == Some(NO_PATIENCE_LEFT) =>
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

    /// Dropped half-way, the connection is closed, and what it had goes with it.
    async fn acquire(
        &self,
        name: &str,
        wait: Duration,
    ) -> Result<Acquired<AdvisoryGuard>, LockError> {
        let patience = Patience::new(wait, Duration::from_millis(10));
        loop {
            let outcome = match self.attempt(name, &patience).await {
                Ok(Some(transaction)) => Ok(Acquired::Held(AdvisoryGuard::new(transaction))),
                Ok(None) => Ok(Acquired::Contended { remaining: None }),
                Err(error) => Err(LockError::from(error)),
            };
            if !patience.allows_another(&outcome).await {
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
                    // Busy is alive: the work will see for itself.
                    let Ok(mut transaction) = transaction.try_lock() else {
                        continue;
                    };
                    let Some(connection) = transaction.as_mut() else {
                        return;
                    };
                    let beat = sqlx::query("SELECT 1").execute(connection.unwatched());
                    if !matches!(timeout(HEARTBEAT_TIMEOUT, beat).await, Ok(Ok(_))) {
                        hold.lose(Why::SessionGone);
                        // Closes it: whatever it had must not wait for TCP to give up.
                        *transaction = None;
                        return;
                    }
                }
            }
        });
        Self {
            transaction,
            hold,
            heartbeat: heartbeat.abort_handle(),
        }
    }

    /// The transaction that has the lock: what is written in it is committed together with the unlock,
    /// or not at all.
    ///
    /// To be held for the statements only, and not while there is nothing to say to Postgres: for as long as
    /// it is lent out nobody asks whether the connection lives, [`Guard::lost`] hears of its end only from a
    /// statement that fails, and Postgres ends a transaction that is idle for too long
    /// (`idle_in_transaction_session_timeout`).
    pub async fn transaction(&self) -> Result<Lent<'_>, LockError> {
        let transaction = self.transaction.lock().await;
        let transaction = MutexGuard::try_map(transaction, Option::as_mut).map_err(|_| gone())?;
        Ok(Lent {
            transaction,
            hold: &self.hold,
        })
    }

    /// Gives the lock back without the work.
    pub async fn roll_back(self) -> Result<Released, LockError> {
        let transaction = self.transaction.lock().await.take().ok_or_else(gone)?;
        let was_held = !self.hold.is_lost();
        transaction.rollback().await?;
        Ok(if was_held {
            Released::Freed
        } else {
            Released::NotHeld
        })
    }
}

/// The transaction of an [`AdvisoryGuard`]. A statement that fails tells the holder: Postgres has freed the lock by
/// then, and will commit nothing.
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

/// A statement that is merely refused aborts the transaction, and Postgres frees what an aborted transaction
/// had locked at once, without waiting for its rollback. (Behind a savepoint it would not; to count the lock
/// as lost there is the careful answer.)
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
            // Told to end, shut down or crashed (57P…), idle for too long, a broken connection.
            code.starts_with("57P") || code == "25P03" || code.starts_with("08")
        }),
        other => matches!(
            other,
            sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::Tls(_)
        ),
    }
}

fn gone() -> LockError {
    LockError::Postgres(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()))
}

impl Guard for AdvisoryGuard {
    /// None, and none is needed for what is written in the guard's own transaction.
    fn fencing(&self) -> Option<u64> {
        None
    }

    fn lost(&self) -> Lost {
        self.hold.lost()
    }

    /// Commits. An error means that nobody knows whether the work was committed; the lock has gone
    /// either way. [`Released::NotHeld`]: a statement was refused, with which the lock went, and nothing is
    /// committed.
    async fn release(self) -> Result<Released, LockError> {
        // Under the mutex: a heartbeat that is on its way is waited for, and no other begins.
        let transaction = self.transaction.lock().await.take().ok_or_else(gone)?;
        if self.hold.is_lost() {
            // Postgres would answer a COMMIT with a rollback, and without an error.
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

/// The session-level lock, used the way a pool invites to: each statement on whatever connection is free.
///
/// THE FLAW: the lock belongs to a *session*. The unlock may reach another one, which answers `false`; the lock
/// then stays with an idle connection of the pool. And whoever is given the connection that has the lock
/// takes it a second time, because to Postgres that is the same session.
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
        let patience = Patience::new(wait, Duration::from_millis(10));
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
            if !patience.allows_another(&outcome).await {
                return outcome;
            }
        }
    }
}

/// A held [`SessionAdvisoryLock`]: it knows the name, but not the session.
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
        let unlocked: Option<(bool,)> = self
            .sql
            .optional(UNLOCK, move |query| query.bind(name))
            .await?;
        Ok(match unlocked {
            Some((true,)) => Released::Freed,
            _ => Released::NotHeld,
        })
    }
}
