//! 4. `per-user-mutex`: one mutex for each buyer.

use crate::{
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Family, Harm, Harms, Never, Possible, Promise, Scenario, Strategy, Words,
    },
};
use dashmap::DashMap;
use std::sync::{Arc, Weak};
use tokio::sync::Mutex;

pub const STRATEGY: Strategy = Strategy {
    number: 4,
    id: "per-user-mutex",
    family: Family::InProcess,
    title: Words::new("One mutex for each buyer", "每个用户一把锁"),
    idea: Words::new(
        "\"One order per person\" is a matter between a person and their own second click. So lock \
         by user id: a thousand people do not wait for each other. The stock is another matter and \
         is guarded by a condition in the UPDATE.",
        "“一人一单”只是一个人和他自己的第二次点击之间的事，所以按用户 id 加锁：一千个人互不等待。库存是另一回事，由 UPDATE 里的条件来守。",
    ),
    source: Words::new(
        "《秒杀》 (course notes): synchronized (userId.toString().intern()), the user id as the grain \
         of the lock. Said besides: intern keeps every id for ever; here a mutex goes when nobody \
         uses it.",
        "《秒杀》课程笔记：synchronized(userId.toString().intern())，以用户 id 为锁的粒度。要补充的是：intern 会把每个 id 永远留在内\
         存；这里的锁没人用就会被回收。",
    ),
    fails: Words::new(
        "It is a lock in one process: the two clicks of one person that reach two servers hold two \
         different locks, and both find no order.",
        "它仍是进程内的锁：同一个人的两次点击落到两台服务器，拿的是两把不同的锁，两边都查到“没有订单”。",
    ),
    break_it: Words::new(
        "Set nodes to 2 or more and let buyers click twice (duplicate_share).",
        "把 nodes 设为 2 以上，并让买家连点两下（duplicate_share）。",
    ),
    instead: Words::new(
        "A unique index on buyer and sale (9): it is one lock per buyer that all servers share, \
         and it never leaks.",
        "在（买家，活动）上建唯一索引（第 9 种）：那才是所有服务器共享、永不泄漏的“每人一把锁”。",
    ),
    promise: Promise {
        one_node: Harms::NONE,
        across_nodes: Harms { oversells: Never, undersells: Never, duplicates: Possible },
    },
    needs: &[],
    options: &[],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "On one node the second click waits for the first, and finds its order.",
                "只有一个节点时，第二次点击会等第一次，然后查到订单。",
            ),
            scenario: Scenario::DOUBLE_CLICK,
        },
        Demonstration {
            shows: Harm::Duplicates,
            teaches: Words::new(
                "On two nodes the two clicks do not see each other.",
                "有两个节点时，两次点击互相看不见。",
            ),
            scenario: Scenario { nodes: 2, ..Scenario::DOUBLE_CLICK },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s04_per_user_mutex.rs"),
};

// --- the purchase

struct Node {
    stand: Stand,
    /// Weak: a mutex that nobody holds or waits for is gone.
    mutexes: DashMap<String, Weak<Mutex<()>>>,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand, mutexes: DashMap::new() })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let mutex = self.mutex_of(buyer);
        let one_click_at_a_time = mutex.lock().await;
        let mut transaction = self.stand.begin().await?;
        let outcome = self.sell(&mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        self.stand.crash_point("committed").await;
        drop(one_click_at_a_time); // after the commit
        drop(mutex);
        self.mutexes.remove_if(&buyer.name, |_, mutex| mutex.strong_count() == 0);
        outcome
    }
}

impl Node {
    fn mutex_of(&self, buyer: &Buyer) -> Arc<Mutex<()>> {
        let mut known = self.mutexes.entry(buyer.name.clone()).or_default();
        known.upgrade().unwrap_or_else(|| {
            let mutex = Arc::default();
            *known = Arc::downgrade(&mutex);
            mutex
        })
    }

    async fn sell(&self, transaction: &mut Transaction, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        if stand.has_bought(transaction.send(), buyer).await? {
            return Ok(Outcome::Duplicate);
        }

        stand.meet("there is no order yet").await; // the same buyer comes here only by another node
        stand.pause().await;
        stand.work().await;

        // The mutex does not guard the stock: a thousand buyers hold a thousand of them.
        let taken = sqlx::query(
            "UPDATE lab.stock SET remaining = remaining - 1 WHERE arena = $1 AND item = 'thing' \
             AND remaining > 0",
        )
        .bind(stand.arena())
        .execute(transaction.send())
        .await?;
        if taken.rows_affected() == 0 {
            return Ok(Outcome::SoldOut);
        }
        stand.crash_point("the stock is written").await;
        stand.write_order(transaction.send(), buyer).await
    }
}
