//! `hincrby`: the stock is a hash field, and Redis counts it down.

use crate::prelude::*;
use locks::wire::Line;
use redis::cmd;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

struct Node {
    redis: Line,
    key: String,
    failing: AtomicI64,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let (redis, key) = (stand.line().clone(), stand.key("sale"));
        let mut install = cmd("HSETNX");
        let install = install.arg(&key).arg("stock").arg(stand.stock());
        let _: bool = redis.send(install).await?;
        Ok(Node { redis, key, failing: AtomicI64::new(stand.whole("failing_orders")), stand })
    })
}

impl Node {
    async fn count(&self, by: i64) -> Result<i64, Trouble> {
        let mut command = cmd("HINCRBY");
        let command = command.arg(&self.key).arg("stock").arg(by);
        Ok(self.redis.send(command).await?)
    }
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        if self.count(-1).await? < 0 {
            stand.note("the counter went below zero"); // and stays there
            return Ok(Outcome::SoldOut);
        }
        stand.crash_point("the unit is taken").await;

        if self.failing.fetch_sub(1, Relaxed) > 0 {
            stand.pause().await; // the payment takes its time
            self.count(1).await?;
            return Err(Trouble::Other("this order was to fail".to_owned()));
        }
        stand.meet("the unit is taken").await;
        stand.work().await;

        let mut sql = stand.sql().await?;
        stand.write_order(&mut sql, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "hincrby",
    family: Family::RedisCounter,
    promise: Promise::everywhere(HARMS),
    options: &[FAILING_ORDERS],
    crash_points: &["the unit is taken"],
    demonstrations: &[
        Demonstration {
            id: "notes",
            shows: Harm::Notes("the counter went below zero"),
            scenario: Scenario::SMALL,
        },
        Demonstration {
            id: "undersells",
            shows: Harm::Undersells,
            scenario: Scenario {
                options: &[("failing_orders", "1"), ("pause_ms", "500")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "duplicates",
            shows: Harm::Duplicates,
            scenario: Scenario::DOUBLE_CLICK,
        },
    ],
    ..Strategy::PLAIN
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Possible };

const FAILING_ORDERS: OptionSpec = whole("failing_orders", (0, 0, 100));
