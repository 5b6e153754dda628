//! 14. `setnx-getset`: the time of expiry is the value, and GETSET decides who takes an expired
//!     lock.

use crate::{
    options::{lease_ms, wait_ms, whole},
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Family, Harm, Harms, OptionSpec, Possible, Promise, Scenario, Strategy,
        Words,
    },
};
use locks::{Lock, SetnxGetset, wire::Clock};

pub const STRATEGY: Strategy = Strategy {
    number: 14,
    id: "setnx-getset",
    family: Family::DistributedLock,
    title: Words::new("SETNX and GETSET", "SETNX 加 GETSET"),
    idea: Words::new(
        "Write into the key when the lock ends, by the holder's clock. A client that finds that \
         time passed replaces it with GETSET, which hands the old value to exactly one of them: \
         who reads the time that they saw expire has the lock. No crash can leave a lock for ever.",
        "把“锁到几点结束”（按持有者的时钟）写进键里。谁发现时间已过，就用 GETSET 换上自己的；旧值只会被一个人读到：读到的正是自己看见过期的那个值，锁就是他的。怎么崩溃都不会留下永\
         久的锁。",
    ),
    source: Words::new(
        "《详解使用Redis SETNX 命令实现分布式锁》, after the page of the SETNX command. Right: DEL and SETNX on \
         an expired lock lets two in, GETSET does not. It calls the loser's overwrite harmless, \
         and does not say that all clocks must agree, that equal times cannot be told apart, and \
         that its release checks first and deletes later.",
        "《详解使用Redis SETNX 命令实现分布式锁》，源自 SETNX 命令的官方页面。对的是：锁过期后用 DEL 加 SETNX 会放进两个人，GETSET 不会。但它说失败者的\
         覆盖无害，也没说所有时钟必须一致、时间戳相同就分不清、释放时是先检查后删除。",
    ),
    fails: Words::new(
        "A server whose clock is fast sees a living lock as expired and takes it. Work that \
         outlasts its time has company, as with every lock that ends by itself. And who lost at \
         GETSET has overwritten the holder's time.",
        "时钟快的服务器会把还活着的锁当成过期的抢走。活干得比时限长，里面就会有两个人，凡是会自动过期的锁都如此。抢 GETSET 失败的人还改写了持有者的时间。",
    ),
    break_it: Words::new(
        "clock_skew_ms=5000 on three nodes; or lease_ms=100 with pause_ms=500.",
        "三个节点、clock_skew_ms=5000；或者 lease_ms=100 加 pause_ms=500。",
    ),
    instead: Words::new(
        "Let one clock decide, that of Redis: set-px-no-owner (15), token-lock (16).",
        "只听一个时钟的，就是 Redis 的：set-px-no-owner（第 15 种）、token-lock（第 16 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[lease_ms(2_000), wait_ms(5_000), CLOCK_SKEW_MS],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Oversells,
            teaches: Words::new(
                "Three servers whose clocks are 5 s apart: to the fast one every lock is long \
                 expired.",
                "三台服务器的时钟各差 5 秒：在最快的那台看来，所有锁都早已过期。",
            ),
            // Enough units that the fast one, from whom nobody can take it, does not sell them all;
            // and time enough to wait for it.
            scenario: Scenario {
                nodes: 3,
                stock: 8,
                buyers: 32,
                concurrency: 32,
                options: &[("clock_skew_ms", "5000"), ("wait_ms", "10000")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Oversells,
            teaches: Words::new(
                "The holder stands still past its time; another one takes over and reads the same \
                 stock.",
                "持有者停顿到时限之后；另一个人接管了锁，读到同样的库存。",
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
                "One person clicks twice; the first click is paused past its time, the second \
                 takes over.",
                "一个人连点两下：第一下停顿超时，第二下接管了锁。",
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
    code: include_str!("s14_setnx_getset.rs"),
};

const HARMS: Harms = Harms { oversells: Possible, undersells: Possible, duplicates: Possible };

const CLOCK_SKEW_MS: OptionSpec = whole(
    "clock_skew_ms",
    (0, 0, 60_000),
    Words::new(
        "By how much each server's clock is ahead of that of the server before it. A lock whose \
         end is told by its users' clocks is only as good as these agree.",
        "每台服务器的时钟比前一台快多少。锁何时结束由各自的时钟说了算，时钟不一致，锁就不可靠。",
    ),
);

// --- the purchase

struct Node {
    lock: SetnxGetset,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let clock = Clock::default();
    clock.set_offset_ms(stand.whole("clock_skew_ms") * i64::from(stand.node()));
    let lock = SetnxGetset::new(stand.line().clone(), stand.millis("lease_ms"), clock);
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
