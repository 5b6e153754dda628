//! 22. `lock-and-hincrby`: the lock only thins the traffic, the counter decides.

use crate::{
    options::{lease_ms, wait_ms},
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening},
    stand::Stand,
    strategy::{
        Demonstration, Family, Harm, Harms, Never, OptionKind, OptionSpec, Possible, Promise,
        Scenario, Strategy, Words,
    },
};
use locks::{Lock, TokenLock};
use redis::cmd;

pub const STRATEGY: Strategy = Strategy {
    number: 22,
    id: "lock-and-hincrby",
    family: Family::RedisCounter,
    title: Words::new("A lock in front of HINCRBY", "HINCRBY 前面加一把锁"),
    idea: Words::new(
        "Counters in Redis decide: one for the stock, one for each buyer. In front of them stands \
         a lock, and a buyer who does not get it soon is asked to try again. The lock may fail as \
         it likes, the counters stay right. What is it good for, then? It keeps the crowd away \
         from what comes behind.",
        "说了算的是 Redis 里的计数器：库存一个，每个买家一个。前面再放一把锁，一时拿不到的人请稍后再试。锁怎么出错都行，计数器始终是对的。那锁有什么用？把人流挡在后面的系统之外。",
    ),
    source: Words::new(
        "The end of 《突击Redis重大事故现场，又是“分布式锁”惹的祸》: is the lock needed at all, now that HINCRBY \
         decides? Yes, it says, to thin the traffic. Here that is measured instead of believed. \
         The counter of each buyer is added: the article's sale lets one person buy twice once the \
         lock has failed.",
        "《突击Redis重大事故现场，又是“分布式锁”惹的祸》的结尾：既然 HINCRBY 说了算，还要锁吗？文章说要，用来削减流量。这里不靠信念，而是测量。另外补上了每个买家的计数器：文\
         章里的做法，锁一失效，同一个人就能买两次。",
    ),
    fails: Words::new(
        "A lock for the whole sale lets one at a time through, and each winner waits for the \
         database while holding it: the sale goes on, but slowly, and most people are told to try \
         again although there is stock. A crash between counter and order loses a unit, as with \
         hincrby (21).",
        "整场抢购共用一把锁，一次只放一个人，而抢到的人还要拿着锁等数据库：抢购能进行，但很慢，大多数人明明有货却被请去重试。死在计数和写单之间会丢一件，和 hincrby（第 21 种）一\
         样。",
    ),
    break_it: Words::new(
        "Storm it with lock=on and lock=off and compare throughput, \"turned away by the lock\" \
         and \"let through to the counter\". pause_ms=500 with lease_ms=100 breaks the lock: still \
         nothing is oversold.",
        "用 lock=on 和 lock=off 各压一次，比较吞吐量、“turned away by the lock”（被锁挡下）和“let through to the \
         counter”（放到计数器）的次数。pause_ms=500 加 lease_ms=100 让锁失效：照样不超卖。",
    ),
    instead: Words::new(
        "Thin the traffic where it costs nothing: remember in each process that the stock is gone, \
         limit the rate, and decide in one script: lua-stream (26).",
        "想削减流量，就在不花钱的地方削：各进程记住“已售罄”、限流，再用一段脚本判定：lua-stream（第 26 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[lease_ms(2_000), wait_ms(5_000), LOCK],
    crash_points: &["the unit is taken"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Contends,
            teaches: Words::new(
                "What the lock buys, with it: of many who come at once, few reach the counter.",
                "加锁的效果：同时来很多人，只有少数到得了计数器。",
            ),
            scenario: Scenario { options: &[("wait_ms", "0")], ..Scenario::SMALL },
        },
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "The same without it: everybody reaches the counter, and it decides just as well.",
                "去掉锁：人人都到计数器，它照样判得对。",
            ),
            scenario: Scenario { options: &[("lock", "off")], ..Scenario::SMALL },
        },
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "The lock fails (its holder stands still past its lease), the counters do not.",
                "锁失效了（持有者停顿到租约过期），计数器没有。",
            ),
            scenario: Scenario {
                buyers: 12,
                concurrency: 12,
                options: &[("lease_ms", "100"), ("pause_ms", "500"), ("wait_ms", "3000")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "The node dies between counter and order: the unit is gone.",
                "节点死在计数和写单之间：这一件没了。",
            ),
            scenario: Scenario {
                concurrency: 1,
                options: &[("crash_at", "the unit is taken"), ("restart_ms", "0"), ("lock", "off")],
                ..Scenario::SMALL
            },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s22_lock_and_hincrby.rs"),
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };

const LOCK: OptionSpec = OptionSpec {
    name: "lock",
    teaches: Words::new(
        "on: a buyer without the lock is turned away before the counter. off: the same sale \
         without the lock; the difference is what it buys.",
        "on：没拿到锁的人到不了计数器。off：同一场抢购去掉锁；两者之差就是这把锁的价值。",
    ),
    kind: OptionKind::Choice(&["on", "off"]),
};

// --- the purchase

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
        stand.write_order(sql.send(), buyer).await
    }
}
