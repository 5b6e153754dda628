//! 21. `hincrby`: the stock is a hash field, and Redis counts it down.

use crate::{
    options::whole,
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening},
    stand::Stand,
    strategy::{
        Demonstration, Family, Harm, Harms, Never, OptionSpec, Possible, Promise, Scenario,
        Strategy, Words,
    },
};
use locks::wire::Line;
use redis::cmd;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

pub const STRATEGY: Strategy = Strategy {
    number: 21,
    id: "hincrby",
    family: Family::RedisCounter,
    title: Words::new("HINCRBY -1", "HINCRBY 减一"),
    idea: Words::new(
        "Do not read, check and write: subtract, and look at what comes out. Redis executes one \
         command at a time, so of a hundred buyers exactly one sees each number. Who sees less \
         than zero is refused.",
        "不要“先查、再判断、后写”，而是直接减一，再看减完的结果。Redis 一次只执行一条命令，一百个买家看到的数各不相同；谁看到负数，谁就没抢到。",
    ),
    source: Words::new(
        "《突击Redis重大事故现场，又是“分布式锁”惹的祸》 cures its incident with it, rightly: check-then-decrement \
         becomes one atomic step. It does not say that the counter goes below zero and that a unit \
         given back down there is gone, nor that nothing stops a second order of the same person.",
        "《突击Redis重大事故现场，又是“分布式锁”惹的祸》用它来治事故，治对了：“先判断再扣减”变成一步原子操作。但文章没说：计数器会减成负数，这时退回来的库存就再也找不回来；也没说同\
         一个人可以买两次。",
    ),
    fails: Words::new(
        "Every refused buyer pulls the counter further below zero. When a payment fails and its \
         unit is given back, -20 becomes -19, and nobody can buy it. A node that dies between the \
         counter and the order takes the unit along. And one person who clicks twice has two \
         orders.",
        "每个没抢到的人都把计数器再往负里拉一格。支付失败退回一件时，-20 变成 -19，谁也买不到这一件。节点若在“减一”和“写订单”之间死掉，这一件也没了。同一个人连点两下，就有两个订\
         单。",
    ),
    break_it: Words::new(
        "failing_orders=1 with pause_ms=500: the first order fails late and gives its unit back to \
         a counter that is below zero by then. Or let somebody click twice.",
        "failing_orders=1 加 pause_ms=500：第一单过一会儿才失败，退货时计数器早已是负数。或者让一个人连点两下。",
    ),
    instead: Words::new(
        "A script that looks before it subtracts, and knows the buyer: lua-sync (23).",
        "用脚本先看再减，并且认得买家：lua-sync（第 23 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[FAILING_ORDERS],
    crash_points: &["the unit is taken"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Notes("the counter went below zero"),
            teaches: Words::new(
                "25 people want 5 units: the counter ends at -20.",
                "25 个人抢 5 件：计数器最后是 -20。",
            ),
            scenario: Scenario::SMALL,
        },
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "One order fails and gives its unit back when the counter is below zero: the unit \
                 is never sold.",
                "一单失败后退货，可计数器已是负数：这一件永远卖不出去。",
            ),
            scenario: Scenario {
                options: &[("failing_orders", "1"), ("pause_ms", "500")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Duplicates,
            teaches: Words::new(
                "One person clicks twice and has two: the counter knows numbers, not people.",
                "一个人连点两下，买到两件：计数器只认数，不认人。",
            ),
            scenario: Scenario::DOUBLE_CLICK,
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s21_hincrby.rs"),
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Possible };

const FAILING_ORDERS: OptionSpec = whole(
    "failing_orders",
    (0, 0, 100),
    Words::new(
        "So many orders cannot be written, as when a payment fails; each gives its unit back with \
         HINCRBY +1.",
        "有这么多单写不进去（好比支付失败），各自用 HINCRBY +1 把库存退回来。",
    ),
);

// --- the purchase

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
        stand.write_order(sql.send(), buyer).await
    }
}
