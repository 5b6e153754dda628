//! 5. `row-lock`: lock the row while deciding.

use crate::{
    options::retries,
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Family, Harm, OptionKind, OptionSpec, Promise, Scenario, Strategy, Words,
    },
};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub const STRATEGY: Strategy = Strategy {
    number: 5,
    id: "row-lock",
    family: Family::Database,
    title: Words::new("SELECT ... FOR UPDATE", "悲观锁：SELECT … FOR UPDATE"),
    idea: Words::new(
        "Pessimistic: lock the row of the stock, then look, decide and write, and let the commit \
         unlock it. The row is in the one database that all servers share, so one buyer at a time, \
         wherever they come from.",
        "悲观锁：先锁住库存那一行，再查、再判断、再写，提交时自动解锁。这一行在所有服务器共用的数据库里，所以无论从哪台服务器来，一次只进一个人。",
    ),
    source: Words::new(
        "《秒杀》 (course notes), pessimistic locks; PostgreSQL manual, \"Explicit Locking\", which \
         also has the deadlock shown here.",
        "《秒杀》课程笔记“悲观锁”；PostgreSQL 手册 “Explicit Locking” 一章，这里演示的死锁也在其中。",
    ),
    fails: Words::new(
        "It never sells wrong, it is slow: every buyer, also the ten thousandth after the last \
         unit has gone, waits for the row and holds a database connection meanwhile. And as soon \
         as a purchase locks two rows, two buyers who lock them in opposite order wait for each \
         other: Postgres ends one of them with error 40P01.",
        "它从不卖错，只是慢：每个买家（哪怕货早就卖完）都要等这一行，等的时候还占着一个数据库连接。一旦一次购买要锁两行，而两个人加锁的顺序相反，就会互相等待：Postgres 会用 \
         40P01 错误杀掉其中一个。",
    ),
    break_it: Words::new(
        "lock_order=opposite makes every second buyer lock the gift before the thing. work_ms \
         shows how the line grows.",
        "lock_order=opposite 让每隔一个买家先锁赠品再锁商品。work_ms 可以看到队伍怎样变长。",
    ),
    instead: Words::new(
        "One statement that checks and writes holds the lock for the shortest time there is (8). \
         Lock several rows always in the same order, and retry after 40P01.",
        "一条语句完成判断和扣减，持锁时间最短（第 8 种）。要锁多行时永远按同一顺序，遇到 40P01 就重试。",
    ),
    promise: Promise::SOUND,
    needs: &[],
    options: &[
        OptionSpec {
            name: "lock_order",
            teaches: Words::new(
                "one-row: only the thing is locked. same: the thing, then the gift that comes with \
                 it. opposite: every second buyer locks the gift first, and two of them end in a \
                 deadlock.",
                "one-row：只锁商品。same：先锁商品，再锁赠品。opposite：每隔一个买家先锁赠品，两个人就会死锁。",
            ),
            kind: OptionKind::Choice(&["one-row", "same", "opposite"]),
        },
        retries(
            3,
            Words::new(
                "How often a purchase that was ended by a deadlock is tried again. 0: the buyer \
                 gets an error for something that was nobody's fault.",
                "被死锁杀掉的购买再试几次。0：买家会因为谁都没做错的事收到一个错误。",
            ),
        ),
    ],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Notes(DEADLOCK),
            teaches: Words::new(
                "Two buyers lock two rows in opposite order. Postgres notices after a second \
                 (deadlock_timeout) and ends one.",
                "两个买家以相反的顺序锁两行。一秒后（deadlock_timeout）Postgres 发现并杀掉其中一个。",
            ),
            scenario: Scenario {
                buyers: 2,
                concurrency: 2,
                options: &[("lock_order", "opposite")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Fails,
            teaches: Words::new(
                "The same without a second try: one of the two gets an error.",
                "同样的情形，但不重试：两人之一会收到错误。",
            ),
            scenario: Scenario {
                buyers: 2,
                concurrency: 2,
                options: &[("lock_order", "opposite"), ("retries", "0")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "Always in the same order: no deadlock.",
                "永远按同一顺序加锁：没有死锁。",
            ),
            scenario: Scenario { options: &[("lock_order", "same")], ..Scenario::SMALL },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s05_row_lock.rs"),
};

const DEADLOCK: &str = "40P01 deadlock detected";

// --- the purchase

struct Node {
    stand: Stand,
    buyers: AtomicU64,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand, buyers: AtomicU64::new(0) })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let rows: &[&str] =
            match (self.stand.choice("lock_order"), self.buyers.fetch_add(1, Relaxed) % 2) {
                ("opposite", 1) => &["gift", "thing"],
                ("opposite" | "same", _) => &["thing", "gift"],
                _ => &["thing"],
            };
        let mut tries_left = self.stand.whole("retries");
        loop {
            let mut transaction = self.stand.begin().await?;
            let outcome = self.sell(&mut transaction, buyer, rows).await;
            let outcome = transaction.end(outcome).await;
            match &outcome {
                Err(trouble) if trouble.sqlstate().as_deref() == Some("40P01") => {
                    self.stand.note(DEADLOCK)
                }
                _ => {
                    self.stand.crash_point("committed").await;
                    return outcome;
                }
            }
            if tries_left == 0 {
                return outcome;
            }
            tries_left -= 1;
        }
    }
}

impl Node {
    async fn sell(
        &self,
        transaction: &mut Transaction,
        buyer: &Buyer,
        rows: &[&str],
    ) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let mut remaining = i32::MAX;
        for row in rows {
            let left: i32 = sqlx::query_scalar(
                "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = $2 FOR UPDATE",
            )
            .bind(stand.arena())
            .bind(*row)
            .fetch_one(transaction.send())
            .await?;
            remaining = remaining.min(left);
            stand.meet("a row is locked").await; // nobody else has the same one
        }
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }
        // Under the lock: its last holder has committed.
        if stand.has_bought(transaction.send(), buyer).await? {
            return Ok(Outcome::Duplicate);
        }

        stand.pause().await;
        stand.work().await;

        sqlx::query("UPDATE lab.stock SET remaining = $3 WHERE arena = $1 AND item = ANY($2)")
            .bind(stand.arena())
            .bind(rows)
            .bind(remaining - 1)
            .execute(transaction.send())
            .await?;
        stand.crash_point("the stock is written").await;
        stand.write_order(transaction.send(), buyer).await
    }
}
