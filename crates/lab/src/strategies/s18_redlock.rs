//! 18. `redlock`: a majority of several independent Redis servers.

use crate::{
    options::{lease_ms, redis_node_loss, wait_ms, whole},
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening},
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Family, Harm, Harms, Need, OptionSpec, Possible, Promise, Scenario,
        Strategy, Words,
    },
};
use locks::{Lock, Redlock, wire::Line};

pub const STRATEGY: Strategy = Strategy {
    number: 18,
    id: "redlock",
    family: Family::DistributedLock,
    title: Words::new("Redlock: a majority of three Redis servers", "Redlock：三台 Redis 的多数派"),
    idea: Words::new(
        "Ask all three servers at once and hold the lock if two agree while enough of the lease is \
         left by one's own clock. One dead server does not matter; two majorities of three always \
         share a server, and that one says no.",
        "同时向三台请求，有两台同意、且按自己的时钟租约还有富余，就算拿到。死一台没关系：三台里任意两个多数派必有一台重合，那一台会说“不”。",
    ),
    source: Words::new(
        "The page \"Distributed Locks with Redis\"; weighed and rejected in 《突击Redis重大事故现场，又是“分布式锁”\
         惹的祸》 as too much effort for what it gives; attacked by Martin Kleppmann's \"How to do \
         distributed locking\". All agree on what it needs: servers that do not forget, clocks \
         that do not jump, holders that do not pause.",
        "Redis 官网“Distributed Locks with Redis”一文；《突击Redis重大事故现场，又是“分布式锁”惹的祸》权衡后认为得不偿失；Martin \
         Kleppmann 的“How to do distributed locking”对它提出批评。大家都同意它的前提：服务器不失忆，时钟不跳变，持有者不停顿。",
    ),
    fails: Words::new(
        "When the shared server comes back without its data it says yes to a second majority. A \
         holder that stands still past its lease has company as with one server. And many who try \
         at once split the votes and must all try again.",
        "重合的那台若丢了数据再回来，就会对第二个多数派说“好”。持有者停顿过了租约，和单台一样会有两个人。许多人同时抢时，选票被瓜分，谁都拿不到，只好都重来。",
    ),
    break_it: Words::new(
        "redis_node_loss=1 holds here, =2 does not; redis_nodes_down=1 is survived, =2 is not.",
        "redis_node_loss=1 守得住，=2 守不住；redis_nodes_down=1 扛得住，=2 扛不住。",
    ),
    instead: Words::new(
        "If a double sale would be costly, do not rely on any lease: fenced-lock (20), or let one \
         place decide: lua-stream (26).",
        "如果一件卖两次代价很大，就别指望任何租约：fenced-lock（第 20 种），或者只让一处说了算：lua-stream（第 26 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[Need::RedisNodes(3)],
    options: &[lease_ms(2_000), wait_ms(5_000), redis_node_loss(3), NODES_DOWN],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "One server is down, and the sale goes on.",
                "挂了一台，抢购照常。",
            ),
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("redis_nodes_down", "1")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "One server forgets: the other two still say no.",
                "一台失忆：另外两台仍然说“不”。",
            ),
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("redis_node_loss", "1"), ("pause_ms", "500")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Oversells,
            teaches: Words::new(
                "Two servers forget: there is a second majority.",
                "两台失忆：出现了第二个多数派。",
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
            shows: Harm::Fails,
            teaches: Words::new(
                "Two servers are down: there is no majority.",
                "挂了两台：凑不成多数派。",
            ),
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("redis_nodes_down", "2"), ("wait_ms", "50")],
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
    code: include_str!("s18_redlock.rs"),
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
    lock: Redlock,
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
            lock: Redlock::new(servers.clone(), stand.millis("lease_ms")),
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
