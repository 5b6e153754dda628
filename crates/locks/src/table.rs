//! A lock as a row, with an owner, an expiry and a version.
//!
//! Source: the database lock of 《分布式锁的三种实现》, plus an owner and the database's clock.
//!
//! ```text
//! lab.locks  name (key) · owner · version · expires_at      made by the lab's migrations
//! ```
//!
//! Crashes. Of the holder: the row expires, by the database's clock. Of Postgres: committed rows
//! survive; after a lost answer the next attempt of the same owner is recognised. A failover to a
//! standby that is behind forgets locks.
//!
//! Cost: a write and an fsync for taking it and for releasing it, and polling while waiting.

use super::{
    Acquired, Guard, Hold, Lock, LockError, Lost, Released, Retry, Undo, Why,
    token::RELEASE_ATTEMPTS,
    wire::{Sql, millis},
};
use std::time::Duration;
use tokio::time::Instant;

const PAUSE: Duration = Duration::from_millis(15);

/// `clock_timestamp()`, because `now()` is the start of the transaction: too early after a wait for
/// the row.
///
/// It checks before it tries, in the same statement. Otherwise every attempt of a waiter locks the
/// row, with a write and an fsync, and the release queues behind them: a hundred waiters slowed a
/// sale to a dozen purchases a second. The conflict clause decides.
const ACQUIRE: &str = "
    INSERT INTO lab.locks AS lock (name, owner, version, expires_at)
    SELECT $1, $2, 1, clock_timestamp() + $3 * interval '1 millisecond'
     WHERE NOT EXISTS (SELECT FROM lab.locks
                        WHERE name = $1 AND owner <> $2 AND expires_at > clock_timestamp())
    ON CONFLICT (name) DO UPDATE
       SET owner = $2,
           version = CASE lock.owner WHEN $2 THEN lock.version ELSE lock.version + 1 END,
           expires_at = clock_timestamp() + $3 * interval '1 millisecond'
     WHERE lock.owner IS NULL OR lock.owner = $2 OR lock.expires_at <= clock_timestamp()
    RETURNING version";

const REMAINING: &str = "
    SELECT (extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint
      FROM lab.locks WHERE name = $1 AND owner IS NOT NULL";

const RELEASE: &str = "
    UPDATE lab.locks SET owner = NULL
     WHERE name = $1 AND owner = $2 AND expires_at > clock_timestamp()";

/// See the head of this file.
#[derive(Clone)]
pub struct TableLock {
    sql: Sql,
    lease: Duration,
}

impl TableLock {
    pub fn new(sql: Sql, lease: Duration) -> Self {
        Self { sql, lease }
    }

    /// The version, if the lock is ours.
    async fn attempt(&self, name: &str, owner: &str) -> Result<Option<u64>, sqlx::Error> {
        let lease = i64::try_from(millis(self.lease)).unwrap_or(i64::MAX);
        let row: Option<(i64,)> =
            self.sql.optional(ACQUIRE, |query| query.bind(name).bind(owner).bind(lease)).await?;
        Ok(row.and_then(|(version,)| u64::try_from(version).ok()))
    }

    /// The rest of the holder's lease. Asked only before giving up.
    async fn remaining(&self, name: &str) -> Option<Duration> {
        let row: Result<Option<(i64,)>, _> =
            self.sql.optional(REMAINING, |query| query.bind(name)).await;
        let (left,) = row.ok()??;
        u64::try_from(left).ok().map(Duration::from_millis)
    }
}

impl Lock for TableLock {
    type Guard = TableGuard;

    async fn acquire(&self, name: &str, wait: Duration) -> Result<Acquired<TableGuard>, LockError> {
        let owner = self.sql.unique_token();
        let retry = Retry::new(wait, PAUSE);
        let mut undo = Undo::with({
            let (sql, name, owner) = (self.sql.clone(), name.to_owned(), owner.clone());
            || async move {
                let _ = sql.execute(RELEASE, move |query| query.bind(name).bind(owner)).await;
            }
        });
        // An attempt without a reply may still take the lock after a later answer.
        let mut doubt = false;
        loop {
            let sent = Instant::now();
            undo.arm(true);
            let outcome = match self.attempt(name, &owner).await {
                Ok(Some(version)) => {
                    let hold = Hold::lease(sent, self.lease);
                    if !hold.is_lost() {
                        undo.arm(false);
                        return Ok(Acquired::Held(TableGuard {
                            sql: self.sql.clone(),
                            name: name.to_owned(),
                            owner,
                            version,
                            hold,
                        }));
                    }
                    Ok(Acquired::Contended { remaining: None })
                }
                Ok(None) => {
                    undo.arm(doubt);
                    Ok(Acquired::Contended { remaining: None })
                }
                Err(error) => {
                    doubt = true;
                    Err(LockError::from(error))
                }
            };
            if retry.allows_another(&outcome).await {
                continue;
            }
            return match outcome {
                Ok(Acquired::Contended { .. }) => {
                    Ok(Acquired::Contended { remaining: self.remaining(name).await })
                }
                other => other,
            };
        }
    }
}

/// A held [`TableLock`].
pub struct TableGuard {
    sql: Sql,
    name: String,
    owner: String,
    version: u64,
    hold: Hold,
}

impl Guard for TableGuard {
    fn fencing(&self) -> Option<u64> {
        Some(self.version)
    }

    fn lost(&self) -> Lost {
        self.hold.lost()
    }

    async fn release(self) -> Result<Released, LockError> {
        let mut in_doubt = false;
        for attempts_left in (0..RELEASE_ATTEMPTS).rev() {
            let (name, owner) = (self.name.clone(), self.owner.clone());
            let released =
                self.sql.execute(RELEASE, move |query| query.bind(name).bind(owner)).await;
            match released {
                Ok(1..) => return Ok(Released::Freed),
                // Gone before its lease was over: our attempt with the lost reply did it.
                Ok(0) if in_doubt && !self.hold.is_lost() => return Ok(Released::Freed),
                Ok(0) => return Ok(Released::NotHeld),
                Err(error) => {
                    let error = LockError::from(error);
                    if attempts_left == 0 || !error.is_unreachable() {
                        return Err(error);
                    }
                    in_doubt = true;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        Ok(Released::NotHeld)
    }
}

impl Drop for TableGuard {
    fn drop(&mut self) {
        self.hold.lose(Why::Released);
    }
}
