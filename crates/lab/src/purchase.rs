//! The purchase that most locks protect.

use crate::selling::{Buyer, Outcome, Result, Trying};
use crate::{bench::Bench, sql::Sql};

/// Reads, checks, writes back, as `naive` does: right as long as nobody comes in between.
pub async fn read_check_write(bench: &Bench, tx: &mut Sql, buyer: &Buyer) -> Result<Outcome> {
    if bench.has_bought(tx, buyer).await? {
        return Ok(Outcome::Duplicate);
    }
    const READ: &str = "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'";
    let remaining: i32 = tx.one(READ, (bench.arena(),)).await?;
    if remaining < 1 {
        return Ok(Outcome::SoldOut);
    }

    bench.resume_waiting("unlocked, not committed"); // this one reads what the one before has sold
    bench.interleave("the stock is read").await; // somebody else reads the same number

    const WRITE: &str = "UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'";
    tx.run(WRITE, (bench.arena(), remaining - 1)).await?;
    bench.crash_point("the stock is written").await;
    bench.write_order(tx, buyer).await
}

/// Reads, checks and writes in a transaction of its own.
#[track_caller]
pub fn naive_sale(bench: &Bench, buyer: &Buyer) -> impl Trying<Outcome> {
    bench.in_transaction(async move |tx| read_check_write(bench, tx, buyer).await)
}
