//! 2. `process-mutex`: the same, inside one mutex of the process.

use crate::{
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Expected, Family, Harm, Harms, Never, Possible, Promise, Scenario, Strategy,
        Words,
    },
};

pub const STRATEGY: Strategy = Strategy {
    number: 2,
    id: "process-mutex",
    family: Family::InProcess,
    title: Words::new("One mutex in the process", "进程内的一把互斥锁"),
    idea: Words::new(
        "Put a mutex around read, check and write, commit, and only then unlock. One buyer at a \
         time: nobody can come in between.",
        "把“查、判断、写”整个包进一把互斥锁，先提交事务再放锁。一次只进一个买家，谁也插不进来。",
    ),
    source: Words::new(
        "《秒杀》 (course notes): synchronized around the purchase, commit before unlock, and then the \
         step from one process to a cluster, where every JVM turns out to have a lock of its own.",
        "《秒杀》课程笔记：给下单加 synchronized，先提交再释放锁；随后从单机走到集群，才发现每个 JVM 各有各的锁。",
    ),
    fails: Words::new(
        "The mutex lives in the memory of one process. Two servers have two mutexes, and the two \
         holders are exactly the two buyers that it was to keep apart. And everybody who buys \
         anything waits in one line.",
        "这把锁只存在于一个进程的内存里。两台服务器就有两把锁，两个持锁者正好就是本该隔开的那两个买家。而且不管买什么，所有人都排在同一条队里。",
    ),
    break_it: Words::new(
        "Set nodes to 3, or storm one arena from two server processes.",
        "把 nodes 设为 3，或者让两个服务进程同时卖同一个场地。",
    ),
    instead: Words::new(
        "Let what all servers share decide: the row in the database (5, 8), or a lock that all of \
         them see (11 to 20).",
        "让所有服务器共享的东西来裁决：数据库里的那一行（5、8），或一把大家都看得见的锁（11～20）。",
    ),
    promise: Promise {
        one_node: Harms::NONE,
        across_nodes: Harms { oversells: Expected, undersells: Never, duplicates: Possible },
    },
    needs: &[],
    options: &[],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new("On one node it holds.", "只有一个节点时，它是对的。"),
            scenario: Scenario::SMALL,
        },
        Demonstration {
            shows: Harm::Duplicates,
            teaches: Words::new(
                "The two clicks of one person reach two servers.",
                "同一个人的两次点击落在两台服务器上。",
            ),
            scenario: Scenario { nodes: 2, ..Scenario::DOUBLE_CLICK },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s02_process_mutex.rs"),
};

// --- the purchase

struct Node {
    stand: Stand,
    mutex: tokio::sync::Mutex<()>,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand, mutex: tokio::sync::Mutex::new(()) })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let _one_at_a_time = self.mutex.lock().await;
        let mut transaction = self.stand.begin().await?;
        let outcome = self.sell(&mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        self.stand.crash_point("committed").await;
        outcome // the mutex is released here, after the commit
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

        stand.meet("the stock is read").await; // only a buyer with another mutex can come here
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
