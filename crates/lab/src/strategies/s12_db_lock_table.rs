//! 12. `db-lock-table`: a lock as a row, with owner, expiry and version.

use crate::{
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Family, Harm, OptionKind, OptionSpec, Promise, Scenario, Strategy, Words,
    },
};
use locks::{Acquired, Guard, Lock, TableLock};
use std::time::Duration;

pub const STRATEGY: Strategy = Strategy {
    number: 12,
    id: "db-lock-table",
    family: Family::Database,
    title: Words::new("A lock as a row", "用一行数据当锁"),
    idea: Words::new(
        "A table of locks: the client that inserts the row, or takes over an expired one, holds \
         the lock until it expires. The version counts the holders. And because lock and stock are \
         in one database, the transaction that writes the stock can look whether the lock is still \
         its own.",
        "一张锁表：谁插入那一行（或接管已过期的行），谁就持锁到过期为止；版本号记录换了几任持锁者。因为锁和库存在同一个数据库里，写库存的事务可以顺便确认锁还是不是自己的。",
    ),
    source: Words::new(
        "《分布式锁的三种实现》, the database lock. Added here: an owner, an expiry by the database's own \
         clock, and the look before the commit, without which a holder that overslept still \
         writes.",
        "《分布式锁的三种实现》中的数据库锁。这里补上了：持有者、以数据库时钟计的过期时间，以及提交前的确认——没有它，睡过头的持锁者照样会写。",
    ),
    fails: Words::new(
        "It holds, and it is the slowest of all: three writes that have to reach the disk for one \
         sale, and everybody else asks again and again.",
        "它不会卖错，但最慢：卖一件要三次落盘的写，其他人还得反复来问。",
    ),
    break_it: Words::new(
        "pause_ms longer than lease_ms: the holder oversleeps, another one takes over, and the \
         first one's transaction finds out before it writes.",
        "让 pause_ms 大于 lease_ms：持锁者睡过头，锁被别人接管，而第一个人的事务在写之前就会发现。",
    ),
    instead: Words::new(
        "SELECT ... FOR UPDATE on the stock itself (5): the same wait, without lease, owner and \
         polling.",
        "直接对库存行 SELECT … FOR UPDATE（第 5 种）：同样是等，却不需要租期、持有者和轮询。",
    ),
    promise: Promise::SOUND,
    needs: &[],
    options: &[OptionSpec {
        name: "lease_ms",
        teaches: Words::new(
            "After how long the lock of a holder that has died is free again. Too short, and the \
             living lose it; too long, and everybody waits for the dead.",
            "持锁者死后多久锁才空出来。太短，活人也会丢锁；太长，所有人都在等一个死人。",
        ),
        kind: OptionKind::Whole { default: 2_000, min: 20, max: 30_000 },
    }],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Notes(LOST),
            teaches: Words::new(
                "The holder sleeps for 200 ms with a lease of 50 ms: it finds that the lock has \
                 gone, writes nothing and tries again.",
                "租期 50 毫秒，持锁者却睡了 200 毫秒：它发现锁已不在，什么也不写，重新再来。",
            ),
            scenario: Scenario {
                options: &[("lease_ms", "50"), ("pause_ms", "200")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new("And nothing is sold twice.", "并且没有一件卖重。"),
            scenario: Scenario {
                nodes: 3,
                options: &[("lease_ms", "50"), ("pause_ms", "200")],
                ..Scenario::SMALL
            },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s12_db_lock_table.rs"),
};

const LOST: &str = "the lease was over before the write";

// --- the purchase

/// Longer than a purchase may take: who waits that long has no answer, and must not be told that
/// trying again is all there is to it. "Contended" would be an answer, and nobody undersells here.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(60);

struct Node {
    stand: Stand,
    lock: TableLock,
}

pub fn open(stand: Stand) -> Opening {
    let lock = TableLock::new(stand.wire_to_postgres(), stand.millis("lease_ms"));
    ready(Node { stand, lock })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let name = self.stand.key("stock");
        loop {
            let Acquired::Held(guard) = self.lock.acquire(&name, ACQUIRE_TIMEOUT).await? else {
                return Ok(Outcome::Contended);
            };
            let mut transaction = self.stand.begin().await?;
            let outcome = self.sell(&mut transaction, buyer, &name, guard.fencing()).await;
            let outcome = transaction.end(outcome).await;
            self.stand.crash_point("committed").await;
            let _freed_or_lost = guard.release().await?;
            match outcome? {
                Outcome::Contended => self.stand.note(LOST), // and again
                outcome => return Ok(outcome),
            }
        }
    }
}

impl Node {
    async fn sell(
        &self,
        transaction: &mut Transaction,
        buyer: &Buyer,
        lock: &str,
        version: Option<u64>,
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

        stand.meet("the stock is read").await; // only the client that took the lock over comes here
        stand.pause().await;
        stand.work().await;

        // Still ours? FOR SHARE keeps it so until the commit: nobody can take the row over
        // meanwhile.
        let ours = sqlx::query(
            "SELECT FROM lab.locks WHERE name = $1 AND version = $2 AND expires_at > \
             clock_timestamp() FOR SHARE",
        )
        .bind(lock)
        .bind(i64::try_from(version.unwrap_or(0)).unwrap_or(i64::MAX))
        .fetch_optional(transaction.send())
        .await?;
        if ours.is_none() {
            return Ok(Outcome::Contended);
        }
        sqlx::query("UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'")
            .bind(stand.arena())
            .bind(remaining - 1)
            .execute(transaction.send())
            .await?;
        stand.crash_point("the stock is written").await;
        stand.write_order(transaction.send(), buyer).await
    }
}
