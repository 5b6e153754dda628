//! 15. `set-px-no-owner`: SET NX PX, given back by a plain DEL.

use crate::{
    options::{lease_ms, wait_ms},
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction},
    strategy::{Demonstration, Family, Harm, Harms, Possible, Promise, Scenario, Strategy, Words},
};
use locks::{Lock, SetPxNoOwner};

pub const STRATEGY: Strategy = Strategy {
    number: 15,
    id: "set-px-no-owner",
    family: Family::DistributedLock,
    title: Words::new("SET NX PX and DEL", "SET NX PX 加 DEL"),
    idea: Words::new(
        "One command creates the key together with its expiry: no crash can come in between, and \
         no clock but that of Redis counts. The holder deletes the key when done.",
        "一条命令同时建键和设过期时间：中间不可能崩溃，也只看 Redis 一家的时钟。持有者干完活就把键删掉。",
    ),
    source: Words::new(
        "The lock of 《突击Redis重大事故现场，又是“分布式锁”惹的祸》 before its incident. Taking it is right. What the \
         incident taught: the value is the same for everybody, so a late holder deletes \
         somebody else's lock.",
        "《突击Redis重大事故现场，又是“分布式锁”惹的祸》出事之前的锁。加锁没错。事故教会大家的是：所有人的值都一样，迟到的人会删掉别人的锁。",
    ),
    fails: Words::new(
        "When the work outlasts the expiry, a second buyer is inside. The first one's DEL then \
         opens the second one's lock for a third, whose lock the second deletes, and so on: from \
         then on the lock protects nobody.",
        "活没干完锁就过期，第二个人进来了。第一个人的 DEL 随后删掉第二个人的锁，放进第三个人；第二个人又删掉第三个人的……从此这把锁谁也保护不了。",
    ),
    break_it: Words::new(
        "lease_ms=100 with pause_ms=500; or, worse and lasting, work_ms longer than lease_ms.",
        "lease_ms=100 加 pause_ms=500；更糟也更持久的是让 work_ms 比 lease_ms 长。",
    ),
    instead: Words::new(
        "A value that only its maker knows, compared before it is deleted: token-lock (16).",
        "值只有自己知道，删之前先比对：token-lock（第 16 种）。",
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
            shows: Harm::Oversells,
            teaches: Words::new(
                "All work takes longer than the lease: everybody deletes the next one's lock, and \
                 the door stands open.",
                "每个人的活都比租约长：人人都在删下一个人的锁，门就一直开着。",
            ),
            scenario: Scenario {
                options: &[("lease_ms", "50"), ("work_ms", "120")],
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
    code: include_str!("s15_set_px_no_owner.rs"),
};

const HARMS: Harms = Harms { oversells: Possible, undersells: Possible, duplicates: Possible };

// --- the purchase

struct Node {
    lock: SetPxNoOwner,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let lock = SetPxNoOwner::new(stand.line().clone(), stand.millis("lease_ms"));
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
