//! 16. `token-lock`: SET NX PX with a value that only its maker knows.

use crate::{
    options::{lease_ms, wait_ms},
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction},
    strategy::{Demonstration, Family, Harm, Harms, Possible, Promise, Scenario, Strategy, Words},
};
use locks::{Lock, TokenLock};

pub const STRATEGY: Strategy = Strategy {
    number: 16,
    id: "token-lock",
    family: Family::DistributedLock,
    title: Words::new("A lock with a token", "带令牌的锁"),
    idea: Words::new(
        "As set-px-no-owner (15), but the value is random, and a script deletes the key only if it \
         still has that value. Nobody opens another's lock, and a late holder learns of \
         it.",
        "和 set-px-no-owner（第 15 种）一样，只是值是随机的；释放时用脚本比对，值还是自己的才删。谁也删不了别人的锁，来迟的人也会知道自己来迟了。",
    ),
    source: Words::new(
        "The cure in 《突击Redis重大事故现场，又是“分布式锁”惹的祸》 and 《分布式锁的三种实现》 (compare and delete in one \
         script). The latter names the owner by host and thread, which come back after a restart; \
         a random token does not. Its four properties leave out the fifth: what if the lease ends \
         while the work goes on?",
        "《突击Redis重大事故现场，又是“分布式锁”惹的祸》和《分布式锁的三种实现》给出的解法（一段脚本里比对并删除）。后者用“主机名加线程名”标识持有者，重启后会重复；随机令牌不会。它\
         的四条性质漏了第五条：租约到了，活还没干完怎么办？",
    ),
    fails: Words::new(
        "It still ends by itself. A holder that stands still for longer than its lease (a long \
         garbage collection, a slow disk) goes on writing beside the next holder. The token makes \
         the late unlock harmless, not the late write.",
        "它照样会自动过期。持有者停顿得比租约长（漫长的 GC、慢磁盘），醒来后仍会和下一个持有者一起写。令牌让迟到的“解锁”无害，却管不了迟到的“写”。",
    ),
    break_it: Words::new(
        "lease_ms=100 with pause_ms=500. The verdict notes that the lock was gone when it was to \
         be released.",
        "lease_ms=100 加 pause_ms=500。判定里会注明：释放时锁早就没了。",
    ),
    instead: Words::new(
        "Renew the lease while the holder lives: reentrant-lock (17). Let the stock refuse a \
         writer that is late: fenced-lock (20).",
        "持有者活着就续租：reentrant-lock（第 17 种）。让库存自己拒绝迟到的人：fenced-lock（第 20 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[lease_ms(2_000), wait_ms(5_000)],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Oversells,
            teaches: Words::new(
                "The holder stands still past its lease; another buyer comes in and reads the same \
                 stock.",
                "持有者停顿到租约过期；另一个买家进来，读到同样的库存。",
            ),
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("lease_ms", "100"), ("pause_ms", "500")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Notes("the lock was gone before it was released"),
            teaches: Words::new(
                "The same pause: unlike with a plain DEL, the late holder is told that its lock is \
                 gone. It has sold already.",
                "同样的停顿：和直接 DEL 不同，迟到的持有者会得知锁已经没了。可是货已经卖出去了。",
            ),
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("lease_ms", "100"), ("pause_ms", "500")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Duplicates,
            teaches: Words::new(
                "One person clicks twice; the first click is paused past its lease, the second \
                 comes in.",
                "一个人连点两下：第一下停顿到租约过期，第二下就进来了。",
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
    code: include_str!("s16_token_lock.rs"),
};

const HARMS: Harms = Harms { oversells: Possible, undersells: Possible, duplicates: Possible };

// --- the purchase

struct Node {
    lock: TokenLock,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let lock = TokenLock::new(stand.line().clone(), stand.millis("lease_ms"));
    ready(Node { lock, name: stand.key("lock"), stand })
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
