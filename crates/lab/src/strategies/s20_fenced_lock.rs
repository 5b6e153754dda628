//! 20. `fenced-lock`: any lock, and the stock refuses late writers.

use crate::{
    options::{lease_ms, redis_node_loss, wait_ms},
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::Stand,
    strategy::{
        Demonstration, Family, Harm, Harms, Never, Possible, Promise, Scenario, Strategy, Words,
    },
};
use locks::{Guard, Lock, TokenLock};

pub const STRATEGY: Strategy = Strategy {
    number: 20,
    id: "fenced-lock",
    family: Family::DistributedLock,
    title: Words::new("A lock whose holders are numbered", "带编号的锁：库存拒绝迟到者"),
    idea: Words::new(
        "The lock gives each holder a higher number than the one before. The stock remembers the \
         highest it has seen and refuses everybody with a lower one. So it does not matter whether \
         two believe to hold the lock: only the newest can write.",
        "锁给每个持有者一个比前一个更大的编号。库存记住见过的最大编号，编号更小的一律拒绝。于是有没有两个人以为自己拿着锁都无所谓：只有最新的那个写得进去。",
    ),
    source: Words::new(
        "Martin Kleppmann, \"How to do distributed locking\". None of the articles has it: 《分布式锁的三种\
         实现》 lists four properties of a lock, and this fifth one does not belong to the lock at \
         all but to what it protects. Easy to get wrong: if only the writing is fenced, a newer \
         holder may read before an older one writes, and one sale is overwritten. Here reading \
         raises the fence as well.",
        "Martin Kleppmann 的“How to do distributed locking”。几篇文章都没提到：《分布式锁的三种实现》列了锁的四条性质，而这第五条根本不属于\
         锁，属于被保护的资源。它也容易做错：如果只在写的时候检查编号，新持有者可能在旧持有者写之前就读了，于是一次售出被覆盖。这里连读也会抬高门槛。",
    ),
    fails: Words::new(
        "It costs one more write for each purchase. The number must never go back: a Redis that \
         comes back without its data counts from one again, and everybody is refused until the \
         numbers have caught up. That is the right side to fail on. And what cannot compare \
         numbers (a mail, a payment) cannot be fenced.",
        "每次购买多写一次。编号绝不能倒退：Redis 丢了数据会从 1 重新数，在追上之前人人都被拒绝。宁可这样失败。还有，不会比较编号的东西（发邮件、付款）没法这样防护。",
    ),
    break_it: Words::new(
        "lease_ms=100 with pause_ms=500, or redis_node_loss=1: two hold the lock, one is refused.",
        "lease_ms=100 加 pause_ms=500，或 redis_node_loss=1：两个人拿着锁，其中一个被拒绝。",
    ),
    instead: Words::new(
        "If the stock can compare numbers, it can count as well, and needs no lock: \
         conditional-update (8).",
        "库存既然会比较编号，也就会自己数数，根本不需要锁：conditional-update（第 8 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[lease_ms(2_000), wait_ms(5_000), redis_node_loss(1)],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "The holder stands still past its lease, another one sells, and the late one is \
                 refused.",
                "持有者停顿到租约过期，另一个人卖掉了，迟到的那个被拒绝。",
            ),
            scenario: Scenario {
                options: &[("lease_ms", "100"), ("pause_ms", "500")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Notes("an older fencing token was refused"),
            teaches: Words::new(
                "The same, with two buyers: the refusal is counted.",
                "同样的情形，两个买家：拒绝被记录下来。",
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
            shows: Harm::Holds,
            teaches: Words::new(
                "Redis forgets the lock and its numbers while the first buyer is inside.",
                "第一个买家还在里面，Redis 把锁和编号都忘了。",
            ),
            scenario: Scenario {
                options: &[("redis_node_loss", "1"), ("pause_ms", "400")],
                ..Scenario::SMALL
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
    code: include_str!("s20_fenced_lock.rs"),
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };

// --- the purchase

struct Node {
    lock: TokenLock,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let lock = TokenLock::new(stand.line().clone(), stand.millis("lease_ms")).fenced();
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
        let token = guard.fencing().and_then(|token| i64::try_from(token).ok());
        let token = token.ok_or_else(|| Trouble::Other("a lock without a number".to_owned()))?;
        let outcome = self.sell(token, buyer).await;
        stand.crash_point("committed").await; // the lock is not given back: its lease has to end it
        stand.release(guard).await;
        outcome
    }
}

impl Node {
    async fn sell(&self, token: i64, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let mut sql = stand.sql().await?;
        // Reading is fenced, too: from here on nobody with an older number can write, so what is
        // read now is true until we write, or until somebody with a newer number comes.
        let remaining: Option<i32> = sqlx::query_scalar(
            "UPDATE lab.stock SET fence = $2 WHERE arena = $1 AND item = 'thing' AND fence < $2
             RETURNING remaining",
        )
        .bind(stand.arena())
        .bind(token)
        .fetch_optional(sql.send())
        .await?;
        let Some(remaining) = remaining else {
            return Ok(self.too_late());
        };
        if stand.has_bought(sql.send(), buyer).await? {
            return Ok(Outcome::Duplicate);
        }
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }
        drop(sql); // held over a pause it would keep others from writing

        stand.meet("the stock is read").await; // only if the lock lets two in
        stand.redis_node_loss(std::slice::from_ref(stand.line()), &self.name).await;
        stand.pause().await;
        stand.work().await;

        let mut transaction = stand.begin().await?;
        let written = sqlx::query(
            "UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing' AND fence = \
             $3",
        )
        .bind(stand.arena())
        .bind(remaining - 1)
        .bind(token)
        .execute(transaction.send())
        .await?;
        if written.rows_affected() == 0 {
            transaction.rollback().await?;
            return Ok(self.too_late());
        }
        stand.crash_point("the stock is written").await;
        let outcome = stand.write_order(transaction.send(), buyer).await;
        transaction.end(outcome).await
    }

    fn too_late(&self) -> Outcome {
        self.stand.note("an older fencing token was refused");
        Outcome::Contended
    }
}
