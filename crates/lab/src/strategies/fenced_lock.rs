//! `fenced-lock`: the lock numbers its holders, and the stock refuses an older number.

use crate::prelude::*;
use locks::TokenLock;

pub struct Node {
    lock: TokenLock,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    let redis = bench.lock_line().await?;
    Ok(Node { lock: TokenLock::new(redis, bench.millis("lease_ms")).fenced() })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW a buyer who waits in vain for the lock leaves, although there is stock
        let sale = bench.under_lock(&self.lock, async |guard| {
            let number = guard.fencing().and_then(|number| i64::try_from(number).ok());
            sell(bench, number.unwrap_or(0), buyer).await
        });
        sale.await
    }
}

async fn sell(bench: &Bench, number: i64, buyer: &Buyer) -> Result<Outcome> {
    let mut sql = bench.sql().await?;
    const READ: &str = "UPDATE lab.stock SET fence = $2
        WHERE arena = $1 AND item = 'thing' AND fence < $2 RETURNING remaining";
    //= CURE reading raises the fence: an older number, or the same again, is refused from here on
    let Some(remaining) = sql.maybe::<i32>(READ, (bench.arena(), number)).await? else {
        bench.note(REFUSED);
        return Ok(Outcome::Contended);
    };
    if bench.has_bought(&mut sql, buyer).await? {
        return Ok(Outcome::Duplicate);
    }
    if remaining < 1 {
        return Ok(Outcome::SoldOut);
    }
    drop(sql); // it would keep others from writing

    bench.interleave("the stock is read").await; // only if the lock lets two in

    let sale = bench.in_transaction(async |tx| {
        const WRITE: &str = "UPDATE lab.stock SET remaining = $2
            WHERE arena = $1 AND item = 'thing' AND fence = $3";
        //= CURE the stock refuses a holder that is not the newest, whatever it believes
        if tx.run(WRITE, (bench.arena(), remaining - 1, number)).await? == 0 {
            bench.note(REFUSED);
            return Ok(Outcome::Contended);
        }
        bench.crash_point("the stock is written").await;
        bench.write_order(tx, buyer).await
    });
    sale.await
}

pub const STRATEGY: Strategy = Strategy {
    id: "fenced-lock",
    family: Family::DistributedLock,
    promise: Promise::everywhere(Harms::UNSOLD),
    options: &[LEASE_MS, WAIT_MS, redis_node_loss(1)],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        show("paused", Holds, SMALL.options(OUTLIVED)).at(3),
        show("refused", Notes(REFUSED), ONE_UNIT.options(OUTLIVED)).at(3),
        show("redis-forgets", Holds, SMALL.options(FORGOTTEN)).at(2),
        show("impatient", Undersells, IMPATIENT).at(1),
    ],
    ..Strategy::PLAIN
};

const OUTLIVED: &[(&str, &str)] =
    &[("lease_ms", "1500"), ("pause_ms", "2500"), ("wait_ms", "20000")];
const FORGOTTEN: &[(&str, &str)] = &[("redis_node_loss", "1"), ("wait_ms", "20000")];
const REFUSED: &str = "an older fencing token was refused";
