//! 3. `mutex-unlock-before-commit`: the mutex inside the transaction.

use crate::{
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Expected, Family, Harm, Harms, Never, Possible, Promise, Scenario, Strategy,
        Words,
    },
};

pub const STRATEGY: Strategy = Strategy {
    number: 3,
    id: "mutex-unlock-before-commit",
    family: Family::InProcess,
    title: Words::new("Unlocked before the commit", "先放锁，后提交"),
    idea: Words::new(
        "The same mutex, but taken and released inside the transaction: what one gets by putting a \
         lock into a method that a framework has wrapped in a transaction.",
        "还是那把锁，只是加锁和放锁都在事务里面：给一个被框架包上事务的方法加锁，得到的就是这种代码。",
    ),
    source: Words::new(
        "《秒杀》 (course notes): synchronized inside a @Transactional method; the notes say why the \
         lock has to go around the transaction and not into it.",
        "《秒杀》课程笔记：synchronized 写在 @Transactional 方法里面；笔记解释了为什么锁必须套在事务外面。",
    ),
    fails: Words::new(
        "Between unlock and commit the next buyer reads a stock that the one before has already \
         sold: what is not committed is not visible. The gap is short, so tests pass and \
         production oversells.",
        "放锁之后、提交之前，下一个买家读到的还是旧库存：没提交的数据别人看不见。这个空档很短，所以测试能过，上线就超卖。",
    ),
    break_it: Words::new(
        "Just storm it: the unlocker waits before its commit until another client has read.",
        "直接压测即可：放了锁的人会在提交前等一下，直到有人读过库存。",
    ),
    instead: Words::new(
        "Commit, then unlock (2). Better: no lock, one conditional statement (8).",
        "先提交，再放锁（第 2 种）。更好的办法：不用锁，一条带条件的语句（第 8 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[],
    crash_points: &["unlocked"],
    demonstrations: &[Demonstration {
        shows: Harm::Duplicates,
        teaches: Words::new(
            "One person clicks twice: the second click looks before the first order is committed.",
            "同一个人连点两下：第二次点击查询时，第一个订单还没提交。",
        ),
        scenario: Scenario::DOUBLE_CLICK,
    }],
    routes_by_buyer: false,
    code: include_str!("s03_mutex_unlock_before_commit.rs"),
};

const HARMS: Harms = Harms { oversells: Expected, undersells: Never, duplicates: Possible };

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
        let mut transaction = self.stand.begin().await?;
        let one_at_a_time = self.mutex.lock().await;
        let outcome = self.sell(&mut transaction, buyer).await;
        drop(one_at_a_time); // too early: nobody else can see the order yet
        self.stand.crash_point("unlocked").await;
        if matches!(outcome, Ok(Outcome::Sold { .. })) {
            self.stand.meet("unlocked and not committed").await;
        }
        transaction.end(outcome).await
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

        stand.come_by("unlocked and not committed"); // has read what the one before has sold
        stand.pause().await;
        stand.work().await;

        sqlx::query("UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'")
            .bind(stand.arena())
            .bind(remaining - 1)
            .execute(transaction.send())
            .await?;
        stand.write_order(transaction.send(), buyer).await
    }
}
