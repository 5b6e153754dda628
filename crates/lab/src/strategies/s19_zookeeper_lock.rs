//! 19. `zookeeper-lock`: a queue of ephemeral nodes.

use crate::{
    options::wait_ms,
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening},
    servers::Servers,
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Family, Harm, Harms, Need, OptionKind, OptionSpec, Possible, Promise,
        Scenario, Strategy, Words,
    },
};
use locks::{
    Lock, ZooKeeperLock,
    zookeeper::{Zoo, ZooKeeperGuard},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::AcqRel},
    },
    time::Duration,
};

pub const STRATEGY: Strategy = Strategy {
    number: 19,
    id: "zookeeper-lock",
    family: Family::DistributedLock,
    title: Words::new("A queue in ZooKeeper", "ZooKeeper 排队锁"),
    idea: Words::new(
        "Everybody creates a numbered node that lives only as long as their session. The lowest \
         number has the lock; each other one watches the node before it and is woken when that \
         goes: first come, first served, and no herd. There is no lease to choose: the session \
         lives as long as its client answers.",
        "每个人建一个带序号的临时节点，会话在节点就在。序号最小的拿锁；其他人只盯着自己前面那个节点，它一消失就被叫醒：先来先得，也不会一窝蜂。不用挑租约时长：客户端还在应答，会话就活着。",
    ),
    source: Words::new(
        "The first of 《分布式锁的三种实现》, and ZooKeeper's own recipe. Its praise (no lease to guess, a \
         fair queue, an agreement of several servers) is deserved. What it leaves out: a session \
         is a lease too, kept by heartbeats, and ends while its holder is paused.",
        "《分布式锁的三种实现》中的第一种，也是 ZooKeeper 官方的做法。优点名副其实：不用猜租约，排队公平，由多台服务器共同决定。漏掉的是：会话也是一种租约，靠心跳维持，持有者停顿\
         时同样会结束。",
    ),
    fails: Words::new(
        "A client that stands still for longer than its session timeout has lost the lock without \
         knowing. A create whose answer is lost leaves a node that its maker does not know; the \
         lock here finds it by a unique name. And every purchase costs several round trips to \
         ZooKeeper, each of them agreed by its servers.",
        "客户端停顿超过会话超时，锁已经丢了自己却不知道。创建节点的回答若丢了，会留下连创建者都不认识的节点；这里靠唯一的名字把它找回来。而且每次购买都要和 ZooKeeper 往返好几次，\
         每次都要服务器们达成一致。",
    ),
    break_it: Words::new("session_loss=on with pause_ms=400.", "session_loss=on 加 pause_ms=400。"),
    instead: Words::new(
        "Use the number of the node's transaction (czxid) as a fencing token: fenced-lock (20) \
         shows how.",
        "用节点的事务号（czxid）当防护令牌：做法见 fenced-lock（第 20 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[Need::ZooKeeper],
    options: &[wait_ms(5_000), SESSION_LOSS],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Oversells,
            teaches: Words::new(
                "The holder's session ends while it is paused: its node goes, and the next one is \
                 woken.",
                "持有者停顿时会话结束：它的节点消失，下一个人被叫醒。",
            ),
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("session_loss", "on"), ("pause_ms", "600")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Duplicates,
            teaches: Words::new(
                "One person clicks twice, and the first click's session ends meanwhile.",
                "一个人连点两下，其间第一下的会话结束了。",
            ),
            scenario: Scenario {
                options: &[("session_loss", "on"), ("pause_ms", "600")],
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
    code: include_str!("s19_zookeeper_lock.rs"),
};

const HARMS: Harms = Harms { oversells: Possible, undersells: Possible, duplicates: Possible };

/// How long ZooKeeper waits for a sign of life.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

const SESSION_LOSS: OptionSpec = OptionSpec {
    name: "session_loss",
    teaches: Words::new(
        "on: the first holder's session ends while it is inside, as after a pause of its process \
         or a cut of its network for longer than the session timeout.",
        "on：第一个持有者还在里面时，它的会话结束了，好比进程停顿或断网超过了会话超时。",
    ),
    kind: OptionKind::Choice(&["off", "on"]),
};

// --- the purchase

struct Node {
    lock: ZooKeeperLock,
    /// ZooKeeper's own view of its sessions, for the lab to end one.
    servers: Arc<Servers>,
    lost: AtomicBool,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let servers = stand.servers().clone();
        let zoo = Zoo::new(&stand.zookeeper().await?, SESSION_TIMEOUT);
        let zoo = zoo.of(&format!("node-{}", stand.node())).counted_by(&stand.meter().wires);
        Ok(Node {
            lock: ZooKeeperLock::new(zoo),
            servers,
            lost: AtomicBool::new(false),
            name: stand.arena().to_owned(),
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
        let outcome = self.sell(&guard, &mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        stand.crash_point("committed").await; // the lock is not given back: its lease has to end it
        stand.release(guard).await;
        outcome
    }
}

impl Node {
    async fn sell(
        &self,
        guard: &ZooKeeperGuard,
        transaction: &mut Transaction,
        buyer: &Buyer,
    ) -> Result<Outcome, Trouble> {
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
        self.lose_session(guard).await;
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

    /// As ZooKeeper does when it has not heard of a session for too long: its nodes are removed.
    async fn lose_session(&self, guard: &ZooKeeperGuard) {
        if self.stand.choice("session_loss") == "off" || self.lost.swap(true, AcqRel) {
            return;
        }
        self.stand.note(match self.servers.remove_zookeeper_node(guard.path()).await {
            Ok(()) => "the holder's session ended",
            Err(_) => "zookeeper did not answer",
        });
    }
}
