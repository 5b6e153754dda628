//! 18. `multi-lock`: all of several independent Redis servers.

use crate::{
    options::{lease_ms, redis_node_loss, wait_ms, whole},
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening},
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Family, Harm, Harms, Need, OptionSpec, Possible, Promise, Scenario,
        Strategy, Words,
    },
};
use locks::{Lock, MultiLock, wire::Line};

pub const STRATEGY: Strategy = Strategy {
    number: 18,
    id: "multi-lock",
    family: Family::DistributedLock,
    title: Words::new("A lock on all of three Redis servers", "三台 Redis 全部加锁"),
    idea: Words::new(
        "Take the same lock on three Redis servers that know nothing of each other, in order, and \
         hold it only if all three agree. No failover can forget it, because there is nothing to \
         fail over to: as long as one of the three remembers, nobody else gets in.",
        "在三台互不相干的 Redis 上依次加同一把锁，三台都成功才算拿到。不会因为主从切换而失忆，因为根本没有主从：只要三台里还有一台记得，别人就进不来。",
    ),
    source: Words::new(
        "Redisson's multi-lock in the course notes 《秒杀》, as the cure for a replica that never saw \
         the lock. Right as far as forgetting goes. The notes do not dwell on the price: one dead \
         server and nobody can buy anything.",
        "课程笔记《秒杀》里 Redisson 的 multiLock，用来治“从库没收到锁”。就“失忆”而言治对了。笔记没细说代价：只要死一台，谁也别想买。",
    ),
    fails: Words::new(
        "With one of the servers down nobody gets the lock. It still ends by itself on all of \
         them, so a holder that stands still for too long has company. And there is no fencing \
         token: numbers of independent servers cannot be compared.",
        "任何一台挂掉，谁都拿不到锁。它在每台上照样会自动过期，持有者停顿太久，里面就会有两个人。也没有防护令牌：互相独立的服务器发的号没法比大小。",
    ),
    break_it: Words::new(
        "redis_node_loss=2 holds, redis_node_loss=3 does not; redis_nodes_down=1 stops the sale; \
         lease_ms=100 with pause_ms=500 lets two in.",
        "redis_node_loss=2 守得住，=3 守不住；redis_nodes_down=1 抢购停摆；lease_ms=100 加 pause_ms=500 会放进两个人。",
    ),
    instead: Words::new(
        "A majority instead of all, to survive a dead server: redlock (18). A resource that \
         refuses late writers: fenced-lock (20).",
        "要能容忍一台挂掉，就用多数派：redlock（第 18 种）。要对付迟到的人，就让资源自己拒绝：fenced-lock（第 20 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[Need::RedisNodes(3)],
    options: &[lease_ms(2_000), wait_ms(5_000), redis_node_loss(3), NODES_DOWN],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "Two of three servers forget the lock; the third remembers, and nobody gets in.",
                "三台忘了两台，剩下一台还记得，谁也进不来。",
            ),
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("redis_node_loss", "2"), ("pause_ms", "500")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Oversells,
            teaches: Words::new("All three forget it.", "三台全忘了。"),
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("redis_node_loss", "3"), ("pause_ms", "500")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Fails,
            teaches: Words::new(
                "One server is down: nobody can have all three.",
                "一台挂了：谁也凑不齐三台。",
            ),
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("redis_nodes_down", "1"), ("wait_ms", "50")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Duplicates,
            teaches: Words::new(
                "One person clicks twice; the first click is paused past its lease.",
                "一个人连点两下；第一下停顿到租约过期。",
            ),
            scenario: Scenario {
                options: &[("lease_ms", "100"), ("pause_ms", "500")],
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
    code: include_str!("s18_multi_lock.rs"),
};

const HARMS: Harms = Harms { oversells: Possible, undersells: Possible, duplicates: Possible };

const NODES_DOWN: OptionSpec = whole(
    "redis_nodes_down",
    (0, 0, 3),
    Words::new(
        "So many of the three lock servers cannot be reached at all. multi-lock needs all of them, \
         redlock two.",
        "三台锁服务器中有这么多台完全连不上。multi-lock 三台都要，redlock 要两台。",
    ),
);

// --- the purchase

/// How many independent Redis servers the lock is spread over.
const SERVERS: usize = 3;

struct Node {
    lock: MultiLock,
    servers: Vec<Line>,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let mut servers = stand.lines(SERVERS).await?;
        let down = usize::try_from(stand.whole("redis_nodes_down")).unwrap_or(0);
        for server in servers.iter_mut().rev().take(down) {
            *server = Line::new("redis+unix:///dev/null/nobody")?.to("a dead server");
        }
        Ok(Node {
            lock: MultiLock::new(servers.clone(), stand.millis("lease_ms")),
            servers,
            name: stand.key("lock"),
            stand,
        })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let wait = stand.millis("wait_ms");
        let acquired = self.lock.acquire(&self.name, wait).await?;
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
        stand.redis_node_loss(&self.servers, &self.name).await;
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
