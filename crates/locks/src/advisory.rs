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

use super::{prelude::*, wire::SqlTransaction};
use std::{borrow::Cow, io::ErrorKind};
use stores::postgres::is_unreachable;
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::time::{sleep, timeout};

/// The interval and the timeout of the heartbeat on an idle connection.
const HEARTBEAT: Duration = Duration::from_millis(500);
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(1);

/// From left to right. The timeout is not for the work's own row locks.
const LOCK: &str = "
    SELECT set_config('lock_timeout', $2, true), pg_advisory_xact_lock(hashtextextended($1, 0)),
           set_config('lock_timeout', '0', true)";
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// Less than the pool's statement timeout.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// See the head of this file. Each holder and each waiter keeps one connection of the pool.
#[derive(Clone)]
pub struct AdvisoryLock(pub Sql);

/// The transaction that has the lock; cancelling the acquire closes its connection.
type Own = Arc<Mutex<Option<SqlTransaction>>>;

impl Protocol for AdvisoryLock {
    type Own = Own;
    const RELEASES: u32 = 1;

    fn token(&self) -> String {
        self.0.unique_token()
    }

    async fn attempt(&self, claim: &Claim<Own>, deadline: Instant) -> Answer<Attempt> {
        let mut transaction = self.0.begin().await?;
        // Postgres keeps the queue. It waits for a millisecond at least: zero would be for ever.
        let left = deadline.saturating_duration_since(Instant::now()).min(LONGEST_WAIT);
        let values = (&*claim.name, millis(left).to_string());
        match transaction.run(LOCK, values).await {
            Err(error) if state(&error).as_deref() == Some(LOCK_NOT_AVAILABLE) => {
                transaction.rollback().await?;
                return Ok(Attempt::ours(false));
            }
            locked => locked?,
        };
        *claim.own.lock().await = Some(transaction);
        Ok(Attempt::ours(true))
    }

    /// After an error nobody knows whether the work was committed; the lock is free either way.
    async fn release(&self, claim: &Claim<Own>, hold: &Hold, _: bool) -> Answer<Released> {
        let transaction = claim.own.lock().await.take().ok_or_else(gone)?;
        if hold.is_lost() {
            // Postgres would answer COMMIT with a rollback, without an error.
            transaction.rollback().await?;
            return Ok(Released::NotHeld);
        }
        transaction.commit().await?;
        Ok(Released::Freed)
    }

    /// A heartbeat while nobody uses the connection.
    fn keep(&self, claim: &Claim<Own>, hold: &Hold) -> Option<Watchdog> {
        let told = hold.clone();
        let hears = Box::new(move |error: &_| tell(&told, error));
        claim.own.try_lock().ok()?.as_mut()?.hears = Some(hears);
        Some(crate::watchdog::start(heartbeat(claim.own.clone(), hold.clone())))
    }
}

async fn heartbeat(own: Own, hold: Hold) {
    loop {
        sleep(HEARTBEAT).await;
        // In use: the work sees errors itself.
        let Ok(mut transaction) = own.try_lock() else { continue };
        let Some(connection) = transaction.as_mut() else { return };
        let beat = sqlx::query("SELECT 1").execute(connection.unwatched());
        if !matches!(timeout(HEARTBEAT_TIMEOUT, beat).await, Ok(Ok(_))) {
            // Closes the connection: the lock must not wait for TCP to give up.
            *transaction = None;
            return hold.lose(Why::SessionGone);
        }
    }
}

/// A refused statement aborts the transaction, whose locks Postgres frees at once. (Behind a
/// savepoint it would not; counting the lock as lost there is the safe answer.)
fn tell(hold: &Hold, error: &sqlx::Error) {
    let is_of_session = |code: &str| code.starts_with("57P") || code.starts_with("08");
    let why = match state(error) {
        // Ended or crashed (57P…), idle for too long, a broken connection.
        Some(code) if is_of_session(&code) || code == "25P03" => Why::SessionGone,
        Some(_) => Why::NotOurs,
        None if is_unreachable(error) => Why::SessionGone,
        None => return,
    };
    hold.lose(why);
}

/// What Postgres answered, as an SQLSTATE.
fn state(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error()?.code()
}

fn gone() -> LockError {
    LockError::Postgres(sqlx::Error::Io(ErrorKind::ConnectionReset.into()))
}

impl Held<AdvisoryLock> {
    /// The transaction that has the lock: its writes are committed together with the unlock, or not
    /// at all. A failing statement marks the lock as lost.
    ///
    /// To be held for statements only. While it is lent there is no heartbeat, and Postgres ends a
    /// transaction that is idle for too long (`idle_in_transaction_session_timeout`).
    pub async fn transaction(&self) -> Result<MappedMutexGuard<'_, SqlTransaction>, LockError> {
        let transaction = self.claim.own.lock().await;
        MutexGuard::try_map(transaction, Option::as_mut).map_err(|_| gone())
    }

    /// Releases the lock and undoes the work.
    pub async fn roll_back(self) -> Answer<Released> {
        let transaction = self.claim.own.lock().await.take().ok_or_else(gone)?;
        let was_held = !self.hold.is_lost();
        transaction.rollback().await?;
        Ok(Released::freed(was_held))
    }
}
