//! The resource's side of a lock: who comes with an older number than somebody before is refused.
//!
//! Source: Martin Kleppmann, "How to do distributed locking". No lock can keep a holder that stands still
//! from going on later; only what it writes to can tell that its time is over.
//!
//! ```text
//! Redis     KEY  hash: newest (the highest number seen), value
//! Postgres  lab.fenced  name (key) · newest · value          see fenced.sql
//! ```
//!
//! What happens on a crash: the number is stored in the same step as the value, so both survive or neither.
//! What it needs: numbers that grow from holder to holder and are never forgotten. A Redis that comes
//! back without its data counts from one again, and the resource refuses everybody until the numbers
//! have caught up: the wrong side to fail on for the sale, the right one for the data.

use super::{
    LockError,
    wire::{Line, LuaScript, Sql},
};

static WRITE: LuaScript =
    LuaScript::new("fenced_write.lua", include_str!("scripts/fenced_write.lua"));

/// Creates the table, in the schema `lab`.
pub const TABLE: &str = include_str!("fenced.sql");

/// What the resource says to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Write {
    Applied,
    /// Somebody with this newer number was here.
    Refused {
        newest: u64,
    },
}

/// A Redis key that knows the newest number.
#[derive(Clone)]
pub struct RedisResource {
    line: Line,
}

impl RedisResource {
    pub fn new(line: Line) -> Self {
        Self { line }
    }

    pub async fn write(&self, key: &str, fencing: u64, value: &str) -> Result<Write, LockError> {
        let call = WRITE.on(&[key]).arg(fencing).arg(value);
        let answer: Result<(bool, u64), _> = self.line.run(&call).await;
        let (applied, newest) = answer.map_err(|error| self.line.lock_error(error))?;
        Ok(if applied {
            Write::Applied
        } else {
            Write::Refused { newest }
        })
    }
}

/// A row that knows the newest number.
#[derive(Clone)]
pub struct PostgresResource {
    sql: Sql,
}

impl PostgresResource {
    pub fn new(sql: Sql) -> Self {
        Self { sql }
    }

    /// One statement: compared and written under the row's own lock.
    pub async fn write(&self, name: &str, fencing: u64, value: &str) -> Result<Write, LockError> {
        const WRITE: &str = "
            INSERT INTO lab.fenced AS resource (name, newest, value) VALUES ($1, $2, $3)
            ON CONFLICT (name) DO UPDATE SET newest = $2, value = $3 WHERE resource.newest <= $2";
        const NEWEST: &str = "SELECT newest FROM lab.fenced WHERE name = $1";
        // Beyond what a bigint holds there is no newer one.
        let number = i64::try_from(fencing).unwrap_or(i64::MAX);
        let written = self
            .sql
            .execute(WRITE, |query| query.bind(name).bind(number).bind(value))
            .await?;
        if written > 0 {
            return Ok(Write::Applied);
        }
        let newest: Option<(i64,)> = self.sql.optional(NEWEST, |query| query.bind(name)).await?;
        Ok(Write::Refused {
            newest: newest
                .and_then(|(newest,)| u64::try_from(newest).ok())
                .unwrap_or(0),
        })
    }
}
