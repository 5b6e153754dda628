//! `lock-and-hincrby`: the lock only thins the traffic, the counters decide.

use crate::prelude::*;
use locks::TokenLock;

pub struct Node {
    lock: TokenLock,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    let lock = TokenLock::new(bench.line.clone(), bench.millis("lease_ms"));
    let _: bool = bench.redis("HSETNX", (bench.key("sale"), "stock", bench.stock())).await?;
    Ok(Node { lock })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let sell = || sell(bench, buyer);
        if bench.choice("lock") == "off" {
            return sell().await;
        }
        //= FLAW a buyer who waits in vain for the lock leaves, although there is stock
        let outcome = bench.under_lock(&self.lock, async |_| sell().await).await?;
        if outcome == Outcome::Contended {
            bench.note("turned away by the lock");
        }
        Ok(outcome)
    }
}

async fn sell(bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
    bench.note("let through to the counter");
    let (sale, bought) = (bench.key("sale"), format!("bought by {}", buyer.name));
    //= CURE each buyer has a counter: a second click is seen, whether the lock held or not
    if bench.redis::<i32>("HINCRBY", (&sale, &bought, 1)).await? > bench.per_user_limit() {
        let _: i32 = bench.redis("HINCRBY", (&sale, &bought, -1)).await?;
        return Ok(Outcome::Duplicate);
    }
    //= CURE the stock is counted in one step: right without the lock, too
    if bench.redis::<i32>("HINCRBY", (&sale, "stock", -1)).await? < 0 {
        let _: i32 = bench.redis("HINCRBY", (&sale, &bought, -1)).await?;
        return Ok(Outcome::SoldOut);
    }
    bench.crash_point("the unit is taken").await;
    bench.interleave("the unit is taken").await; // only if the lock lets two in

    //= FLAW the unit is taken, the order is another step: a crash before it loses the unit
    bench.write_order(&mut bench.sql().await?, buyer).await
}

pub const STRATEGY: Strategy = Strategy {
    id: "lock-and-hincrby",
    options: &[LEASE_MS, WAIT_MS, choice("lock", &["on", "off"])],
    demonstrations: &[
        show("with-lock", Contends, SMALL.options(&[("wait_ms", "0")])).at(1),
        show("without-lock", Holds, SMALL.options(&[OFF])).at(3),
        show("lock-fails", Holds, SMALL.buyers(12).options(OUTLIVED)).at(3),
        show("crash", Undersells, ONE_BY_ONE.options(CRASH)).at(4),
    ],
    locks: &["token-lock"],
    ..COUNTER_STRATEGY
};

const OFF: (&str, &str) = ("lock", "off");
const CRASH: &[(&str, &str)] = &[("crash_at", "the unit is taken"), ("restart_ms", "0"), OFF];
const OUTLIVED: &[(&str, &str)] =
    &[("lease_ms", "1000"), ("pause_ms", "2000"), ("wait_ms", "20000")];
