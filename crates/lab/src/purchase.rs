//! The purchase that most locks protect.

use crate::{
    selling::{Buyer, Outcome, Trouble, Trying},
    sql::Sql,
    stand::Stand,
};

/// Reads, checks, writes back, as `naive` does: right as long as nobody comes in between.
pub async fn read_check_write(
    stand: &Stand,
    tx: &mut Sql,
    buyer: &Buyer,
) -> Result<Outcome, Trouble> {
    if stand.has_bought(tx, buyer).await? {
        return Ok(Outcome::Duplicate);
    }
    const READ: &str = "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'";
    let remaining: i32 = tx.one(READ, (stand.arena(),)).await?;
    if remaining < 1 {
        return Ok(Outcome::SoldOut);
    }

    stand.come_by("unlocked, not committed"); // this one reads what the one before has sold
    stand.interleave("the stock is read").await; // somebody else reads the same number

    const WRITE: &str = "UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'";
    tx.run(WRITE, (stand.arena(), remaining - 1)).await?;
    stand.crash_point("the stock is written").await;
    stand.write_order(tx, buyer).await
}

/// The same in a transaction of its own.
#[track_caller]
pub fn naive_sale(stand: &Stand, buyer: &Buyer) -> impl Trying<Outcome> {
    stand.in_transaction(async move |tx| read_check_write(stand, tx, buyer).await)
}
