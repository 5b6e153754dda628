//! Fencing, the resource's side of a lock: refuses writers with an older number than a known one.
//!
//! Source: Martin Kleppmann, "How to do distributed locking". No lock can stop a holder that pauses
//! and goes on later; only the resource can refuse it.
//!
//! ```text
//! Redis     KEY  hash: newest (the highest number seen), value
//! Postgres  lab.fenced  name (key) · newest · value   made by the lab's migrations
//! ```
//!
//! Crashes: the number is stored in the same step as the value. Numbers must grow from holder to
//! holder and never be forgotten. A Redis that lost its data counts from one again, and the
//! resource refuses all writers until the numbers have caught up, which is safe for the data.

use super::prelude::*;

static WRITE: LuaScript = lua!("fenced_write.lua");

/// The answer to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Write {
    /// It is written.
    Applied,
    /// A holder with this newer number has written.
    Refused { newest: u64 },
}

impl Line {
    pub async fn write_fenced(&self, key: &str, fencing: u64, value: &str) -> Answer<Write> {
        let call = WRITE.on(&[key]).arg(fencing).arg(value);
        let (applied, newest) = self.ask(&call).await?;
        Ok(if applied { Write::Applied } else { Write::Refused { newest } })
    }
}

impl Sql {
    /// One statement: compared and written under the row's own lock.
    pub async fn write_fenced(&self, name: &str, fencing: u64, value: &str) -> Answer<Write> {
        const WRITE: &str = "
            INSERT INTO lab.fenced AS resource (name, newest, value) VALUES ($1, $2, $3)
            ON CONFLICT (name) DO UPDATE SET newest = $2, value = $3 WHERE resource.newest <= $2";
        const NEWEST: &str = "SELECT newest FROM lab.fenced WHERE name = $1";
        // A bigint holds no newer number.
        let number = i64::try_from(fencing).unwrap_or(i64::MAX);
        //= CURE the row refuses a number that is older than the one it has seen
        let written = self.run(WRITE, (name, number, value)).await?;
        if written > 0 {
            return Ok(Write::Applied);
        }
        let newest = self.row::<(i64,)>(NEWEST, (name,)).await?;
        Ok(Write::Refused { newest: newest.map_or(0, |(newest,)| newest.unsigned_abs()) })
    }
}
