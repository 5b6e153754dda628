//! 17. `reentrant-lock`: one owner many times, woken by a message, renewed while it lives.

use crate::{
    options::{lease_ms, redis_node_loss, wait_ms},
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction},
    strategy::{Demonstration, Family, Harm, Harms, Possible, Promise, Scenario, Strategy, Words},
};
use locks::{Lock, ReentrantLock};

pub const STRATEGY: Strategy = Strategy {
    number: 17,
    id: "reentrant-lock",
    family: Family::DistributedLock,
    title: Words::new("A reentrant lock with a watchdog", "可重入锁加看门狗"),
    idea: Words::new(
        "A hash says who holds the lock and how often, so that an owner may take it again inside. \
         Waiters subscribe and are woken when it is freed, instead of polling. A \
         watchdog renews the lease every third of it for as long as the holder lives: slow work \
         does not lose the lock, a dead holder does.",
        "用哈希记下谁拿着锁、拿了几次，同一个人可以在里面再拿一次。等锁的人订阅消息，锁一放就被叫醒，不必反复去问。持有者只要活着，看门狗每过三分之一租约就续一次：干得慢不会丢锁，死了才\
         会。",
    ),
    source: Words::new(
        "Redisson's lock as the course notes 《秒杀》 take it apart: the scripts, the waiting by \
         publish and subscribe, the watchdog. The notes stop where it works; they do not say that \
         a lost reply counts twice, that a message can be missed between trying and subscribing, \
         or that a renewal is no proof against a Redis that forgets.",
        "课程笔记《秒杀》拆解的 Redisson 锁：几段脚本、用发布订阅来等待、看门狗。笔记讲到“能用”为止；没说回答丢了会多记一次，没说在“尝试”和“订阅”之间会漏掉消息，也没说 \
         Redis 失忆时续租毫无用处。",
    ),
    fails: Words::new(
        "Redis may lose the key: a restart without its data, a failover to a replica that never \
         heard of the lock. The next buyer comes in, and although the watchdog notices within a \
         third of the lease, the holder may have written by then. A watchdog is also a promise to \
         wait for ever for a holder that hangs.",
        "Redis 可能弄丢这个键：重启没恢复数据，或切换到没收到过这把锁的从库。下一个买家就进来了；看门狗虽然在三分之一租约内会发现，可那时也许已经写下去了。看门狗还意味着：持有者若是卡\
         死，大家就永远等下去。",
    ),
    break_it: Words::new(
        "pause_ms=600 with lease_ms=200 holds, thanks to the watchdog; with redis_node_loss=1 \
         besides it oversells.",
        "pause_ms=600 加 lease_ms=200，靠看门狗仍然守得住；再加上 redis_node_loss=1 就超卖。",
    ),
    instead: Words::new(
        "No single Redis to forget it: multi-lock and redlock (18). No trust in any lock: \
         fenced-lock (20).",
        "不把锁放在一台 Redis 上：multi-lock 和 redlock（第 18 种）。干脆不信任锁：fenced-lock（第 20 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[lease_ms(2_000), wait_ms(5_000), redis_node_loss(1)],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "The holder takes three times its lease, and the watchdog keeps the lock for it.",
                "持有者花了三倍租约的时间，看门狗一直替它续着。",
            ),
            scenario: Scenario {
                stock: 2,
                buyers: 4,
                concurrency: 4,
                options: &[("lease_ms", "800"), ("pause_ms", "2000")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Oversells,
            teaches: Words::new(
                "Redis forgets the lock while the first buyer is inside.",
                "第一个买家还在里面，Redis 把锁忘了。",
            ),
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("redis_node_loss", "1"), ("pause_ms", "600"), ("lease_ms", "200")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Duplicates,
            teaches: Words::new(
                "One person clicks twice, and Redis forgets the first click's lock.",
                "一个人连点两下，Redis 忘了第一下的锁。",
            ),
            scenario: Scenario {
                options: &[("redis_node_loss", "1"), ("pause_ms", "600"), ("lease_ms", "200")],
                ..Scenario::DOUBLE_CLICK
            },
        },
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "With wait_ms=0 everybody tries once: a buyer who finds the lock held leaves, and \
                 units are left over.",
                "wait_ms=0 时人人只试一次：碰上门关着就走，货却剩下了。",
            ),
            scenario: Scenario {
                stock: 5,
                buyers: 5,
                concurrency: 5,
                options: &[("wait_ms", "0")],
                ..Scenario::SMALL
            },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s17_reentrant_lock.rs"),
};

const HARMS: Harms = Harms { oversells: Possible, undersells: Possible, duplicates: Possible };

// --- the purchase

struct Node {
    lock: ReentrantLock,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let lock = ReentrantLock::new(stand.line().clone(), stand.millis("lease_ms")).renewed();
    ready(Node { lock, name: stand.key("lock"), stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let wait = stand.millis("wait_ms");
        // Every purchase is an owner of its own, as every thread is in Redisson.
        let lock = self.lock.another_owner();
        let acquired = lock.acquire(&self.name, wait).await?;
        let Some(guard) = acquired.held() else {
            return Ok(Outcome::Contended);
        };
        let mut transaction = stand.begin().await?;
        let outcome = self.sell(&mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        stand.crash_point("committed").await; // the lock is not given back: its lease has to end it
        stand.release(guard).await;
        outcome
    }
}

impl Node {
    async fn sell(&self, transaction: &mut Transaction, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        if stand.has_bought(transaction.send(), buyer).await? {
            return Ok(Outcome::Duplicate);
        }
        let remaining: i32 = sqlx::query_scalar(
            "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'",
        )
        .bind(stand.arena())
        .fetch_one(transaction.send())
        .await?;
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }

        stand.meet("the stock is read").await; // only if the lock lets two in
        stand.redis_node_loss(std::slice::from_ref(stand.line()), &self.name).await;
        stand.pause().await;
        stand.work().await;

        sqlx::query("UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'")
            .bind(stand.arena())
            .bind(remaining - 1)
            .execute(transaction.send())
            .await?;
        stand.crash_point("the stock is written").await;
        stand.write_order(transaction.send(), buyer).await
    }
}
