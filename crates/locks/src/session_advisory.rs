//! Postgres' advisory lock of a session, used as a pool suggests: each statement on any free
//! connection.
//!
//! ```text
//! pg_locks (in Postgres' memory)  hash of NAME → the session that has it
//! ```
//!
//! Crashes: the lock ends with its session, and a pool keeps sessions. The unlock may reach another
//! one, which answers `false`; the lock stays with an idle connection, whose next user can take it
//! again, because to Postgres that is the same session.

use super::{prelude::*, wire::Sql};

const TRY: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";

/// See the head of this file.
#[derive(Clone)]
pub struct SessionAdvisoryLock {
    sql: Sql,
}

impl SessionAdvisoryLock {
    pub fn new(sql: Sql) -> Self {
        Self { sql }
    }

    async fn asks(&self, query: &'static str, name: &str) -> Answer<bool> {
        let answer: Option<(bool,)> = self.sql.optional(query, |query| query.bind(name)).await?;
        Ok(answer == Some((true,)))
    }
}

impl Protocol for SessionAdvisoryLock {
    type Own = ();
    const RELEASES: u32 = 1;

    fn token(&self) -> String {
        self.sql.unique_token()
    }

    async fn attempt(&self, claim: &Claim, _: Instant) -> Answer<Attempt> {
        //= FLAW the lock belongs to a session, and nobody remembers which
        Ok(Attempt::ours(self.asks(TRY, &claim.name).await?))
    }

    async fn release(&self, claim: &Claim, _: Ending<'_>) -> Answer<Released> {
        //= FLAW on any connection of the pool: another session cannot unlock it
        Ok(Released::freed(self.asks(UNLOCK, &claim.name).await?))
    }
}
