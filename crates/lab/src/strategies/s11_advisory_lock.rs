//! 11. `advisory-lock`: a lock that Postgres keeps for a transaction.

use crate::{
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, new_order_id},
    strategy::{Demonstration, Family, Harm, Promise, Scenario, Strategy, Words},
};
use locks::{Acquired, AdvisoryLock, Guard, Lock, advisory::AdvisoryGuard};
use std::time::Duration;

pub const STRATEGY: Strategy = Strategy {
    number: 11,
    id: "advisory-lock",
    family: Family::Database,
    title: Words::new("pg_advisory_xact_lock", "咨询锁：pg_advisory_xact_lock"),
    idea: Words::new(
        "A lock with a name and no row: Postgres keeps it for the transaction that took it, and \
         the commit releases it in the same step. The naive purchase inside, and nobody can come \
         in between.",
        "一把有名字、没有行的锁：Postgres 把它记在取得它的事务名下，提交的同时释放。里面还是最简单的三步，谁也插不进来。",
    ),
    source: Words::new(
        "PostgreSQL manual, \"Advisory Locks\". The articles on distributed locks leave this one \
         out, although every database has it.",
        "PostgreSQL 手册 “Advisory Locks” 一节。讲分布式锁的文章几乎都漏掉了它，而只要有数据库就有它。",
    ),
    fails: Words::new(
        "It does not sell wrong. Everybody who waits holds a connection, as with the row lock (5). \
         And it belongs to one database: a work that writes anywhere else is not protected by it \
         after the connection is lost.",
        "它不会卖错。和行锁（第 5 种）一样，每个等待的人都占着一个连接。而且它只属于这个数据库：要是还往别处写，连接一断就不再受保护。",
    ),
    break_it: Words::new(
        "This one cannot be broken here; its cousin that belongs to a session can (29). work_ms \
         shows the line.",
        "这种在这里打不破；属于“会话”的那种可以（第 29 种）。work_ms 可以看到排队。",
    ),
    instead: Words::new(
        "A conditional update needs no lock at all (8). An advisory lock is for work that has no \
         row to lock.",
        "带条件的扣减根本不需要锁（第 8 种）。咨询锁适合那些没有行可锁的工作。",
    ),
    promise: Promise::SOUND,
    needs: &[],
    options: &[],
    crash_points: &["the order is written"],
    demonstrations: &[Demonstration {
        shows: Harm::Holds,
        teaches: Words::new(
            "A holder dies on one of three nodes: its connection ends, and the lock with it.",
            "三个节点之一的持锁者崩溃：连接断开，锁也随之消失。",
        ),
        scenario: Scenario {
            nodes: 3,
            options: &[("crash_at", "the order is written"), ("crash_node", "1")],
            ..Scenario::SMALL
        },
    }],
    routes_by_buyer: false,
    code: include_str!("s11_advisory_lock.rs"),
};

// --- the purchase

/// Longer than a purchase may take: who waits that long has no answer. "Contended" would be one,
/// and nobody undersells here.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(60);

struct Node {
    stand: Stand,
    lock: AdvisoryLock,
}

pub fn open(stand: Stand) -> Opening {
    let lock = AdvisoryLock::new(stand.wire_to_postgres());
    ready(Node { stand, lock })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let Acquired::Held(guard) =
            self.lock.acquire(&self.stand.key("stock"), ACQUIRE_TIMEOUT).await?
        else {
            return Ok(Outcome::Contended);
        };
        let outcome = self.sell(&guard, buyer).await;
        if matches!(outcome, Ok(Outcome::Sold { .. })) {
            let _freed = guard.release().await?; // commits: the sale and the unlock are one step
        } else {
            let _freed = guard.roll_back().await?;
        }
        outcome
    }
}

impl Node {
    async fn sell(&self, guard: &AdvisoryGuard, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let mut transaction = guard.transaction().await?; // the one that has the lock
        let (orders, remaining): (i64, i32) = transaction
            .optional(
                "SELECT (SELECT count(*) FROM lab.orders WHERE arena = $1 AND buyer = $2), remaining
                 FROM lab.stock WHERE arena = $1 AND item = 'thing'",
                |query| query.bind(stand.arena().to_owned()).bind(buyer.name.clone()),
            )
            .await?
            .ok_or_else(|| Trouble::Other("there is no stock".to_owned()))?;
        if orders >= i64::from(stand.per_user_limit()) {
            return Ok(Outcome::Duplicate);
        }
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }

        stand.meet("the stock is read").await; // nobody else has the lock
        stand.pause().await;
        stand.work().await;

        transaction
            .execute(
                "UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'",
                |query| query.bind(stand.arena().to_owned()).bind(remaining - 1),
            )
            .await?;
        let order_id = new_order_id();
        transaction
            .execute("INSERT INTO lab.orders (id, arena, buyer) VALUES ($1, $2, $3)", |query| {
                query.bind(order_id.clone()).bind(stand.arena().to_owned()).bind(buyer.name.clone())
            })
            .await?;
        stand.crash_point("the order is written").await;
        Ok(Outcome::Sold { order_id })
    }
}
