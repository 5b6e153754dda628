//! 29. `session-advisory-lock`: the advisory lock that a pool of connections makes leak.

use crate::{
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening},
    servers::OwnPool,
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Family, Harm, Harms, Never, Possible, Promise, Scenario, Strategy, Words,
    },
};
use locks::{Acquired, Guard, Lock, Released, SessionAdvisoryLock};
use std::time::Duration;
use tokio::sync::OnceCell;

pub const STRATEGY: Strategy = Strategy {
    number: 29,
    id: "session-advisory-lock",
    family: Family::Database,
    title: Words::new("pg_advisory_lock behind a pool", "连接池后面的 pg_advisory_lock"),
    idea: Words::new(
        "The advisory lock in its other form: taken by one call, released by another, and in \
         between it belongs to the session, that is, to the connection.",
        "咨询锁的另一种形式：一次调用加锁，另一次调用解锁，其间锁属于“会话”，也就是那条数据库连接。",
    ),
    source: Words::new(
        "PostgreSQL manual, \"Advisory Locks\": session-level locks are held until released or \
         until the session ends, and one session may take the same lock several times. What it \
         does not say: behind a pool nobody knows which session is theirs.",
        "PostgreSQL 手册 “Advisory Locks”：会话级锁持有到显式释放或会话结束，同一会话可以重复取得同一把锁。手册没说的是：在连接池后面，谁也不知道哪个会话是自己\
         的。",
    ),
    fails: Words::new(
        "The pool lends a connection for one call and takes it back. The unlock travels on another \
         one, which never had the lock and answers false: the lock stays with an idle connection, \
         and other servers wait for ever. Worse, a request that borrows the locked connection \
         takes it once more, because to Postgres that is the same session: two holders.",
        "连接池只在一次调用期间借出连接。解锁走的是另一条连接，它从没持有过锁，只会回答 false：锁留在一条闲置连接上，别的服务器永远等下去。更糟的是，谁借到那条持锁的连接，就能再次“取\
         得”锁，因为在 Postgres 看来是同一个会话：两个持有者。",
    ),
    break_it: Words::new(
        "Just storm it: the pool has two connections and lends them in turn.",
        "直接压测即可：连接池里有两条连接，轮流借出。",
    ),
    instead: Words::new(
        "The lock that belongs to the transaction (11).",
        "用属于事务的那种锁（第 11 种）。",
    ),
    promise: Promise {
        one_node: Harms { oversells: Possible, undersells: Never, duplicates: Possible },
        across_nodes: Harms { oversells: Possible, undersells: Possible, duplicates: Possible },
    },
    needs: &[],
    options: &[],
    crash_points: &["the stock is written"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Notes(LEAKED),
            teaches: Words::new(
                "One buyer after the other, and yet: lock on one connection, unlock on the other.",
                "买家一个接一个来，照样出事：在一条连接上加锁，在另一条上解锁。",
            ),
            scenario: Scenario { concurrency: 1, ..Scenario::SMALL },
        },
        Demonstration {
            shows: Harm::Oversells,
            teaches: Words::new(
                "Who asks again is lent the connection that has the lock, and walks in.",
                "再问一次的人，正好借到那条持锁的连接，于是也进来了。",
            ),
            scenario: Scenario::SMALL,
        },
        Demonstration {
            shows: Harm::Duplicates,
            teaches: Words::new(
                "Both clicks of one person walk in.",
                "同一个人的两次点击都进来了。",
            ),
            scenario: Scenario::DOUBLE_CLICK,
        },
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "Two servers, one after the other: the lock stays with the first, and every buyer \
                 of the second is turned away.",
                "两台服务器，依次购买：锁留在第一台上，第二台的买家全被拒之门外。",
            ),
            scenario: Scenario { nodes: 2, stock: 6, buyers: 6, concurrency: 1, ..Scenario::SMALL },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s29_session_advisory_lock.rs"),
};

const LEAKED: &str = "the unlock reached another session";

// --- the purchase

/// Longer than the first holder waits to be met: on one node nobody is turned away.
const ACQUIRE_TIMEOUT: Duration = Duration::from_millis(2_500);

struct Node {
    stand: Stand,
    /// Of this node alone, as a server of its own would have.
    own: OwnPool,
    warm: OnceCell<()>,
    lock: SessionAdvisoryLock,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let own = stand.own_pool(2)?;
        let lock = SessionAdvisoryLock::new(stand.wire_to(own.pool.clone()));
        let warm = OnceCell::new();
        Ok(Node { stand, own, warm, lock })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        self.warm_up().await?;
        let Acquired::Held(guard) =
            self.lock.acquire(&self.stand.key("stock"), ACQUIRE_TIMEOUT).await?
        else {
            return Ok(Outcome::Contended);
        };
        let mut transaction = self.stand.begin().await?;
        let outcome = self.sell(&mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        if guard.release().await? == Released::NotHeld {
            self.stand.note(LEAKED);
        }
        outcome
    }

    async fn close(&self) {
        self.own.pool.close().await; // and with the sessions whatever they still hold
    }
}

impl Node {
    /// Both connections of the pool are there, as in any server that has run for a while.
    async fn warm_up(&self) -> Result<(), Trouble> {
        // By one buyer, before any other is let in: two of them, each with one connection in hand,
        // would wait for each other.
        let both = async || {
            tokio::try_join!(self.own.pool.acquire(), self.own.pool.acquire())?;
            Ok(())
        };
        self.warm.get_or_try_init(both).await.map(|_| ())
    }

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

        stand.meet("the stock is read").await; // with the holder of "the same session"
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
