//! `lock-and-hincrby`: the lock only thins the traffic, the counters decide.

use crate::prelude::*;
use locks::TokenLock;

struct Node {
    lock: TokenLock,
    sale: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let lock = TokenLock::new(stand.line().clone(), stand.millis("lease_ms"));
        let sale = stand.key("sale");
        let _: bool = stand.redis("HSETNX", (&sale, "stock", stand.stock())).await?;
        Ok(Node { lock, sale, stand })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        if stand.choice("lock") == "off" {
            return self.sell(buyer).await;
        }
        let sale = stand.under_lock(&self.lock, "lock", async |_| self.sell(buyer).await);
        let outcome = sale.await?;
        if outcome == Outcome::Contended {
            stand.note("turned away by the lock");
        }
        Ok(outcome)
    }
}

impl Node {
    async fn sell(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let (stand, sale) = (&self.stand, &self.sale);
        stand.note("let through to the counter");
        let bought = format!("bought by {}", buyer.name);
        //= CURE each buyer has a counter: a second click is seen, whether the lock held or not
        if stand.redis::<i32>("HINCRBY", (sale, &bought, 1)).await? > stand.per_user_limit() {
            let _: i32 = stand.redis("HINCRBY", (sale, &bought, -1)).await?;
            return Ok(Outcome::Duplicate);
        }
        //= CURE the stock is counted in one step: right without the lock, too
        if stand.redis::<i32>("HINCRBY", (sale, "stock", -1)).await? < 0 {
            let _: i32 = stand.redis("HINCRBY", (sale, &bought, -1)).await?;
            return Ok(Outcome::SoldOut);
        }
        //= FLAW the unit is taken and the order is not written: a crash here loses the unit
        stand.crash_point("the unit is taken").await;

        stand.meet("the unit is taken").await; // only if the lock lets two in
        stand.pause().await;
        stand.work().await;

        stand.write_order(&mut stand.sql().await?, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "lock-and-hincrby",
    family: Family::RedisCounter,
    promise: Promise::everywhere(Harms::UNSOLD),
    options: &[lease_ms(2_000), wait_ms(5_000), choice("lock", &["on", "off"])],
    crash_points: &["the unit is taken"],
    demonstrations: &[
        demonstration("with-lock", Harm::Contends, Scenario::SMALL.options(&[("wait_ms", "0")])),
        demonstration("without-lock", Harm::Holds, Scenario::SMALL.options(&[OFF])),
        demonstration("lock-fails", Harm::Holds, Scenario::SMALL.buyers(12).options(OUTLIVED)),
        demonstration("crash", Harm::Undersells, Scenario::SMALL.concurrency(1).options(CRASH)),
    ],
    locks: &["token-lock"],
    ..Strategy::PLAIN
};

const OFF: (&str, &str) = ("lock", "off");
const CRASH: &[(&str, &str)] = &[("crash_at", "the unit is taken"), ("restart_ms", "0"), OFF];
const OUTLIVED: &[(&str, &str)] = &[("lease_ms", "100"), ("pause_ms", "500"), ("wait_ms", "3000")];
