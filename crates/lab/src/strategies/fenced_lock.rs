//! `fenced-lock`: the lock numbers its holders, and the stock refuses an older number.

use crate::prelude::*;
use locks::{Guard, TokenLock};

struct Node {
    lock: TokenLock,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let redis = stand.lock_line().await?;
        let lock = TokenLock::new(redis, stand.millis("lease_ms")).fenced();
        Ok(Node { lock, stand })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        //= FLAW a buyer who waits for it in vain leaves, although there is stock
        let sale = stand.under_lock(&self.lock, "lock", async |guard| {
            stand.lose_redis().await?;
            let number = guard.fencing().and_then(|number| i64::try_from(number).ok());
            let outcome = self.sell(number.unwrap_or(0), buyer).await;
            if matches!(outcome, Ok(Outcome::Contended)) {
                stand.note(REFUSED);
            }
            stand.crash_point("committed").await; // the lock stays until its lease is over
            outcome
        });
        sale.await
    }
}

impl Node {
    async fn sell(&self, number: i64, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let mut sql = stand.sql().await?;
        const READ: &str = "UPDATE lab.stock SET fence = $2
            WHERE arena = $1 AND item = 'thing' AND fence < $2 RETURNING remaining";
        //= CURE reading raises the fence: nobody with an older number can write from here on
        let Some(remaining) = sql.maybe::<i32>(READ, (stand.arena(), number)).await? else {
            return Ok(Outcome::Contended);
        };
        if stand.has_bought(&mut sql, buyer).await? {
            return Ok(Outcome::Duplicate);
        }
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }
        drop(sql); // held over a pause it would keep others from writing

        stand.meet("the stock is read").await; // only if the lock lets two in
        stand.pause().await;
        stand.work().await;

        let sale = stand.in_transaction(async |tx| {
            const WRITE: &str = "UPDATE lab.stock SET remaining = $2
                WHERE arena = $1 AND item = 'thing' AND fence = $3";
            //= CURE the stock refuses a holder that is not the newest, whatever it believes
            if tx.run(WRITE, (stand.arena(), remaining - 1, number)).await? == 0 {
                return Ok(Outcome::Contended);
            }
            stand.crash_point("the stock is written").await;
            stand.write_order(tx, buyer).await
        });
        sale.await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "fenced-lock",
    family: Family::DistributedLock,
    promise: Promise::everywhere(Harms::UNSOLD),
    options: &[lease_ms(2_000), wait_ms(5_000), redis_node_loss(1)],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        demonstration("paused", Harm::Holds, Scenario::SMALL.options(PAUSED)),
        demonstration("refused", Harm::Notes(REFUSED), Scenario::ONE_UNIT.options(PAUSED)),
        demonstration("redis-forgets", Harm::Holds, Scenario::SMALL.options(FORGOTTEN)),
        demonstration("impatient", Harm::Undersells, Scenario::IMPATIENT),
    ],
    ..Strategy::PLAIN
};

const PAUSED: &[(&str, &str)] = &[("lease_ms", "100"), ("pause_ms", "500")];
const FORGOTTEN: &[(&str, &str)] = &[("redis_node_loss", "1")];
const REFUSED: &str = "an older fencing token was refused";
