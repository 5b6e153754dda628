//! `lock-and-hincrby`: the lock only thins the traffic, the counter decides.

use crate::prelude::*;
use locks::{Lock, TokenLock};
use redis::cmd;

struct Node {
    lock: TokenLock,
    name: String,
    sale: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let lock = TokenLock::new(stand.line().clone(), stand.millis("lease_ms"));
        let (name, sale) = (stand.key("lock"), stand.key("sale"));
        let mut install = cmd("HSETNX");
        let install = install.arg(&sale).arg("stock").arg(stand.stock());
        let _: bool = stand.line().send(install).await?;
        Ok(Node { lock, name, sale, stand })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let guard = if stand.choice("lock") == "on" {
            let acquired = self.lock.acquire(&self.name, stand.millis("wait_ms")).await?;
            let Some(guard) = acquired.held() else {
                stand.note("turned away by the lock");
                return Ok(Outcome::Contended);
            };
            Some(guard)
        } else {
            None
        };
        stand.note("let through to the counter");
        let outcome = self.sell(buyer).await;
        if let Some(guard) = guard {
            stand.release(guard).await; // whether it was still ours does not matter
        }
        outcome
    }
}

impl Node {
    async fn count(&self, field: &str, by: i64) -> Result<i64, Trouble> {
        let mut command = cmd("HINCRBY");
        let command = command.arg(&self.sale).arg(field).arg(by);
        Ok(self.stand.line().send(command).await?)
    }

    async fn sell(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let of_buyer = format!("bought by {}", buyer.name);
        if self.count(&of_buyer, 1).await? > i64::from(stand.per_user_limit()) {
            self.count(&of_buyer, -1).await?;
            return Ok(Outcome::Duplicate);
        }
        if self.count("stock", -1).await? < 0 {
            self.count(&of_buyer, -1).await?;
            return Ok(Outcome::SoldOut);
        }
        stand.crash_point("the unit is taken").await;

        stand.meet("the unit is taken").await; // only if the lock lets two in
        stand.pause().await;
        stand.work().await;

        let mut sql = stand.sql().await?;
        stand.write_order(&mut sql, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "lock-and-hincrby",
    family: Family::RedisCounter,
    promise: Promise::everywhere(HARMS),
    options: &[lease_ms(2_000), wait_ms(5_000), LOCK],
    crash_points: &["the unit is taken"],
    demonstrations: &[
        Demonstration {
            id: "contends",
            shows: Harm::Contends,
            scenario: Scenario { options: &[("wait_ms", "0")], ..Scenario::SMALL },
        },
        Demonstration {
            id: "holds",
            shows: Harm::Holds,
            scenario: Scenario { options: &[("lock", "off")], ..Scenario::SMALL },
        },
        Demonstration {
            id: "holds-2",
            shows: Harm::Holds,
            scenario: Scenario {
                buyers: 12,
                concurrency: 12,
                options: &[("lease_ms", "100"), ("pause_ms", "500"), ("wait_ms", "3000")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "undersells",
            shows: Harm::Undersells,
            scenario: Scenario {
                concurrency: 1,
                options: &[("crash_at", "the unit is taken"), ("restart_ms", "0"), ("lock", "off")],
                ..Scenario::SMALL
            },
        },
    ],
    ..Strategy::PLAIN
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };

const LOCK: OptionSpec =
    OptionSpec { name: "lock", kind: crate::strategy::OptionKind::Choice(&["on", "off"]) };
