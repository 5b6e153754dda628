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

use super::prelude::*;

/// `clock_timestamp()`, because `now()` is the start of the transaction: too early after a wait for
/// the row.
///
/// It checks before it tries, in the same statement. Otherwise every attempt of a waiter locks the
/// row, with a write and an fsync, and the release queues behind them: a hundred waiters slowed a
/// sale to a dozen purchases a second. The conflict clause decides.
///
/// It also answers for how long another owner has it.
const ACQUIRE: &str = "
    WITH taken AS (
        INSERT INTO lab.locks AS lock (name, owner, version, expires_at)
        SELECT $1, $2, 1, clock_timestamp() + $3 * interval '1 millisecond'
         WHERE NOT EXISTS (SELECT FROM lab.locks
                            WHERE name = $1 AND owner <> $2 AND expires_at > clock_timestamp())
        ON CONFLICT (name) DO UPDATE
           SET owner = $2,
               version = CASE lock.owner WHEN $2 THEN lock.version ELSE lock.version + 1 END,
               expires_at = clock_timestamp() + $3 * interval '1 millisecond'
         WHERE lock.owner IS NULL OR lock.owner = $2 OR lock.expires_at <= clock_timestamp()
        RETURNING version)
    SELECT (SELECT version FROM taken),
           (SELECT (extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint
              FROM lab.locks WHERE name = $1 AND owner IS NOT NULL)";

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
}

impl Protocol for TableLock {
    type Own = ();

    fn token(&self) -> String {
        self.sql.unique_token()
    }

    fn lease(&self) -> Option<Lease> {
        Some(Lease { time: self.lease, renewed: false })
    }

    async fn attempt(&self, claim: &Claim, _: Instant) -> Answer<Attempt> {
        let lease = i64::try_from(millis(self.lease)).unwrap_or(i64::MAX);
        //= CURE one statement decides, by the database's clock: free, expired, or our own attempt
        let asked = self.sql.row(ACQUIRE, (&*claim.name, &*claim.token, lease));
        let (version, left): (Option<i64>, Option<i64>) = asked.await?.unwrap_or_default();
        Ok(match version {
            Some(version) => Attempt::numbered(1, version),
            None => Attempt::numbered(0, left.unwrap_or(-1)),
        })
    }

    async fn release(&self, claim: &Claim, hold: &Hold, again: bool) -> Answer<Released> {
        //= CURE only the owner's row is freed, and only within its lease
        let freed = self.sql.run(RELEASE, (&*claim.name, &*claim.token)).await?;
        // Gone before its lease was over: our request with the lost reply did it.
        Ok(Released::freed(freed > 0 || (again && !hold.is_lost())))
    }

    async fn undo(&self, claim: &Claim) {
        let _ = self.sql.run(RELEASE, (&*claim.name, &*claim.token)).await;
    }
}
